// Models by chance and by hand, for the tests in node: what the player reads of a recording, the slow way.

/** Numbers from 0 to 1, the same for a seed. @param {number} seed @returns {() => number} */
export function chance(seed) { // mulberry32
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

const OWNERS = ["other", "weights", "kv cache"].map((name, k) => ({ name, letter: name[0], color: ["#009E73", "#0072B2", "#E69F00"][k], ink: "#ffffff" }));

/** What panels read of a BlockModel, the slow way. Blocks: [born, freed, died, address, units, slack, owner, stack, stream]. */
export function modelOf(n, blocks, segments, meta = {}) {
  const column = (k, make = Int32Array) => make.from(blocks, (b) => b[k]), part = (k) => Int32Array.from(segments, (s) => s[k]);
  const model = {
    n, pos: n, unit: 512, peak: 0,
    born: column(0), freed: column(1), died: column(2), address: column(3),
    size: Float64Array.from(blocks, (b) => b[4] * 512), asked: Float64Array.from(blocks, (b) => b[4] * 512 - b[5]),
    owner: column(6), stack: column(7), stream: column(8),
    segment: { address: part(0), units: part(1), stream: part(2), kind: part(3), born: part(4), died: part(5) },
    cuts: Int32Array.from([...new Set(segments.flatMap((s) => [s[0], s[0] + s[1]]))].sort((a, b) => a - b)),
    meta: { owners: OWNERS, stacks: ["torch.cat · model.layers.3.attn · a.py:1", "torch.cat · model.layers.11.attn · a.py:1", "mm · b.py:2"],
      nobody: 0, page: 20 * 2 ** 20, events: n, streams: 2, ...meta },
    blocks: { rows: () => Int32Array.from(model.born.keys()).filter((r) => model.born[r] < model.pos && model.pos <= model.died[r]) },
    segmentsNow: () => segments.filter((s) => s[4] < model.pos && model.pos <= s[5]).sort((a, b) => a[0] - b[0])
      .map(([address, units, stream, kind]) => ({ address, units, stream, kind })),
    realAddress: (place) => "0x" + place.toString(16),
    stackOf: (row) => (model.stack[row] ? model.meta.stacks[model.stack[row] - 1] : ""),
  };
  return model;
}

/** Four segments side by side, blocks that come and go in them, never two in one place. */
export function randomModel(seed) {
  const random = chance(seed), n = 200, whole = (most) => Math.floor(random() * most), blocks = [];
  const segments = [[0, 4096, 0, 1, -1, n], [4096, 40960, 0, 0, 3, n], [45056, 40960, 1, 0, 5, n], [86016, 81920, 0, 2, 8, n]];
  for (const [start, units, stream, , first] of segments) {
    for (let slot = 0; slot < 8; slot++) {
      const room = units / 8, size = 1 + whole(room);
      for (let born = first + whole(20); born < n; ) {
        const freed = Math.min(n, born + 1 + whole(60)), died = freed === n ? n : Math.min(n, freed + whole(3));
        blocks.push([born, freed, died, start + slot * room + whole(room - size + 1), size, whole(512), whole(3), whole(4), stream]);
        born = died + 1 + whole(30);
      }
    }
  }
  return modelOf(n, blocks.sort((a, b) => a[0] - b[0]), segments);
}

/** Pieces of an axis, and which of them are folded; null: none, for not all may be. */
export function axis(random) {
  const cuts = [0];
  for (let k = Math.floor(random() * 60) + 1; k; k--) cuts.push(cuts[cuts.length - 1] + 1 + Math.floor(random() ** 3 * 90_000));
  const folded = random() < 0.5 ? null : cuts.slice(1).map(() => (random() < 0.4 ? 1 : 0));
  return { cuts, folded: folded?.every(Boolean) ? null : folded };
}

/** Blocks side by side with holes between, many of them small. */
export function crowd(random, end, count) {
  const address = [], size = [];
  for (let at = 0, k = 0; k < count && at < end; k++) {
    const units = Math.min(end - at, 1 + Math.floor(random() ** 6 * 6000));
    address.push(at);
    size.push(units * 512);
    at += units + (random() < 0.4 ? Math.floor(random() * 40) : 0);
  }
  return { address, size, unit: 512 };
}
