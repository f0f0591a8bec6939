// Inline shell: one picture, in the page it came with.

import { mount } from "./mount.js";
import { unpack } from "./unpack.js";

/** @param {HTMLElement[]} hosts @param {[string, object]} told  the data, base64 of gzip; options of mount() */
export async function inline(hosts, [data, options]) {
  const buffer = await unpack(data);
  for (const host of hosts) mount(host, buffer, options);
}
