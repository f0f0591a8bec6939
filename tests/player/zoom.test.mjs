// What zooming and levels of detail compute, without a browser.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Detail } from "../../kvviz/view/player/detail.js";
import { alongOf, flow, lastUpTo, piecesOf } from "../../kvviz/view/player/layout.js";
import { Peaks } from "../../kvviz/view/player/peaks.js";
import { Screen } from "../../kvviz/view/player/screen.js";
import { Reach, Zoom } from "../../kvviz/view/player/zoom.js";
import { axis, chance, crowd } from "./models.mjs";
import { spans } from "./spans.mjs";

const near = (a, b) => assert.ok(Math.abs(a - b) < 1e-6 * Math.max(1, Math.abs(a)), `${a} is not ${b}`);

test("a window stays inside, keeps its least width, and its middle where it was", () => {
  const random = chance(1);
  for (let round = 0; round < 300; round++) {
    const end = Math.floor(random() * 1e6), reach = new Reach(end, 16);
    for (let k = 0; k < 40; k++) {
      const { low, high } = reach, around = low + random() * (high - low), share = (around - low) / (high - low);
      const factor = 2 ** (random() * 6 - 3);
      if (random() < 0.6) {
        reach.by(factor, around);
        const inside = reach.low > 0 && reach.high < end && reach.high - reach.low > reach.least;
        if (inside) near(reach.low + share * (reach.high - reach.low), around);
      } else reach.move((random() - 0.5) * end);
      assert.ok(reach.low >= 0 && reach.high <= end + 1e-6, `${reach.low} … ${reach.high} of ${end}`);
      assert.ok(reach.high - reach.low >= Math.min(16, end) - 1e-6);
    }
    reach.all();
    assert.ok(reach.whole && reach.low === 0 && reach.high === end);
  }
});

test("a window follows the cursor: a page at the edge, to the middle from afar, not at all where it is inside", () => {
  const reach = new Reach(1000, 16);
  reach.set(100, 200);
  assert.equal(reach.follow(150), false);
  assert.equal(reach.follow(201), true);
  assert.deepEqual([reach.low, reach.high], [191, 291]);
  reach.follow(190);
  assert.deepEqual([reach.low, reach.high], [100, 200]);
  reach.follow(800);
  assert.deepEqual([reach.low, reach.high], [750, 850]);
  reach.follow(1000);
  assert.deepEqual([reach.low, reach.high], [900, 1000], "it ends where the events end");
});

test("events and px lead back to one another", () => {
  const zoom = new Zoom(1_000_000);
  assert.deepEqual([zoom.from, zoom.to, zoom.timed], [0, 1_000_000, false]);
  zoom.time.set(123_456.7, 123_999.2);
  assert.deepEqual([zoom.from, zoom.to, zoom.timed], [123_456, 124_000, true]);
  for (let event = zoom.from; event <= zoom.to; event++) assert.equal(zoom.eventAt(zoom.x(event, 700), 700), event);
  assert.equal(zoom.eventAt(-50, 700), zoom.from);
  assert.equal(zoom.eventAt(900, 700), zoom.to);
  assert.ok(zoom.x(0, 700) < 0 && zoom.x(999_999, 700) > 700, "what is hidden lies outside");
  assert.equal(new Zoom(0).x(0, 700), 0);
});

test("a cursor that moves is followed, one that rests is not", () => {
  const zoom = new Zoom(1000);
  let told = 0;
  zoom.listeners.push(() => told++);
  zoom.look(500);
  assert.deepEqual([zoom.from, zoom.to, told], [0, 1000, 0]);
  zoom.time.set(100, 200);
  zoom.look(500);
  assert.deepEqual([zoom.from, zoom.to, told], [100, 200, 0], "who looks elsewhere is left there");
  zoom.look(501);
  assert.deepEqual([zoom.from, zoom.to, told], [451, 551, 1]);
});

test("more events: who saw all sees all, who looked closer stays there", () => {
  const zoom = new Zoom(10);
  let told = 0;
  zoom.listeners.push(() => told++);
  zoom.extend(5000);
  assert.deepEqual([zoom.from, zoom.to, zoom.timed, told], [0, 5000, false, 1]);
  zoom.time.set(100, 200);
  zoom.extend(6000);
  assert.deepEqual([zoom.from, zoom.to, zoom.timed], [100, 200, true]);
});

test("the largest of any stretch is that of a slow look", () => {
  const random = chance(7);
  for (const length of [1, 63, 64, 65, 1000, 5003]) {
    const values = Float64Array.from({ length }, () => Math.floor(random() * 1e9)), peaks = new Peaks(values);
    for (let k = 0; k < 400; k++) {
      const from = Math.floor(random() * length), to = from + 1 + Math.floor(random() * (length - from));
      assert.equal(peaks.most(from, to), Math.max(...values.subarray(from, to)));
    }
  }
});

test("a part of the map is laid out on as many lines, larger, and holds just that part", () => {
  const random = chance(3);
  for (let round = 0; round < 200; round++) {
    const { cuts, folded } = axis(random), whole = flow(cuts, 512, 900, folded), pieces = piecesOf(cuts, folded);
    const low = random() * pieces.total * 0.9, high = low + Math.max(24 * whole.rows, random() * (pieces.total - low));
    if (high > pieces.total) continue;
    const part = flow(cuts, 512, 900, folded, { low, high, rows: whole.rows });
    assert.ok(part.rows <= whole.rows && part.height <= whole.height);
    assert.deepEqual([part.top, part.rowHeight], [whole.top, whole.rowHeight]);
    assert.ok(part.scale >= whole.scale * 0.8, `${part.scale} after ${whole.scale}`);
    near(part.parts.reduce((sum, p) => sum + p.units, 0), high - low);
    near(alongOf(pieces, part.parts[0].start), low);
    for (const p of part.parts) assert.ok(p.x >= 0 && p.x + p.w <= 900 + 1e-6);
  }
});

