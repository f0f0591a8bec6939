// The tip beside the pointer.

import { el, pointOn } from "./dom.js";

export class Tip {
  /** @param {HTMLElement} wrap  what it keeps inside of */
  constructor(wrap) {
    this.wrap = wrap;
    this.element = el("div", { className: "tip", role: "presentation" });
    wrap.append(this.element);
  }

  /** @param {string[] | null} lines  the first a heading; null: none @param {PointerEvent} [e] */
  show(lines, e) {
    const { element, wrap } = this;
    element.style.display = lines ? "block" : "none";
    if (!lines) return;
    element.replaceChildren(el("b", { textContent: lines[0] }), lines.slice(1).join("\n"));
    const box = wrap.getBoundingClientRect(), [x, y] = pointOn(wrap, e);
    const flip = y + 18 + element.offsetHeight > box.height && y - 12 - element.offsetHeight > -80;
    element.style.left = `${Math.max(0, Math.min(x + 14, box.width - element.offsetWidth))}px`;
    element.style.top = `${flip ? y - 12 - element.offsetHeight : y + 18}px`;
  }
}
