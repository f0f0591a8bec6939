// Where ranges of addresses fall on the screen's own pixels. Pure, no DOM; tested in node.

import { ROW_GAP } from "./layout.js";

const TABLE = 8192; // cells of the table in which the search for a place begins

/**
 * A flow in device pixels. `project` is asked for each living block, so it makes no objects: it leaves what it found in
 * line, left, right and units, and says how many.
 */
export class Screen {
  /** @param {import("./layout.js").Flow} flow @param {number} width px @param {number} dpr  device px in one */
  constructor(flow, width, dpr) {
    const { parts, rowHeight, top } = flow, count = parts.length;
    this.flow = flow;
    this.dpr = dpr;
    this.width = Math.round(width * dpr); // device px
    this.lines = flow.rows;
    this.start = Float64Array.from(parts, (p) => p.start);
    this.end = Float64Array.from(parts, (p) => p.start + p.units);
    this.x = Float64Array.from(parts, (p) => p.x);
    this.lineOf = Int32Array.from(parts, (p) => Math.round((p.y - top) / (rowHeight + ROW_GAP)));
    this.first = count ? this.start[0] : 0;
    this.last = count ? this.end[count - 1] : 0;
    this.perCell = TABLE / (this.last - this.first || 1);
    this.table = new Int32Array(TABLE + 1);
    for (let cell = 0, k = 0; cell <= TABLE; cell++) {
      while (k + 1 < count && this.start[k + 1] <= this.first + cell / this.perCell) k++;
      this.table[cell] = k;
    }
    const most = this.lines + count;
    this.line = new Int32Array(most);
    this.left = new Int32Array(most);
    this.right = new Int32Array(most);
    this.units = new Float64Array(most);
    this.opens = false;
    this.closes = false;
  }

  /**
   * The stretches of begin … end that are shown: one a line, or one a piece where `apart`. opens, closes: does the first
   * stretch begin and the last one end where the range does?
   * @param {number} begin @param {number} end @param {boolean} [apart] @returns {number} how many
   */
  project(begin, end, apart = false) {
    if (end <= this.first || begin >= this.last) return 0;
    const { start, end: stop, x, lineOf, dpr, flow: { scale }, line, left, right, units } = this;
    let count = 0, k = begin <= this.first ? 0 : this.table[Math.floor((begin - this.first) * this.perCell)];
    while (k + 1 < start.length && start[k + 1] <= begin) k++;
    while (k > 0 && start[k] > begin) k--;
    for (; k < start.length && start[k] < end; k++) {
      const from = Math.max(begin, start[k]), to = Math.min(end, stop[k]);
      if (to <= from) continue;
      const rightmost = Math.round((x[k] + (to - start[k]) * scale) * dpr);
      if (count && line[count - 1] === lineOf[k] && !apart) {
        right[count - 1] = rightmost;
        units[count - 1] += to - from;
      } else {
        if (!count) this.opens = from === begin;
        line[count] = lineOf[k];
        left[count] = Math.round((x[k] + (from - start[k]) * scale) * dpr);
        right[count] = rightmost;
        units[count++] = to - from;
      }
      this.closes = to === end;
    }
    return count;
  }

  /** px of the upper edge of a line. @param {number} line */
  top(line) {
    return this.flow.top + line * (this.flow.rowHeight + ROW_GAP);
  }
}
