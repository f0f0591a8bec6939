// The page map: each pool's pages in a grid, the page tables beside or below it, and what a pointer finds there.

import { SANS, mix, pattern, say } from "./draw.js";
import { KINDS } from "./kinds.js";
import { drawCell, drawFrame } from "./pagegrid.js";
import { BOX, HEAD, LINE, gridHeight, gridWidth, layout } from "./pagelayout.js";
import { PageModel } from "./pagemodel.js";
import { drawTables } from "./pagetables.js";
import { boxTip, pageTip } from "./pagetips.js";

export class PageMap {
  /** @param {PageModel} model */
  constructor(model) {
    this.model = model;
    const [[one], [two]] = model.meta.palette;
    this.css = `
.legend i.free { background: var(--free); border: 1px solid var(--rule); }
.legend i.fill { background: linear-gradient(0deg, var(--muted) 60%, var(--grid) 60%); border: 1px solid var(--muted); }
.legend i.null { border: 1px dashed var(--edge); }
.legend i.null::before { content: "∅"; }
.legend i.now { border: 2px solid var(--text); }
.legend i.shared { background: linear-gradient(90deg, ${one} 50%, ${two} 50%); }`;
  }

  /** @param {number} width px @returns {number} height in px */
  layout(width) {
    const { sections, beside, height } = layout(this.model.shown, width);
    /** @type {any[]} */
    this.sections = sections;
    this.beside = beside;
    this.width = width;
    this.height = Math.max(24, height);
    this.sections.forEach((section, k) => (section.pool = this.model.shown[k]));
    return this.height;
  }

  /** @param {any} T inks of the theme @param {number} dpr */
  setTheme(T, dpr) {
    this.T = T;
    this.dpr = dpr;
    this.looks = this.model.meta.palette.map(([color, ink]) => {
      const tint = mix(color, T.paper, 0.75 * T.tint);
      return { color, ink, tint, soft: mix(color, T.paper, 0.42), hatch: pattern(dpr, 4, tint, color, 0.8, false) };
    });
    this.drawn = null; // nothing stands on the canvas that would still be right
  }

  /** How a sequence looks. @param {number} row @returns {import("./pagegrid.js").Look} */
  look(row) {
    return { ...this.looks[this.model.row.sequence[row] % this.looks.length], letter: this.model.nameOf(row) };
  }

  /** Only what changed since the last picture. @param {CanvasRenderingContext2D} g scaled to CSS px */
  draw(g) {
    const { model, T, sections } = this, stale = new Set(this.framed);
    this.now = model.happened();
    if (!this.drawn) {
      this.drawn = [];
      g.clearRect(0, 0, this.width, this.height + 1);
      if (!sections.length) say(g, "No pool yet: a cache takes its pages when the first tokens come.", 0, 12, T.muted, `13px ${SANS}`);
      for (const section of sections) this.drawFixed(g, section);
    }
    this.framed = [];
    this.boxes = [];
    for (const section of sections) {
      const { pool, grid: { columns, size }, x, head, width, lines } = section;
      const inside = (page) => page >= pool.from && page < pool.from + pool.pages;
      // a small page's frame lies over its neighbours, too
      const near = size < 12 ? [-1, 0, 1, -columns, columns].flatMap((d) => [d - 1, d, d + 1]) : [0];
      for (const page of [...stale].filter(inside)) {
        const { x, y, w } = this.cell(section, page), rim = Math.ceil(3 * this.dpr) / this.dpr;
        if (near[1]) g.clearRect(x - rim, y - rim, w + 2 * rim, w + 2 * rim);
        for (const d of near) delete this.drawn[page + d];
      }
      for (let page = pool.from; inside(page); page++) this.drawPage(g, section, page);
      for (const page of this.now[0].pages.filter(inside)) {
        drawFrame(g, this.cell(section, page), T);
        this.framed.push(page);
      }
      g.clearRect(x - 2, head - 2, width + 4, HEAD + lines * LINE + 2);
      this.boxes.push(...drawTables(g, this, pool, section));
    }
  }

  /** A pool's heading, and the line between its grid and its tables. */
  drawFixed(g, { pool, grid, gridTop, top, head, lines, x }) {
    if (this.sections.length > 1) say(g, pool.heading, 0, top + 7, this.T.text, `600 12px ${SANS}`);
    g.fillStyle = this.T.rule;
    const end = Math.max(gridTop + gridHeight(grid), head + HEAD + lines * LINE - (LINE - BOX));
    if (this.beside) g.fillRect(x - 24, top, 1, end - top);
  }

  /** Draw a page unless the same stands there already. */
  drawPage(g, section, page) {
    const { low, high, holders, entry } = this.model, held = holders.get(page);
    const state = held ? [low[page], high[page], ...held.map((at) => entry.row[at])].join() : "";
    if (this.drawn[page] === state) return;
    this.drawn[page] = state;
    const cell = this.cell(section, page);
    g.clearRect(cell.x, cell.y, cell.w, cell.w);
    drawCell(g, cell, this.T);
  }

  /** Where a page lies, on whole pixels of the screen, and what is in it. @returns {import("./pagegrid.js").Cell} */
  cell({ pool, grid, gridTop }, page) {
    const { model, dpr } = this, id = page - pool.from, step = grid.size + grid.gap, snap = (px) => Math.round(px * dpr) / dpr;
    const held = model.holders.get(page) || [];
    return {
      x: snap((id % grid.columns) * step), y: snap(gridTop + Math.floor(id / grid.columns) * step), w: Math.floor(grid.size * dpr) / dpr, id,
      slots: pool.size, low: model.low[page], high: model.high[page], references: held.length, out: pool.grows,
      looks: held.map((at) => this.look(model.entry.row[at])),
    };
  }

  words() {
    return "";
  }

  /** Lines for the tip at a point, the first a heading; null where there is nothing. @returns {string[] | null} */
  tipAt(x, y) {
    for (const { grid, gridTop, pool } of this.sections) {
      const step = grid.size + grid.gap, column = Math.floor(x / step), line = Math.floor((y - gridTop) / step);
      if (line < 0 || line >= grid.rows || x >= gridWidth(grid)) continue;
      const id = line * grid.columns + column, gap = x % step > grid.size || (y - gridTop) % step > grid.size;
      return gap || id >= pool.pages ? null : pageTip(this.model, pool, pool.from + id);
    }
    const box = this.boxes.find((b) => x >= b.x && x <= b.x + b.w && y >= b.y && y <= b.y + BOX);
    return box ? boxTip(this.model, box) : null;
  }
}

KINDS.pages = [PageModel, PageMap];
