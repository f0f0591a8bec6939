import assert from "node:assert/strict";
import { test } from "node:test";
import { breakdown } from "../../kvviz/view/player/breakdown.js";
import { SCHEMES, inkOn, luminanceOf, paintBy, poolsOf } from "../../kvviz/view/player/colours.js";
import { Filter, parseBytes } from "../../kvviz/view/player/filters.js";
import { lastUpTo } from "../../kvviz/view/player/layout.js";
import { inLanes, livesTold, weightiest } from "../../kvviz/view/player/lifebars.js";
import { ageOf, eventsOf, facts, formatTime, lives, neighbour, placeFacts, rowOf, timeOf } from "../../kvviz/view/player/pick.js";
import { heldSegments, holdersIn, pinsNow } from "../../kvviz/view/player/pins.js";
import { waitText } from "../../kvviz/view/player/tips.js";
import { siteName, sitesOf, whose } from "../../kvviz/view/player/whose.js";
import { chance, modelOf, randomModel } from "./models.mjs";

test("sizes are read as people write them", () => {
  for (const [text, bytes] of [["512", 512], ["64k", 65536], ["1.5 MiB", 1572864], ["2M", 2097152], ["3 GB", 3 * 2 ** 30], [" .5 KiB ", 512], ["7 b", 7], ["1T", 2 ** 40]]) {
    assert.equal(parseBytes(text), bytes, text);
  }
  for (const text of ["", "many", "1.2.3", "-4", "4 X", "1e3"]) assert.ok(Number.isNaN(parseBytes(text)), text);
});

test("next and previous go through all living blocks in address order, and around", () => {
  for (let seed = 1; seed <= 10; seed++) {
    const model = randomModel(seed);
    for (const pos of [40, 120, 200]) {
      model.pos = pos;
      const order = [...model.blocks.rows()].sort((a, b) => model.address[a] - model.address[b]);
      for (const direction of [1, -1]) {
        const wanted = direction > 0 ? order : [...order].reverse(), seen = [];
        for (let row = -1, k = 0; k < order.length; k++) seen.push((row = neighbour(model, row, direction)));
        assert.deepEqual(seen, wanted);
        assert.equal(neighbour(model, seen[seen.length - 1], direction), wanted[0]);
      }
      const odd = (row) => row % 2 === 1, shown = order.filter((row) => !odd(row));
      assert.equal(neighbour(model, -1, 1, odd), shown.length ? shown[0] : -1);
    }
    assert.equal(neighbour(model, 3, 1, () => true), -1);
  }
});

test("a block that is gone still has neighbours", () => {
  const model = modelOf(10, [[0, 3, 3, 100, 4, 0, 1, 0, 0], [1, 10, 10, 50, 4, 0, 1, 0, 0], [2, 10, 10, 200, 4, 0, 1, 0, 0]], [[0, 4096, 0, 0, -1, 10]]);
  assert.ok(!lives(model, 0));
  assert.equal(neighbour(model, 0, 1), 2);
  assert.equal(neighbour(model, 0, -1), 1);
});

