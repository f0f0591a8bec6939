// What the page map's tips say. Lines of text, the first a heading; no DOM.

import { formatBytes, formatCount, formatOf } from "./format.js";
import { NULL } from "./pagelayout.js";

const range = (from, count) => (count > 1 ? `${formatCount(from)} … ${formatCount(from + count - 1)}` : formatCount(from));

/** @param {any} model a PageModel @param {any} pool @param {number} page @returns {string[]} */
export function pageTip(model, pool, page) {
  const { entry, low, high } = model, held = model.holders.get(page) || [], slots = high[page] - low[page];
  const names = held.slice(0, 12).map((at) => `${model.nameOf(entry.row[at])} entry ${formatCount(entry.index[at])}`);
  if (held.length > names.length) names.push(`and ${held.length - names.length} more`);
  const who = held.length > 1 ? `shared by ${held.length}` : names[0] || (pool.grows ? "not taken" : "free");
  const used = `${slots} of ${formatOf("slot")(pool.size)} in use`;
  return [
    `page ${page - pool.from} · ${who}`,
    ...(held.length > 1 ? [names.join(", ")] : []),
    ...(held.length ? [`${formatOf("reference")(held.length)} · ${slots && slots < pool.size ? used + ": " + range(low[page], slots) : used}`] : []),
    ...(pool.tokenBytes ? [formatBytes(pool.size * pool.tokenBytes)] : []),
    ...textTip(model, pool, held, page),
  ];
}

/** What the tokens in a page say, by the first of its sequences of which that is known: a bar between two tokens. */
function textTip(model, pool, held, page) {
  for (const at of held) {
    const start = model.entry.index[at] * pool.size, from = start + model.low[page];
    const words = model.textOf(model.entry.row[at], from, start + model.high[page]);
    if (words.length) return [`tokens ${range(from, words.length)}:`, words.join("│").replace(/\r?\n/g, "⏎").replace(/\t/g, "⇥")];
  }
  return [];
}

/** @param {any} model @param {import("./pagetables.js").Box} box of a table @returns {string[]} */
export function boxTip(model, { row: r, index, count, page }) {
  const name = model.nameOf(r), pool = model.pools[model.row.pool[r]], parent = model.row.parent[r];
  const where = `${name} ${count > 1 ? "entries" : "entry"} ${range(index, count)}`;
  if (page >= 0) {
    const [head, ...lines] = pageTip(model, pool, model.entry.page[page]), [id, who] = head.split(" · ");
    return [`${where} → ${id}`, ...(who.startsWith(name) ? [] : [who]), ...lines];
  }
  if (count && page === NULL) return [`${where} → null page`, `tokens ${range(index * pool.size, count * pool.size)} slid out`];
  if (count) return [where, "no room to show them"];
  const table = model.tables.get(r) || [], shared = table.filter((k) => model.references[model.entry.page[k]] > 1);
  const seen = model.length[r], visible = formatOf("token")(seen - model.visible[r]);
  return [
    `sequence ${name}${parent < 0 ? "" : ", fork of " + model.nameOf(parent)}`, `${visible} visible, ${formatCount(seen)} seen`,
    `${formatOf("page")(table.length)}, ${formatCount(shared.length)} shared`,
  ];
}
