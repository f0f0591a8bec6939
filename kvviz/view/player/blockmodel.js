// The block map's data: what the allocator held after any event. No DOM; tested in node.

import { LiveRows, grouped, totals } from "./data.js";
import { formatBytes, formatCount } from "./format.js";
import { KINDS } from "./kinds.js";

/**
 * What the allocator held after any number of events. Addresses are in units of meta.unit bytes on a compressed axis
 * (only what was ever reserved), sizes in bytes.
 */
export class BlockModel {
  /** @param {{meta: any, col: Record<string, any>}} packed */
  constructor({ meta, col }) {
    const n = (this.n = meta.events);
    this.meta = meta;
    this.unit = meta.unit;
    const rows = col.born.length;
    this.born = col.born;
    this.freed = new Int32Array(rows);
    this.died = new Int32Array(rows);
    this.size = new Float64Array(rows);
    this.asked = new Float64Array(rows);
    for (let r = 0; r < rows; r++) {
      this.freed[r] = col.life[r] ? col.born[r] + col.life[r] - 1 : n; // a life of 0: never freed
      this.died[r] = col.wait[r] ? this.freed[r] + col.wait[r] - 1 : n;
      this.size[r] = col.size[r] * this.unit;
      this.asked[r] = this.size[r] - col.slack[r];
    }
    this.cuts = col.cuts;
    this.still = col.still; // for each piece between two cuts, where any never changes: does it?
    this.address = col.address;
    this.owner = col.owner;
    this.stack = col.stack; // 0: unknown
    this.stream = col.stream;
    this.segment = {
      address: col.segment_address, units: col.segment_size, stream: col.segment_stream, kind: col.segment_kind,
      born: col.segment_born, died: col.segment_died,
    };
    const held = new Float64Array(col.segment_size).map((units) => units * this.unit);
    this.reserved = totals(n, this.segment.born, this.segment.died, held);
    this.allocated = totals(n, this.born, this.freed, this.size);
    this.active = totals(n, this.born, this.died, this.size);
    this.requested = totals(n, this.born, this.died, this.asked);
    this.peak = 0;
    for (let i = 1; i <= n; i++) if (this.allocated[i] > this.allocated[this.peak]) this.peak = i;
    this.series = [
      { name: "reserved", values: this.reserved, format: formatBytes },
      { name: "allocated", values: this.allocated, format: formatBytes },
      { name: "requested", values: this.requested, format: formatBytes },
    ];
    this.marks = meta.marks; // [state, name], sorted
    this.blocks = new LiveRows(this.born, this.died, n, { of: this.owner, size: this.size, count: meta.owners.length });
    this.segments = new LiveRows(this.segment.born, this.segment.died, n);
    this.order = Int32Array.from(this.segment.address.keys()).sort((a, b) => this.segment.address[a] - this.segment.address[b]);
    this.rank = new Int32Array(this.order.length);
    this.order.forEach((row, rank) => (this.rank[row] = rank));
    /** @type {{address: number, units: number, stream: number, kind: number}[] | null} */
    this.inOrder = null;
    /** @type {Int32Array[] | null} */
    this.byFreed = null;
    /** @type {{verb: string, text: string, address: number, units: number}[] | null} */
    this.done = null;
    this.islands = new Set((meta.islands || []).map(([place]) => place)); // neighbours on the axis, not in memory
    this.pos = 0;
    this.seek(n);
  }

  /** Go to the state after i events. @param {number} i 0 … n */
  seek(i) {
    if (this.segments.changes(this.pos, i)) this.inOrder = null;
    this.blocks.seek(i);
    this.segments.seek(i);
    this.pos = i;
    this.done = null;
  }

  /** Has the program freed this living block, without the allocator having it back yet? @param {number} row */
  waits(row) {
    return this.freed[row] < this.pos;
  }

  /**
   * Segments of this state in address order; touching ranges of one expandable segment joined. The same array as long as
   * no segment changes.
   * @returns {{address: number, units: number, stream: number, kind: number}[]} kind: 1 small pool, 2 expandable
   */
  segmentsNow() {
    if (this.inOrder) return this.inOrder;
    const s = this.segment, joined = [];
    for (const rank of this.segments.rows().map((row) => this.rank[row]).sort()) {
      const row = this.order[rank];
      const last = joined[joined.length - 1], kind = s.kind[row];
      const touches = last && last.address + last.units === s.address[row] && last.stream === s.stream[row];
      if (touches && !this.islands.has(s.address[row]) && kind & 2 && last.kind & 2) last.units += s.units[row];
      else joined.push({ address: s.address[row], units: s.units[row], stream: s.stream[row], kind });
    }
    return (this.inOrder = joined);
  }

