// The page map's data: who holds which page after any event. No DOM; tested in node.

import { LiveRows } from "./data.js";
import { formatCount, formatOf } from "./format.js";
import { replay } from "./pagereplay.js";

/** The name of a sequence: A … Z, AA … The twin of theme.sequence. @param {number} number */
export function letterOf(number) {
  let letter = "";
  for (let left = number; left >= 0; left = Math.floor(left / 26) - 1) letter = String.fromCharCode(65 + (left % 26)) + letter;
  return letter;
}

/**
 * Pages of all pools are numbered in a row here: page p of pool k is pools[k].from + p. A `row` is one sequence of one
 * pool, an `entry` one page in one table for a while.
 */
export class PageModel {
  /** @param {{meta: any, col: Record<string, any>}} packed */
  constructor({ meta, col }) {
    const n = (this.n = meta.events), column = (length) => new Int32Array(length);
    this.meta = meta;
    this.marks = meta.marks;
    this.inBytes = meta.pools.some((pool) => pool.shown && pool.tokenBytes);
    let pages = 0;
    this.pools = meta.pools.map((pool, number) => {
      const from = pages, token = !pool.shown ? 0 : this.inBytes ? pool.tokenBytes : 1;
      pages += pool.pages;
      return { ...pool, number, from, weight: [pool.size * token, token] };
    });
    this.shown = this.pools.filter((pool) => pool.shown);
    const { event, row, entry, totals } = replay(n, this.pools, col), [, used, logical] = totals;
    this.event = event;
    this.row = row;
    this.entry = entry;
    this.rows = new LiveRows(row.born, row.died, n);
    this.entries = new LiveRows(entry.born, entry.died, n);
    let next = 0;
    this.texts = new Map(meta.texts.map(([sequence, count]) => [sequence, col.text.subarray(next, (next += count))]));
    const words = this.inBytes ? [] : ["slot", "slot", "token"];
    this.series = ["held", "in use", "logical"].map((name, k) => ({ name, values: totals[k], format: formatOf(words[k]) }));
    this.peak = 0;
    for (let i = 1; i <= n; i++) {
      if ((used[i] - used[this.peak] || logical[i] - logical[this.peak]) > 0) this.peak = i;
    }
    this.references = column(pages);
    this.low = column(pages); // of each page: which of its slots hold visible tokens, low … high - 1
    this.high = column(pages);
    this.length = column(row.born.length); // tokens that ever came to each sequence
    this.visible = column(row.born.length); // number of the first that can be seen
    this.seek(n);
  }

  /** Go to the state after i events. @param {number} i 0 … n */
  seek(i) {
    const { rows, entries, row, entry, references, low, high, pools } = this;
    rows.seek(i);
    entries.seek(i);
    this.pos = i;
    for (const r of rows.rows()) {
      const changes = row.changes[r], { window } = pools[row.pool[r]];
      let below = 0, above = changes.length / 3 - 1; // the last change before i; the first is its beginning
      while (below < above) {
        const middle = (below + above + 1) >> 1;
        if (changes[3 * middle] < i) below = middle;
        else above = middle - 1;
      }
      const [, length, first] = changes.slice(3 * below, 3 * below + 3);
      this.length[r] = length;
      this.visible[r] = window === null ? first : Math.max(first, length - window);
    }
    for (const column of [references, low, high]) column.fill(0);
    this.holders = new Map(); // page -> its entries, in the order of their sequences
    this.tables = new Map(); // row -> its entries, in logical order
    const note = (map, key, at) => map.get(key)?.push(at) || map.set(key, [at]);
    for (const at of entries.rows()) {
      const page = entry.page[at], [from, to] = this.slots(at);
      references[page]++;
      if (from < to) { // it may be kept beyond the window
        low[page] = high[page] ? Math.min(low[page], from) : from;
        high[page] = Math.max(high[page], to);
      }
      note(this.holders, page, at);
      note(this.tables, entry.row[at], at);
    }
    for (const list of this.holders.values()) if (list.length > 1) list.sort((a, b) => entry.row[a] - entry.row[b]);
    for (const list of this.tables.values()) list.sort((a, b) => entry.index[a] - entry.index[b]);
  }

