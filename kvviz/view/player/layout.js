// Where each address lies on the picture: one byte scale, flowing over rows like text. Pure; layout.py is its twin.

export const ROW_GAP = 8;
const SMALLEST_START = 14; // px: a piece does not begin in less room than this, it goes to the next row

/**
 * @typedef {{start: number, units: number, x: number, y: number, w: number}} Part  a run of addresses on one row
 * @typedef {{parts: Part[], scale: number, rowHeight: number, rows: number, height: number}} Flow  scale: px per unit
 */

/** Rows for so many bytes: enough to read labels, few enough to see at once. */
export function rowsFor(bytes, width) {
  const most = width < 520 ? 20 : 12, each = width < 520 ? 12 : 24;
  return Math.max(1, Math.min(most, Math.ceil(bytes / (each * 2 ** 20))));
}

/**
 * Lay the pieces (address ranges in order; a new one begins wherever a segment ever began) out over `width` px.
 * @param {ArrayLike<number>} starts  first unit of each piece; the last entry is the end of the last piece
 * @param {number} unit  bytes in a unit
 * @param {number} width
 * @returns {Flow}
 */
export function flow(starts, unit, width) {
  const pieces = Math.max(0, starts.length - 1), total = pieces ? starts[pieces] - starts[0] : 0;
  const rows = rowsFor(total * unit, width), rowHeight = rows <= 4 ? 32 : 24;
  const gap = pieces ? Math.min(4, (0.2 * width * rows) / pieces) : 0;
  let scale = total ? (width * rows - gap * pieces) / total : 1, parts = [];
  for (let tries = 0; tries < 24; tries++) {
    parts = place(starts, scale, width, gap);
    if (!parts.length || parts[parts.length - 1].y < rows) break;
    scale *= 0.985; // what the ends of rows waste is not known before it is laid out
  }
  const used = parts.length ? parts[parts.length - 1].y + 1 : 1;
  for (const part of parts) part.y *= rowHeight + ROW_GAP;
  return { parts, scale, rowHeight, rows: used, height: used * (rowHeight + ROW_GAP) - ROW_GAP };
}

function place(starts, scale, width, gap) {
  const parts = [];
  let x = 0, y = 0;
  for (let k = 0; k + 1 < starts.length; k++) {
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
export function unitAt({ parts, scale, rowHeight }, x, y) {
  const step = rowHeight + ROW_GAP, row = Math.floor(y / step) * step;
  if (y - row > rowHeight) return -1;
  const part = parts.find((p) => p.y === row && x >= p.x && x < p.x + p.w);
  return part ? part.start + (x - part.x) / scale : -1;
}
