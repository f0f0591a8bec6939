// Reads a packed trace and prints what the panels would say at some of its states, for Python to compare.
// node panels.mjs FILE EVENT …
import { BlockModel } from "../../kvviz/view/player/blockmodel.js";
import { breakdown } from "../../kvviz/view/player/breakdown.js";
import { poolsOf } from "../../kvviz/view/player/colours.js";
import { timeOf } from "../../kvviz/view/player/pick.js";
import { heldSegments, pinsNow } from "../../kvviz/view/player/pins.js";
import { packedAt } from "./packed.mjs";

const [, , path, ...events] = process.argv, model = new BlockModel(packedAt(path));
const shares = (list) => Object.fromEntries(list.filter((s) => s.blocks).map((s) => [s.name, s.bytes]));
const pools = poolsOf(model);
const told = events.map(Number).map((i) => {
  model.seek(i);
  const held = heldSegments(model), now = breakdown(model);
  const elsewhere = ((model.seek((i + 1) % (model.n + 1))), breakdown(model, i)); // the slow way of the same
  model.seek(i);
  const sum = (key) => held.reduce((total, h) => total + h[key], 0);
  return {
    pins: pinsNow(model).map((p) => [p.free, p.segments, p.blocks, p.bytes, p.by]), pinned: sum("pinned"), free: sum("free"),
    largest: Math.max(0, ...held.map((h) => h.largest)), time: timeOf(model, i),
    active: now.active, allocated: now.allocated, owners: shares(now.owners), sites: shares(now.sites),
    same: JSON.stringify(now) === JSON.stringify(elsewhere),
    pools: [...model.blocks.rows()].map((row) => [model.realAddress(model.address[row]), pools[row]]),
  };
});
console.log(JSON.stringify(told));
