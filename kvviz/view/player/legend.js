// The legend: what colours stand for, with the bytes behind each, and how the map and the timeline are drawn.

import { el } from "./dom.js";

export class Legend {
  constructor() {
    this.element = el("ul", { className: "legend" });
    /** @type {any[]} */
    this.items = [];
    /** @type {HTMLElement[]} */
    this.inks = []; // the timeline's
    this.same = ""; // what it was made of
  }

  /**
   * @param {import("./colours.js").Ink[]} items  what the map's colours are @param {[string, string][]} keys  [style, meaning]
   * @param {{name: string}[]} series  the timeline's curves
   * @param {((index: number) => void) | null} [toggle]  switches one of the items off or on again
   */
  set(items, keys, series, toggle = null) {
    const same = JSON.stringify([items, keys, series.map((s) => s.name), Boolean(toggle)]);
    if (same === this.same) return; // a reader's place in it is not lost
    this.same = same;
    const swatch = (className, text, name = "li") => el(name, {}, [el("i", { className }), text]);
    this.items = items.map(({ name, letter, color, ink }, k) => {
      const text = el("b"), chip = el("i", { className: "chip", textContent: letter });
      chip.style.cssText = `--color:${color};--ink:${ink}`;
      const inside = [chip, el("span", { textContent: name, title: name }), text];
      if (!toggle) return { text, item: el("li", {}, inside) };
      const button = el("button", { type: "button", role: "checkbox", title: "Show or fade these blocks", onclick: () => toggle(k) }, inside);
      return { text, button, item: el("li", {}, [button]) };
    });
    this.inks = series.map((s, k) => swatch(k < 2 ? "area" : "line", s.name, "span"));
    const drawn = keys.map(([className, text]) => swatch(className, text));
    const whose = this.items.map((o) => o.item), marks = [...drawn, el("li", { className: "inks" }, this.inks)];
    const many = whose.length > 24; // they scroll
    this.element.classList.toggle("many", many);
    this.element.replaceChildren(...(many ? [...marks, ...whose] : [...whose, ...marks]));
  }

  /** @param {any} T inks of the theme */
  setTheme(T) {
    [T.back, T.front, T.line].forEach((ink, k) => (this.inks[k].querySelector("i").style.background = ink));
  }

  /** @param {string[]} texts of the items, in this state */
  show(texts) {
    texts.forEach((text, k) => (this.items[k].text.textContent = text));
  }

  /** @param {(index: number) => boolean} shown  is the item switched on? */
  check(shown) {
    this.items.forEach(({ button }, k) => button?.setAttribute("aria-checked", String(shown(k))));
  }
}
