// Draws the block map: every byte the allocator ever reserved, and what it is doing now.

import { BlockModel } from "./blockmodel.js";
import { el } from "./dom.js";
import { SANS, pattern } from "./draw.js";
import { formatBytes, formatCount, formatShort } from "./format.js";
import { KINDS } from "./kinds.js";
import { FOLD_HEIGHT, bar, flow, spans, unitAt } from "./layout.js";

const BLOCK_CSS = `
.legend i.wait { background: repeating-linear-gradient(45deg, var(--muted) 0 2px, var(--paper) 2px 4px);
  border: 1px solid var(--muted); }
.switch { display: flex; }
.switch button { width: auto; padding: 0 10px; border-radius: 8px 0 0 8px; }
.switch button + button { border-radius: 0 8px 8px 0; margin-left: -1px; }
.switch button[aria-pressed=true] { background: var(--text); border-color: var(--text); color: var(--paper); }
`;
const RADIUS = 4;
const THIN = 1; // px: what would be narrower is drawn this wide, on top of the rest, so that nothing vanishes

export class BlockMap {
  /** @param {BlockModel} model */
  constructor(model) {
    this.model = model;
    this.fold = model.meta.fold; // what never changes, if there is such a thing
    this.folded = Boolean(this.fold?.folded); // is it one bar now?
    this.keys = this.fold ? [["f", "fold"]] : [];
    this.css = BLOCK_CSS;
    this.widths = new Map(); // text -> px
  }

  get subtitle() {
    return this.folded ? this.fold.subtitle : "";
  }

  /** Two buttons, one of them pressed: what never changes, with the rest or as a bar. @param {any} player */
  attach(player) {
    if (!this.fold) return;
    const set = (folded) => {
      this.folded = folded;
      player.layout();
    };
    this.buttons = [["Show all", false], ["Fold", true]].map(([textContent, folded]) => {
      const title = folded ? `One bar for ${this.fold.head} (f)` : "Every segment in address order, on one scale (f)";
      return el("button", { type: "button", textContent, title, onclick: () => set(folded) });
    });
    player.controls.more.f = () => set(!this.folded);
    player.controls.slider.before(el("div", { className: "switch", role: "group", "aria-label": this.fold.head }, this.buttons));
  }

  /** @param {number} width px @returns {number} height in px */
  layout(width) {
    this.buttons?.forEach((button, k) => button.setAttribute("aria-pressed", String(this.folded === (k === 1))));
    const starts = [...this.model.cuts];
    this.flow = flow(starts, this.model.unit, width, this.folded ? this.model.still : null);
    this.end = starts[starts.length - 1] || 0;
    this.width = width;
    return Math.max(this.flow.height, 24);
  }

  /** @param {any} T inks of the theme @param {number} dpr */
  setTheme(T, dpr) {
    this.T = T;
    this.dpr = dpr;
    this.hatch = pattern(dpr, 6, T.free, T.hatch, 1, false);
    this.waiting = this.model.meta.owners.map((o) => pattern(dpr, 5, T.paper, o.color, 1.6, true));
  }

  /** @param {CanvasRenderingContext2D} g scaled to CSS px */
  draw(g) {
    const { T, model, flow: { height, rowHeight } } = this;
    g.clearRect(0, 0, this.width, height + 1);
    const segments = model.segmentsNow();
    if (this.folded) this.drawBar(g);
    this.drawUnreserved(g, segments);
    const outlines = segments.flatMap((s) => this.rects(s.address, s.units));
    g.fillStyle = this.hatch;
    trace(g, outlines, rowHeight, 0);
    g.fill();
    const labels = this.drawBlocks(g);
    trace(g, outlines, rowHeight, 0); // blocks are square: cut them to the segments' corners
    for (const { x, y, w } of outlines) g.rect(x, y, w, rowHeight);
    g.fillStyle = T.paper;
    g.fill("evenodd");
    g.strokeStyle = T.edge;
    g.lineWidth = 1;
    trace(g, outlines, rowHeight, 0.5);
    g.stroke();
    this.drawLabels(g, labels);
    this.drawEvent(g);
    if (!segments.length && !this.end) this.drawNothing(g);
  }

