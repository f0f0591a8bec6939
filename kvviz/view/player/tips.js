// What the map tells about a place: a block, or memory that nobody uses.

import { formatBytes, formatCount } from "./format.js";

/** @param {any} model @param {number} row a block @returns {string[]} lines, the first a heading */
export function blockTip(model, row) {
  const exact = (bytes) => `${formatBytes(bytes)} (${formatCount(bytes)} B)`;
  const end = model.died[row] === model.n ? "lives to the last event here" : `dies at event ${formatCount(model.died[row] + 1)}`;
  const lines = [
    `${model.meta.owners[model.owner[row]].name} · ${formatBytes(model.size[row])}`,
    `requested ${exact(model.asked[row])}`, `rounded   ${exact(model.size[row])}`,
    `${model.bornText(row)}, ${end}`,
  ];
  const waits = waitText(model, row);
  if (waits) lines.push(waits);
  if (model.stackOf(row)) lines.push(model.stackOf(row));
  const stream = model.meta.streams > 1 ? ` · stream ${model.stream[row]}` : "";
  return [...lines, model.realAddress(model.address[row]) + stream];
}

/**
 * What a living block waits for, "" where nobody has freed it. A free that needs nothing is done with the next event: only
 * one that takes longer tells of another stream.
 * @param {any} model @param {number} row @returns {string}
 */
export function waitText({ pos, freed, died }, row) {
  if (freed[row] >= pos) return "";
  return `free requested, not yet done${died[row] - freed[row] > 1 ? ": in use by another stream" : ""}`;
}

/** The segment over a place of the axis in this state. @param {any} model @param {number} place */
export function segmentAt(model, place) {
  return model.segmentsNow().find((s) => place >= s.address && place < s.address + s.units) || null;
}

/**
 * The free range around a place of a segment, and how many blocks live in that segment; null where one lives right there.
 * @param {any} model @param {{address: number, units: number}} home  the segment @param {number} place
 * @returns {{from: number, to: number, blocks: number} | null}
 */
export function freeAround(model, home, place) {
  let from = home.address, to = home.address + home.units, blocks = 0;
  for (const row of model.blocks.rows()) {
    const start = model.address[row], end = start + model.size[row] / model.unit;
    if (start < home.address || start >= home.address + home.units) continue;
    blocks++;
    if (end <= place) from = Math.max(from, end);
    else if (start > place) to = Math.min(to, start);
    else return null;
  }
  return { from, to, blocks };
}

/** @param {any} model @param {number} unit a place where no block lives @returns {string[]} */
export function freeTip(model, unit) {
  const home = segmentAt(model, unit);
  if (!home) return ["not reserved at this event", model.realAddress(unit)];
  const { from, to } = freeAround(model, home, unit);
  const pool = home.kind & 2 ? "an expandable segment" : `a segment of the ${home.kind & 1 ? "small" : "large"} pool`;
  const stream = model.meta.streams > 1 ? `, stream ${home.stream}` : "";
  return [
    `cached, inactive · ${formatBytes((to - from) * model.unit)}`,
    `in ${pool} of ${formatBytes(home.units * model.unit)}${stream}`, model.realAddress(from),
  ];
}