test("what is said of a block follows the cursor", () => {
  const model = modelOf(10, [[2, 6, 8, 100, 4, 12, 1, 1, 1], [-1, 10, 10, 50, 4, 0, 1, 0, 0]], [[0, 4096, 1, 1, -1, 10]], { times: [0, 1000, 3000] });
  const said = (pos) => {
    model.pos = pos;
    return Object.fromEntries(facts(model, 0));
  };
  assert.equal(said(5).requested, "2.0 KiB (2,036 B)");
  assert.equal(said(5).rounded, "2 KiB (2,048 B)");
  assert.equal(said(5).born, "event 3, about 600 µs after the first event here");
  assert.equal(said(5).dies, "event 9, about 2.6 ms after the first event here");
  assert.deepEqual(["age", "lies in", "address", "stream", "call site"].map((k) => said(5)[k]),
    ["2 events", "small pool, segment of 2 MiB", "0x64", "1", "torch.cat · model.layers.3.attn · a.py:1"]);
  assert.equal(said(1).age, "not born yet: in 2 events");
  assert.equal(said(2).age, "not born yet: in 1 event");
  assert.equal(said(3).age, "0 events");
  assert.equal(said(7).age, "4 events; free requested, not yet done: in use by another stream");
  assert.equal(said(10).age, "gone for 2 events");
  assert.equal(said(10)["lies in"], "it does not live now");
  assert.deepEqual(eventsOf(model, 0), [3, 9]);
  assert.deepEqual(eventsOf(model, 1), [0, -1]);
  assert.equal(ageOf(model, 1), "more than 10 events");
  assert.equal(Object.fromEntries(facts(model, 1)).born, "before the first event here");
  assert.deepEqual([3, 7, 9, 1].map((pos) => ((model.pos = pos), rowOf(model))), [0, 0, 0, -1]);
  model.pos = 5;
  assert.deepEqual(placeFacts(model, 60).slice(0, 4), [["state", "cached, inactive · 23 KiB"], ["lies in", "small pool, segment of 2 MiB"],
    ["free range", "23 KiB"], ["blocks in it", "2"]]);
  assert.deepEqual(placeFacts(model, 9000)[0], ["state", "not reserved at this event"]);
  assert.deepEqual(placeFacts(model, 101)[0], ["state", "a block lives here now"]);
});

test("times", () => {
  assert.deepEqual([7, 1500, 1.25e6, 9e7, 1.2e10].map(formatTime), ["7 µs", "1.5 ms", "1.3 s", "1.5 min", "3.3 h"]);
  assert.equal(timeOf({ n: 10, meta: {} }, 3), "");
  assert.equal(timeOf({ n: 10, meta: { times: [0, 5, 2000] } }, 10), "about 2.0 ms after the first event here");
});

test("a filter hides exactly those that do not pass, and says so", () => {
  for (let seed = 1; seed <= 6; seed++) {
    const model = randomModel(seed), filter = new Filter(model), paint = paintBy(model, "owner");
    assert.equal(filter.veil, null);
    model.pos = 150;
    const passes = (row) => model.size[row] >= 65536 && model.size[row] <= 2 ** 20 && /CAT/i.test(model.stackOf(row)) && model.owner[row] !== 1;
    Object.assign(filter, { from: 65536, to: 2 ** 20, text: " CAT " });
    filter.change();
    filter.toggle("owner", paint, 1);
    for (let row = 0; row < model.born.length; row++) assert.equal(filter.veil(row), !passes(row));
    const here = [...model.blocks.rows()], shown = here.filter(passes), sum = (rows) => rows.reduce((t, r) => t + model.size[r], 0);
    assert.deepEqual(filter.count(), { shown: shown.length, all: here.length, shownBytes: sum(shown), allBytes: sum(here) });
    assert.ok(filter.sentence().startsWith(`showing ${shown.length} of ${here.length} blocks, `));
    assert.equal(filter.shows("owner", "weights"), false);
    filter.toggle("owner", paint, 1);
    assert.equal(filter.shows("owner", "weights"), true);
    filter.clear();
    filter.from = filter.to = model.size[4]; // both ends are shown
    filter.change();
    for (let row = 0; row < model.born.length; row++) assert.equal(filter.veil(row), model.size[row] !== model.size[4]);
    filter.clear();
    assert.ok(!filter.on && filter.veil === null && !filter.sentence().includes("faded"));
  }
});

test("a free that is done with the next event says nothing of another stream, nor does one that nothing follows", () => {
  const rows = [[0, 3, 4, 0, 4, 0, 1, 0, 0], [1, 3, 5, 10, 4, 0, 1, 0, 0], [2, 9, 10, 20, 4, 0, 1, 0, 0], [2, 7, 10, 30, 4, 0, 1, 0, 0], [2, 10, 10, 40, 4, 0, 1, 0, 0]];
  const model = modelOf(10, rows, [[0, 4096, 0, 0, -1, 10]]), at = (pos, row) => ((model.pos = pos), waitText(model, row));
  const asked = "free requested, not yet done", used = `${asked}: in use by another stream`;
  assert.deepEqual([at(3, 0), at(4, 0)], ["", asked]);
  assert.deepEqual([at(3, 1), at(4, 1), at(5, 1)], ["", used, used]);
  assert.deepEqual([2, 3, 4].map((row) => at(10, row)), [asked, used, ""], "the recording ends");
});

