// What stands in a page as plain text: it unpacks the player's program, once a page however many pictures there are, and
// hands the elements of this output over to it.

import { inflate } from "./unpack.js";

const DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#.%]()*+-;,=>?@^_[{|}~"; // the twin is in bundle.py

/**
 * The same picture may be on the page twice, and a notebook may draw an output anew: every element with this name that
 * no one has taken yet is taken. Where a browser cannot, the still picture stays and says why.
 * @param {string} name  of the elements @param {string} key  of the program
 * @param {string} program  base 85 of gzip of a function body that returns (hosts, told) => Promise
 * @param {any} told  what it is to show
 */
export async function boot(name, key, program, told) {
  const found = document.querySelectorAll(`[data-kvviz="${name}"]:not([data-mounting])`);
  const hosts = /** @type {HTMLElement[]} */ ([...found]);
  for (const host of hosts) host.dataset.mounting = "1";
  if (!hosts.length) return;
  try {
    const page = ((/** @type {any} */ (globalThis)).kvviz ??= {});
    await (await (page[key] ??= begin(page, program)))(hosts, told);
  } catch (error) {
    console.error(error);
    for (const host of hosts) host.append(`The player could not start here (${error.message}); this is its still picture.`);
  }
}

/** Run the program as one more script of the page, allowed wherever this one is: nothing is evaluated, nothing fetched. */
async function begin(page, program) {
  const source = new TextDecoder().decode(await inflate(from85(program))), script = document.createElement("script");
  page.begun = null;
  script.textContent = 'globalThis.kvviz.begun = (() => {"use strict";' + source + "})();";
  document.head.append(script); // it runs here
  script.remove();
  if (!page.begun) throw new Error("this browser cannot read its program");
  return page.begun;
}

/**
 * Five digits for four bytes: a sixteenth less than base64.
 * @param {string} text @returns {Uint8Array<ArrayBuffer>}
 */
export function from85(text) {
  const groups = Math.ceil(text.length / 5), digits = text.padEnd(groups * 5, "~");
  const bytes = new DataView(new ArrayBuffer(groups * 4));
  for (let k = 0; k < digits.length; k += 5) {
    let value = 0;
    for (let d = k; d < k + 5; d++) value = value * 85 + DIGITS.indexOf(digits[d]);
    bytes.setUint32((k / 5) * 4, value);
  }
  return new Uint8Array(bytes.buffer, 0, Math.floor((text.length * 4) / 5));
}