  /** The rectangles of a range, edges on whole pixels of the screen, so that they are sharp. */
  rects(start, units, apart = false) {
    const rects = spans(this.flow, start, units, apart), { dpr } = this;
    for (const r of rects) {
      const right = Math.round((r.x + r.w) * dpr) / dpr;
      r.x = Math.round(r.x * dpr) / dpr;
      r.w = right - r.x;
    }
    return rects;
  }

  /** @returns {{x: number, w: number, owner: any, bytes: number}[]} owner: undefined where inactive */
  shares() {
    const { fold: { shares }, width, dpr, model } = this;
    let x = 0;
    return bar(shares.map((s) => s[1]), width).map((w, k) => {
      const from = Math.round(x * dpr) / dpr;
      x += w;
      return { x: from, w: Math.round(x * dpr) / dpr - from, owner: model.meta.owners[shares[k][0]], bytes: shares[k][1] };
    });
  }

  /** What is folded: the owners' shares of it, and what it is. */
  drawBar(g) {
    const { T, width } = this, shares = this.shares();
    g.save();
    trace(g, [{ x: 0, y: 0, w: width, first: true, last: true }], FOLD_HEIGHT, 0);
    g.clip();
    for (const { x, w, owner } of shares) {
      g.fillStyle = owner ? owner.color : T.free;
      g.fillRect(x, 0, w, FOLD_HEIGHT);
      g.fillStyle = T.paper;
      if (x) g.fillRect(x - 0.5, 0, 0.5, FOLD_HEIGHT);
    }
    g.restore();
    g.strokeStyle = T.edge;
    g.lineWidth = 1;
    trace(g, [{ x: 0, y: 0, w: width, first: true, last: true }], FOLD_HEIGHT, 0.5);
    g.stroke();
    g.font = `600 11px ${SANS}`;
    g.textBaseline = "middle";
    g.textAlign = "left";
    g.fillStyle = shares[0].owner ? shares[0].owner.ink : T.text;
    const text = this.fold.labels.find((t) => this.measure(g, t) + 14 <= shares[0].w);
    if (text) g.fillText(text, 7, FOLD_HEIGHT / 2 + 0.5);
  }

  /** @returns {string} what is folded, for those who do not see it */
  words() {
    return this.folded ? `; ${this.fold.words}` : "";
  }

  /** Dashed: was reserved at some time, is not now. */
  drawUnreserved(g, segments) {
    const gaps = [];
    let from = 0;
    for (const s of [...segments, { address: this.end, units: 0 }]) {
      if (s.address > from) gaps.push(...this.rects(from, s.address - from, true));
      from = Math.max(from, s.address + s.units);
    }
    g.strokeStyle = this.T.dash;
    g.lineWidth = 1;
    g.setLineDash([3, 3]);
    trace(g, gaps, this.flow.rowHeight, 0.5);
    g.stroke();
    g.setLineDash([]);
  }

