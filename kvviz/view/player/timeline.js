// Draws the totals over all events: the first two of the model's series as areas, the third as a line, marks, the peak of
// the second, the cursor.
// Its inks are neutral: colour on the map means an owner, and must mean nothing else beneath it.

import { SANS, round, say } from "./draw.js";
import { formatCount } from "./format.js";

export const TIMELINE_HEIGHT = 118;
const TOP = 20, BOTTOM = 16; // px: marks above the plot, the axis below

export class Timeline {
  /** @param {any} model  n, pos, series, marks, peak */
  constructor(model) {
    this.model = model;
    [this.base, this.from] = model.meta.base; // what the foot of the scale stands for, and how it reads; 0: an ordinary scale
    this.most = 1;
    for (const { values } of model.series) for (let i = 0; i < values.length; i++) this.most = Math.max(this.most, values[i]);
  }

  /** Draw all that the cursor does not change, once, to a canvas of its own. */
  layout(width, T, dpr) {
    this.width = width;
    this.T = T;
    this.dpr = dpr;
    const back = (this.back = document.createElement("canvas"));
    back.width = Math.round(width * dpr);
    back.height = TIMELINE_HEIGHT * dpr;
    const g = back.getContext("2d");
    g.scale(dpr, dpr);
    const [first, second, third] = this.model.series.map((s) => this.outline(s.values));
    const bottom = TIMELINE_HEIGHT - BOTTOM;
    this.area(g, first, T.back);
    this.area(g, second, T.front);
    g.strokeStyle = T.grid;
    g.lineWidth = 1;
    g.beginPath();
    for (const y of [TOP, (TOP + bottom) / 2, bottom]) {
      g.moveTo(0, Math.round(y) + 0.5);
      g.lineTo(width, Math.round(y) + 0.5);
    }
    g.stroke();
    this.line(g, third, T.line);
    this.axis(g, bottom);
    this.ticks(g, bottom);
  }

  /** Height of the curve at each device pixel: the largest value in it, so that no peak is lost. */
  outline(values) {
    const { model: { n }, width, dpr } = this, columns = Math.max(1, Math.round(width * dpr));
    const scale = (TIMELINE_HEIGHT - TOP - BOTTOM) / (this.most - this.base), out = new Float64Array(columns);
    for (let c = 0; c < columns; c++) {
      const from = Math.floor((c / columns) * (n + 1));
      const to = Math.max(from + 1, Math.floor(((c + 1) / columns) * (n + 1)));
      let most = 0;
      for (let i = from; i < to; i++) if (values[i] > most) most = values[i];
      out[c] = TIMELINE_HEIGHT - BOTTOM - (most - this.base) * scale;
    }
    return out;
  }

  area(g, outline, ink) {
    g.fillStyle = ink;
    g.beginPath();
    g.moveTo(0, TIMELINE_HEIGHT - BOTTOM);
    outline.forEach((y, c) => {
      g.lineTo(c / this.dpr, y);
      g.lineTo((c + 1) / this.dpr, y);
    });
    g.lineTo(this.width, TIMELINE_HEIGHT - BOTTOM);
    g.fill();
  }

  line(g, outline, ink) {
    g.strokeStyle = ink;
    g.lineWidth = 1;
    g.beginPath();
    outline.forEach((y, c) => g.lineTo((c + 0.5) / this.dpr, y));
    g.stroke();
  }

  axis(g, bottom) {
    const { T, width, model: { n } } = this;
    say(g, `${formatCount(n)} event${n === 1 ? "" : "s"}`, width, bottom + 9, T.muted, `11px ${SANS}`, "right");
    say(g, "0", 0, bottom + 9, T.muted, `11px ${SANS}`);
  }