test("how far along the map a place is: what is folded does not count", () => {
  const random = chance(4);
  for (let round = 0; round < 100; round++) {
    const { cuts, folded } = axis(random), pieces = piecesOf(cuts, folded);
    for (let k = 0; k < 50; k++) {
      const place = random() * cuts[cuts.length - 1], home = lastUpTo(cuts, place);
      let along = folded?.[home] ? 0 : place - cuts[home];
      for (let piece = 0; piece < home; piece++) if (!folded?.[piece]) along += cuts[piece + 1] - cuts[piece];
      near(alongOf(pieces, place), along);
    }
  }
});

test("on the screen lies what the slow layout says", () => {
  const random = chance(5);
  for (let round = 0; round < 60; round++) {
    const { cuts, folded } = axis(random), dpr = [1, 1.5, 2][round % 3], laid = flow(cuts, 512, 777, folded);
    const screen = new Screen(laid, 777, dpr), end = cuts[cuts.length - 1];
    for (let k = 0; k < 80; k++) {
      const begin = Math.floor(random() * end), units = 1 + Math.floor(random() ** 4 * end), apart = k % 2 === 1;
      const slow = spans(laid, begin, units, apart), found = screen.project(begin, begin + units, apart);
      assert.equal(found, slow.length);
      slow.forEach((s, j) => {
        assert.equal(screen.top(screen.line[j]), s.y);
        assert.deepEqual([screen.left[j], screen.right[j]], [Math.round(s.x * dpr), Math.round((s.x + s.w) * dpr)]);
      });
      if (!found) continue;
      assert.equal(screen.opens, slow[0].first);
      assert.equal(screen.closes, slow[found - 1].last);
    }
  }
});

test("no byte is lost: what is too small for a pixel is summed up in one, by ink and by filter", () => {
  const random = chance(6);
  for (let round = 0; round < 40; round++) {
    const end = 4_000_000, blocks = crowd(random, end, 30_000), count = blocks.address.length, inks = 3 + (round % 5);
    const zoomed = round % 2 ? { low: 1_000_000, high: 1_000_000 + 40_000 * (1 + random()), rows: 12 } : null;
    const screen = new Screen(flow([0, end], 512, 800, null, zoomed), 800, 1 + (round % 2)), detail = new Detail(screen, count, inks);
    const ink = Int32Array.from({ length: count }, () => Math.floor(random() * inks)), out = Uint8Array.from(ink, () => (random() < 0.3 ? 1 : 0));
    for (let state = 0; state < 3; state++) { // arrays are used again
      const rows = [...blocks.address.keys()].filter(() => random() < 0.8), veiled = state === 1 ? null : (row) => out[row] === 1;
      detail.gather(rows, blocks, (row) => ink[row], veiled);
      const large = new Set(detail.row.subarray(0, detail.large));
      const seen = rows.filter((row) => screen.project(blocks.address[row], blocks.address[row] + blocks.size[row] / 512));
      const small = seen.filter((row) => !large.has(row));
      for (const row of small) {
        screen.project(blocks.address[row], blocks.address[row] + blocks.size[row] / 512);
        assert.ok(screen.right[0] - screen.left[0] <= screen.dpr);
      }
      let bytes = 0, lone = 0;
      for (let bin = 0; bin < detail.bins; bin++) {
        bytes += detail.bytesIn(bin);
        if (detail.count[bin] === 1) lone++;
      }
      assert.equal(bytes, small.reduce((sum, row) => sum + blocks.size[row], 0));
      assert.equal(detail.count.reduce((a, b) => a + b, 0), small.length);
      assert.ok(zoomed || lone > 0, "some are alone in a pixel");
      const bin = detail.count.indexOf(Math.max(...detail.count));
      const there = small.filter((row) => detail.find(blocks.address[row], blocks.size[row] / 512) === bin);
      for (const filteredOut of [false, true]) {
        const shares = new Array(inks).fill(0);
        for (const row of there) if (Boolean(veiled?.(row)) === filteredOut) shares[ink[row]] += blocks.size[row];
        const most = Math.max(...shares);
        const found = detail.inkOf(bin, filteredOut);
        assert.equal(found < 0 ? 0 : shares[found], most, "the largest share has the say");
      }
    }
  }
});

test("zooming in opens what was summed up", () => {
  const random = chance(8), end = 4_000_000, blocks = crowd(random, end, 30_000), rows = [...blocks.address.keys()];
  let before = Infinity;
  for (const size of [end, end / 8, end / 64, end / 512]) {
    const laid = flow([0, end], 512, 800, null, size === end ? null : { low: 0, high: size, rows: 12 }), detail = new Detail(new Screen(laid, 800, 1), rows.length, 1);
    detail.gather(rows, blocks, () => 0, null);
    const crowded = detail.count.filter((n) => n > 1).reduce((a, b) => a + b, 0);
    assert.ok(crowded < before || crowded === 0, `${crowded} of ${rows.length} share pixels, ${before} did before`);
    before = crowded;
  }
  assert.equal(before, 0);
});
