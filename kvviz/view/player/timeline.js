// Draws the totals over the events that are shown: the first two of the model's series as areas, the third as a line,
// marks, the peak of the second, the cursor; below them, where events are hidden, which part of all this is.
// Its inks are neutral: colour on the map means an owner, and must mean nothing else beneath it.

import { SANS, round, say } from "./draw.js";
import { formatCount, formatOf } from "./format.js";
import { Peaks } from "./peaks.js";

export const TIMELINE_HEIGHT = 118;
const TOP = 20, BOTTOM = 16; // px: marks above the plot, the axis below
const FOOT = TIMELINE_HEIGHT - BOTTOM;
const STRIP = FOOT + 5, STRIP_HEIGHT = 10; // px: the strip that tells which part is shown
const GRIP = 24; // px: as narrow as the window on the strip may get

export class Timeline {
  /** @param {any} model  n, pos, series, marks, peak @param {import("./zoom.js").Zoom} zoom */
  constructor(model, zoom) {
    this.model = model;
    this.zoom = zoom;
    const [base, from] = model.meta.base;
    this.base = base; // what the foot of the scale stands for; 0: an ordinary scale
    this.from = from; // how that reads
    this.peaks = new Map(model.series.map(({ values }) => [values, new Peaks(values)]));
    this.most = Math.max(1, ...[...this.peaks.values()].map((peaks) => peaks.most(0, model.n + 1)));
    /** The life of a block that was chosen, states. @type {[number, number] | null} */
    this.life = null;
    this.drawn = ""; // what the canvas behind shows
    this.T = this.back = null;
    this.width = this.dpr = 1;
  }

  /** @param {number} width px @param {any} T @param {number} dpr */
  layout(width, T, dpr) {
    Object.assign(this, { width, T, dpr, back: document.createElement("canvas") });
    this.back.width = Math.round(width * dpr);
    this.back.height = Math.round(TIMELINE_HEIGHT * dpr);
    this.drawBack();
  }

  /** Draw all that the cursor does not change, to a canvas of its own. */
  drawBack() {
    const { T, width, dpr, zoom, model } = this, g = this.back.getContext("2d");
    this.drawn = `${zoom.from} ${zoom.to}`;
    g.setTransform(dpr, 0, 0, dpr, 0, 0);
    g.clearRect(0, 0, width, TIMELINE_HEIGHT);
    const [first, second, third] = model.series.map((s) => this.outline(s.values));
    this.area(g, first, T.back, FOOT);
    this.area(g, second, T.front, FOOT);
    g.strokeStyle = T.grid;
    g.lineWidth = 1;
    g.beginPath();
    for (const y of [TOP, (TOP + FOOT) / 2, FOOT]) {
      g.moveTo(0, Math.round(y) + 0.5);
      g.lineTo(width, Math.round(y) + 0.5);
    }
    g.stroke();
    this.line(g, third, T.line);
    if (zoom.timed) this.overview(g);
    else this.axis(g);
    this.ticks(g);
  }

  /**
   * Height of the curve at each device pixel: the largest value in it, so that no peak is lost.
   * @param {any} values one of the model's series @param {{from: number, to: number}} [shown] states
   * @param {number} [top] px @param {number} [foot] px
   */
  outline(values, shown = this.zoom, top = TOP, foot = FOOT) {
    const { width, dpr } = this, { from, to } = shown, columns = Math.max(1, Math.round(width * dpr)), states = to - from + 1;
    const scale = (foot - top) / (this.most - this.base), out = new Float64Array(columns), peaks = this.peaks.get(values);
    for (let c = 0; c < columns; c++) {
      const first = from + Math.floor((c / columns) * states);
      const last = Math.max(first + 1, from + Math.floor(((c + 1) / columns) * states));
      out[c] = foot - (peaks.most(first, last) - this.base) * scale;
    }
    return out;
  }

  /** Column by column: a path of thousands of corners takes a hundred times as long. */
  area(g, outline, ink, foot) {
    const { dpr } = this;
    g.fillStyle = ink;
    for (let from = 0, to = 0; from < outline.length; from = to) {
      while (to < outline.length && outline[to] === outline[from]) to++;
      g.fillRect(from / dpr, outline[from], (to - from) / dpr, foot - outline[from]);
    }
  }

  line(g, outline, ink) {
    g.strokeStyle = ink;
    g.lineWidth = 1;
    g.beginPath();
    outline.forEach((y, c) => g.lineTo((c + 0.5) / this.dpr, y));
    g.stroke();
  }

  axis(g) {
    const { T, width, model: { n } } = this;
    say(g, formatOf("event")(n), width, FOOT + 9, T.muted, `11px ${SANS}`, "right");
    say(g, "0", 0, FOOT + 9, T.muted, `11px ${SANS}`);
  }

