// The block map's data: what the page received, and the state after any event. Pure functions, no DOM; tested in node.

import { formatBytes, formatCount } from "./format.js";

const WIRE = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, f8: Float64Array };
const FINAL = { i4: Int32Array, u4: Uint32Array, f8: Float64Array };

/**
 * Buffer: u32 header length | JSON header | columns, each 8-byte aligned. A column is sent as the smallest unsigned
 * type that holds it, as differences (zigzag) where that compresses better, or as one constant.
 * @param {ArrayBuffer} buffer
 * @returns {{meta: any, col: Record<string, any>}} meta, and typed arrays by name
 */
export function decode(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const base = Math.ceil((4 + length) / 8) * 8;
  const col = {};
  for (const c of head.columns) {
    const out = new FINAL[c.type](c.length);
    if (c.wire === "constant") out.fill(c.value);
    else {
      const sent = new WIRE[c.wire](buffer, base + c.offset, c.length);
      if (c.delta) {
        let value = 0;
        for (let k = 0; k < c.length; k++) out[k] = value += (sent[k] >>> 1) ^ -(sent[k] & 1);
      } else out.set(sent);
    }
    col[c.name] = out;
  }
  return { meta: head.meta, col };
}

/** Running total after 0 … n events of `size`, counted while from < i <= until. @returns {Float64Array} */
function totals(n, from, until, size) {
  const total = new Float64Array(n + 2);
  for (let r = 0; r < from.length; r++) {
    total[from[r] + 1] += size[r];
    total[until[r] + 1] -= size[r]; // until = n lands in the spare cell
  }
  for (let i = 1; i <= n; i++) total[i] += total[i - 1];
  return total.subarray(0, n + 1);
}

/**
 * Which rows live after i events (born < i <= died). Rows are sorted by `born`. Lists are kept every `gap` events, so a
 * jump costs one list and at most half a gap of steps, in either direction.
 */
export class LiveRows {
  constructor(born, died, n) {
    this.n = n;
    this.bornFrom = starts(born, n); // rows born at event e: bornFrom[e] … bornFrom[e + 1]
    this.diedFrom = new Int32Array(n + 2);
    for (let r = 0; r < died.length; r++) if (died[r] < n) this.diedFrom[died[r] + 1]++;
    for (let e = 0; e <= n; e++) this.diedFrom[e + 1] += this.diedFrom[e];
    this.diedRows = new Int32Array(this.diedFrom[n + 1]);
    const next = this.diedFrom.slice();
    for (let r = 0; r < died.length; r++) if (died[r] < n) this.diedRows[next[died[r]]++] = r;

    this.list = new Int32Array(born.length);
    this.place = new Int32Array(born.length);
    this.count = 0;
    for (let r = 0; r < this.bornFrom[0]; r++) this.add(r); // lived before the recording
    this.pos = 0;
    this.gap = Math.max(512, Math.ceil(n / 128));
    this.frames = [this.rows().slice()];
    while (this.pos + this.gap <= n) {
      this.step(this.pos + this.gap);
      this.frames.push(this.rows().slice());
    }
  }

  add(row) {
    this.place[row] = this.count;
    this.list[this.count++] = row;
  }

  remove(row) {
    const last = this.list[--this.count], hole = this.place[row];
    this.list[hole] = last;
    this.place[last] = hole;
  }

  step(i) {
    for (; this.pos < i; this.pos++) {
      const e = this.pos;
      for (let r = this.bornFrom[e]; r < this.bornFrom[e + 1]; r++) this.add(r);
      for (let k = this.diedFrom[e]; k < this.diedFrom[e + 1]; k++) this.remove(this.diedRows[k]);
    }
    for (; this.pos > i; this.pos--) {
      const e = this.pos - 1;
      for (let k = this.diedFrom[e]; k < this.diedFrom[e + 1]; k++) this.add(this.diedRows[k]);
      for (let r = this.bornFrom[e]; r < this.bornFrom[e + 1]; r++) this.remove(r);
    }
  }

