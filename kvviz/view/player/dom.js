// One helper: elements in one line. Text goes in as text, never as markup.

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
