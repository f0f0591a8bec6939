// Sliders over recorded states: each choice mounts the player anew on another buffer.

import { unpack } from "./boot.js";
import { el } from "./dom.js";
import { mount } from "./mount.js";
import { isDark } from "./theme.js";

/**
 * @param {string} name  of the elements to bring to life
 * @param {{axes: [string, string[], number][], maps: string[], states: [number, string][], pictures: string[]}} told
 *   axes: label, values, first; states: which picture, and a line of HTML; both in the order of the axes' product
 */
export async function bootChoices(name, told) {
  const found = document.querySelectorAll(`.kvviz-choices[data-kvviz="${name}"]:not([data-mounting])`);
  for (const root of /** @type {NodeListOf<HTMLElement>} */ (found)) {
    root.dataset.mounting = "1";
    const [words, host, curves] = [".kvviz-words", ".kvviz-player", ".kvviz-curves"].map((c) => root.querySelector(c));
    const at = told.axes.map((axis) => axis[2]);
    const opening = curves.src; // a picture that is not told is the one that stands here
    let turn = 0; // a slow state must not overwrite a later choice
    const show = async () => {
      const mine = ++turn, place = at.reduce((sum, k, a) => sum * told.axes[a][1].length + k, 0);
      const buffer = await unpack(told.maps[place]);
      if (mine !== turn) return;
      host.kvviz?.destroy();
      mount(host, buffer);
      const [picture, line] = told.states[place];
      words.innerHTML = line;
      curves.src = told.pictures[picture] || opening;
      curves.style.filter = isDark("auto") ? "invert(0.93) hue-rotate(180deg)" : ""; // the picture is drawn for light paper
      curves.alt = words.textContent;
      root.dataset.ready = String(place);
    };
    const sliders = told.axes.map(([label, values], a) => {
      const value = el("output", { textContent: values[at[a]] });
      const input = el("input", {
        type: "range", min: "0", max: String(values.length - 1), step: "1", value: String(at[a]), "aria-label": label,
        "aria-valuetext": values[at[a]],
        oninput: () => {
          at[a] = +input.value;
          value.textContent = values[at[a]];
          input.setAttribute("aria-valuetext", values[at[a]]);
          show();
        },
      });
      const row = el("label", {}, [`${label} `, input, " ", value]);
      row.style.cssText = "display:inline-block;margin:0 24px 6px 0;white-space:nowrap";
      return row;
    });
    root.prepend(el("div", { className: "kvviz-axes" }, sliders));
    await show();
  }
}
