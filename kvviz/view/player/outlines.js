// What is reserved and what is not: outlines, hatch, dashes. Few have round corners and single lines; of thousands the
// narrow ones are painted as columns of pixels.

import { packed } from "./strips.js";

/** @typedef {{x: number, y: number, w: number, first: boolean, last: boolean}} Span */

const RADIUS = 4;
const MANY = 600; // so many stretches are drawn one by one, however narrow
const BARE = 3; // px: a narrower outline would hide what is in it
const NARROW = 12; // px: of many, narrower ones become columns

/**
 * Stretches of one kind. wide: drawn one by one. narrow: line, left and right of each, in device px.
 * @param {import("./screen.js").Screen} screen @param {number[]} ranges  begin and end of each
 * @param {number} bare px: narrower ones are narrow even where there are few @param {boolean} apart  see project
 */
function sorted(screen, ranges, bare, apart) {
  const { dpr, line, left, right } = screen, wide = [], narrow = [];
  const least = (ranges.length > 2 * MANY ? NARROW : bare) * dpr;
  for (let k = 0; k < ranges.length; k += 2) {
    const found = screen.project(ranges[k], ranges[k + 1], apart);
    for (let j = 0; j < found; j++) {
      if (right[j] - left[j] < least) narrow.push(line[j], left[j], right[j]);
      else wide.push({
        x: left[j] / dpr, y: screen.top(line[j]), w: (right[j] - left[j]) / dpr,
        first: j === 0 && screen.opens, last: j === found - 1 && screen.closes,
      });
    }
  }
  return { wide, narrow };
}

/** The segments of one state on one layout. */
export class Outlines {
  /**
   * @param {import("./screen.js").Screen} screen @param {{address: number, units: number}[]} segments in order
   * @param {number} end of the axis
   */
  constructor(screen, segments, end) {
    const gaps = [], held = [];
    let from = 0;
    for (const { address, units } of segments) {
      if (address > from) gaps.push(from, address);
      from = Math.max(from, address + units);
      held.push(address, address + units);
    }
    if (end > from) gaps.push(from, end);
    this.screen = screen;
    this.segments = segments;
    this.height = screen.flow.rowHeight;
    this.held = sorted(screen, held, BARE, false);
    this.gaps = sorted(screen, gaps, 0, true);
  }

  /**
   * Dashed: was reserved at some time, is not now.
   * @param {CanvasRenderingContext2D} g @param {any} T @param {import("./strips.js").Strips} strips
   */
  drawGaps(g, T, strips) {
    const { gaps, height, screen: { flow, dpr } } = this;
    g.strokeStyle = T.dash;
    g.lineWidth = 1;
    g.setLineDash([3, 3]);
    segmentPath(g, gaps.wide, height, 0.5);
    g.stroke();
    g.setLineDash([]);
    strips.clear();
    columns(strips, gaps.narrow, packed(T.dash), dpr);
    strips.stamp(g, flow, dpr, Array.from({ length: Math.ceil(height / 6) }, (_, k) => [6 * k, 3]));
  }

  /** Hatch where there is room for it; what is narrower is painted into the blocks' strips. */
  drawHeld(g, T, hatch, strips) {
    const { held: { wide, narrow }, screen: { dpr } } = this, edge = packed(T.edge), free = packed(T.free);
    g.fillStyle = hatch;
    segmentPath(g, wide, this.height, 0);
    g.fill();
    for (let k = 0; k < narrow.length; k += 3) {
      const bare = narrow[k + 2] - narrow[k + 1] < BARE * dpr;
      strips.fill(narrow[k], narrow[k + 1], Math.max(narrow[k + 2], narrow[k + 1] + 1), bare ? edge : free);
    }
  }

  /** Into the strips, once the blocks are there: the sides of those narrow ones that have room for sides. */
  paintSides(T, strips) {
    columns(strips, this.held.narrow, packed(T.edge), this.screen.dpr, BARE);
  }

  /** Over the blocks: they are square, so cut them to the segments' corners, and frame those. */
  drawFrames(g, T) {
    const { held: { wide }, height } = this;
    segmentPath(g, wide, height, 0);
    for (const { x, y, w } of wide) g.rect(x, y, w, height);
    g.fillStyle = T.paper;
    g.fill("evenodd");
    g.strokeStyle = T.edge;
    g.lineWidth = 1;
    segmentPath(g, wide, height, 0.5);
    g.stroke();
  }
}

/** The first and the last column of each that is at least so many px wide. */
function columns(strips, narrow, color, dpr, least = 0) {
  const one = Math.max(1, Math.round(dpr));
  for (let k = 0; k < narrow.length; k += 3) {
    if (narrow[k + 2] - narrow[k + 1] < least * dpr) continue;
    strips.fill(narrow[k], narrow[k + 1], narrow[k + 1] + one, color);
    strips.fill(narrow[k], Math.max(narrow[k + 1], narrow[k + 2] - one), narrow[k + 2], color);
  }
}

/**
 * Rounded where a segment really begins or ends, square where the row breaks it.
 * @param {any} g @param {Span[]} spans @param {number} h px: height of a row @param {number} inset px
 */
export function segmentPath(g, spans, h, inset) {
  g.beginPath();
  for (const { x, y, w, first, last } of spans) {
    const radius = Math.min(RADIUS, w / 2), left = first ? radius : 0, right = last ? radius : 0;
    g.roundRect(x + inset, y + inset, Math.max(w - 2 * inset, 0.5), h - 2 * inset, [left, right, right, left]);
  }
}
