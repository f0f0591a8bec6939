// Where each address lies on the picture: one byte scale, flowing over rows like text. Pure; layout.py is its twin.

export const ROW_GAP = 8;
export const FOLD_HEIGHT = 18;
const FOLD_GAP = 12; // px: below the bar of what is folded
const SMALLEST_START = 14; // px: a piece does not begin in less room than this, it goes to the next row

/**
 * @typedef {{start: number, units: number, x: number, y: number, w: number}} Part  a run of addresses on one row
 * @typedef {{parts: Part[], scale: number, rowHeight: number, rows: number, height: number, top: number}} Flow
 *   scale: px per unit; top: where the rows begin, below the bar if there is one
 */

/**
 * Rows for so many bytes: enough to read labels, few enough to see at once.
 * @param {number} bytes @param {number} width px @param {boolean} [rest] others are folded away, so more
 */
export function rowsFor(bytes, width, rest = false) {
  const most = width < 520 ? 20 : 12, each = (width < 520 ? 12 : 24) / (rest ? 4 : 1);
  return Math.max(1, Math.min(most, Math.ceil(bytes / (each * 2 ** 20))));
}

/**
 * What the picture lays out: the pieces that are not folded, end to end.
 * @typedef {{from: number[], to: number[], before: number[], total: number}} Pieces
 *   from, to: places on the axis; before: units of the pieces in front of it; total: units of all
 */

/**
 * @param {ArrayLike<number>} starts  first unit of each piece; the last entry is the end of the last piece
 * @param {ArrayLike<number> | null} [folded]  for each piece: does it go into the bar at the top instead?
 * @param {{low: number, high: number} | null} [shown]  which part of them, in units along them; null: all
 * @returns {Pieces}
 */
export function piecesOf(starts, folded = null, shown = null) {
  const from = [], to = [], before = [], { low, high } = shown || { low: 0, high: Infinity };
  let along = 0, total = 0;
  for (let k = 0; k + 1 < starts.length; k++) {
    if (folded?.[k]) continue;
    const units = starts[k + 1] - starts[k], a = Math.max(0, low - along), b = Math.min(units, high - along);
    along += units;
    if (b <= a) continue;
    from.push(starts[k] + a);
    to.push(starts[k] + b);
    before.push(total);
    total += b - a;
  }
  return { from, to, before, total };
}

/**
 * How far along the pieces a place lies; the next piece's begin where it lies in none.
 * @param {Pieces} pieces @param {number} unit
 */
export function alongOf({ from, to, before, total }, unit) {
  const k = lastUpTo(from, unit);
  if (k < 0 || !from.length) return 0;
  if (unit < to[k]) return before[k] + unit - from[k];
  return k + 1 < from.length ? before[k + 1] : total;
}

/**
 * Index of the last entry that is at most `value`, -1 where there is none.
 * @param {ArrayLike<number>} sorted @param {number} value
 */
export function lastUpTo(sorted, value) {
  let low = -1, high = sorted.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (sorted[middle] <= value) low = middle;
    else high = middle - 1;
  }
  return low;
}

/**
 * Lay the pieces (address ranges in order; a new one begins wherever a segment ever began) out over `width` px.
 * @param {ArrayLike<number>} starts  first unit of each piece; the last entry is the end of the last piece
 * @param {number} unit  bytes in a unit
 * @param {number} width
 * @param {ArrayLike<number> | null} [folded]  for each piece: does it go into the bar at the top instead?
 * @param {{low: number, high: number, rows: number} | null} [shown]  a part of it, enlarged to so many rows
 * @param {number} [most]  px per unit, beyond which nothing is enlarged: so that two maps can have one scale
 * @returns {Flow}
 */
export function flow(starts, unit, width, folded = null, shown = null, most = Infinity) {
  const laid = piecesOf(starts, folded, shown), { total } = laid, pieces = laid.from.length;
  const top = folded && [].some.call(folded, Boolean) && starts.length > 1 ? FOLD_HEIGHT + FOLD_GAP : 0;
  const rows = shown ? shown.rows : rowsFor(total * unit, width, top > 0), rowHeight = rows <= 4 ? 32 : 24;
  const gap = pieces ? Math.min(4, (0.2 * width * rows) / pieces) : 0;
  let scale = Math.min(most, total ? (width * rows - gap * pieces) / total : 1);
  for (let tries = 1; tries < 24 && place(laid, scale, width, gap, null) > rows; tries++) {
    scale *= 0.985; // what the ends of rows waste is not known before it is laid out
  }
  const parts = [], used = Math.max(1, place(laid, scale, width, gap, parts)), step = rowHeight + ROW_GAP;
  for (const part of parts) part.y = top + part.y * step;
  const height = parts.length || !top ? top + used * step - ROW_GAP : FOLD_HEIGHT;
  return { parts, scale, rowHeight, rows: used, height, top };
}

/** Widths of shares of the bar: at least two px each, at the cost of the first, the largest. @param {number[]} sizes @param {number} width */
export function bar(sizes, width) {
  const total = sizes.reduce((sum, size) => sum + size, 0);
  const others = sizes.slice(1).map((size) => Math.max(2, (size * width) / total));
  return [others.reduce((rest, taken) => rest - taken, width), ...others];
}

/** Lay out into `parts`, or only try. @param {Pieces} pieces @param {Part[] | null} parts @returns {number} rows taken */
function place({ from, to }, scale, width, gap, parts) {
  let x = 0, y = 0, last = -1;
  for (let k = 0; k < from.length; k++) {
    let start = from[k], left = to[k] - start;
    while (left > 0) {
      let room = width - x;
      if (x > 0 && room < Math.min(SMALLEST_START, left * scale)) {
        (x = 0), y++;
        room = width;
      }
      const units = left * scale <= room ? left : Math.max(1, Math.floor(room / scale));
      const taken = Math.min(units, left);
      parts?.push({ start, units: taken, x, y, w: taken * scale });
      last = y;
      x += taken * scale;
      start += taken;
      left -= taken;
      if (left > 0) (x = 0), y++;
    }
    x += gap;
  }
  return last + 1;
}

/** The unit under a point, or -1 between pieces and rows. @param {Flow} flow @param {number} x px @param {number} y px */
export function unitAt({ parts, scale, rowHeight, top }, x, y) {
  const step = rowHeight + ROW_GAP, row = top + Math.floor((y - top) / step) * step;
  if (y - row > rowHeight) return -1;
  const part = parts.find((p) => p.y === row && x >= p.x && x < p.x + p.w);
  return part ? part.start + (x - part.x) / scale : -1;
}
