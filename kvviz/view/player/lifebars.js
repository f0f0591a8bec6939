// The lives of the weightiest blocks as bars over the events, on the timeline's scale.

import { el, pointOn } from "./dom.js";
import { SANS, say } from "./draw.js";
import { formatCount, formatShort } from "./format.js";
import { put } from "./table.js";
import { blockTip } from "./tips.js";

/**
 * Rows with most bytes times events in the states from … to, the weightiest first. Those that live throughout are counted
 * only: all of them look alike, and they would take the room of the others.
 * @param {any} model a BlockModel @param {number} from @param {number} to @param {number} most
 * @param {Uint8Array | null} [hidden]  1: not this one @returns {{rows: number[], all: number, throughout: number}}
 *   all: how many there are beside those that live throughout
 */
export function weightiest(model, from, to, most, hidden = null) {
  const { born, died, size } = model, rows = [], weights = [];
  let all = 0, throughout = 0;
  for (let row = 0; row < born.length && born[row] < to; row++) {
    const life = Math.min(died[row], to) - Math.max(born[row], from);
    if (life <= 0 || hidden?.[row]) continue;
    if (life === to - from) {
      throughout++;
      continue;
    }
    all++;
    const weight = life * size[row];
    if (rows.length === most && weight <= weights[most - 1]) continue;
    let k = Math.min(rows.length, most - 1); // few rows get here: keep the list in order by shifting
    for (; k > 0 && weights[k - 1] < weight; k--) (weights[k] = weights[k - 1]), (rows[k] = rows[k - 1]);
    weights[k] = weight;
    rows[k] = row;
  }
  return { rows, all, throughout };
}

/**
 * Put lives into lanes, the weightiest first, so that none covers another; who finds no room is left out.
 * @param {any} model @param {number[]} rows @param {number} lanes @param {number} gap  events between two lives
 * @returns {{row: number, lane: number}[]}
 */
export function inLanes(model, rows, lanes, gap) {
  /** @type {number[][]} */
  const taken = Array.from({ length: lanes }, () => []), placed = [];
  for (const row of rows) {
    const free = (other) => model.born[row] >= model.died[other] + gap || model.born[other] >= model.died[row] + gap;
    const lane = taken.findIndex((others) => others.every(free));
    if (lane < 0) continue;
    taken[lane].push(row);
    placed.push({ row, lane });
  }
  return placed;
}

/**
 * What the bars are, and of how many: see weightiest.
 * @param {number} shown @param {number} all @param {number} throughout @param {string} range @returns {string}
 */
export function livesTold(shown, all, throughout, range) {
  const many = `${formatCount(shown)} of the ${formatCount(all)} blocks that are born or die in ${range}: those with most bytes × events.`;
  const told = all > 1 ? many : `${all ? "1 block is born or dies" : "No block is born or dies"} in ${range}.`;
  return throughout ? `${told} ${formatCount(throughout)}${all ? " more" : ""} live${throughout === 1 ? "s" : ""} throughout.` : told;
}

const MOST_LIVES = 240, LIFE_LANES = 14, LIFE_LANE = 15, LIFE_BAR = 12; // blocks, lanes, px
const LIVES_HEIGHT = LIFE_LANES * LIFE_LANE;

export class LifePanel {
  /** @param {any} panels */
  constructor(panels) {
    this.title = "Lifetimes";
    this.under = true; // the timeline, whose scale it shares
    this.panels = panels;
    this.told = el("p", { className: "note" });
    this.canvas = el("canvas", { role: "img" });
    this.element = el("div", {}, [this.canvas, this.told]);
    this.key = ""; // what the bars were drawn for
    const { player } = panels, at = (e) => this.barAt(...pointOn(this.canvas, e));
    this.canvas.addEventListener("click", (e) => panels.choose(at(e)));
    this.canvas.addEventListener("pointermove", (e) => {
      const row = at(e);
      this.canvas.style.cursor = row < 0 ? "" : "pointer";
      player.showTip(row < 0 ? null : blockTip(player.model, row), e);
    });
    this.canvas.addEventListener("pointerleave", () => player.showTip(null));
  }

  refilter() {
    this.key = "";
  }

  layout() {
    this.key = "";
  }

  /** Which blocks, and where: only when the range, the filter, the colours or the width have changed. */
  choose() {
    const { player: { model, width, zoom }, filter, paint } = this.panels, { from, to } = zoom;
    const { rows, all, throughout } = weightiest(model, from, to, MOST_LIVES, filter.hidden);
    const gap = Math.ceil((2 * (to - from)) / width);
    this.bars = inLanes(model, rows, LIFE_LANES, gap).map(({ row, lane }) => {
      const x = this.x(Math.max(from, model.born[row])), right = this.x(Math.min(to, model.died[row]));
      return { row, x, y: lane * LIFE_LANE, w: Math.max(1, right - x), ink: paint.inks[paint.of(row)] };
    });
    const told = livesTold(this.bars.length, all, throughout, `events ${formatCount(from)} to ${formatCount(to)}`);
    put(this.told, told);
    this.canvas.setAttribute("aria-label", `Lifetimes of ${told}`);
  }

  x(event) {
    const { zoom, width } = this.panels.player;
    return zoom.x(event, width);
  }

  draw() {
    const { player: { model, width, zoom, dpr, T }, scheme, card } = this.panels, key = [zoom.from, zoom.to, width, dpr, scheme, T.scheme].join();
    if (key !== this.key) {
      this.key = key;
      this.choose();
      for (const canvas of [this.canvas, (this.back = document.createElement("canvas"))]) {
        canvas.width = Math.round(width * dpr);
        canvas.height = Math.round(LIVES_HEIGHT * dpr);
      }
      this.canvas.style.height = `${LIVES_HEIGHT}px`;
      this.drawBars(this.back.getContext("2d"), dpr);
    }
    const g = this.canvas.getContext("2d"), bar = this.bars.find((b) => b.row === card.row);
    g.setTransform(dpr, 0, 0, dpr, 0, 0);
    g.clearRect(0, 0, width, LIVES_HEIGHT);
    g.drawImage(this.back, 0, 0, width, LIVES_HEIGHT);
    const x = this.x(model.pos);
    g.fillStyle = T.text;
    if (x >= 0 && x <= width) g.fillRect(Math.min(width - 2, Math.max(0, x - 1)), 0, 2, LIVES_HEIGHT);
    if (!bar) return;
    g.strokeStyle = T.focus;
    g.lineWidth = 2.5;
    g.strokeRect(bar.x - 1, bar.y, Math.max(3, bar.w + 2), LIFE_BAR);
  }

  drawBars(g, dpr) {
    const { model } = this.panels.player;
    g.scale(dpr, dpr);
    for (const { row, x, y, w, ink } of this.bars) {
      g.fillStyle = ink.color;
      g.fillRect(x, y, w, LIFE_BAR);
      g.font = `600 10px ${SANS}`;
      const text = [`${ink.name} ${formatShort(model.size[row])}`, ink.letter].find((t) => g.measureText(t).width + 6 < w);
      if (text) say(g, text, x + 3, y + LIFE_BAR / 2 + 0.5, ink.ink, g.font);
    }
  }

  /** @returns {number} the row whose bar is there, or -1 */
  barAt(x, y) {
    const bar = this.bars.find((b) => x >= b.x - 1 && x <= b.x + b.w + 1 && y >= b.y && y < b.y + LIFE_LANE);
    return bar ? bar.row : -1;
  }
}