  /** Owner by owner, so that each colour is set once. Returns what has room for a label. */
  drawBlocks(g) {
    const { model, T, flow: { scale, rowHeight: h } } = this, owners = model.meta.owners;
    const byOwner = owners.map(() => []), labels = [], thin = [], seams = [];
    for (const row of model.blocks.rows()) byOwner[model.owner[row]].push(row);
    owners.forEach((owner, k) => {
      const tints = [];
      let ink = null;
      for (const row of byOwner[k]) {
        const units = model.size[row] / model.unit, asked = model.asked[row] / model.unit, waits = model.waits(row);
        const over = !waits && (units - asked) * scale >= 2;
        const spare = over ? this.rects(model.address[row] + asked, units - asked) : [];
        tints.push(...spare);
        const wanted = waits ? this.waiting[k] : owner.color;
        if (wanted !== ink) g.fillStyle = ink = wanted;
        for (const s of this.rects(model.address[row], units)) {
          if (s.w < THIN) {
            thin.push(s.x, s.y, owner.color);
            continue;
          }
          g.fillRect(s.x, s.y, s.w, h);
          if (s.w > 4) seams.push(s.x + s.w - 1, s.y);
          if (s.w < 11) continue;
          const tint = spare.find((t) => t.y === s.y); // solid: px until it begins
          labels.push({ ...s, row, owner, waits, solid: waits ? 0 : tint ? tint.x - s.x : s.w });
        }
      }
      for (const s of tints) {
        g.fillStyle = T.paper;
        g.fillRect(s.x, s.y, s.w, h);
        g.globalAlpha = T.tint;
        g.fillStyle = owner.color;
        g.fillRect(s.x, s.y, s.w, h);
        g.globalAlpha = 1;
      }
    });
    g.fillStyle = T.paper; // a hairline between neighbours
    for (let k = 0; k < seams.length; k += 2) g.fillRect(seams[k], seams[k + 1], 1, h);
    for (let k = 0; k < thin.length; k += 3) {
      g.fillStyle = thin[k + 2];
      g.fillRect(Math.min(thin[k], this.width - THIN), thin[k + 1], THIN, h);
    }
    return labels;
  }

  drawLabels(g, labels) {
    const { T, model, flow: { rowHeight: h } } = this;
    g.font = `600 ${h > 28 ? 12 : 11}px ${SANS}`;
    g.textBaseline = "middle";
    g.textAlign = "left";
    for (const { x, y, w, row, owner, waits, solid } of labels) {
      const text = this.labelFor(g, owner, model.size[row], w);
      if (!text) continue;
      const at = x + (text.length === 1 ? (w - this.measure(g, text)) / 2 : 6), middle = y + h / 2 + 0.5;
      const put = (ink, from, to) => {
        g.save();
        g.beginPath();
        g.rect(from, y, to - from, h);
        g.clip();
        g.fillStyle = ink;
        g.fillText(text, at, middle);
        g.restore();
      };
      if (waits) { // the stripes would swallow the letters
        g.fillStyle = T.paper;
        g.fillRect(at - 3, y + 4, this.measure(g, text) + 6, h - 8);
      }
      if (solid >= at - x + this.measure(g, text)) {
        g.fillStyle = owner.ink;
        g.fillText(text, at, middle);
      } else {
        if (solid > 0) put(owner.ink, x, x + solid);
        put(T.text, x + solid, x + w);
      }
    }
  }

  /** The most that fits: name and size, name, size, letter, nothing. */
  labelFor(g, owner, bytes, width) {
    const size = formatShort(bytes);
    for (const text of [`${owner.name}  ${size}`, owner.name]) if (this.measure(g, text) + 13 <= width) return text;
    return this.measure(g, owner.letter) + 4 <= width ? owner.letter : "";
  }

  measure(g, text) {
    const key = g.font + text;
    let width = this.widths.get(key);
    if (width === undefined) this.widths.set(key, (width = g.measureText(text).width));
    return width;
  }

  /** A frame around what the last event touched. */
  drawEvent(g) {
    const { T, flow: { rowHeight: h } } = this;
    for (const { address, units } of this.model.happened()) {
      if (!units) continue;
      for (const s of this.rects(address, units)) {
        const w = Math.max(s.w, 3), x = s.x - (w - s.w) / 2;
        g.strokeStyle = T.paper;
        g.lineWidth = 4;
        g.strokeRect(x, s.y, w, h);
        g.strokeStyle = T.text;
        g.lineWidth = 2;
        g.strokeRect(x, s.y, w, h);
      }
    }
  }

  drawNothing(g) {
    g.fillStyle = this.T.muted;
    g.font = `13px ${SANS}`;
    g.textBaseline = "middle";
    g.textAlign = "left";
    g.fillText("Nothing was ever reserved here.", 0, 12);
  }

