// Elements in one line, and where an event is on one. Text goes in as text, never as markup.

/**
 * @param {string} name @param {Record<string, any>} [props]  properties; with a dash in the name, attributes
 * @param {(Node | string)[]} [children] @returns {any}
 */
export function el(name, props = {}, children = []) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(props)) {
    if (key.includes("-") || key === "role") element.setAttribute(key, value);
    else element[key] = value;
  }
  element.append(...children);
  return element;
}

/** @param {string} textContent @param {() => void} onclick @param {Record<string, any>} [more] @returns {any} */
export function button(textContent, onclick, more = {}) {
  return el("button", { type: "button", textContent, onclick, ...more });
}

/** @param {any} element @param {any} e  of a pointer @returns {[number, number]} px from the element's left and upper edge */
export function pointOn(element, e) {
  const box = element.getBoundingClientRect();
  return [e.clientX - box.left, e.clientY - box.top];
}