  /** Active bytes of each owner in this state. @returns {Float64Array} */
  ownerBytes() {
    return this.blocks.sums;
  }

  /** What the legend names beside the drawing's keys. @returns {{name: string, letter: string, color: string, ink: string}[]} */
  legendItems() {
    return this.meta.owners;
  }

  /** What stands behind each of them in this state. @returns {string[]} */
  legendTexts() {
    return [...this.ownerBytes()].map((bytes) => formatBytes(bytes));
  }

  /** The figures above the picture: [label, text]. */
  figures() {
    const i = this.pos, reserved = this.reserved[i];
    const idle = reserved ? `${((1 - this.active[i] / reserved) * 100).toFixed(1)} %` : "–";
    return [
      ["reserved", formatBytes(reserved, true)], ["allocated", formatBytes(this.allocated[i], true)],
      ["requested", formatBytes(this.requested[i], true)], ["inactive", idle],
    ];
  }

  /** The state in words, for those who do not see the picture. */
  words() {
    const [reserved, allocated, requested, inactive] = this.figures().map((f) => f[1]);
    const totals = `reserved ${reserved}, allocated ${allocated}, requested ${requested}, inactive ${inactive}`;
    const counts = `, ${formatCount(this.blocks.count)} blocks in ${formatCount(this.segmentsNow().length)} segments`;
    return `state after event ${this.pos} of ${this.n}: ${totals}${this.meta.kind === "blocks" ? counts : ""}`;
  }

  /**
   * What the last event did.
   * @returns {{verb: string, text: string, address: number, units: number}[]} units 0: nothing to point at
   */
  happened() {
    return (this.done ??= this.lastEvent());
  }

  lastEvent() {
    const e = this.pos - 1, done = [];
    if (e < 0) return [{ verb: "start", text: "before the first event", address: 0, units: 0 }];
    const block = (verb, r, why) => done.push({
      verb, text: [formatBytes(this.size[r]), this.meta.owners[this.owner[r]].name, why].filter(Boolean).join(" · "),
      address: this.address[r], units: this.size[r] / this.unit,
    });
    const { blocks, segments, segment } = this;
    for (let r = blocks.bornFrom[e]; r < blocks.bornFrom[e + 1]; r++) block("alloc", r, this.stackOf(r));
    const [from, rows] = (this.byFreed ??= grouped(this.freed, this.n));
    for (let k = from[e]; k < from[e + 1]; k++) if (this.died[rows[k]] !== e) block("free requested", rows[k], this.bornText(rows[k]));
    for (let k = blocks.diedFrom[e]; k < blocks.diedFrom[e + 1]; k++) {
      const r = blocks.diedRows[k];
      block(this.freed[r] === e ? "free" : "free completed", r, this.bornText(r));
    }
    const range = (verb, r, after = "") => done.push({
      verb, text: formatBytes(segment.units[r] * this.unit) + after, address: segment.address[r], units: segment.units[r],
    });
    for (let r = segments.bornFrom[e]; r < segments.bornFrom[e + 1]; r++) {
      if (segment.kind[r] & 2) range("map", r, " of an expandable segment");
      else range("new segment", r, segment.kind[r] & 1 ? " · small pool" : " · large pool");
    }
    for (let k = segments.diedFrom[e]; k < segments.diedFrom[e + 1]; k++) {
      const r = segments.diedRows[k];
      range(segment.kind[r] & 2 ? "unmap" : "segment given back", r);
    }
    for (const [event, bytes] of this.meta.failures) {
      if (event === e) done.push({ verb: "out of memory", text: `${formatBytes(bytes)} asked for`, address: 0, units: 0 });
    }
    return done.length ? done : [{ verb: "–", text: "no block or segment changed", address: 0, units: 0 }];
  }

  /** @param {number} row @returns {string} one line of the call stack, "" where unknown */
  stackOf(row) {
    return this.stack[row] ? this.meta.stacks[this.stack[row] - 1] : "";
  }

  bornText(row) {
    return this.born[row] < 0 ? "older than the first event here" : `born at event ${formatCount(this.born[row] + 1)}`;
  }

  /** The real address, which does not fit a JS number. @param {number} place on the compressed axis @returns {string} */
  realAddress(place) {
    let found = this.meta.islands[0];
    for (const island of this.meta.islands) if (island[0] <= place) found = island;
    return "0x" + (BigInt(found[1]) + BigInt(Math.floor(place - found[0])) * BigInt(this.unit)).toString(16);
  }
}

KINDS.timeline = [BlockModel, null];
