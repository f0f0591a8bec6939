// The list of all keys, and the panel that it and others stand in.

import { button, el } from "./dom.js";

/**
 * A panel with a heading and a button that closes it.
 * @param {string} title @param {() => void} close @param {(Node | string)[]} children @returns {HTMLElement}
 */
export function panel(title, close, children) {
  const label = `Close: ${title}`, cross = button("×", close, { className: "close", title: label, "aria-label": label });
  const head = el("div", { className: "head" }, [el("h3", { textContent: title }), cross]);
  return el("section", { className: "panel", "aria-label": title }, [head, ...children]);
}

const PLAIN_KEYS = [
  ["space", "play or stop"], ["← →", "one event"], ["shift ← →", "a hundredth of the run"], ["home end", "start and end"],
  ["p", "the peak"], ["[ ]", "previous and next mark"],
];

/** @param {[string, string][]} more  keys of this picture @returns {HTMLElement} */
export function keyList(more) {
  const rows = [...PLAIN_KEYS, ...more, ["?", "this list"]].map(([key, text]) => {
    const keys = key.split(" ").map((k) => el("kbd", { textContent: k }));
    return el("li", {}, [el("span", {}, keys), text]);
  });
  return el("ul", { className: "keylist" }, rows);
}
