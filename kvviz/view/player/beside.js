// Shell of two runs beside each other: two players on one byte scale, one cursor, and a table of what differs at it.

import { decode } from "./data.js";
import { formatBytes } from "./format.js";
import { flow, lastUpTo } from "./layout.js";
import { mount } from "./mount.js";
import { unpack } from "./unpack.js";

/**
 * The other run's place. Between two pairs of places that belong together it goes evenly. The twin of Alignment.beside.
 * @param {ArrayLike<number>} from  places in this run, rising @param {ArrayLike<number>} to  those of the other
 * @param {number} i @returns {number}
 */
export function partner(from, to, i) {
  const k = lastUpTo(from, i);
  if (k === from.length - 1) return to[k];
  return to[k] + Math.floor(((i - from[k]) * (to[k + 1] - to[k])) / (from[k + 1] - from[k]));
}

/** @param {number} bytes @returns {string} */
export function differs(bytes) {
  return bytes === 0 ? "the same" : (bytes > 0 ? "+" : "−") + formatBytes(Math.abs(bytes), true);
}

/**
 * @param {HTMLElement[]} hosts
 * @param {{runs: string[], pairs: string, most: number, options: object}} told  runs and pairs: base64 of gzip; most: bytes
 *   at the top of both timelines; options of mount()
 */
export async function beside(hosts, { runs, pairs, most, options }) {
  const { first, second } = decode(await unpack(pairs)).col, places = [first, second];
  const buffers = await Promise.all(runs.map(unpack));
  for (const host of hosts) {
    const players = [];
    let moving = false;
    const moved = (k) => (i) => {
      if (moving) return; // by the other
      moving = true;
      players[1 - k].controls.stop();
      players[1 - k].seek(partner(places[k], places[1 - k], i));
      moving = false;
      tell(host, players);
    };
    host.querySelectorAll(".kvviz-player").forEach((element, k) => {
      players.push(mount(/** @type {HTMLElement} */ (element), buffers[k], { ...options, onSeek: moved(k) }));
    });
    for (const { timeline } of players) timeline.most = Math.max(1, most);
    oneScale(players);
    tell(host, players);
    host.dataset.ready = "1";
  }
}

/** Neither map is drawn larger than the other's scale allows, whatever is laid out anew. */
function oneScale(players) {
  const known = players.map(() => ({ key: "", scale: 0 }));
  const natural = ({ map, model, wrap, width }, k) => { // px per byte, were it alone
    const now = wrap.clientWidth || width, key = `${now} ${map.folded}`;
    if (known[k].key !== key) known[k] = { key, scale: flow(model.cuts, model.unit, now, map.folded ? model.still : null).scale / model.unit };
    return known[k].scale;
  };
  const plainly = players.map((player) => player.layout.bind(player));
  players.forEach((player, k) => {
    player.layout = () => {
      const least = Math.min(...players.map(natural)), other = players[1 - k], before = other.map.most;
      for (const { map, model } of players) map.most = least * model.unit;
      plainly[k]();
      if (other.map.most !== before) plainly[1 - k]();
    };
  });
  players[0].layout();
  players[1].layout();
}

/** The three numbers of both runs at the cursor. */
function tell(host, players) {
  const [a, b] = players.map(({ model }) => model);
  a.series.forEach(({ name, values }, k) => {
    const x = values[a.pos], y = b.series[k].values[b.pos];
    const cells = host.querySelectorAll(`tr[data-series="${name}"] td`);
    [formatBytes(x, true), formatBytes(y, true), differs(y - x)].forEach((text, c) => (cells[c].textContent = text));
  });
}
