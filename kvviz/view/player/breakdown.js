// Where the active bytes are, by owner and by call site, at any state.

import { el } from "./dom.js";
import { formatBytes, formatCount } from "./format.js";
import { Table, put } from "./table.js";
import { sitesOf } from "./whose.js";

/**
 * @typedef {{name: string, bytes: number, blocks: number}} Share
 * @typedef {{active: number, allocated: number, owners: Share[], sites: Share[]}} Breakdown
 *   shares in the order of the trace's owners and call sites, those without a byte included
 */

/** The active bytes after i events. @param {any} model a BlockModel @param {number} [i] @returns {Breakdown} */
export function breakdown(model, i = model.pos) {
  const { owner, stack, size, born, freed, died } = model, sites = sitesOf(model);
  const named = (name) => ({ name, bytes: 0, blocks: 0 }), owners = model.meta.owners.map((o) => named(o.name));
  const found = { active: 0, allocated: 0, owners, sites: sites.names.map(named) };
  const add = (row) => {
    for (const share of [owners[owner[row]], found.sites[sites.of[stack[row]]]]) {
      share.bytes += size[row];
      share.blocks++;
    }
    found.active += size[row];
    if (freed[row] >= i) found.allocated += size[row];
  };
  if (i === model.pos) model.blocks.rows().forEach(add);
  else for (let row = 0; row < born.length && born[row] < i; row++) if (i <= died[row]) add(row);
  return found;
}

const MOST_SHARES = 12; // of a table; what is left is one more

export class BreakdownPanel {
  /** @param {any} panels */
  constructor(panels) {
    this.title = "Breakdown of the peak";
    this.panels = panels;
    this.told = el("p", { className: "note" });
    const heads = (what) => [what, "at the peak", "share", "at the cursor", "share"];
    this.owners = new Table("By owner", heads("owner"));
    this.sites = new Table("By call site", heads("call site"));
    this.refilter();
    const sites = panels.player.model.meta.stacks.length ? [this.sites.element] : [];
    this.element = el("div", {}, [this.told, el("div", { className: "columns" }, [this.owners.element, ...sites])]);
  }

  /** The peak is worked out once. */
  refilter() {
    const { model } = this.panels.player;
    this.peak = breakdown(model, model.peak);
  }

  draw() {
    const { peak, panels: { player: { model } } } = this, now = breakdown(model);
    const text = ({ active, allocated }) => `${formatBytes(active)} active, ${formatBytes(allocated)} of it allocated`;
    put(this.told, `At the peak (event ${formatCount(model.peak)}) ${text(peak)}; at the cursor (event ${formatCount(model.pos)}) ${text(now)}.`);
    const inks = this.panels.scheme === "owner" ? model.meta.owners : []; // a chip is a colour of the map
    this.owners.show(lines(peak.owners, now.owners, peak.active, now.active).map((line) => ({ ...line, ink: inks[line.k] })));
    this.sites.show(lines(peak.sites, now.sites, peak.active, now.active));
  }
}

/** Both moments side by side, most bytes at the peak first; few lines, which add up to the whole. */
function lines(peak, now, atPeak, atNow) {
  const order = [...peak.keys()].filter((k) => peak[k].bytes || now[k].bytes);
  order.sort((a, b) => peak[b].bytes - peak[a].bytes || now[b].bytes - now[a].bytes);
  const line = (k, name, before, after) => {
    const shares = [before / atPeak || 0, after / atNow || 0], percent = (share) => `${(100 * share).toFixed(1)} %`;
    const cells = [name, formatBytes(before), percent(shares[0]), formatBytes(after), percent(shares[1])];
    return { k, cells, shares: [undefined, shares[0], undefined, shares[1]] };
  };
  const shown = order.slice(0, order.length > MOST_SHARES + 1 ? MOST_SHARES : MOST_SHARES + 1), rest = order.slice(shown.length);
  const sum = (shares) => rest.reduce((total, k) => total + shares[k].bytes, 0);
  const found = shown.map((k) => line(k, peak[k].name, peak[k].bytes, now[k].bytes));
  return rest.length ? [...found, line(-1, `${formatCount(rest.length)} others`, sum(peak), sum(now))] : found;
}
