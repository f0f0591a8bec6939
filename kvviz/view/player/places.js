// Where addresses lie on the map as it is shown, and what lies under a point.

import { FOLD_HEIGHT, ROW_GAP, alongOf, flow, lastUpTo, piecesOf, unitAt } from "./layout.js";
import { foldTip } from "./foldbar.js";
import { formatBytes } from "./format.js";
import { blockTip, freeTip, segmentAt } from "./tips.js";
import { Reach, Zoom } from "./zoom.js";

const NEAR = 2; // px: a block narrower than a pixel answers within so many
const FINEST = 24; // units in a line, when zoomed in as far as it goes

/** The block map without its drawing. Along the map: all that is not folded, end to end, in units. */
export class MapPlaces {
  /** @param {any} model */
  constructor(model) {
    this.model = model;
    this.fold = model.meta.fold; // what never changes, if there is such a thing
    this.folded = Boolean(this.fold?.folded); // is it one bar now?
    this.zoom = new Zoom(model.n); // the player brings its own
    /** @type {import("./detail.js").Detail | null} */
    this.detail = null; // what the last picture made of the blocks
    this.width = 1;
    this.drawn = this.shownAs = ""; // what the layout was made for
    this.wasFolded = this.folded;
    this.most = Infinity; // px per unit of the whole map, where two maps share a scale
  }

  /** Other data of the same kind, as of a run that goes on. @param {any} model */
  renew(model) {
    this.model = model;
    this.drawn = "";
  }

  /** @param {number} width px @returns {number} height in px */
  layout(width) {
    const { model, folded, zoom } = this, hidden = folded ? model.still : null;
    const starts = [...model.cuts];
    this.end = starts[starts.length - 1] || 0;
    const drawn = [width, folded, this.most].join();
    if (this.drawn !== drawn) {
      this.whole = flow(starts, model.unit, width, hidden, null, this.most);
      this.pieces = piecesOf(starts, hidden);
      if (this.wasFolded !== folded || zoom.place.end !== this.pieces.total) { // its old part means nothing now
        zoom.place = new Reach(this.pieces.total, FINEST * this.whole.rows);
      }
      Object.assign(this, { drawn, width, wasFolded: folded });
    }
    const { rows } = this.whole, { low, high } = zoom.place;
    this.shownAs = `${low} ${high}`;
    this.flow = zoom.placed ? flow(starts, model.unit, width, hidden, { low, high, rows }) : this.whole;
    return Math.max(this.whole.height, 24);
  }

  /** How much of the map is shown. @returns {string} */
  shown() {
    const { zoom: { low, high }, model: { unit }, pieces } = this;
    return `${formatBytes(Math.round(high - low) * unit)} of ${formatBytes(pieces.total * unit)}`;
  }

  /** Where what the last event touched lies: 0 in what is shown or nowhere, -1 before it, 1 behind it. */
  elsewhere() {
    const { zoom: { placed, low, high }, model } = this, touched = placed ? model.happened().filter((h) => h.units) : [];
    const ends = touched.map(({ address, units }) => [alongOf(this.pieces, address), alongOf(this.pieces, address + units)]);
    if (!ends.length || ends.some(([from, to]) => to > low && from < high)) return 0;
    return ends[0][1] <= low ? -1 : 1;
  }

  /** The place under a point, -1 where there is none. @param {number} x px @param {number} y px */
  unitUnder(x, y) {
    return y < this.flow.top ? -1 : unitAt(this.flow, x, y);
  }

  /** The block under a point, -1 where there is none. @param {number} x px @param {number} y px */
  rowAt(x, y) {
    const { model: { address, size, unit: bytes, blocks }, flow: { scale } } = this, unit = this.unitUnder(x, y);
    if (unit < 0) return -1;
    let hit = -1, nearest = NEAR / scale;
    const rows = blocks.rows();
    for (let k = 0; k < rows.length; k++) {
      const row = rows[k], start = address[row], end = start + size[row] / bytes;
      const away = unit < start ? start - unit : unit >= end ? unit - end : 0;
      if (away >= nearest) continue;
      const thin = (end - start) * scale < 1;
      if ((away === 0 && hit < 0) || thin) (hit = row), (nearest = thin ? away : nearest);
    }
    return hit;
  }

  /** How many small blocks share the pixel under a point, and their bytes; null where fewer than two do. */
  crowdAt(x, y) {
    if (this.unitUnder(x, y) < 0 || !this.detail) return null;
    const { detail: d, flow: { top, rowHeight } } = this;
    const bin = Math.floor((y - top) / (rowHeight + ROW_GAP)) * d.columns + Math.floor(x);
    return d.count[bin] > 1 ? { blocks: d.count[bin], bytes: d.bytesIn(bin) } : null;
  }

  /** How far along the map the middle of a range lies. @param {number} address @param {number} units */
  alongOf(address, units) {
    return alongOf(this.pieces, address + units / 2);
  }

  /** How far along the map a point lies, in a gap roughly. @param {number} x px @param {number} y px */
  alongAt(x, y) {
    const { zoom: { low, high }, flow: { top, rows }, width, lineStep } = this, unit = this.unitUnder(x, y);
    if (unit >= 0) return alongOf(this.pieces, unit);
    const line = Math.max(0, Math.min(rows - 1, Math.floor((y - top) / lineStep)));
    return low + ((high - low) * (line + x / width)) / rows;
  }

  /** px from one line to the next. */
  get lineStep() {
    return this.flow.rowHeight + ROW_GAP;
  }

  /** So many px to the right and down, in units along the map. @param {number} dx @param {number} dy */
  unitsIn(dx, dy) {
    return (dx + (dy / this.lineStep) * this.width) / this.flow.scale;
  }

  /** The segment under a point, or what was one: from, to along the map; null where there is none. */
  segmentAt(x, y) {
    const { model, pieces } = this, unit = this.unitUnder(x, y);
    if (unit < 0) return null;
    const home = segmentAt(model, unit);
    if (home) return [alongOf(pieces, home.address), alongOf(pieces, home.address + home.units)];
    const k = lastUpTo(pieces.from, unit);
    return [pieces.before[k], pieces.before[k] + pieces.to[k] - pieces.from[k]];
  }

  /** Move a zoomed map so that a block can be seen. @param {number} row */
  reveal(row) {
    const { zoom, model } = this;
    if (row >= 0 && zoom.placed && zoom.place.follow(this.alongOf(model.address[row], model.size[row] / model.unit))) zoom.tell();
  }

  /** Lines for the tip at a point, the first a heading; null where there is nothing. @returns {string[] | null} */
  tipAt(x, y) {
    if (this.folded && y < this.flow.top) return y <= FOLD_HEIGHT ? foldTip(this, x) : null;
    const unit = this.unitUnder(x, y), row = this.rowAt(x, y), crowd = this.crowdAt(x, y);
    if (unit < 0) return null;
    if (row < 0) return freeTip(this.model, unit);
    const lines = blockTip(this.model, row);
    if (crowd) lines.push(`one of ${crowd.blocks} small blocks in this pixel, ${formatBytes(crowd.bytes)} together; zoom in to see them`);
    return lines;
  }
}