  seek(i) {
    const nearest = Math.min(this.frames.length - 1, Math.round(i / this.gap));
    if (Math.abs(nearest * this.gap - i) < Math.abs(this.pos - i)) {
      this.count = 0;
      for (const row of this.frames[nearest]) this.add(row);
      this.pos = nearest * this.gap;
    }
    this.step(i);
  }

  /** Living rows, in no order. A view: valid until the next seek. @returns {Int32Array} */
  rows() {
    return this.list.subarray(0, this.count);
  }
}

/** First row with born >= e, for e = 0 … n + 1. */
function starts(born, n) {
  const from = new Int32Array(n + 2);
  let row = 0;
  for (let e = 0; e <= n + 1; e++) {
    while (row < born.length && born[row] < e) row++;
    from[e] = row;
  }
  return from;
}

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
      this.freed[r] = col.life[r] ? col.born[r] + col.life[r] : n; // a life of 0: never freed
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
      { name: "reserved", values: this.reserved },
      { name: "allocated", values: this.allocated },
      { name: "requested", values: this.requested },
    ];
    this.marks = meta.marks; // [state, name], sorted
    this.blocks = new LiveRows(this.born, this.died, n);
    this.segments = new LiveRows(this.segment.born, this.segment.died, n);
    this.inOrder = null;
    this.islands = new Set((meta.islands || []).map(([place]) => place)); // neighbours on the axis, not in memory
    this.pos = this.blocks.pos;
    this.seek(n);
  }

  /** Go to the state after i events. @param {number} i 0 … n */
  seek(i) {
    this.blocks.seek(i);
    this.segments.seek(i);
    this.pos = i;
    this.inOrder = null;
  }

  /** Is the block freed by the program but still in use by another stream? @param {number} row */
  waits(row) {
    return this.freed[row] < this.pos;
  }

  /**
   * Segments of this state in address order; touching ranges of one expandable segment joined.
   * @returns {{address: number, units: number, stream: number, kind: number}[]} kind: 1 small pool, 2 expandable
   */
  segmentsNow() {
    if (this.inOrder) return this.inOrder;
    const s = this.segment, joined = [];
    for (const row of this.segments.rows().slice().sort((a, b) => s.address[a] - s.address[b])) {
      const last = joined[joined.length - 1], kind = s.kind[row];
      const touches = last && last.address + last.units === s.address[row] && last.stream === s.stream[row];
      if (touches && !this.islands.has(s.address[row]) && kind & 2 && last.kind & 2) last.units += s.units[row];
      else joined.push({ address: s.address[row], units: s.units[row], stream: s.stream[row], kind });
    }
    return (this.inOrder = joined);
  }

  /** Active bytes of each owner in this state. @returns {Float64Array} */
  ownerBytes() {
    const bytes = new Float64Array(this.meta.owners.length);
    for (const row of this.blocks.rows()) bytes[this.owner[row]] += this.size[row];
    return bytes;
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
    const e = this.pos - 1, done = [];
    if (e < 0) return [{ verb: "start", text: "before the first event", address: 0, units: 0 }];
    const block = (verb, r, why) => done.push({
      verb, text: [formatBytes(this.size[r]), this.meta.owners[this.owner[r]].name, why].filter(Boolean).join(" · "),
      address: this.address[r], units: this.size[r] / this.unit,
    });
    const { blocks, segments, segment } = this;
    for (let r = blocks.bornFrom[e]; r < blocks.bornFrom[e + 1]; r++) block("alloc", r, this.stackOf(r));
    for (const r of blocks.rows()) if (this.freed[r] === e) block("free requested", r, this.bornText(r));
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
    return this.born[row] < 0 ? "older than the recording" : `born at event ${formatCount(this.born[row] + 1)}`;
  }

  /** The real address, which does not fit a JS number. @param {number} place on the compressed axis @returns {string} */
  realAddress(place) {
    let found = this.meta.islands[0];
    for (const island of this.meta.islands) if (island[0] <= place) found = island;
    return "0x" + (BigInt(found[1]) + BigInt(Math.floor(place - found[0])) * BigInt(this.unit)).toString(16);
  }
}
