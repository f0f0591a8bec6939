// Sliders over recorded states: each choice mounts the player anew on another buffer.

import { unpack } from "./boot.js";
import { el } from "./dom.js";
import { mount } from "./mount.js";
import { isDark } from "./theme.js";

/**
 * @param {string} name  of the elements to bring to life
 * @param {{axes: [string, string[], number, boolean][], maps: string[], states: [number[], number, string][],
 *   pictures: string[]}} told  axes: label, values, first, a menu or a slider; states, in the order of the axes' product:
 *   which maps, which picture, and a line of HTML
 */
export async function bootChoices(name, told) {
  const found = document.querySelectorAll(`.kvviz-choices[data-kvviz="${name}"]:not([data-mounting])`);
  for (const root of /** @type {NodeListOf<HTMLElement>} */ (found)) {
    root.dataset.mounting = "1";
    const [words, curves] = [".kvviz-words", ".kvviz-curves"].map((c) => root.querySelector(c));
    const hosts = [...root.querySelectorAll(".kvviz-player")], mounted = [];
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
      curves.style.filter = isDark("auto") ? "invert(0.93) hue-rotate(180deg)" : ""; // the picture is drawn for light paper
      curves.alt = words.textContent;
      root.dataset.ready = String(place);
    };
    const sliders = told.axes.map(([label, values, , menu], a) => {
      const value = el("output", { textContent: menu ? "" : values[at[a]] });
      const oninput = () => {
        at[a] = +input.value;
        if (!menu) value.textContent = values[at[a]];
        input.setAttribute("aria-valuetext", values[at[a]]);
        show();
      };
      const named = { "aria-label": label, "aria-valuetext": values[at[a]], oninput };
      const input = menu
        ? el("select", named, values.map((text, v) => el("option", { value: String(v), textContent: text })))
        : el("input", { type: "range", min: "0", max: String(values.length - 1), step: "1", ...named });
      input.value = String(at[a]);
      const row = el("label", {}, [`${label} `, input, " ", value]);
      row.style.cssText = "display:inline-block;margin:0 24px 6px 0;max-width:100%";
      return row;
    });
    root.prepend(el("div", { className: "kvviz-axes" }, sliders));
    await show();
  }
}
