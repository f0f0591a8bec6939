// What the page received, and what lives after any event. Pure functions, no DOM; tested in node.

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

/**
 * Running total after 0 … n events of `size`, counted while from < i <= until.
 * @param {number} n @param {ArrayLike<number>} from @param {ArrayLike<number>} until @param {ArrayLike<number>} size
 * @returns {Float64Array}
 */
export function totals(n, from, until, size) {
  const total = new Float64Array(n + 2);
  for (let r = 0; r < from.length; r++) {
    total[from[r] + 1] += size[r];
    total[until[r] + 1] -= size[r]; // until = n lands in the spare cell
  }
  for (let i = 1; i <= n; i++) total[i] += total[i - 1];
  return total.subarray(0, n + 1);
}

const FRAMES = 128, MOST = 4e6; // lists kept at most, and rows in all of them together

/**
 * Which rows live after i events (born < i <= died). Rows are sorted by `born`. Lists are kept every `gap` events, so a
 * jump costs one list and at most half a gap of steps, in either direction.
 */
export class LiveRows {
  /**
   * @param {ArrayLike<number>} born @param {ArrayLike<number>} died @param {number} n events
   * @param {{of: ArrayLike<number>, size: ArrayLike<number>, count: number}} [groups]  of each row its group, and what it
   *   adds to that group's sum while it lives
   */
  constructor(born, died, n, groups) {
    this.n = n;
    this.groups = groups;
    this.sums = new Float64Array(groups ? groups.count : 0);
    this.bornFrom = starts(born, n); // rows born at event e: bornFrom[e] … bornFrom[e + 1]
    const [diedFrom, diedRows] = grouped(died, n);
    this.diedFrom = diedFrom;
    this.diedRows = diedRows;
    this.list = new Int32Array(born.length);
    this.place = new Int32Array(born.length);
    this.count = 0;
    this.gap = 0;
    /** @type {Int32Array[]} */
    this.frames = [];
    this.keep(died);
    this.pos = 0;
    this.take(this.frames[0]);
  }

  /** The lists, each in the order of its rows: what lives of the one before, and what has been born since. */
  keep(died) {
    const { n, bornFrom, diedFrom } = this;
    let most = 0;
    for (let e = 0; e <= n; e++) most = Math.max(most, bornFrom[e] - diedFrom[e]);
    const frames = Math.max(16, Math.min(FRAMES, Math.floor(MOST / Math.max(1, most))));
    this.gap = Math.max(512, Math.ceil(n / frames));
    let kept = new Int32Array(bornFrom[0]).map((_, row) => row); // lived before the recording
    this.frames.push(kept);
    for (let at = this.gap; at <= n; at += this.gap) {
      const next = new Int32Array(bornFrom[at] - diedFrom[at]);
      let count = 0;
      for (let k = 0; k < kept.length; k++) if (died[kept[k]] >= at) next[count++] = kept[k];
      for (let row = bornFrom[at - this.gap]; row < bornFrom[at]; row++) if (died[row] >= at) next[count++] = row;
      this.frames.push((kept = next));
    }
  }

  take(frame) {
    this.count = 0;
    this.sums.fill(0);
    for (let k = 0; k < frame.length; k++) this.add(frame[k]);
  }

  add(row) {
    this.place[row] = this.count;
    this.list[this.count++] = row;
    const { groups } = this;
    if (groups) this.sums[groups.of[row]] += groups.size[row];
  }

  remove(row) {
    const last = this.list[--this.count], hole = this.place[row], { groups } = this;
    this.list[hole] = last;
    this.place[last] = hole;
    if (groups) this.sums[groups.of[row]] -= groups.size[row];
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

  /** @param {number} i 0 … n */
  seek(i) {
    const nearest = Math.min(this.frames.length - 1, Math.round(i / this.gap));
    if (Math.abs(nearest * this.gap - i) < Math.abs(this.pos - i)) {
      this.take(this.frames[nearest]);
      this.pos = nearest * this.gap;
    }
    this.step(i);
  }

  /** Is anything born or dead between two states? @param {number} i @param {number} j */
  changes(i, j) {
    return this.bornFrom[i] !== this.bornFrom[j] || this.diedFrom[i] !== this.diedFrom[j];
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
 * Rows in order of an event of theirs, those with one from 0 to n - 1: the rows of event e are rows[from[e]] …
 * rows[from[e + 1]].
 * @param {ArrayLike<number>} event @param {number} n @returns {[Int32Array, Int32Array]} from, of length n + 2, and rows
 */
export function grouped(event, n) {
  const from = new Int32Array(n + 2), count = event.length;
  for (let r = 0; r < count; r++) if (event[r] >= 0 && event[r] < n) from[event[r] + 2]++; // one further than it will be
  for (let e = 1; e < n + 1; e++) from[e + 1] += from[e];
  const rows = new Int32Array(from[n + 1]);
  for (let r = 0; r < count; r++) if (event[r] >= 0 && event[r] < n) rows[from[event[r] + 1]++] = r;
  return [from, rows];
}
