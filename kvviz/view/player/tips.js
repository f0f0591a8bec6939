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
  if (model.waits(row)) lines.push("freed, still in use by another stream");
  if (model.stackOf(row)) lines.push(model.stackOf(row));
  const stream = model.meta.streams > 1 ? ` · stream ${model.stream[row]}` : "";
  return [...lines, model.realAddress(model.address[row]) + stream];
}

/** @param {any} model @param {number} unit a place where no block lives @returns {string[]} */
export function freeTip(model, unit) {
  const home = model.segmentsNow().find((s) => unit >= s.address && unit < s.address + s.units);
  if (!home) return ["not reserved at this event", model.realAddress(unit)];
  let from = home.address, to = home.address + home.units;
  for (const row of model.blocks.rows()) {
    const start = model.address[row], end = start + model.size[row] / model.unit;
    if (end <= unit) from = Math.max(from, end);
    else if (start > unit) to = Math.min(to, start);
  }
  const pool = home.kind & 2 ? "an expandable segment" : `a segment of the ${home.kind & 1 ? "small" : "large"} pool`;
  const stream = model.meta.streams > 1 ? `, stream ${home.stream}` : "";
  return [
    `cached, inactive · ${formatBytes((to - from) * model.unit)}`,
    `in ${pool} of ${formatBytes(home.units * model.unit)}${stream}`, model.realAddress(from),
  ];
}