test("a filter speaks of one and of many, and says where nothing can match", () => {
  const rows = [[0, 10, 10, 0, 4, 0, 1, 0, 0], [1, 10, 10, 10, 8, 0, 1, 0, 0]], model = modelOf(10, rows, [[0, 4096, 0, 0, -1, 10]]);
  const filter = new Filter(model), said = (from, to, pos = 10) => {
    model.pos = pos;
    Object.assign(filter, { from, to });
    filter.change();
    return filter.sentence();
  };
  assert.equal(said(0, Infinity), "showing 2 of 2 blocks, 6 KiB of 6 KiB");
  assert.equal(said(0, Infinity, 1), "showing 1 of 1 block, 2 KiB of 2 KiB");
  assert.equal(said(3000, Infinity), "showing 1 of 2 blocks, 4 KiB of 6 KiB; 1 is faded");
  assert.equal(said(9000, Infinity), "showing 0 of 2 blocks, 0 B of 6 KiB; 2 are faded");
  assert.equal(said(9000, 3000), "showing 0 of 2 blocks, 0 B of 6 KiB; 2 are faded; “size from” is larger than “to”: nothing matches");
  assert.equal(said(3000, 3000), "showing 0 of 2 blocks, 0 B of 6 KiB; 2 are faded");
});

test("lives are told in the right number", () => {
  assert.equal(livesTold(14, 27, 3, "events 0 to 9"),
    "14 of the 27 blocks that are born or die in events 0 to 9: those with most bytes × events. 3 more live throughout.");
  assert.equal(livesTold(1, 1, 1, "events 0 to 9"), "1 block is born or dies in events 0 to 9. 1 more lives throughout.");
  assert.equal(livesTold(0, 0, 2, "events 0 to 9"), "No block is born or dies in events 0 to 9. 2 live throughout.");
  assert.equal(livesTold(0, 0, 0, "events 0 to 9"), "No block is born or dies in events 0 to 9.");
});

test("an age is one of five, in order, and the oldest are those from before", () => {
  const model = modelOf(1000, [[-1, 1000, 1000, 0, 1, 0, 0, 0, 0], [0, 1000, 1000, 1, 1, 0, 0, 0, 0]], [[0, 4096, 0, 0, -1, 1000]]);
  const { inks, of, moves } = paintBy(model, "age"), at = (pos) => ((model.pos = pos), of(1));
  assert.ok(moves && inks.length === 5);
  assert.deepEqual([1, 11, 12, 51, 52, 201, 202, 501, 502, 1000].map(at), [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]);
  assert.equal(((model.pos = 0), of(0)), 4);
  assert.deepEqual(inks.map((i) => i.name), ["0 … 10 events", "11 … 50 events", "51 … 200 events", "201 … 500 events", "older"]);
});

test("neighbours of the ramp differ in lightness, which every eye sees, and inks are read on their colours", () => {
  const model = randomModel(1), contrast = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  const steps = paintBy(model, "age").inks.map((i) => luminanceOf(i.color));
  for (let k = 1; k < steps.length; k++) assert.ok(steps[k] < steps[k - 1] && contrast(steps[k], steps[k - 1]) > 1.35, `step ${k}`);
  for (const [scheme] of SCHEMES.slice(1)) {
    const { inks } = paintBy(model, scheme), letters = inks.map((i) => i.letter);
    assert.equal(new Set(letters).size, inks.length, `${scheme}: a letter of its own`);
    assert.equal(new Set(inks.map((i) => i.color)).size, inks.length, `${scheme}: a colour of its own`);
    for (const { color, ink } of inks) {
      assert.equal(ink, inkOn(color));
      assert.ok(contrast(luminanceOf(color), luminanceOf(ink)) >= 4.5, `${color} ${ink}`);
    }
  }
});

