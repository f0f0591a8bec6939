// Draws one page of the page map: whose it is, how full, what slid out, how many share it.

import { MONO, SANS, round, say } from "./draw.js";

// px: from which size a page has slot lines, its number, its letters, its corners
const SLOTS = 32, IDS = 24, LETTERS = 13, ROUND = 12;
const BANDS = 4; // sequences that get a colour each in a shared page; more are only counted

/**
 * @typedef {{letter: string, color: string, ink: string, tint: string, soft: string, hatch: CanvasPattern}} Look
 * @typedef {{x: number, y: number, w: number, id: number, slots: number, low: number, high: number, references: number,
 *   looks: Look[], out: boolean}} Cell  looks: of the sequences that hold it; out: free, and not taken from the allocator
 */

/** @param {CanvasRenderingContext2D} g @param {Cell} cell @param {any} T inks */
export function drawCell(g, cell, T) {
  const { x, y, w, looks, out } = cell, rich = w >= ROUND;
  g.save();
  if (rich) { // nothing may reach over the edges: only what is inside them is cleared when the page changes
    box(g, cell, 0);
    g.clip();
  }
  g.fillStyle = out ? T.paper : rich ? T.free : T.grid;
  g.fillRect(x, y, w, w);
  if (looks.length) fillBands(g, cell, T);
  if (rich) drawMarks(g, cell, T);
  g.restore();
}

/** Edge, number, letters, how many share it. */
function drawMarks(g, cell, T) {
  const { x, y, w, looks, references, out } = cell;
  g.strokeStyle = looks.length > 1 ? T.edge : looks.length ? looks[0].color : out ? T.dash : T.rule;
  g.lineWidth = 1;
  g.setLineDash(out && !looks.length ? [3, 3] : []);
  box(g, cell, 0.5);
  g.stroke();
  g.setLineDash([]);
  if (w >= IDS && String(cell.id).length * 6 <= w - 6) write(g, cell, T, cell.id, x + 4, y + 8.5, `${w < 36 ? 9 : 10}px ${MONO}`, "left", looks[0]);
  if (w >= LETTERS && looks.length <= 3) {
    looks.forEach((look, k) => {
      const room = w / looks.length, size = Math.min(14, (w < IDS ? 0.64 : 0.38) * w, (1.1 * room) / look.letter.length);
      const middle = y + w / 2 + (w >= 36 && references < 2 ? 2.5 : 0.5), font = `700 ${Math.round(size)}px ${SANS}`;
      if (size >= 7) write(g, cell, T, look.letter, x + room * (k + 0.5), middle, font, "center", look);
    });
  }
  if (w >= IDS && references > 1) { // ×2: so many sequences share it
    const text = `×${references}`, width = 5.5 * text.length + 5;
    g.fillStyle = T.text;
    round(g, x + w - width - 2, y + w - 14, width, 12, 3);
    g.fill();
    say(g, text, x + w - width / 2 - 2, y + w - 7.5, T.paper, `600 9px ${MONO}`, "center");
  }
}

/** Where a page's slots low … high - 1 are, from the bottom up. */
const filled = ({ y, w, slots, low, high }) => [y + w * (1 - high / slots), y + w * (1 - low / slots)];

/** A stripe for each sequence: what the slots hold, over a tint; hatched where it slid out. */
function fillBands(g, cell, T) {
  const { x, y, w, slots, low, high } = cell, looks = cell.looks.slice(0, BANDS), [top, bottom] = filled(cell);
  const edge = (k) => (k < looks.length ? Math.round((w * k) / looks.length) : w);
  looks.forEach((look, k) => {
    const left = x + edge(k), width = edge(k + 1) - edge(k);
    const fill = (ink, from, to) => {
      g.fillStyle = ink;
      g.fillRect(left, from, width, to - from);
    };
    fill(look.tint, y, y + w);
    if (low) fill(look.hatch, bottom, y + w);
    fill(look.color, top, bottom);
    g.fillStyle = T.paper;
    if (k && w >= 6) g.fillRect(left - 0.5, y, 1, w);
  });
  let step = w < SLOTS ? slots : 1;
  while (step < slots && (w * step) / slots < 7) step *= 2;
  g.fillStyle = `${T.paper}59`;
  for (let slot = step; slot < high; slot += step) {
    if (slot > low) g.fillRect(x, Math.round(y + w * (1 - slot / slots)) - 0.5, w, 1);
  }
}

/** Text in the ink that reads on what is behind its middle, with a rim of that where something else is near. */
function write(g, cell, T, text, x, middle, font, align, look) {
  const [top, bottom] = filled(cell), inside = top <= middle && middle < bottom;
  const put = () => say(g, text, x, middle, !look ? T.muted : inside ? look.ink : T.text, font, align);
  put();
  if (!look || (!cell.low && cell.looks.length < 3 && Math.abs(middle - top) > 6)) return;
  g.strokeStyle = inside ? look.color : look.tint;
  g.lineWidth = 3;
  g.strokeText(text, x, middle);
  put();
}

/**
 * What the last event touched. Small pages get it around them.
 * @param {CanvasRenderingContext2D} g @param {Cell} cell @param {any} T inks
 */
export function drawFrame(g, cell, T) {
  const small = cell.w < ROUND;
  g.lineWidth = 2;
  g.strokeStyle = T.text;
  box(g, cell, small ? -1 : 1);
  g.stroke();
  g.lineWidth = 1;
  g.strokeStyle = T.paper;
  box(g, cell, 2.5);
  if (!small) g.stroke();
}

function box(g, { x, y, w }, inset) {
  round(g, x + inset, y + inset, w - 2 * inset, w - 2 * inset, Math.min(5, w * 0.14) - inset);
}