  /** What the full height and the foot stand for: on patches, so that no curve runs through them, beside the cursor. */
  drawScale(g) {
    if (this.most === 1) return; // there was never anything
    const { T, model } = this, foot = TIMELINE_HEIGHT - BOTTOM, cursor = this.x(model.pos);
    g.font = `11px ${SANS}`;
    const patch = (text, left, y) => {
      const w = g.measureText(text).width + 10, x = cursor > left - 7 && cursor < left + w + 7 ? cursor + 7 : left;
      g.fillStyle = T.paper;
      round(g, x, y, w, 17, 4);
      g.fill();
      say(g, text, x + 5, y + 9, T.muted, g.font);
    };
    patch(model.series[0].format(this.most), 4, TOP + 5);
    if (!this.base) return;
    patch(`from ${this.from}`, 15, foot - 21);
    const slope = (y) => (g.moveTo(0, foot - y), g.lineTo(11, foot - y - 6));
    g.beginPath(); // the mark of an axis that does not start at zero
    slope(5);
    g.strokeStyle = T.paper;
    g.lineWidth = 4;
    g.stroke();
    g.beginPath();
    slope(3);
    slope(7);
    g.strokeStyle = T.muted;
    g.lineWidth = 1;
    g.stroke();
  }

  /** @returns {string} for those who do not see the picture */
  words() {
    return this.base ? `; the scale starts at ${this.from}` : "";
  }

  /** The peak first, then marks in order; a label that would touch another is left out, its tick stays. */
  ticks(g, bottom) {
    const { T, model, width } = this, taken = [];
    const place = (text, x) => {
      const w = g.measureText(text).width, left = Math.min(Math.max(0, x - w / 2), width - w);
      if (taken.some(([a, b]) => left < b + 8 && left + w > a - 8)) return;
      taken.push([left, left + w]);
      g.fillText(text, left, 11);
    };
    g.font = `600 11px ${SANS}`;
    g.textAlign = "left";
    g.textBaseline = "alphabetic";
    g.fillStyle = T.text;
    if (model.n) {
      const x = this.x(model.peak);
      g.beginPath();
      g.moveTo(x - 4, 14);
      g.lineTo(x + 4, 14);
      g.lineTo(x, 20);
      g.fill();
      const { values, format } = model.series[1];
      place(`peak ${format(values[model.peak])}`, x);
    }
    g.font = `11px ${SANS}`;
    g.fillStyle = T.muted;
    g.strokeStyle = T.muted;
    g.lineWidth = 1;
    for (const [event, name] of model.marks) {
      const x = Math.min(Math.round(this.x(event)) + 0.5, width - 0.5);
      g.beginPath();
      g.moveTo(x, 14);
      g.lineTo(x, bottom);
      g.setLineDash([2, 3]);
      g.stroke();
      g.setLineDash([]);
      place(name, x);
    }
  }

  x(event) {
    return this.model.n ? (event / this.model.n) * this.width : 0;
  }

  /** @param {number} x px @returns {number} the event there */
  eventAt(x) {
    return Math.round(Math.min(1, Math.max(0, x / this.width)) * this.model.n);
  }

  draw(g) {
    const { T, width, model } = this, x = this.x(model.pos), bottom = TIMELINE_HEIGHT - BOTTOM;
    g.clearRect(0, 0, width, TIMELINE_HEIGHT);
    g.drawImage(this.back, 0, 0, width, TIMELINE_HEIGHT);
    g.globalAlpha = 0.55; // what is still to come, faded
    g.fillStyle = T.paper;
    g.fillRect(x, TOP + 1, width - x, bottom - TOP - 1);
    g.globalAlpha = 1;
    this.drawScale(g);
    const at = Math.min(width - 1, Math.max(1, x));
    g.fillStyle = T.text;
    g.fillRect(at - 1, TOP - 2, 2, bottom - TOP + 2);
    g.beginPath();
    g.arc(Math.min(width - 5, Math.max(5, x)), bottom, 5, 0, 7);
    g.fill();
    g.lineWidth = 1.5;
    g.strokeStyle = T.paper;
    g.stroke();
  }

  /** @returns {string[]} lines for the tip at x */
  tipAt(x) {
    const { model } = this, i = this.eventAt(x);
    const near = model.marks.filter(([event]) => Math.abs(this.x(event) - x) < 5).map(([, name]) => name);
    if (Math.abs(this.x(model.peak) - x) < 5) near.unshift("peak");
    const head = `after event ${formatCount(i)}`;
    return [near.length ? `${head} · ${near.join(", ")}` : head,
      ...model.series.map((s) => `${s.name.padEnd(9)} ${s.format(s.values[i])}`)];
  }
}
