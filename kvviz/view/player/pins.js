// What keeps free memory from being given back: the blocks that live in the same segment. The twin of Moment.pins.

import { poolName } from "./colours.js";
import { el } from "./dom.js";
import { formatBytes, formatCount, formatOf } from "./format.js";
import { Table, put } from "./table.js";
import { keysOf, whose } from "./whose.js";

const SMALL_PAGE = 2 ** 21; // bytes by which expandable segments of the small pool are mapped

/**
 * @typedef {{address: number, units: number, kind: number, rows: Int32Array, bytes: number, free: number,
 *   largest: number, pinned: number}} Held  a segment; rows: its blocks in address order, `bytes` in all; free: bytes that none of them
 *   uses, `largest` of them in one piece; pinned: what empty_cache() would not give back of the free
 */

/** Every segment of this state, in address order. @param {any} model a BlockModel @returns {Held[]} */
export function heldSegments(model) {
  const { address, size, unit } = model, rows = inOrder(model);
  let next = 0;
  return model.segmentsNow().map((segment) => {
    const whole = segment.units * unit, page = !(segment.kind & 2) ? 0 : segment.kind & 1 ? SMALL_PAGE : model.meta.page;
    let from = 0, bytes = 0, largest = 0, back = 0; // from: where the block before ends, in bytes from the segment's start
    const gap = (until) => {
      largest = Math.max(largest, until - from);
      if (page) back += Math.max(Math.floor(until / page) - Math.ceil(from / page), 0) * page;
      else if (until - from === whole) back += whole;
    };
    const first = next, end = segment.address + segment.units;
    for (; next < rows.length && address[rows[next]] < end; next++) {
      const row = rows[next], start = (address[row] - segment.address) * unit;
      if (start > from) gap(start);
      from = start + size[row];
      bytes += size[row];
    }
    if (whole > from) gap(whole);
    const { kind, units } = segment, free = whole - bytes;
    return { address: segment.address, units, kind, rows: rows.subarray(first, next), bytes, free, largest, pinned: free - back };
  });
}

/** The living rows in address order. @returns {Int32Array} */
function inOrder({ address, blocks, cuts }) {
  const rows = blocks.rows(), count = rows.length;
  if (cuts[cuts.length - 1] * count >= 2 ** 53) return rows.slice().sort((a, b) => address[a] - address[b]);
  const keys = new Float64Array(count); // numbers are sorted ten times as fast as by a function
  for (let k = 0; k < count; k++) keys[k] = address[rows[k]] * count + k;
  keys.sort();
  const order = new Int32Array(count);
  for (let k = 0; k < count; k++) order[k] = rows[keys[k] % count];
  return order;
}

/**
 * Whose the blocks of a segment are, most bytes first; of equals, the one at the lower address.
 * @param {any} model @param {Held} held @returns {{by: string, bytes: number, rows: number[]}[]}
 */
export function holdersIn(model, held) {
  /** @type {Map<number, {by: string, bytes: number, rows: number[]}>} */
  const found = new Map(), keyOf = keysOf(model);
  for (const row of held.rows) {
    const key = keyOf(row);
    let one = found.get(key);
    if (!one) found.set(key, (one = { by: whose(model, row), bytes: 0, rows: [] }));
    one.bytes += model.size[row];
    one.rows.push(row);
  }
  return [...found.values()].sort((a, b) => b.bytes - a.bytes);
}

/**
 * What pins free memory, the most first. A segment counts for the owner and call site with most of its blocks' bytes.
 * @param {any} model @param {Held[]} [segments]
 * @returns {{by: string, free: number, segments: number, blocks: number, bytes: number}[]}
 */
export function pinsNow(model, segments = heldSegments(model)) {
  const { size } = model, found = new Map(), keyOf = keysOf(model), sums = new Map();
  for (const held of segments) {
    if (!held.pinned || !held.rows.length) continue;
    sums.clear();
    for (const row of held.rows) sums.set(keyOf(row), (sums.get(keyOf(row)) || 0) + size[row]);
    let most = -1;
    for (const [key, bytes] of sums) if (most < 0 || bytes > sums.get(most)) most = key; // of equals, the one at the lower address
    let pin = found.get(most);
    if (!pin) found.set(most, (pin = { by: whose(model, held.rows.find((row) => keyOf(row) === most)), free: 0, segments: 0, blocks: 0, bytes: 0 }));
    pin.free += held.pinned;
    pin.segments++;
    pin.blocks += held.rows.length;
    pin.bytes += held.bytes;
  }
  return [...found.values()].sort((a, b) => b.free - a.free || (a.by < b.by ? -1 : 1));
}