  /** All events in little, and which of them are shown. */
  overview(g) {
    const { T, width, model } = this, { left, size } = this.grip();
    const whole = this.outline(model.series[0].values, { from: 0, to: model.n }, STRIP, STRIP + STRIP_HEIGHT);
    g.fillStyle = T.grid;
    g.fillRect(0, STRIP, width, STRIP_HEIGHT);
    this.area(g, whole, T.front, STRIP + STRIP_HEIGHT);
    g.globalAlpha = 0.6;
    g.fillStyle = T.paper;
    g.fillRect(0, STRIP, left, STRIP_HEIGHT);
    g.fillRect(left + size, STRIP, width, STRIP_HEIGHT);
    g.globalAlpha = 1;
    g.strokeStyle = T.text;
    g.lineWidth = 1.5;
    round(g, left + 0.75, STRIP - 0.25, size - 1.5, STRIP_HEIGHT + 0.5, 3);
    g.stroke();
  }

  /** The window on the strip below the plot, px. */
  grip() {
    const { width, model: { n }, zoom: { time } } = this, size = Math.max(GRIP, ((time.high - time.low) / (n || 1)) * width);
    const room = n - (time.high - time.low), share = room > 0 ? time.low / room : 0;
    return { left: share * (width - size), size };
  }

  /** Is a point on that strip, while it is there? @param {number} y px */
  onStrip(y) {
    return this.zoom.timed && y > FOOT + 1;
  }

  /** What the full height and the foot stand for: on patches, so that no curve runs through them, beside the cursor. */
  drawScale(g) {
    if (this.most === 1) return; // there was never anything
    const { T, model } = this, cursor = this.x(model.pos);
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
    patch(`from ${this.from}`, 15, FOOT - 21);
    const slope = (y) => (g.moveTo(0, FOOT - y), g.lineTo(11, FOOT - y - 6));
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

  /** Which events are shown. @returns {string} */
  shown() {
    const { from, to } = this.zoom;
    return `events ${formatCount(from)} to ${formatCount(to)} of ${formatCount(this.model.n)}`;
  }

  /** The peak first, then marks in order; a label that would touch another is left out, its tick stays. */
  ticks(g) {
    const { T, model, width, zoom: { from, to } } = this, taken = [];
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
    if (model.n && model.peak >= from && model.peak <= to) {
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
    g.setLineDash([2, 3]);
    let before = -1;
    for (const [event, name] of model.marks) {
      if (event < from || event > to) continue;
      const x = Math.min(Math.round(this.x(event)) + 0.5, width - 0.5);
      if (x === before) continue; // thousands may share a pixel
      before = x;
      g.beginPath();
      g.moveTo(x, 14);
      g.lineTo(x, FOOT);
      g.stroke();
      place(name, x);
    }
    g.setLineDash([]);
  }

  x(event) {
    return this.zoom.x(event, this.width);
  }

  /** @param {number} x px @returns {number} the event there */
  eventAt(x) {
    return this.zoom.eventAt(x, this.width);
  }

  draw(g) {
    const { T, width, model, zoom } = this;
    zoom.look(model.pos);
    if (this.drawn !== `${zoom.from} ${zoom.to}`) this.drawBack();
    const at = this.x(model.pos), x = Math.min(width, Math.max(0, at));
    g.clearRect(0, 0, width, TIMELINE_HEIGHT);
    g.drawImage(this.back, 0, 0, width, TIMELINE_HEIGHT);
    g.globalAlpha = 0.55; // what is still to come, faded
    g.fillStyle = T.paper;
    g.fillRect(x, TOP + 1, width - x, FOOT - TOP - 1);
    g.globalAlpha = 1;
    this.drawScale(g);
    this.drawLife(g);
    if (x !== at) return; // the cursor is among what is hidden
    g.fillStyle = T.text;
    g.fillRect(Math.min(width - 1, Math.max(1, x)) - 1, TOP - 2, 2, FOOT - TOP + 2);
    g.beginPath();
    g.arc(Math.min(width - 5, Math.max(5, x)), FOOT, 5, 0, 7);
    g.fill();
    g.lineWidth = 1.5;
    g.strokeStyle = T.paper;
    g.stroke();
  }

  /** From birth to death of the block that was chosen. */
  drawLife(g) {
    if (!this.life) return;
    const { T, width } = this, [from, to] = this.life.map((state) => Math.max(0, Math.min(width, this.x(state))));
    g.fillStyle = T.paper;
    g.fillRect(from, FOOT - 5, Math.max(2, to - from), 5);
    g.fillStyle = T.focus;
    g.fillRect(from, FOOT - 4, Math.max(2, to - from), 3);
  }

  /** @returns {string[]} lines for the tip at x */
  tipAt(x) {
    const { model } = this, i = this.eventAt(x);
    const near = model.marks.filter(([event]) => Math.abs(this.x(event) - x) < 5).map(([, name]) => name);
    if (Math.abs(this.x(model.peak) - x) < 5) near.unshift("peak");
    const head = `after event ${formatCount(i)}`;
    return [near.length ? `${head} · ${[...new Set(near)].slice(0, 6).join(", ")}` : head,
      ...model.series.map((s) => `${s.name.padEnd(9)} ${s.format(s.values[i])}`)];
  }
}
