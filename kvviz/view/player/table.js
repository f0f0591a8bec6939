// A table whose rows stay in place while their texts change, so that a reader's place in it is not lost.

import { el } from "./dom.js";

/**
 * @typedef {{cells: string[], shares?: number[], pick?: () => void, ink?: import("./colours.js").Ink}} Line
 *   cells: the name first; shares: 0 … 1, bars behind the other cells; pick: what a click on the name does; ink: its chip
 */
export class Table {
  /** @param {string} title @param {string[]} heads  of the columns */
  constructor(title, heads) {
    const head = el("tr", {}, heads.map((text) => el("th", { scope: "col", textContent: text })));
    this.body = el("tbody");
    this.columns = heads.length;
    this.element = el("div", { className: "scroll", tabIndex: 0, role: "group", "aria-label": title }, [
      el("table", {}, [el("caption", { textContent: title }), el("thead", {}, [head]), this.body]),
    ]);
  }

  /** @param {Line[]} lines */
  show(lines) {
    const { body } = this;
    while (body.rows.length > lines.length) body.lastChild.remove();
    lines.forEach((line, k) => this.fill(body.rows[k] || this.grow(Boolean(line.pick)), line));
  }

  grow(picks) {
    const chip = el("i", { className: "chip" }), name = el(picks ? "button" : "span", picks ? { type: "button" } : {});
    const cells = Array.from({ length: this.columns - 1 }, () => el("td"));
    const row = el("tr", {}, [el("th", { scope: "row" }, [chip, name]), ...cells]);
    this.body.append(row);
    return row;
  }

  /** @param {any} row @param {Line} line */
  fill(row, { cells: [name, ...texts], shares = [], pick, ink }) {
    const [chip, label] = row.cells[0].children;
    put(label, name);
    label.title = name;
    label.onclick = pick || null;
    chip.hidden = !ink;
    if (ink) (put(chip, ink.letter), (chip.style.cssText = `--color:${ink.color};--ink:${ink.ink}`));
    texts.forEach((text, k) => {
      const cell = row.cells[k + 1];
      put(cell, text);
      if (shares[k] !== undefined) cell.style.setProperty("--share", `${(100 * shares[k]).toFixed(1)}%`);
      cell.className = shares[k] === undefined ? "" : "bar";
    });
  }
}

/** Set a text only where it changes. @param {HTMLElement} element @param {string} text */
export function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
