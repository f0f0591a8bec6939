// The chosen block: which comes next in address order, where it lies, and what there is to say about it. Pure.

import { poolName } from "./colours.js";
import { formatBytes, formatCount, formatOf } from "./format.js";
import { freeAround, segmentAt, waitText } from "./tips.js";

/**
 * The living block that follows in address order (1) or comes before (-1); beyond the last comes the first.
 * @param {any} model @param {number} row -1: none is chosen yet @param {number} direction
 * @param {((row: number) => boolean) | null} [hidden]  blocks that are passed over @returns {number} -1: there is none
 */
export function neighbour(model, row, direction, hidden = null) {
  const { address, blocks } = model, far = -direction * Infinity, from = row < 0 ? far : address[row];
  let next = -1, first = -1; // the nearest beyond, and the one to begin again with
  for (const r of blocks.rows()) {
    if (hidden?.(r)) continue;
    const ahead = (a, b) => direction * (address[a] - address[b]) < 0;
    if (direction * (address[r] - from) > 0 && (next < 0 || ahead(r, next))) next = r;
    if (first < 0 || ahead(r, first)) first = r;
  }
  return next < 0 ? first : next;
}

/** The block that the last event made or freed, -1 where it did neither. @param {any} model @returns {number} */
export function rowOf(model) {
  const e = model.pos - 1;
  if (e < 0) return -1;
  for (const row of model.blocks.rows()) if (model.born[row] === e || model.freed[row] === e) return row;
  return model.died.indexOf(e);
}

/** Does the block live, freed by the program or not? @param {any} model @param {number} row */
export function lives(model, row) {
  return model.born[row] < model.pos && model.pos <= model.died[row];
}

/** The events to go to: [of its birth, of its end]; -1 where it lives to the end. @param {any} model @param {number} row */
export function eventsOf(model, row) {
  return [Math.max(0, model.born[row] + 1), model.died[row] < model.n ? model.died[row] + 1 : -1];
}

/** @type {[string, number][]} */
const TIME_UNITS = [["h", 3.6e9], ["min", 6e7], ["s", 1e6], ["ms", 1e3]]; // in microseconds

/** @param {number} us microseconds @returns {string} "12.3 ms" */
export function formatTime(us) {
  for (const [unit, size] of TIME_UNITS) {
    if (us >= size) return `${(us / size).toFixed(us < 100 * size ? 1 : 0)} ${unit}`;
  }
  return `${Math.round(us)} µs`;
}

/**
 * Time from the start to the state after i events, between the times that the page got; "" without any.
 * @param {any} model @param {number} i @returns {string}
 */
export function timeOf(model, i) {
  const times = model.meta.times || [], steps = times.length - 1;
  if (steps < 1 || !model.n) return "";
  const at = (i / model.n) * steps, k = Math.min(steps - 1, Math.floor(at));
  return `about ${formatTime(times[k] + (at - k) * (times[k + 1] - times[k]))} after the first event here`;
}

/** How long ago it was born, or how long it is until then. @param {any} model @param {number} row @returns {string} */
export function ageOf(model, row) {
  const { pos, born, died } = model, events = formatOf("event");
  if (pos <= born[row]) return `not born yet: in ${events(born[row] + 1 - pos)}`;
  if (pos > died[row]) return `gone for ${events(pos - died[row])}`;
  const since = born[row] < 0 ? `more than ${events(pos)}` : events(pos - born[row] - 1);
  return [since, waitText(model, row)].filter(Boolean).join("; ");
}

/**
 * What there is to say about a block in this state: [label, text] each. A label stays for all states of a block.
 * @param {any} model @param {number} row @returns {[string, string][]}
 */
export function facts(model, row) {
  const exact = (bytes) => `${formatBytes(bytes)} (${formatCount(bytes)} B)`, [birth, death] = eventsOf(model, row);
  const when = (i) => [`event ${formatCount(i)}`, timeOf(model, i)].filter(Boolean).join(", ");
  const home = lives(model, row) && segmentAt(model, model.address[row]);
  const place = home ? `${poolName(home.kind)}, segment of ${formatBytes(home.units * model.unit)}` : "it does not live now";
  return [
    ["requested", exact(model.asked[row])], ["rounded", exact(model.size[row])],
    ["born", model.born[row] < 0 ? "before the first event here" : when(birth)],
    ["dies", death < 0 ? "lives to the last event here" : when(death)], ["age", ageOf(model, row)], ["lies in", place],
    ["address", model.realAddress(model.address[row])], ["stream", String(model.stream[row])],
    ["call site", model.stackOf(row) || "not in this trace"],
  ];
}

/**
 * What there is to say about an empty place: the first line is its heading.
 * @param {any} model @param {number} place  on the axis @returns {[string, string][]}
 */
export function placeFacts(model, place) {
  const home = segmentAt(model, place), real = model.realAddress(place), bytes = (units) => formatBytes(units * model.unit);
  /** @type {[string, string][]} */
  const nothing = [["lies in", "no segment"], ["free range", "–"], ["blocks in it", "–"], ["address", real]];
  if (!home) return [["state", "not reserved at this event"], ...nothing];
  const free = freeAround(model, home, place);
  if (!free) return [["state", "a block lives here now"], ...nothing];
  const { from, to, blocks } = free;
  return [
    ["state", `cached, inactive · ${bytes(to - from)}`], ["lies in", `${poolName(home.kind)}, segment of ${bytes(home.units)}`],
    ["free range", bytes(to - from)], ["blocks in it", formatCount(blocks)], ["address", model.realAddress(from)],
  ];
}
