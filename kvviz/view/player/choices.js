// Sliders over recorded states: each choice mounts the player anew on another buffer.

import { el } from "./dom.js";
import { mount } from "./mount.js";
import { unpack } from "./unpack.js";

/**
 * @param {HTMLElement[]} roots  the elements to bring to life
 * @param {{axes: [string, string[], number, boolean][], maps: string[], states: [number[], number, string][],
 *   pictures: string[]}} told  axes: label, values, first, a menu or a slider; states, in the order of the axes' product:
 *   which maps, which picture, and a line of HTML
 */
export async function choices(roots, told) {
  for (const root of roots) {
    const words = /** @type {HTMLElement} */ (root.querySelector(".kvviz-words"));
    const curves = /** @type {HTMLImageElement} */ (root.querySelector(".kvviz-curves"));
    const hosts = /** @type {any[]} */ ([...root.querySelectorAll(".kvviz-player")]), mounted = [];
    const at = told.axes.map((axis) => axis[2]);
    const opening = curves.src; // a picture that is not told is the one that stands here
    let turn = 0; // a slow state must not overwrite a later choice
    const show = async () => {
      const mine = ++turn, place = at.reduce((sum, k, a) => sum * told.axes[a][1].length + k, 0);
      const [maps, picture, line] = told.states[place];
      const buffers = await Promise.all(maps.map((m) => unpack(told.maps[m])));
      if (mine !== turn) return;
      hosts.forEach((host, k) => {
        if (mounted[k] === maps[k]) return; // a map that stays the same keeps its cursor
        host.kvviz?.destroy();
        mount(host, buffers[k]);
        mounted[k] = maps[k];
      });
      words.innerHTML = line;
      curves.src = told.pictures[picture] || opening;
      curves.alt = words.textContent;
      root.dataset.ready = String(place);
    };
    const sliders = told.axes.map(([label, values, , menu], a) => {
      const value = el("output", { textContent: menu ? "" : values[at[a]] });
      const oninput = () => {
        at[a] = +input.value;
        if (!menu) value.textContent = values[at[a]];
        if (!menu) input.setAttribute("aria-valuetext", values[at[a]]);
        show();
      };
      const named = { "aria-label": label, oninput }, most = String(values.length - 1);
      const input = menu
        ? el("select", named, values.map((text, v) => el("option", { value: String(v), textContent: text })))
        : el("input", { type: "range", min: "0", max: most, step: "1", "aria-valuetext": values[at[a]], ...named });
      input.style.cssText = "max-width:100%;min-width:0;min-height:24px";
      input.value = String(at[a]);
      const row = el("label", {}, [`${label} `.replaceAll("_", "_\u200b"), input, " ", value]); // may break behind a _
      row.style.cssText = "display:inline-grid;grid-template-columns:minmax(0,auto) minmax(80px,1fr) minmax(4ch,auto);" +
        "align-items:center;gap:0 8px;margin:0 24px 6px 0;max-width:100%";
      return row;
    });
    root.prepend(el("div", { className: "kvviz-axes" }, sliders));
    await show();
  }
}