  /** Which slots of its page an entry's sequence sees: [low, high], high - low may be below 0. @param {number} at */
  slots(at) {
    const { entry, row } = this, r = entry.row[at], { size } = this.pools[row.pool[r]], start = entry.index[at] * size;
    return [Math.max(0, this.visible[r] - start), Math.min(size, this.length[r] - start)];
  }

  /** The living sequences of a pool, in order. @returns {number[]} rows */
  living(pool) {
    return [...this.rows.rows()].filter((r) => this.row.pool[r] === pool.number).sort((a, b) => a - b);
  }

  /** @param {number} r row @returns {string} */
  nameOf(r) {
    return letterOf(this.row.sequence[r]);
  }

  /** What tokens from … to - 1 of a sequence say, as far as that is known. @returns {string[]} */
  textOf(r, from, to) {
    const known = this.texts.get(this.row.sequence[r]) || [];
    return [...known.slice(from, to)].map((word) => this.meta.vocabulary[word]);
  }

  legendItems() {
    return []; // the tables name the sequences
  }

  legendTexts() {
    return [];
  }

  /** Of the shown pools: pages, those in use, shared ones, slots in used pages, slots with visible tokens. */
  counts() {
    const sum = { pages: 0, used: 0, shared: 0, slots: 0, stored: 0 };
    for (const { from, pages, size } of this.shown) {
      sum.pages += pages;
      for (let page = from; page < from + pages; page++) {
        if (!this.references[page]) continue;
        sum.used++;
        sum.slots += size;
        sum.stored += this.high[page] - this.low[page];
        if (this.references[page] > 1) sum.shared++;
      }
    }
    return sum;
  }

  /** The figures above the picture: [label, text]. */
  figures() {
    const { slots, stored } = this.counts(), tenths = Math.floor(((slots - stored) * 2000 + slots) / (2 * slots));
    const shown = this.series.map(({ name, values, format }) => [name, /** @type {any} */ (format)(values[this.pos], true)]);
    return [...shown, ["page waste", slots ? `${(tenths / 10).toFixed(1)} %` : "–"]];
  }

  /** The state in words, for those who do not see the picture. The twin of PageScene.state_words. */
  words() {
    const state = `state after event ${this.pos} of ${this.n}: `;
    if (!this.pools.length) return `${state}no pool yet`;
    const { pages, used, shared } = this.counts(), figures = this.figures().map((pair) => pair.join(" ")).join(", ");
    const living = new Set(this.shown.flatMap((pool) => this.living(pool)).map((r) => this.row.sequence[r])).size;
    const counts = `${formatCount(used)} of ${formatCount(pages)} pages in use by ${formatOf("sequence")(living)}`;
    return `${state}${figures}; ${counts}, ${formatCount(shared)} shared`;
  }

  /**
   * What the last event did.
   * @returns {{verb: string, text: string, pages: number[], entry: number}[]} entry: the one that it touched, or -1
   */
  happened() {
    const e = this.pos - 1, { event, row, pools } = this;
    if (e < 0) return [{ verb: "start", text: "before the first event", pages: [], entry: -1 }];
    const [action, r, told, index, page, source] =
      ["action", "row", "told", "index", "page", "source"].map((name) => event[name][e]);
    const pool = pools[event.pool[e]], id = `page ${page - pool.from}`, who = r < 0 ? "" : this.nameOf(r);
    const tokens = formatOf("token")(told), parent = row.parent[r];
    const [verb, text] = [
      ["begin", parent >= 0 ? `${who}, fork of ${this.nameOf(parent)}` : who],
      ["allocate", `${id} → ${who} entry ${index}`],
      ["share", `${id} with ${who}`],
      ["copy", `page ${source - pool.from} → ${page - pool.from} · ${who} (copy-on-write)`],
      ["write", `${page < 0 ? "" : id + " · "}${who} ${tokens}`],
      ["release", `${id} · ${who} entry ${index}`],
      ["slide", `${id} out of ${who}'s window`],
      [told < index ? "roll back" : "set", `${who} to ${tokens}`],
      ["forget", `${who}'s tokens before number ${told}`],
      ["end", who],
      ["refuse", `${formatOf("page")(told)} missing`],
    ][action];
    const entry = (this.tables.get(r) || []).find((at) => this.entry.page[at] === page) ?? -1;
    const where = pools.length > 1 ? ` · ${pool.name}` : "";
    return [{ verb, text: text + where, pages: [page, source].filter((p) => p >= 0), entry }];
  }
}
