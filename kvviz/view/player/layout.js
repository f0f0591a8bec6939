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

/** Rows for so many bytes: enough to read labels, few enough to see at once. rest: others are folded away, so more. */
export function rowsFor(bytes, width, rest = false) {
  const most = width < 520 ? 20 : 12, each = (width < 520 ? 12 : 24) / (rest ? 4 : 1);
  return Math.max(1, Math.min(most, Math.ceil(bytes / (each * 2 ** 20))));
}

/**
 * Lay the pieces (address ranges in order; a new one begins wherever a segment ever began) out over `width` px.
 * @param {ArrayLike<number>} starts  first unit of each piece; the last entry is the end of the last piece
 * @param {number} unit  bytes in a unit
 * @param {number} width
 * @param {ArrayLike<number> | null} [folded]  for each piece: does it go into the bar at the top instead?
 * @returns {Flow}
 */
export function flow(starts, unit, width, folded = null) {
  let pieces = 0, total = 0;
  for (let k = 0; k + 1 < starts.length; k++) if (!folded?.[k]) pieces++, (total += starts[k + 1] - starts[k]);
  const top = pieces < starts.length - 1 ? FOLD_HEIGHT + FOLD_GAP : 0;
  const rows = rowsFor(total * unit, width, top > 0), rowHeight = rows <= 4 ? 32 : 24;
  const gap = pieces ? Math.min(4, (0.2 * width * rows) / pieces) : 0;
  let scale = total ? (width * rows - gap * pieces) / total : 1, parts = [];
  for (let tries = 0; tries < 24; tries++) {
    parts = place(starts, scale, width, gap, folded);
    if (!parts.length || parts[parts.length - 1].y < rows) break;
    scale *= 0.985; // what the ends of rows waste is not known before it is laid out
  }
  const used = parts.length ? parts[parts.length - 1].y + 1 : 1, step = rowHeight + ROW_GAP;
  for (const part of parts) part.y = top + part.y * step;
  const height = parts.length || !top ? top + used * step - ROW_GAP : FOLD_HEIGHT;
  return { parts, scale, rowHeight, rows: used, height, top };
}

/** Widths of shares of the bar: at least two px each, at the cost of the first, the largest. @param {number[]} sizes */
export function bar(sizes, width) {
  const total = sizes.reduce((sum, size) => sum + size, 0);
  const others = sizes.slice(1).map((size) => Math.max(2, (size * width) / total));
  return [others.reduce((rest, taken) => rest - taken, width), ...others];
}

function place(starts, scale, width, gap, folded) {
  const parts = [];
  let x = 0, y = 0;
  for (let k = 0; k + 1 < starts.length; k++) {
    if (folded?.[k]) continue;
    let start = starts[k], left = starts[k + 1] - start;
    while (left > 0) {
      let room = width - x;
      if (x > 0 && room < Math.min(SMALLEST_START, left * scale)) {
        (x = 0), y++;
        room = width;
      }
      const units = left * scale <= room ? left : Math.max(1, Math.floor(room / scale));
      const taken = Math.min(units, left);
      parts.push({ start, units: taken, x, y, w: taken * scale });
      x += taken * scale;
      start += taken;
      left -= taken;
      if (left > 0) (x = 0), y++;
    }
    x += gap;
  }
  return parts;
}

/** Index of the part that holds a unit. @param {Part[]} parts @param {number} unit */
export function partAt(parts, unit) {
  let low = 0, high = parts.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (parts[middle].start <= unit) low = middle;
    else high = middle - 1;
  }
  return low;
}

/**
 * The rectangles that [start, start + units) covers: one a row, or one a piece where `apart`.
 * @returns {{x: number, y: number, w: number, first: boolean, last: boolean}[]}
 */
export function spans({ parts, scale }, start, units, apart = false) {
  const end = start + units, out = [];
  for (let k = partAt(parts, start); k < parts.length && parts[k].start < end; k++) {
    const part = parts[k], from = Math.max(start, part.start), to = Math.min(end, part.start + part.units);
    if (to <= from) continue;
    const x = part.x + (from - part.start) * scale, right = part.x + (to - part.start) * scale;
    const last = out[out.length - 1];
    if (last && last.y === part.y && !apart) last.w = right - last.x;
    else out.push({ x, y: part.y, w: right - x, first: from === start, last: false });
    out[out.length - 1].last = to === end;
  }
  return out;
}

/** The unit under a point, or -1 between pieces and rows. @param {Flow} flow */
export function unitAt({ parts, scale, rowHeight, top }, x, y) {
  const step = rowHeight + ROW_GAP, row = top + Math.floor((y - top) / step) * step;
  if (y - row > rowHeight) return -1;
  const part = parts.find((p) => p.y === row && x >= p.x && x < p.x + p.w);
  return part ? part.start + (x - part.x) / scale : -1;
}
