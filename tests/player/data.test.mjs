import assert from "node:assert/strict";
import { test } from "node:test";
import { LiveRows, decode, grouped, totals } from "../../kvviz/view/player/data.js";
import { formatBytes, formatCount, formatShort } from "../../kvviz/view/player/format.js";
import { flow, unitAt } from "../../kvviz/view/player/layout.js";
import { chance } from "./models.mjs";
import { partAt, spans } from "./spans.mjs";

test("living rows are those with born < i <= died, whatever the way there", () => {
  for (let seed = 1; seed <= 20; seed++) {
    const random = chance(seed), n = 1 + Math.floor(random() * 3000), rows = Math.floor(random() * 400);
    const born = Int32Array.from({ length: rows }, () => Math.floor(random() * (n + 1)) - 1).sort();
    const died = born.map((b) => Math.min(n, b + 1 + Math.floor(random() ** 3 * n)));
    const of = born.map(() => Math.floor(random() * 3)), size = Float64Array.from(born, () => Math.floor(random() * 2 ** 40));
    const live = new LiveRows(born, died, n, { of, size, count: 3 });
    for (let k = 0; k < 60; k++) {
      const i = k === 0 ? 0 : k === 1 ? n : Math.floor(random() * (n + 1));
      live.seek(i);
      const expected = [...born.keys()].filter((r) => born[r] < i && i <= died[r]);
      assert.deepEqual([...live.rows()].sort((a, b) => a - b), expected, `seed ${seed}, after event ${i} of ${n}`);
      const sums = [0, 1, 2].map((g) => expected.reduce((sum, r) => sum + (of[r] === g ? size[r] : 0), 0));
      assert.deepEqual([...live.sums], sums);
      const j = Math.floor(random() * (n + 1)), [low, high] = [Math.min(i, j), Math.max(i, j)];
      const between = [...born.keys()].some((r) => (born[r] >= low && born[r] < high) || (died[r] >= low && died[r] < high));
      assert.equal(live.changes(i, j), between);
    }
  }
});

test("lists of living rows stay few where many live", () => {
  const n = 200_000, rows = 100_000; // all live to the end, so that each list is longer than the one before
  const born = Int32Array.from({ length: rows }, (_, r) => 2 * r - 1), died = born.map(() => n);
  const live = new LiveRows(born, died, n);
  assert.ok(live.frames.reduce((sum, frame) => sum + frame.length, 0) <= 4e6);
  for (const i of [0, 77_777, n, 123_456]) {
    live.seek(i);
    assert.equal(live.count, born.filter((b) => b < i).length);
  }
});

test("rows are grouped by their event, totals are those of a slow count", () => {
  for (let seed = 1; seed <= 20; seed++) {
    const random = chance(seed), n = Math.floor(random() * 40), rows = Math.floor(random() * 60);
    const event = Int32Array.from({ length: rows }, () => Math.floor(random() * (n + 2)) - 1); // -1 and n: none
    const [from, list] = grouped(event, n);
    for (let e = 0; e < n; e++) {
      assert.deepEqual([...list.subarray(from[e], from[e + 1])], [...event.keys()].filter((r) => event[r] === e));
    }
    const until = event.map((e) => Math.min(n, e + Math.floor(random() * 9))), size = event.map((_, r) => r + 1);
    const sums = totals(n, event, until, size);
    for (let i = 0; i <= n; i++) {
      assert.equal(sums[i], size.reduce((sum, s, r) => sum + (event[r] < i && i <= until[r] ? s : 0), 0));
    }
  }
});

test("columns come back as they were sent", () => {
  const head = JSON.stringify({ meta: { a: "é" }, columns: [
    { name: "steps", type: "i4", length: 4, wire: "u1", delta: true, offset: 0 },
    { name: "same", type: "f8", length: 2, wire: "constant", value: 2 ** 40 },
    { name: "plain", type: "u4", length: 2, wire: "u2", offset: 8 },
  ] });
  const text = new TextEncoder().encode(head), base = Math.ceil((4 + text.length) / 8) * 8;
  const bytes = new Uint8Array(base + 16);
  new DataView(bytes.buffer).setUint32(0, text.length, true);
  bytes.set(text, 4);
  bytes.set([1, 4, 3, 0], base); // zigzag of -1, +2, -2, 0
  bytes.set([0xff, 0xff, 7, 0], base + 8);
  const { meta, col } = decode(bytes.buffer);
  assert.equal(meta.a, "é");
  assert.deepEqual([...col.steps], [-1, 1, -1, -1]);
  assert.deepEqual([...col.same], [2 ** 40, 2 ** 40]);
  assert.deepEqual([...col.plain], [65535, 7]);
});

test("numbers read well", () => {
  assert.equal(formatBytes(0), "0 B");
  assert.equal(formatBytes(1023), "1023 B");
  assert.equal(formatBytes(1536), "1.5 KiB");
  assert.equal(formatBytes(20 * 2 ** 20), "20 MiB");
  assert.equal(formatBytes(20 * 2 ** 20, true), "20.00 MiB");
  assert.equal(formatBytes(2 ** 50), "1024 TiB");
  assert.equal(formatShort(512), "512");
  assert.equal(formatShort(1.5 * 2 ** 20), "1.5M");
  assert.equal(formatShort(33.4 * 2 ** 20), "33M");
  assert.equal(formatCount(250000), "250,000");
});

test("the layout covers every unit once and keeps inside the width", () => {
  for (const width of [280, 1064, 3800]) {
    for (const cuts of [[0, 4096], [0, 4096, 45056, 86016], Array.from({ length: 900 }, (_, k) => k * 4096)]) {
      const laid = flow(cuts, 512, width);
      let next = cuts[0];
      for (const part of laid.parts) {
        assert.equal(part.start, next);
        assert.ok(part.x >= 0 && part.x + part.w <= width + 1e-6, `${part.x} + ${part.w} in ${width}`);
        next = part.start + part.units;
      }
      assert.equal(next, cuts[cuts.length - 1]);
      const whole = spans(laid, cuts[0], next - cuts[0]);
      assert.ok(whole[0].first && whole[whole.length - 1].last);
      assert.equal(whole.length, laid.rows);
    }
  }
  assert.deepEqual(flow([], 512, 800).parts, []);
});

test("a point on a drawn unit leads back to it", () => {
  const laid = flow([0, 40960, 45056], 512, 700);
  for (const unit of [0, 1, 999, 40959, 40960, 45055]) {
    const [span] = spans(laid, unit, 1), found = unitAt(laid, span.x + span.w / 2, span.y + 5);
    assert.ok(Math.abs(found - unit - 0.5) < 1e-6, `${unit} became ${found}`);
    assert.ok(laid.parts[partAt(laid.parts, unit)].start <= unit);
  }
  assert.equal(unitAt(laid, 5, laid.rowHeight + 4), -1, "between two rows there is nothing");
});
