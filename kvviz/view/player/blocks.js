// Draws the block map: every byte the allocator ever reserved, and what it is doing now.

import { BlockModel } from "./blockmodel.js";
import { Detail } from "./detail.js";
import { button, el } from "./dom.js";
import { SANS, mix, pattern, round, say } from "./draw.js";
import { drawFoldBar } from "./foldbar.js";
import { KINDS } from "./kinds.js";
import { drawLabels } from "./labels.js";
import { Outlines } from "./outlines.js";
import { MapPlaces } from "./places.js";
import { Screen } from "./screen.js";
import { Strips, packed } from "./strips.js";

const BLOCK_CSS = `
.legend i.wait { background: repeating-linear-gradient(45deg, var(--muted) 0 2px, var(--paper) 2px 4px);
  border: 1px solid var(--muted); }
.legend i.rest { background: repeating-linear-gradient(0deg, var(--muted) 0 3px, var(--paper) 3px 4px);
  border: 1px solid var(--muted); }
.switch { display: flex; }
.switch button { width: auto; padding: 0 10px; border-radius: 8px 0 0 8px; }
.switch button + button { border-radius: 0 8px 8px 0; margin-left: -1px; }
.switch button[aria-pressed=true] { background: var(--text); border-color: var(--text); color: var(--paper); }
`;
const LABELLED = 11; // px: a letter fits
const FAINT = 0.18; // of the colour of what is filtered out

export class BlockMap extends MapPlaces {
  /** @param {BlockModel} model */
  constructor(model) {
    super(model);
    this.keys = this.fold ? [["f", "fold"]] : [];
    this.css = BLOCK_CSS;
    /** What colours mean. of: block -> index of its ink. @type {{inks: any[], of: (row: number) => number}} */
    this.paint = { inks: model.meta.owners, of: (row) => this.model.owner[row] };
    /** Which blocks are filtered out. @type {((row: number) => boolean) | null} */
    this.veiled = null;
    this.picked = -1; // a block that is framed while it lives
    this.followed = false; // is it framed, dashed, also before and after?
    /** @type {HTMLButtonElement[]} */
    this.buttons = [];
    this.dpr = 1;
    this.screen = this.outlines = null; // made when they are needed
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
    this.buttons = [false, true].map((folded) => {
      const title = folded ? `One bar for ${this.fold.head} (f)` : "Every segment in address order, on one scale (f)";
      return button(folded ? "Fold" : "Show all", () => set(folded), { title });
    });
    player.controls.more.f = () => set(!this.folded);
    player.controls.slider.before(el("div", { className: "switch", role: "group", "aria-label": this.fold.head }, this.buttons));
  }

  /** @param {number} width px @returns {number} height in px */
  layout(width) {
    this.buttons.forEach((button, k) => button.setAttribute("aria-pressed", String(this.folded === (k === 1))));
    return super.layout(width);
  }

  /** @param {any} T inks of the theme @param {number} dpr */
  setTheme(T, dpr) {
    this.T = T;
    this.dpr = dpr;
    this.hatch = pattern(dpr, 6, T.free, T.hatch, 1, false);
    this.looks = this.paint.inks.map(({ color }) => ({
      solid: packed(color), tint: packed(mix(color, T.paper, T.tint)), faint: packed(mix(color, T.paper, FAINT)), waiting: null,
    }));
    this.screen = null;
  }

  /** @param {CanvasRenderingContext2D} g scaled to CSS px */
  draw(g) {
    if (this.shownAs !== `${this.zoom.low} ${this.zoom.high}`) this.layout(this.width);
    const { T, model, flow: laid, width, dpr } = this;
    if (this.screen?.flow !== laid) this.aim();
    const segments = model.segmentsNow();
    if (this.outlines?.segments !== segments || this.outlines.screen !== this.screen) {
      this.outlines = new Outlines(this.screen, segments, this.end);
    }
    g.clearRect(0, 0, width, this.whole.height + 1);
    if (this.folded) drawFoldBar(g, this);
    this.outlines.drawGaps(g, T, this.crowds);
    this.strips.clear();
    this.outlines.drawHeld(g, T, this.hatch, this.strips);
    const labels = this.paintBlocks(g);
    this.outlines.paintSides(T, this.strips);
    this.strips.stamp(g, laid, dpr, [[0, laid.rowHeight]]);
    this.crowds.stamp(g, laid, dpr, Array.from({ length: laid.rowHeight / 4 }, (_, k) => [4 * k + 3, 1]));
    this.outlines.drawFrames(g, T);
    drawLabels(g, labels, laid.rowHeight, T);
    this.drawPicked(g);
    this.drawEvent(g);
    if (!segments.length && !this.end) this.drawNothing(g);
  }

  /** What depends on where addresses lie on the screen. */
  aim() {
    this.screen = new Screen(this.flow, this.width, this.dpr);
    this.detail = new Detail(this.screen, this.model.address.length, this.paint.inks.length);
    this.strips = new Strips(this.screen.width, this.screen.lines);
    this.crowds = new Strips(this.screen.width, this.screen.lines);
  }

