// Draws the page tables: for each sequence its pages in logical order, null pages, and how many tokens it sees.

import { MONO, SANS, round, say } from "./draw.js";
import { formatCount } from "./format.js";
import { BOX, HEAD, HIDDEN, LINE, NULL, fit, items, place, shareLines, unitsOf } from "./pagelayout.js";

/**
 * @typedef {{x: number, y: number, w: number, row: number, index: number, count: number, page: number}} Box
 *   something that answers to a pointer; page: the entry, or what `Item` has there; count 0: the sequence itself
 */

/**
 * The tables of one pool, in this state. @param {any} g @param {any} map a PageMap @param {any} pool
 * @param {import("./pagelayout.js").Section} section @returns {Box[]}
 */
export function drawTables(g, map, pool, section) {
  const { model, T } = map, { x, head, lines, perLine } = section, living = model.living(pool), boxes = [];
  const note = (text, line) => say(g, text, x, head + HEAD + line * LINE + BOX / 2, T.muted, `12px ${SANS}`);
  g.letterSpacing = "0.5px";
  say(g, "PAGE TABLES · LOGICAL → PHYSICAL", x, head + 7, T.muted, `600 10.5px ${SANS}`);
  g.letterSpacing = "0px";
  if (!living.length) note("No sequence is there now.", 0);
  const lists = living.map((r, k) => (k < lines ? items(model.tables.get(r) || [], model.entry.index) : []));
  const given = shareLines(lists.map((list) => (place(list, perLine).pop()?.line || 0) + 1), lines);
  let line = 0;
  given.forEach((count, k) => {
    boxes.push(...drawTable(g, map, section, living[k], fit(lists[k], perLine, count), head + HEAD + line * LINE));
    line += count;
  });
  if (given.length < living.length) note(`and ${formatCount(living.length - given.length)} more`, line);
  return boxes;
}

/** One sequence, its first line at y. @returns {Box[]} */
function drawTable(g, map, { x, boxes, unit, width }, r, placed, y) {
  const { model, T } = map, look = map.look(r), chip = { x, y, w: boxes - 8, row: r, index: 0, count: 0, page: NULL };
  const write = (text, ink, at, height, align = /** @type {CanvasTextAlign} */ ("center")) => say(g, text, at, height, ink, `10.5px ${MONO}`, align);
  g.fillStyle = look.color;
  outline(g, chip, 0);
  g.fill();
  say(g, look.letter, x + chip.w / 2, y + BOX / 2 + 0.5, look.ink, `700 11px ${SANS}`, "center");
  const seen = model.length[r], visible = seen - model.visible[r];
  write(`${formatCount(visible)} tok`, T.text, x + width, y + (visible === seen ? BOX / 2 + 0.5 : 4), "right");
  if (visible !== seen) write(`seen ${formatCount(seen)}`, T.muted, x + width, y + 15, "right");
  return [chip, ...placed.map(({ item, line, at }) => {
    const box = { ...item, row: r, x: x + boxes + at * unit, y: y + line * LINE, w: unitsOf(item) * unit - 3 };
    const middle = box.x + box.w / 2, height = box.y + BOX / 2 + 0.5, { page, count } = item;
    if (page >= 0) {
      drawPage(g, map, box, look);
      write(model.entry.page[page] - model.pools[model.row.pool[r]].from, T.text, middle, height);
    }
    if (page === HIDDEN) write(`… ${formatCount(count)} more …`, T.muted, middle, height);
    if (page === NULL) {
      g.strokeStyle = T.edge;
      g.lineWidth = 1;
      g.setLineDash([2, 2]);
      outline(g, box, 0.5);
      g.stroke();
      g.setLineDash([]);
      write(count > 1 ? `∅ ×${count}` : "∅", T.muted, middle, height);
    }
    return box;
  })];
}

/** Filled from left to right as far as its slots hold what the sequence sees; a line below it: others have it, too. */
function drawPage(g, map, box, look) {
  const { model, T } = map, { x, y, w, page } = box, [low, high] = model.slots(page), touched = map.now[0].entry === page;
  const { size } = model.pools[model.row.pool[box.row]];
  g.fillStyle = look.soft;
  g.fillRect(x + 1 + ((w - 2) * low) / size, y + 1, ((w - 2) * Math.max(0, high - low)) / size, BOX - 2);
  g.strokeStyle = touched ? T.text : look.color;
  g.lineWidth = touched ? 2 : 1;
  outline(g, box, g.lineWidth / 2);
  g.stroke();
  g.fillStyle = T.text;
  if (model.references[model.entry.page[page]] > 1) g.fillRect(x + 5, y + BOX + 1, w - 10, 1.5);
}

const outline = (g, { x, y, w }, inset) => round(g, x + inset, y + inset, w - 2 * inset, BOX - 2 * inset, 3);