const MOST_PINS = 8; // lines of a table

export class PinPanel {
  /** @param {any} panels */
  constructor(panels) {
    this.title = "What pins this segment";
    this.panels = panels;
    this.here = el("p", { className: "note" });
    this.inside = new Table("Who holds the chosen segment", ["whose (call site)", "blocks", "bytes"]);
    this.all = el("p", { className: "note" });
    this.causes = new Table("Pinned segments, by who has most of each", ["main owner (call site)", "pinned", "segments", "all blocks", "all held"]);
    this.segments = new Table("Segments, the most pinned memory first", ["segment", "pinned", "held by", "largest free"]);
    this.element = el("div", { className: "columns" }, [
      el("div", {}, [this.here, this.inside.element]), el("div", {}, [this.all, this.causes.element, this.segments.element]),
    ]);
  }

  draw() {
    const { panels } = this, { model } = panels.player, held = heldSegments(model);
    this.drawChosen(model, held);
    const pinned = held.filter((h) => h.pinned && h.rows.length).sort((a, b) => b.pinned - a.pinned), causes = pinsNow(model, held);
    const sum = held.reduce((total, h) => total + h.pinned, 0), back = held.reduce((total, h) => total + h.free, 0) - sum;
    put(this.all, sum ? `${formatBytes(sum)} are free, but pinned in ${formatOf("segment")(pinned.length)}; empty_cache() would give back ${formatBytes(back)}.`
      : `Nothing is pinned; empty_cache() would give back ${formatBytes(back)}.`);
    this.causes.show(causes.slice(0, MOST_PINS).map((pin) => ({
      cells: [pin.by, formatBytes(pin.free), formatCount(pin.segments), formatCount(pin.blocks), formatBytes(pin.bytes)],
      shares: [pin.free / sum],
    })));
    this.segments.show(pinned.slice(0, MOST_PINS).map((h) => ({
      cells: [`${formatBytes(h.units * model.unit)} at ${model.realAddress(h.address)}`, formatBytes(h.pinned),
        `${formatBytes(h.bytes)} in ${formatCount(h.rows.length)}`, formatBytes(h.largest)],
      shares: [h.pinned / pinned[0].pinned],
      pick: () => panels.choose(h.rows.reduce((most, row) => (model.size[row] > model.size[most] ? row : most)), -1, true),
    })));
  }

  drawChosen(model, segments) {
    const { panels, panels: { card, paint, scheme } } = this;
    const place = card.row >= 0 ? model.address[card.row] : card.place;
    const held = segments.find((h) => place >= h.address && place < h.address + h.units);
    const holders = held ? holdersIn(model, held) : [];
    this.inside.element.hidden = !holders.length;
    if (!held) put(this.here, card.open ? "At this event no segment is there." : "Choose a block, or an empty place, on the map.");
    else {
      const what = `${poolName(held.kind)}, ${formatBytes(held.units * model.unit)} at ${model.realAddress(held.address)}`;
      const blocks = formatOf("block")(held.rows.length);
      put(this.here, !held.rows.length ? `${what}: no block lives here, so empty_cache() would give it back.`
        : `${what}: ${blocks} of ${formatBytes(held.bytes)} keep${held.rows.length === 1 ? "s" : ""} it. ` +
          (held.free ? `${formatBytes(held.free)} are free, the largest piece ${formatBytes(held.largest)}.` : "Nothing in it is free."));
    }
    this.inside.show(holders.slice(0, MOST_PINS).map(({ by, bytes, rows }) => ({
      cells: [by, formatCount(rows.length), formatBytes(bytes)], shares: [undefined, bytes / held.bytes], ink: scheme === "owner" ? paint.inks[paint.of(rows[0])] : undefined,
      pick: () => panels.choose(rows[0], -1, true),
    })));
  }
}