test("every row has an ink, and it is the right one", () => {
  const model = randomModel(2), index = (inks, name) => inks.findIndex((i) => i.name === name);
  const rows = [...model.born.keys()], kinds = [1, 0, 0, 2], edges = [0, 4096, 45056, 86016];
  const stream = paintBy(model, "stream"), pool = paintBy(model, "pool"), site = paintBy(model, "site");
  const names = ["large pool", "small pool", "large pool, expandable"];
  for (const row of rows) {
    assert.equal(stream.of(row), index(stream.inks, `stream ${model.stream[row]}`));
    assert.equal(pool.of(row), index(pool.inks, names[kinds[lastUpTo(edges, model.address[row])]]));
    assert.equal(site.of(row), index(site.inks, model.stack[row] ? siteName(model.stackOf(row)) : "an unknown call site"));
  }
  assert.equal(paintBy({ ...model, meta: { ...model.meta, stacks: [] } }, "site"), null);
});

test("a place that had several segments: the pool is that of the birth", () => {
  const segments = [[0, 4096, 0, 1, -1, 20], [0, 8192, 0, 0, 30, 60], [4096, 4096, 0, 3, 70, 100]];
  const rows = [[5, 10, 10, 10, 4, 0, 0, 0, 0], [40, 50, 50, 10, 4, 0, 0, 0, 0], [80, 90, 90, 5000, 4, 0, 0, 0, 0], [45, 50, 50, 5000, 4, 0, 0, 0, 0]];
  assert.deepEqual([...poolsOf(modelOf(100, rows, segments))], [1, 0, 3, 0]);
});

test("many call sites: the seven weightiest by name, the others together", () => {
  const stacks = Array.from({ length: 12 }, (_, k) => `f${k} · a.py:${k}`);
  const rows = stacks.map((_, k) => [k, 100, 100, 10 * k, 12 - k, 0, 0, k + 1, 0]);
  const { inks, of } = paintBy(modelOf(100, rows, [[0, 4096, 0, 0, -1, 100]], { stacks }), "site");
  assert.deepEqual(inks.map((i) => i.name), [...stacks.slice(0, 7), "5 other call sites"]);
  assert.deepEqual(rows.map((_, k) => of(k)), [0, 1, 2, 3, 4, 5, 6, 7, 7, 7, 7, 7]);
});

test("call sites of all layers are one; whose a block is", () => {
  assert.equal(siteName("torch.cat · model.layers.3.self_attn · train.py:12"), "torch.cat · model.layers.*.self_attn · train.py:12");
  assert.equal(siteName("mm · model.layers.3 · cell line 4"), "mm · model.layers.* · cell line 4");
  const model = randomModel(3), site = "torch.cat · model.layers.*.attn · a.py:1";
  assert.deepEqual(sitesOf(model).names, ["an unknown call site", site, "mm · b.py:2"]);
  assert.deepEqual([...sitesOf(model).of], [0, 1, 1, 2]);
  const of = (owner, stack) => ((model.owner[0] = owner), (model.stack[0] = stack), whose(model, 0));
  assert.deepEqual([of(0, 0), of(0, 2), of(2, 0), of(2, 1)], ["other", site, "kv cache", `kv cache (${site})`]);
});

test("the weightiest lives are those of a full sort", () => {
  for (let seed = 1; seed <= 10; seed++) {
    const model = randomModel(seed), random = chance(seed + 100);
    for (const most of [1, 7, 1000]) {
      const [from, to] = [Math.floor(random() * 100), 101 + Math.floor(random() * 100)];
      const hidden = seed % 2 ? null : Uint8Array.from(model.born, () => Number(random() < 0.3));
      const life = (r) => Math.min(model.died[r], to) - Math.max(model.born[r], from);
      const here = [...model.born.keys()].filter((r) => life(r) > 0 && !hidden?.[r]), all = here.filter((r) => life(r) < to - from);
      const sorted = [...all].sort((a, b) => life(b) * model.size[b] - life(a) * model.size[a] || a - b);
      assert.deepEqual(weightiest(model, from, to, most, hidden), { rows: sorted.slice(0, most), all: all.length, throughout: here.length - all.length });
    }
  }
});

