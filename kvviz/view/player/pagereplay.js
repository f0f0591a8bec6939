// From the page map's events to what lived when. One pass; tested in node, against PageLog.

export const BEGIN = 0, ALLOCATE = 1, SHARE = 2, COPY = 3, WRITE = 4, RELEASE = 5, SLIDE = 6, LENGTH = 7, FIRST = 8, END = 9;
export const REFUSE = 10;

/** Tokens that can be seen. @param {any} pool @param {number} length below 0: no such sequence @param {number} first */
export const visibleOf = (pool, length, first) => (length < 0 ? 0 : Math.min(length - first, pool.window ?? Infinity));

/**
 * Events carry only what does not follow from those before them: a page where one is taken, an index where a table
 * changes, by how much a length grows.
 * @param {number} n events @param {any[]} pools  from: the number of its first page; weight: what a page and a token count
 * @param {Record<string, any>} col
 * @returns what each event touched; a row for each sequence of a pool, with its changes: event, length, number of the
 *   first visible token, and again; an entry for each page in a table; the totals after 0 … n events
 */
export function replay(n, pools, col) {
  const rowOf = new Map(), tables = [], length = [], first = [], users = [];
  const row = { pool: [], sequence: [], parent: [], born: [], died: [], changes: [] };
  const entry = { page: [], row: [], index: [], born: [], died: [] };
  const column = () => new Int32Array(n).fill(-1);
  const event = { action: col.action, pool: col.pool, row: column(), page: column(), source: column(), index: column(), told: column() };
  const [held, used, logical] = [0, 1, 2].map(() => new Float64Array(n + 1));
  const next = { index: 0, page: 0, grown: 0, told: 0 }, read = (name) => col[name][next[name]++];
  const add = (rows, values) => {
    for (const name in values) rows[name].push(values[name]);
  };
  for (const { grows, pages, weight } of pools) held[0] += grows ? 0 : pages * weight[0];

  for (let e = 0; e < n; e++) {
    const a = col.action[e], pool = pools[col.pool[e]], name = (number) => number * pools.length + col.pool[e];
    for (const total of [held, used, logical]) total[e + 1] += total[e];
    if (a === BEGIN || a === LENGTH || a === FIRST || a === REFUSE) event.told[e] = read("told");
    if (a === REFUSE) continue;
    const number = col.sequence[e] - 1, parent = a === BEGIN ? rowOf.get(name(event.told[e] - 1)) ?? -1 : -1;
    if (a === BEGIN) {
      rowOf.set(name(number), tables.length);
      add(row, { pool: col.pool[e], sequence: number, parent, born: e, died: n, changes: [] });
      tables.push([]);
      length.push(0);
      first.push(0);
    }
    const r = (event.row[e] = rowOf.get(name(number))), table = tables[r];
    const use = (page, step) => {
      const before = users[page] || 0;
      users[page] = before + step;
      const turned = (+(users[page] > 0) - +(before > 0)) * pool.weight[0];
      used[e + 1] += turned;
      if (pool.grows) held[e + 1] += turned;
    };
    if (a === ALLOCATE || a === SHARE || a === COPY || a === RELEASE || a === SLIDE) {
      const index = (event.index[e] = read("index"));
      if (a === COPY || a === RELEASE || a === SLIDE) {
        const gone = table[index];
        event[a === COPY ? "source" : "page"][e] = entry.page[gone];
        entry.died[gone] = e;
        table[index] = -1;
        use(entry.page[gone], -1);
      }
      if (a === ALLOCATE || a === SHARE || a === COPY) {
        const page = (event.page[e] = pool.from + read("page"));
        table[index] = entry.born.length;
        add(entry, { page, row: r, index, born: e, died: n });
        use(page, 1);
      }
      continue;
    }
    const before = visibleOf(pool, length[r], first[r]);
    if (a === WRITE) event.told[e] = length[r] += read("grown");
    else if (a === LENGTH) (event.index[e] = length[r]), (length[r] = event.told[e]); // index: how many there were
    else if (a === FIRST) first[r] = event.told[e];
    else if (a === END) (length[r] = -1), (row.died[r] = e);
    if (a === WRITE || a === LENGTH || a === FIRST) { // the page of the newest token, or of the first that can be seen
      const at = table[Math.floor((a === FIRST ? first[r] : length[r] - 1) / pool.size)] ?? -1;
      if (at >= 0) event.page[e] = entry.page[at];
    }
    row.changes[r].push(e, length[r], first[r]);
    logical[e + 1] += (visibleOf(pool, length[r], first[r]) - before) * pool.weight[1];
  }
  return { event, row, entry, totals: [held, used, logical] };
}
