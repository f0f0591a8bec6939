// Whose a block is and where it was asked for, in the words of a report: the twin of memory/whose.py. Pure.

/** @typedef {{names: string[], of: Int32Array}} Sites  call sites by name, the unknown one first; of: of each stack */

/** @type {WeakMap<any, Sites>} */
const knownSites = new WeakMap();

/** A call site's text; that of every layer is one. @param {string} text @returns {string} */
export function siteName(text) {
  return text.replace(/(?<=\.)\d+(?=\.| ·|$)/g, "*");
}

/** The call sites of a trace. @param {any} model a BlockModel @returns {Sites} */
export function sitesOf(model) {
  const { stacks } = model.meta, known = knownSites.get(stacks);
  if (known && known.of.length === stacks.length + 1) return known;
  const numbers = new Map([["an unknown call site", 0]]), of = new Int32Array(stacks.length + 1); // stack 0: unknown
  stacks.forEach((text, k) => {
    const name = siteName(text);
    if (!numbers.has(name)) numbers.set(name, numbers.size);
    of[k + 1] = numbers.get(name);
  });
  const sites = { names: [...numbers.keys()], of };
  knownSites.set(stacks, sites);
  return sites;
}

/** Numbers for whose blocks are: one for each owner and call site. @param {any} model @returns {(row: number) => number} */
export function keysOf({ owner, stack, meta }) {
  const { of } = sitesOf({ meta }), count = of.length;
  return (row) => owner[row] * count + of[stack[row]];
}

/** An owner where one is known, with its call site. @param {any} model @param {number} row @returns {string} */
export function whose(model, row) {
  const owner = model.owner[row], { name } = model.meta.owners[owner], sites = sitesOf(model);
  const place = model.stack[row] ? sites.names[sites.of[model.stack[row]]] : "";
  if (owner === model.meta.nobody) return place || name;
  return place ? `${name} (${place})` : name;
}