test("no two lives in one lane touch", () => {
  for (let seed = 1; seed <= 10; seed++) {
    const model = randomModel(seed), { rows } = weightiest(model, 0, 200, 60), placed = inLanes(model, rows, 6, 2);
    assert.deepEqual(placed[0], { row: rows[0], lane: 0 });
    for (const a of placed) {
      for (const b of placed) {
        if (a === b || a.lane !== b.lane) continue;
        assert.ok(model.born[a.row] >= model.died[b.row] + 2 || model.born[b.row] >= model.died[a.row] + 2);
      }
    }
  }
});

test("a breakdown adds up, at the cursor and away from it", () => {
  for (let seed = 1; seed <= 5; seed++) {
    const model = randomModel(seed), told = {};
    for (const pos of [0, 30, 77, 200]) told[pos] = ((model.pos = pos), breakdown(model));
    for (const pos of [0, 30, 77, 200]) {
      const rows = [...model.born.keys()].filter((r) => model.born[r] < pos && pos <= model.died[r]);
      const sum = (some) => some.reduce((t, r) => t + model.size[r], 0), { active, allocated, owners, sites } = told[pos];
      assert.equal(active, sum(rows));
      assert.equal(allocated, sum(rows.filter((r) => model.freed[r] >= pos)));
      owners.forEach(({ bytes, blocks }, k) => {
        const mine = rows.filter((r) => model.owner[r] === k);
        assert.deepEqual([bytes, blocks], [sum(mine), mine.length]);
      });
      assert.equal(sites.reduce((t, s) => t + s.bytes, 0), active);
      model.pos = 10;
      assert.deepEqual(breakdown(model, pos), told[pos]);
    }
  }
});

test("what pins a segment", () => {
  const MB = 2048; // units
  const model = modelOf(10, [
    [0, 10, 10, 0, 1, 0, 1, 0, 0], [1, 10, 10, 20 * MB - 2, 2, 0, 2, 1, 0], [2, 10, 10, 10 * MB, 1, 0, 2, 2, 0], // one segment of 20 MiB
    [3, 10, 10, 40 * MB + 25 * MB, 5 * MB, 0, 1, 0, 0], // in 60 MiB of an expandable one
  ], [[0, 20 * MB, 0, 0, -1, 10], [20 * MB, 20 * MB, 0, 0, -1, 10], [40 * MB, 60 * MB, 0, 2, -1, 10]]);
  const [one, empty, expandable] = heldSegments(model), mib = 2 ** 20;
  assert.deepEqual([[...one.rows], one.bytes, one.free, one.largest, one.pinned], [[0, 2, 1], 2048, 20 * mib - 2048, 10 * mib - 512, 20 * mib - 2048]);
  assert.deepEqual([[...empty.rows], empty.free, empty.largest, empty.pinned], [[], 20 * mib, 20 * mib, 0]);
  // free: 0 … 25 and 30 … 60 MiB; whole pages of 20 MiB in them: 0 … 20, 40 … 60
  assert.deepEqual([expandable.free, expandable.largest, expandable.pinned], [55 * mib, 30 * mib, 15 * mib]);
  assert.deepEqual(holdersIn(model, one).map((h) => [h.by, h.bytes, h.rows.length]),
    [["kv cache (torch.cat · model.layers.*.attn · a.py:1)", 1536, 2], ["weights", 512, 1]]);
  assert.deepEqual(pinsNow(model).map((p) => [p.by, p.free, p.segments, p.blocks, p.bytes]), [
    ["kv cache (torch.cat · model.layers.*.attn · a.py:1)", 20 * mib - 2048, 1, 3, 2048], ["weights", 15 * mib, 1, 1, 5 * mib],
  ]);
});
