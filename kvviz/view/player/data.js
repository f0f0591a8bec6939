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

/** Running total after 0 … n events of `size`, counted while from < i <= until. @returns {Float64Array} */
export function totals(n, from, until, size) {
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
