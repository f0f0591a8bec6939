// Reads a packed page log and prints what the player would show after each event, for Python to compare.
// node pagestates.mjs FILE
import { PageModel } from "../../kvviz/view/player/pagemodel.js";
import { packedAt } from "./packed.mjs";

const model = new PageModel(packedAt(process.argv[2]));
const order = Array.from({ length: model.n + 1 }, (_, i) => (i * 7919 + 13) % (model.n + 1)); // far jumps, in no order
const near = Array.from({ length: model.n + 1 }, (_, i) => model.n - i); // then backwards, one by one
const states = {};
for (const i of [...order, ...near]) {
  model.seek(i);
  const { entry, row } = model;
  const pools = model.pools.map((pool) => ({
    tables: model.living(pool).map((r) => [
      row.sequence[r], (model.tables.get(r) || []).map((at) => [entry.index[at], entry.page[at] - pool.from]), model.length[r], model.visible[r],
      model.nameOf(r),
    ]),
    ...Object.fromEntries(["references", "low", "high"].map((name) => [name, [...model[name].subarray(pool.from, pool.from + pool.pages)]])),
    holders: Array.from({ length: pool.pages }, (_, p) => (model.holders.get(pool.from + p) || []).map((at) => row.sequence[entry.row[at]])),
  }));
  const state = {
    pools, totals: model.series.map((s) => s.values[i]), figures: model.figures(), words: model.words(),
    happened: model.happened().map((h) => `${h.verb} ${h.text}`), touched: model.happened()[0].pages,
  };
  const text = JSON.stringify(state);
  if (states[i] && JSON.stringify(states[i]) !== text) throw new Error(`the state at ${i} depends on the way there`);
  states[i] = state;
}
console.log(JSON.stringify({ peak: model.peak, states: Object.values(states) }));
