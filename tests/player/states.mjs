// Reads a packed trace and prints what the player would show after each event, for Python to compare.
// node states.mjs FILE
import { BlockModel } from "../../kvviz/view/player/blockmodel.js";
import { packedAt } from "./packed.mjs";

const model = new BlockModel(packedAt(process.argv[2]));
const order = Array.from({ length: model.n + 1 }, (_, i) => (i * 7919 + 13) % (model.n + 1)); // far jumps, in no order
const near = Array.from({ length: model.n + 1 }, (_, i) => model.n - i); // then backwards, one by one
const states = {};
for (const i of [...order, ...near]) {
  model.seek(i);
  const rows = [...model.blocks.rows()].sort((a, b) => model.address[a] - model.address[b]);
  const state = {
    reserved: model.reserved[i], allocated: model.allocated[i], active: model.active[i], requested: model.requested[i],
    blocks: rows.map((r) => [model.realAddress(model.address[r]), model.size[r], model.asked[r],
      model.meta.owners[model.owner[r]].name, model.waits(r)]),
    segments: model.segmentsNow().map((s) => [model.realAddress(s.address), s.units * model.unit]),
    figures: Object.fromEntries(model.figures()), words: model.words(), owners: [...model.ownerBytes()],
    happened: model.happened().map((h) => `${h.verb} ${h.text}`),
  };
  const text = JSON.stringify(state);
  if (states[i] && JSON.stringify(states[i]) !== text) throw new Error(`the state at ${i} depends on the way there`);
  states[i] = state;
}
console.log(JSON.stringify({ peak: model.peak, states: Object.values(states) }));
