// Where ranges of addresses lie on a laid-out map, slow and plain.

/** @typedef {import("../../kvviz/view/player/layout.js").Part} Part @typedef {import("../../kvviz/view/player/layout.js").Flow} Flow */

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
 * The rectangles that [start, start + units) covers: one a row, or one a piece where `apart`. screen.js does the same
 * for each living block; the still picture has its twin.
 * @param {Flow} flow @param {number} start @param {number} units @param {boolean} [apart]
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
