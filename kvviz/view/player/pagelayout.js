// Where pages and page tables lie on the picture. Pure: px in, px out, and no text is measured; pagelayout.py is its twin.

export const NULL = -1, HIDDEN = -2; // in the place of a page: the null page; entries that there is no room for
export const HEIGHT = 420; // px for all grids together
export const HEAD = 24, LINE = 25, BOX = 18; // px: a heading; a line of a table; a page in it
const LARGEST = 46; // px: a page's side, where there are few
const CHAR = 6.4; // px: a character of the monospaced font at the size used in tables
const SIDE = 720; // px of width from which the tables lie beside the grid
const GAP = 18, RULE = 48; // px: between two pools; between grid and tables
const LOW = 260; // px: a grid need not be lower
const WIDEST = 640; // px of tables, unless their pages need more
const COLUMNS = [8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024];
const HIDDEN_UNITS = 3;

/**
 * @typedef {{columns: number, rows: number, size: number, gap: number}} Grid
 * @typedef {{sequences: number, entries: number, longest: number, letters: number, digits: number, label: number}} Most
 *   the most a pool's tables ever need; the last three: characters of a name, of a page's number, of what stands behind
 * @typedef {{grid: Grid, top: number, gridTop: number, x: number, head: number, lines: number, perLine: number,
 *   boxes: number, unit: number, width: number}} Section
 *   x, head: the tables' heading; boxes: px from x where pages begin; unit: px from one to the next
 * @typedef {{index: number, count: number, page: number}} Item  one box: more than one entry where null or hidden
 */

/** @param {Grid} g */
export const gridWidth = (g) => g.columns * (g.size + g.gap) - g.gap;
/** @param {Grid} g */
export const gridHeight = (g) => g.rows * (g.size + g.gap) - g.gap;
/** @param {Item} item units of width it takes */
export const unitsOf = (item) => (item.page === HIDDEN ? HIDDEN_UNITS : item.count > 1 ? 2 : 1);

/**
 * Square pages, nearly as large as can be; 16 columns or more, and low, where that leaves them as large.
 * @param {number} pages @param {number} width @param {number} height @returns {Grid}
 */
export function grid(pages, width, height) {
  const gap = pages <= 256 ? 4 : pages <= 1024 ? 2 : 1;
  const tried = [...COLUMNS.filter((c) => c < pages), ...(pages <= 16 ? [Math.max(1, pages)] : [])].map((columns) => {
    const rows = Math.max(1, Math.ceil(pages / columns));
    const across = Math.floor((width + gap) / columns) - gap, down = Math.floor((height + gap) / rows) - gap;
    return { columns, rows, size: Math.min(LARGEST, across, down), gap };
  });
  const largest = Math.max(...tried.map((g) => g.size));
  if (largest < 2) { // too many for the height: as wide as can be, and higher
    const columns = Math.max(...COLUMNS.filter((c) => c * (2 + gap) - gap <= width));
    return { columns, rows: Math.ceil(pages / columns), size: 2, gap };
  }
  const good = tried.filter((g) => g.size * 100 >= largest * 78);
  return good.find((g) => g.columns >= Math.min(16, pages) && gridHeight(g) <= LOW) || good[good.length - 1];
}

/**
 * Pools, one under another, with their tables.
 * @param {{pages: number, most: Most}[]} pools @param {number} width
 * @returns {{sections: Section[], height: number, beside: boolean}} beside: are the tables beside the grids, not below?
 */
