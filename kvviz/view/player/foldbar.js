// The bar at the top of the map: what never changes, as shares of its owners.

import { SANS, say } from "./draw.js";
import { formatBytes } from "./format.js";
import { FOLD_HEIGHT, bar } from "./layout.js";
import { segmentPath } from "./outlines.js";

/** @param {any} map @returns {{x: number, w: number, owner: any, bytes: number}[]} owner: undefined where inactive */
function sharesOf({ fold: { shares }, width, dpr, model }) {
  let x = 0;
  return bar(shares.map((s) => s[1]), width).map((w, k) => {
    const from = Math.round(x * dpr) / dpr;
    x += w;
    return { x: from, w: Math.round(x * dpr) / dpr - from, owner: model.meta.owners[shares[k][0]], bytes: shares[k][1] };
  });
}

/** What is folded: the owners' shares of it, and what it is. @param {CanvasRenderingContext2D} g @param {any} map */
export function drawFoldBar(g, map) {
  const { T, width } = map, shares = sharesOf(map), whole = [{ x: 0, y: 0, w: width, first: true, last: true }];
  g.save();
  segmentPath(g, whole, FOLD_HEIGHT, 0);
  g.clip();
  for (const { x, w, owner } of shares) {
    g.fillStyle = owner ? owner.color : T.free;
    g.fillRect(x, 0, w, FOLD_HEIGHT);
    g.fillStyle = T.paper;
    if (x) g.fillRect(x - 0.5, 0, 0.5, FOLD_HEIGHT);
  }
  g.restore();
  g.strokeStyle = T.edge;
  g.lineWidth = 1;
  segmentPath(g, whole, FOLD_HEIGHT, 0.5);
  g.stroke();
  g.font = `600 11px ${SANS}`;
  const text = map.fold.labels.find((t) => g.measureText(t).width + 14 <= shares[0].w);
  if (text) say(g, text, 7, FOLD_HEIGHT / 2 + 0.5, shares[0].owner ? shares[0].owner.ink : T.text, g.font);
}

/** Lines for the tip on the bar. @param {any} map @param {number} x px @returns {string[]} */
export function foldTip(map, x) {
  const shares = sharesOf(map), name = (s) => (s.owner ? s.owner.name : "cached, inactive");
  const at = shares.find((s) => x < s.x + s.w) || shares[shares.length - 1];
  const others = shares.filter((s) => s !== at).map((s) => `${name(s)} · ${formatBytes(s.bytes)}`);
  return [
    `${name(at)} · ${formatBytes(at.bytes)}`, `in ${map.fold.head}`, ...(others.length ? ["with", ...others] : []),
    "folded, on another scale; f shows them all",
  ];
}
