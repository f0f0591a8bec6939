// What the colour of a block means: owner, age, stream, pool or call site. Pure; blocks.js draws with it.

import { formatCount } from "./format.js";
import { lastUpTo } from "./layout.js";
import { sitesOf } from "./whose.js";

/**
 * @typedef {{name: string, letter: string, color: string, ink: string}} Ink
 * @typedef {{inks: Ink[], of: (row: number) => number, moves?: boolean}} Paint
 *   of: which ink a row has; moves: that changes with the event
 */

/** What may be chosen: [key, what a menu says]. */
export const SCHEMES = [["owner", "owner"], ["age", "age"], ["stream", "stream"], ["pool", "pool"], ["site", "call site"]];
// the same colours as in theme.py, and an ordered ramp: dark enough to dark that its order stays without hue
const PALETTE = ["#0072B2", "#E69F00", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#882255"];
const OTHER_SITES = "#b1bac4", UNKNOWN_SITE = "#7d8590";
const RAMP = ["#fff0b8", "#fec44f", "#f08a24", "#cf5d10", "#7d2a06"];
const AGES = [0.01, 0.05, 0.2, 0.5]; // of the run: where one age ends and the next begins
const POOLS = [["large pool", "L"], ["small pool", "S"], ["large pool, expandable", "LE"], ["small pool, expandable", "SE"]];

/** The readable ink on a colour: the twin of theme.ink_on. @param {string} color "#rrggbb" */
export function inkOn(color) {
  return luminanceOf(color) < 0.17 ? "#ffffff" : "#0b0d10";
}

/** Relative luminance as WCAG defines it, 0 to 1. @param {string} color @returns {number} */
export function luminanceOf(color) {
  const [red, green, blue] = [1, 3, 5].map((k) => {
    const c = parseInt(color.slice(k, k + 2), 16) / 255;
    return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

const inkOf = (name, letter, color) => ({ name, letter, color, ink: inkOn(color) });

/**
 * How blocks are coloured, or null where the trace does not say what is asked.
 * @param {any} model a BlockModel @param {string} scheme  of SCHEMES @returns {Paint | null}
 */
export function paintBy(model, scheme) {
  return { owner: byOwner, age: byAge, stream: byStream, pool: byPool, site: bySite }[scheme](model);
}

function byOwner(model) {
  return { inks: model.meta.owners, of: (row) => model.owner[row] };
}

/** In events since birth, in steps that are shares of the run; what was there before it is the oldest. */
function byAge(model) {
  const ends = [];
  for (const share of AGES) ends.push(Math.max(Math.ceil(model.n * share), (ends[ends.length - 1] || 0) + 1));
  const names = ends.map((end, k) => `${formatCount(k ? ends[k - 1] + 1 : 0)} … ${formatCount(end)} events`);
  const inks = [...names, "older"].map((name, k) => inkOf(name, String(k + 1), RAMP[k]));
  const of = (row) => {
    const born = model.born[row];
    if (born < 0) return 4;
    const age = model.pos - born - 1;
    return age <= ends[1] ? (age <= ends[0] ? 0 : 1) : age <= ends[2] ? 2 : age <= ends[3] ? 3 : 4;
  };
  return { inks, of, moves: true };
}

function byStream(model) {
  const streams = [...new Set(model.stream)].sort((a, b) => a - b), place = new Map(streams.map((s, k) => [s, k]));
  const inks = streams.map((s, k) => inkOf(`stream ${s}`, String(s), PALETTE[k % PALETTE.length]));
  return { inks, of: (row) => place.get(model.stream[row]) };
}

function byPool(model) {
  const kinds = [...new Set(model.segment.kind)].sort(), pools = poolsOf(model), place = new Uint8Array(4);
  kinds.forEach((kind, k) => (place[kind] = k));
  const inks = kinds.map((kind) => inkOf(POOLS[kind][0], POOLS[kind][1], PALETTE[kind]));
  return { inks, of: (row) => place[pools[row]] };
}

/** The name of a segment's pool. @param {number} kind @returns {string} */
export function poolName(kind) {
  return POOLS[kind & 3][0];
}

/** Of each row the kind of the segment that it was born in. @param {any} model @returns {Uint8Array} */
export function poolsOf(model) {
  const { cuts, address, born, segment } = model, held = Array.from({ length: cuts.length }, () => []);
  const order = Int32Array.from(segment.born.keys()).sort((a, b) => segment.born[a] - segment.born[b]);
  for (const s of order) {
    const end = segment.address[s] + segment.units[s];
    for (let p = lastUpTo(cuts, segment.address[s]); p < cuts.length && cuts[p] < end; p++) held[p].push(s);
  }
  const kinds = new Uint8Array(address.length);
  for (let row = 0; row < kinds.length; row++) {
    const there = held[lastUpTo(cuts, address[row])] || [];
    let k = there.length - 1; // the youngest that was there at the block's birth
    while (k > 0 && segment.born[there[k]] > born[row]) k--;
    if (k >= 0) kinds[row] = segment.kind[there[k]];
  }
  return kinds;
}

/** The seven call sites with most bytes times events, all others, and what has none. */
function bySite(model) {
  if (!model.meta.stacks.length) return null;
  const sites = sitesOf(model), weight = new Float64Array(sites.names.length);
  for (let row = 0; row < model.born.length; row++) {
    weight[sites.of[model.stack[row]]] += model.size[row] * (model.died[row] - Math.max(0, model.born[row]));
  }
  const unknown = weight[0];
  weight[0] = 0;
  const most = [...weight.keys()].filter((k) => weight[k]).sort((a, b) => weight[b] - weight[a]).slice(0, PALETTE.length);
  const place = new Uint8Array(weight.length).fill(most.length), inks = most.map((site, k) => {
    place[site] = k;
    return inkOf(sites.names[site], String(k + 1), PALETTE[k]);
  });
  const others = weight.filter((w) => w).length - most.length;
  if (others) inks.push(inkOf(`${formatCount(others)} other call site${others > 1 ? "s" : ""}`, "·", OTHER_SITES));
  place[0] = inks.length;
  if (unknown) inks.push(inkOf(sites.names[0], "?", UNKNOWN_SITE));
  return { inks, of: (row) => place[sites.of[model.stack[row]]] };
}