export function layout(pools, width) {
  const beside = width >= SIDE, several = pools.length > 1, grids = [];
  let left = HEIGHT;
  const order = pools.map((_, k) => k).sort((a, b) => pools[a].pages - pools[b].pages);
  order.forEach((k, done) => { // what small ones spare, others get
    const share = Math.max(60, Math.floor(left / (pools.length - done)));
    grids[k] = grid(pools[k].pages, beside ? Math.floor((width * 62) / 100) : width, share);
    left -= gridHeight(grids[k]);
  });
  const column = Math.max(several ? 240 : 0, ...grids.map(gridWidth)); // 240: for the headings
  let y = 0;
  const sections = pools.map(({ most }, k) => {
    const x = beside ? column + RULE : 0, chip = Math.max(24, most.letters * 8 + 10);
    const unit = Math.max(24, Math.floor(most.digits * CHAR) + 11) + 3, label = Math.floor(most.label * CHAR) + 12;
    const room = Math.floor((width - x - chip - 8 - label + 3) / unit);
    const perLine = Math.max(HIDDEN_UNITS, Math.min(room, Math.max(8, most.longest)));
    const gridTop = y + (several ? HEAD : 0), bottom = gridTop + gridHeight(grids[k]), head = beside ? y : bottom + 16;
    const high = beside ? Math.max(bottom, y + Math.floor(HEIGHT / pools.length)) - y - HEAD : 11 * LINE;
    const lines = Math.max(1, Math.min(Math.floor(high / LINE), most.sequences + Math.floor(most.entries / perLine)));
    const boxes = chip + 8, top = y, wide = Math.min(width - x, Math.max(WIDEST, boxes + perLine * unit - 3 + label));
    y = Math.max(bottom, head + HEAD + lines * LINE - (LINE - BOX)) + GAP;
    return { grid: grids[k], top, gridTop, x, head, lines, perLine, boxes, unit, width: wide };
  });
  return { sections, height: Math.max(0, y - GAP), beside };
}

/**
 * Lines for each table, at least one; fewer than `needs` where the last line must say how many more there are.
 * @param {number[]} needs @param {number} lines
 */
export function shareLines(needs, lines) {
  if (needs.length > lines) return Array(lines - 1).fill(1);
  const given = needs.map(() => 1);
  let left = lines - needs.length;
  while (left > 0 && given.some((g, k) => g < needs[k])) {
    needs.forEach((need, k) => {
      if (given[k] < need && left > 0) given[k]++, left--;
    });
  }
  return given;
}

/** Boxes for a table in order, null pages in a row as one. @param {number[]} pages @param {ArrayLike<number>} indexOf page */
export function items(pages, indexOf) {
  const boxes = [];
  let expected = 0;
  for (const page of pages) {
    const index = indexOf[page];
    if (index > expected) boxes.push({ index: expected, count: index - expected, page: NULL });
    boxes.push({ index, count: 1, page });
    expected = index + 1;
  }
  return boxes;
}

/**
 * One after the other, as many lines as it takes.
 * @param {Item[]} boxes @param {number} perLine @returns {{item: Item, line: number, at: number}[]} at: units
 */
export function place(boxes, perLine) {
  let line = 0, at = 0;
  return boxes.map((item) => {
    if (at && at + unitsOf(item) > perLine) line++, (at = 0);
    const placed = { item, line, at };
    at += unitsOf(item);
    return placed;
  });
}

/**
 * In so many lines, with the middle left out where all do not fit: what the newest tokens are in is at the end.
 * @param {Item[]} boxes @param {number} perLine @param {number} lines
 */
export function fit(boxes, perLine, lines) {
  let placed = place(boxes, perLine);
  const over = () => placed.length && placed[placed.length - 1].line >= lines;
  let head = Math.floor((perLine * lines - HIDDEN_UNITS) / 2), tail = perLine * lines - HIDDEN_UNITS - head;
  while (over()) {
    const front = take(boxes.slice(0, -1), head), back = take(boxes.slice(front + 1).reverse(), tail);
    const inner = boxes.slice(front, boxes.length - back);
    const hidden = { index: inner[0].index, count: inner.reduce((sum, item) => sum + item.count, 0), page: HIDDEN };
    placed = place([...boxes.slice(0, front), hidden, ...boxes.slice(boxes.length - back)], perLine);
    if (head > tail) head--;
    else tail--;
  }
  return placed;
}

function take(boxes, units) {
  let taken = 0;
  while (taken < boxes.length && units >= unitsOf(boxes[taken])) units -= unitsOf(boxes[taken++]);
  return taken;
}
