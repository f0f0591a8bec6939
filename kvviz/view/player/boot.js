// Inline shell: find the elements this output made, and bring them to life.

import { mount } from "./mount.js";

/** @param {string} base64 of gzip @returns {Promise<ArrayBuffer>} */
export async function unpack(base64) {
  const bytes = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}

/**
 * The same picture may be on the page twice, and a notebook may draw an output anew: every element with this name that
 * has no player yet gets one. Where a browser cannot, the still picture stays and says why.
 * @param {string} name @param {string} base64 @param {object} options
 */
export async function boot(name, base64, options) {
  const found = document.querySelectorAll(`.kvviz-player[data-kvviz="${name}"]:not([data-mounting])`);
  const hosts = /** @type {HTMLElement[]} */ ([...found]);
  for (const host of hosts) host.dataset.mounting = "1";
  try {
    if (!hosts.length) return;
    const buffer = await unpack(base64);
    for (const host of hosts) mount(host, buffer, options);
  } catch (error) {
    console.error(error);
    for (const host of hosts) host.append(`The player could not start here (${error.message}); this is its still picture.`);
  }
}
