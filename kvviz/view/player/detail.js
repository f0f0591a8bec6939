// What of a state is large enough to be drawn, and what shares its pixels. Pure, no DOM; tested in node.

const UNKNOWN = -1, LARGE = -2, HIDDEN = -3; // of a block; else the pixel it lies in

/**
 * A state's blocks on the screen: each stretch wider than a pixel is large, and listed; the rest is summed up by the
 * pixel in which it begins, and by ink. Where a block lies is worked out once.
 */
export class Detail {
  /** @param {import("./screen.js").Screen} screen @param {number} blocks  as many as ever live @param {number} inks */
  constructor(screen, blocks, inks) {
    this.screen = screen;
    this.inks = inks;
    this.columns = Math.max(1, Math.ceil(screen.width / screen.dpr));
    const bins = (this.bins = this.columns * screen.lines);
    this.binOf = new Int32Array(blocks).fill(UNKNOWN);
    this.large = 0; // so many entries of the next four count
    this.row = new Int32Array(1024); // of each large stretch: the block, the line, device px
    this.line = new Int32Array(1024);
    this.left = new Int32Array(1024);
    this.right = new Int32Array(1024);
    this.count = new Int32Array(bins); // of each pixel: how many small ones
    this.last = new Int32Array(bins); // and the last of them: of a lone one, itself
    this.bytes = new Float64Array(2 * inks * bins); // of each pixel and ink: what is filtered in, what is filtered out
  }

  /**
   * @param {ArrayLike<number>} rows  the living blocks
   * @param {{address: ArrayLike<number>, size: ArrayLike<number>, unit: number}} blocks  units; bytes; bytes in a unit
   * @param {(row: number) => number} of  index of a block's ink
   * @param {((row: number) => boolean) | null} veiled  is it filtered out?
   */
  gather(rows, { address, size, unit }, of, veiled) {
    const { binOf, count, last, bytes, inks } = this;
    this.large = 0;
    count.fill(0);
    bytes.fill(0);
    for (let k = 0; k < rows.length; k++) {
      const row = rows[k];
      let bin = binOf[row];
      if (bin === UNKNOWN) bin = binOf[row] = this.find(address[row], size[row] / unit);
      if (bin >= 0) {
        count[bin]++;
        last[bin] = row;
        bytes[(2 * bin + (veiled?.(row) ? 1 : 0)) * inks + of(row)] += size[row];
      } else if (bin === LARGE) this.enlist(row, address[row], size[row] / unit);
    }
  }

  /** The pixel of a small block; or LARGE, or HIDDEN. Small ones that break over lines lie in the first. */
  find(begin, units) {
    const { screen, columns } = this, { dpr, line, left, right } = screen, found = screen.project(begin, begin + units);
    if (!found) return HIDDEN;
    for (let j = 0; j < found; j++) if (right[j] - left[j] > dpr) return LARGE;
    return line[0] * columns + Math.min(columns - 1, Math.floor(left[0] / dpr));
  }

  enlist(row, begin, units) {
    const { screen } = this, { dpr } = screen, found = screen.project(begin, begin + units);
    for (let j = 0; j < found; j++) {
      if (screen.right[j] - screen.left[j] <= dpr && j > 0) continue; // a sliver of it on the next line
      if (this.large === this.row.length) for (const name of ["row", "line", "left", "right"]) this[name] = twice(this[name]);
      this.row[this.large] = row;
      this.line[this.large] = screen.line[j];
      this.left[this.large] = screen.left[j];
      this.right[this.large++] = screen.right[j];
    }
  }

  /**
   * The ink with the most bytes in a pixel among what is filtered in; -1 where nothing is.
   * @param {number} bin @param {boolean} [out] among what is filtered out
   */
  inkOf(bin, out = false) {
    const { bytes, inks } = this, base = (2 * bin + (out ? 1 : 0)) * inks;
    let best = -1, most = 0;
    for (let ink = 0; ink < inks; ink++) if (bytes[base + ink] > most) most = bytes[base + (best = ink)];
    return best;
  }

  /** Bytes of all small blocks in a pixel. @param {number} bin */
  bytesIn(bin) {
    const { bytes, inks } = this;
    let sum = 0;
    for (let k = 2 * bin * inks; k < 2 * (bin + 1) * inks; k++) sum += bytes[k];
    return sum;
  }
}

function twice(array) {
  const grown = new array.constructor(2 * array.length);
  grown.set(array);
  return grown;
}