  /** Paint the blocks into the strips; those that wait, striped, onto g. @returns {import("./labels.js").Label[]} */
  paintBlocks(g) {
    const { model, T, paint, looks, veiled, screen, strips, detail: d, dpr, flow: { scale, rowHeight: h } } = this;
    const { size, asked, unit } = model, labels = [], paper = packed(T.paper), one = Math.max(1, Math.round(dpr));
    d.gather(model.blocks.rows(), model, paint.of, veiled);
    for (let k = 0; k < d.large; k++) {
      const row = d.row[k], line = d.line[k], left = d.left[k], right = d.right[k], ink = paint.of(row), look = looks[ink];
      const seam = right - left > 4 * dpr ? right - one : right; // a hairline between neighbours
      const faint = veiled?.(row), waits = model.waits(row);
      let solid = right - left;
      if (faint) strips.fill(line, left, seam, look.faint);
      else if (waits) {
        solid = 0;
        look.waiting ||= pattern(dpr, 5, T.paper, paint.inks[ink].color, 1.6, true);
        strips.fill(line, left, right, 0);
        g.fillStyle = look.waiting;
        g.fillRect(left / dpr, screen.top(line), (right - left) / dpr, h);
      } else {
        strips.fill(line, left, seam, look.solid);
        const over = (size[row] - asked[row]) / unit;
        if (over * scale >= 2) solid = Math.min(solid, this.paintSpare(row, over, line, left, seam, look.tint));
      }
      if (seam < right) strips.fill(line, seam, right, paper);
      if (faint || right - left < LABELLED * dpr) continue;
      const x = left / dpr, y = screen.top(line), w = (right - left) / dpr;
      labels.push({ x, y, w, bytes: size[row], look: paint.inks[ink], waits, solid: solid / dpr });
    }
    this.paintSmall(packed(T.paper, 0.7), one);
    return labels;
  }

  /** The part of a block that nobody asked for. @returns {number} device px from the block's left edge, to where it begins */
  paintSpare(row, over, line, left, seam, color) {
    const { screen, strips, model: { address, size, unit } } = this, end = address[row] + size[row] / unit;
    const found = screen.project(end - over, end);
    for (let j = 0; j < found; j++) {
      if (screen.line[j] !== line) continue;
      strips.fill(line, screen.left[j], Math.min(seam, screen.right[j]), color);
      return screen.left[j] - left;
    }
    return Infinity;
  }

  /** What is under a pixel wide, on top of the rest; lines of paper through the colour where several share it. */
  paintSmall(paper, one) {
    const { detail: d, strips, crowds, looks, screen, dpr, model: { address, size, unit } } = this;
    crowds.clear();
    for (let line = 0, bin = 0; line < screen.lines; line++) {
      for (let column = 0; column < d.columns; column++, bin++) {
        if (!d.count[bin]) continue;
        const ink = d.inkOf(bin), look = ink < 0 ? looks[d.inkOf(bin, true)].faint : looks[ink].solid;
        let from = Math.round(column * dpr);
        if (d.count[bin] > 1) crowds.fill(line, from, from + one, paper);
        else if (screen.project(address[d.last[bin]], address[d.last[bin]] + size[d.last[bin]] / unit)) from = screen.left[0];
        from = Math.min(from, screen.width - one);
        strips.fill(line, from, from + one, look);
      }
    }
  }

  /** @returns {string} what is folded or beyond an edge, for those who do not see it */
  words() {
    return (this.folded ? `; ${this.fold.words}` : "") + (this.elsewhere() ? "; the last event lies outside what is shown" : "");
  }

  /** A frame around what the last event touched. */
  drawEvent(g) {
    for (const { address, units } of this.model.happened()) if (units) this.frame(g, address, address + units, this.T.text, 2);
    const elsewhere = this.elsewhere();
    if (elsewhere) this.drawElsewhere(g, elsewhere);
  }

  /** It lies beyond an edge of what is shown: a note in that corner. @param {number} side -1 before, 1 behind */
  drawElsewhere(g, side) {
    const { T, width, flow: { top, rowHeight }, lineStep, screen } = this, before = side < 0;
    const text = before ? "◂ last event" : "last event ▸", y = top + (before ? 0 : screen.lines - 1) * lineStep + rowHeight / 2;
    g.font = `600 11px ${SANS}`;
    const w = g.measureText(text).width + 14, x = before ? 0 : width - w;
    g.fillStyle = T.text;
    round(g, x, y - 9, w, 18, 4);
    g.fill();
    say(g, text, x + 7, y + 0.5, T.paper, g.font);
  }

  /** The block that was picked: its frame, dashed where it lies when it does not live. */
  drawPicked(g) {
    const { picked: row, model, T } = this;
    if (row < 0) return;
    const lives = model.born[row] < model.pos && model.pos <= model.died[row];
    if (!lives && !this.followed) return;
    if (!lives) g.setLineDash([4, 3]);
    this.frame(g, model.address[row], model.address[row] + model.size[row] / model.unit, T.focus, 2.5);
    g.setLineDash([]);
  }

  /** A frame around a range, at least 3 px wide. */
  frame(g, begin, end, ink, weight) {
    const { T, screen, dpr, flow: { rowHeight: h } } = this, found = screen.project(begin, end);
    for (let j = 0; j < found; j++) {
      const drawn = (screen.right[j] - screen.left[j]) / dpr, w = Math.max(drawn, 3), x = screen.left[j] / dpr - (w - drawn) / 2;
      const y = screen.top(screen.line[j]);
      g.strokeStyle = T.paper;
      g.lineWidth = weight + 2;
      g.strokeRect(x, y, w, h);
      g.strokeStyle = ink;
      g.lineWidth = weight;
      g.strokeRect(x, y, w, h);
    }
  }

  drawNothing(g) {
    say(g, "Nothing was ever reserved here.", 0, 12, this.T.muted, `13px ${SANS}`);
  }
}

KINDS.blocks = [BlockModel, BlockMap];
