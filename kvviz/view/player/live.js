// Live shell: a picture that is sent whole, again and again, while the run goes on. It draws the newest there is.

import { el } from "./dom.js";
import { mount } from "./mount.js";
import { unpack } from "./unpack.js";

const REST = 10; // a picture that took t to draw is followed by a rest of 10 t: the run may need this processor
const QUIET = 5; // seconds without news after which the page says so

/**
 * News lies at kvviz.news[name] of the page: the buffer, base64 of gzip, and a line of words. The event "kvviz-news" of the
 * window says that some has come; what has been overtaken is never drawn.
 * @param {HTMLElement[]} hosts @param {[string, object]} told  the name; options of mount()
 */
export async function live(hosts, [name, options]) {
  for (const host of hosts) follow(host, name, options);
}

function follow(host, name, options) {
  const page = /** @type {any} */ (globalThis).kvviz, held = new WeakRef(host); // an output that was cleared must not live on
  const line = el("p", { className: "kvviz-live", textContent: host.textContent });
  line.style.cssText = "font:12px/20px system-ui,sans-serif;margin:2px 0 0;opacity:.8";
  host.after(line);
  host.textContent = "";
  let shown = null, busy = false, came = performance.now();
  const draw = async () => {
    if (busy) return;
    busy = true;
    while (page.news?.[name] && page.news[name] !== shown && held.deref()) {
      await new Promise(requestAnimationFrame);
      const [packed, words] = (shown = page.news[name]), buffer = await unpack(packed), began = performance.now();
      const here = held.deref();
      if (!here) break;
      if (here.kvviz) here.kvviz.renew(buffer);
      else mount(here, buffer, options);
      line.textContent = words;
      here.dataset.live = String(here.kvviz.model.n);
      await new Promise((done) => setTimeout(done, REST * (performance.now() - began)));
    }
    busy = false;
  };
  const heard = () => {
    came = performance.now();
    if (!held.deref()) return removeEventListener("kvviz-news", heard);
    draw().catch((error) => (line.textContent = `The live picture stopped (${error.message}); the run goes on.`));
  };
  const watch = setInterval(() => {
    const silent = Math.floor((performance.now() - came) / 1000);
    if (!held.deref()) clearInterval(watch);
    else if (silent >= QUIET && shown) line.textContent = `${shown[1]}. No news for ${silent} s: a long step, or a stopped kernel.`;
  }, 1000);
  addEventListener("kvviz-news", heard);
  heard();
}