  /** Lines for the tip at a point, the first a heading; null where there is nothing. @returns {string[] | null} */
  tipAt(x, y) {
    if (this.folded && y < this.flow.top) return y <= FOLD_HEIGHT ? this.barTip(x) : null;
    const { model, flow: { scale } } = this, unit = unitAt(this.flow, x, y);
    if (unit < 0) return null;
    let hit = -1, nearest = 2 / scale; // a block narrower than a pixel answers within two
    for (const row of model.blocks.rows()) {
      const start = model.address[row], end = start + model.size[row] / model.unit;
      const away = unit < start ? start - unit : unit >= end ? unit - end : 0;
      const thin = (end - start) * scale < THIN;
      if ((away === 0 && hit < 0) || (thin && away < nearest)) (hit = row), (nearest = thin ? away : nearest);
    }
    return hit >= 0 ? this.blockTip(hit) : this.freeTip(unit);
  }

  barTip(x) {
    const shares = this.shares(), name = (s) => (s.owner ? s.owner.name : "cached, inactive");
    const at = shares.find((s) => x < s.x + s.w) || shares[shares.length - 1];
    const others = shares.filter((s) => s !== at).map((s) => `${name(s)} · ${formatBytes(s.bytes)}`);
    return [
      `${name(at)} · ${formatBytes(at.bytes)}`, `in ${this.fold.head}`, ...(others.length ? ["with", ...others] : []),
      "folded, on another scale; f shows them all",
    ];
  }

  blockTip(row) {
    const { model } = this, never = model.meta.events;
    const exact = (bytes) => `${formatBytes(bytes)} (${formatCount(bytes)} B)`;
    const end = model.died[row] === never ? "lives to the end" : `dies at event ${formatCount(model.died[row] + 1)}`;
    const lines = [
      `${model.meta.owners[model.owner[row]].name} · ${formatBytes(model.size[row])}`,
      `requested ${exact(model.asked[row])}`, `rounded   ${exact(model.size[row])}`,
      `${model.bornText(row)}, ${end}`,
    ];
    if (model.waits(row)) lines.push("freed, still in use by another stream");
    if (model.stackOf(row)) lines.push(model.stackOf(row));
    const stream = model.meta.streams > 1 ? ` · stream ${model.stream[row]}` : "";
    return [...lines, model.realAddress(model.address[row]) + stream];
  }

  freeTip(unit) {
    const { model } = this;
    const home = model.segmentsNow().find((s) => unit >= s.address && unit < s.address + s.units);
    if (!home) return ["not reserved at this event", model.realAddress(unit)];
    let from = home.address, to = home.address + home.units;
    for (const row of model.blocks.rows()) {
      const start = model.address[row], end = start + model.size[row] / model.unit;
      if (end <= unit) from = Math.max(from, end);
      else if (start > unit) to = Math.min(to, start);
    }
    const pool = home.kind & 2 ? "an expandable segment" : `a segment of the ${home.kind & 1 ? "small" : "large"} pool`;
    const stream = model.meta.streams > 1 ? `, stream ${home.stream}` : "";
    return [
      `cached, inactive · ${formatBytes((to - from) * model.unit)}`,
      `in ${pool} of ${formatBytes(home.units * model.unit)}${stream}`, model.realAddress(from),
    ];
  }
}

/** Rounded where a segment really begins or ends, square where the row breaks it. */
function trace(g, rects, h, inset) {
  g.beginPath();
  for (const { x, y, w, first, last } of rects) {
    const radius = Math.min(RADIUS, w / 2), left = first ? radius : 0, right = last ? radius : 0;
    g.roundRect(x + inset, y + inset, Math.max(w - 2 * inset, 0.5), h - 2 * inset, [left, right, right, left]);
  }
}

KINDS.blocks = [BlockModel, BlockMap];
