// The shell: header, map, legend, timeline, controls, footer in a shadow root. What is drawn on the map is a module of
// its own, and so is what its data mean: see kinds.js.

import { Controls } from "./controls.js";
import { decode } from "./data.js";
import { button, el, pointOn } from "./dom.js";
import { formatCount } from "./format.js";
import { keyList, panel } from "./help.js";
import { EXTRAS, KINDS } from "./kinds.js";
import { Legend } from "./legend.js";
import { CSS } from "./style.js";
import { isDark, watchTheme } from "./theme.js";
import { Timeline, TIMELINE_HEIGHT } from "./timeline.js";
import { Tip } from "./tip.js";
import { Voice } from "./voice.js";
import { Zoom } from "./zoom.js";
import { ZOOM_CSS, Zooming } from "./zooming.js";

/**
 * Mount a player on a host element.
 * @param {HTMLElement} host @param {ArrayBuffer} buffer  see data.js
 * @param {{theme?: string, autoplay?: boolean, onSeek?: (event: number) => void}} [options]
 * @returns {Player} also at host.kvviz
 */
export function mount(host, buffer, options = {}) {
  const began = performance.now(), packed = decode(buffer);
  const [Model, Picture] = KINDS[packed.meta.kind], model = new Model(packed);
  const modelled = performance.now() - began;
  const player = new Player(host, model, Picture && new Picture(model), options);
  player.timing = { model: modelled, first: performance.now() - began };
  return player;
}

export class Player {
  /**
   * @param {any} host @param {any} model @param {any} map @param {any} options
   */
  constructor(host, model, map, options) {
    this.host = host;
    this.model = model;
    this.map = map;
    this.meta = model.meta;
    this.options = options;
    this.width = 0;
    /** @type {any} */
    this.timing = {};
    this.zoom = new Zoom(model.n);
    this.timeline = new Timeline(model, this.zoom);
    this.controls = new Controls(model, (i) => this.seek(i), () => host.isConnected);
    this.legend = new Legend();
    this.voice = new Voice();
    this.panels = null;
    this.help = null;
    this.build();
    if (map) map.zoom = this.zoom;
    map?.attach?.(this);
    this.zooming = new Zooming(this);
    this.controls.more["?"] = () => this.showKeys();
    this.panels = EXTRAS[model.meta.kind]?.(this) || null;
    this.style.textContent = CSS + ZOOM_CSS + (map?.css || "") + (this.panels?.css || "");
    host.kvviz = this;
    this.refresh = (now) => (now ? this.layout() : requestAnimationFrame(() => this.layout()));
    this.unwatch = watchTheme(this.refresh);
    this.resized = new ResizeObserver(() => this.fits() || this.layout());
    this.resized.observe(this.box);
    model.seek(Math.max(0, Math.min(model.n, this.meta.start)));
    this.layout();
    if (!this.box.clientWidth) this.refresh(false); // laid out while detached: again once it is on the page
    if (options.autoplay && !this.controls.calm.matches) this.controls.play();
    host.dataset.ready = "1";
  }

  build() {
    const { map } = this, canvas = (className, role = {}) => el("canvas", { className, ...role });
    this.mapCanvas = map && canvas("map", { role: "img" });
    // alone, the timeline is the picture; under a map it repeats what the slider says
    this.lineCanvas = canvas("line", map ? { "aria-hidden": "true" } : { role: "img" });
    this.event = el("p", { className: "event" });
    this.cardSlot = el("div"); // of the panels: right below the map, right below the timeline, below the controls
    this.under = el("div");
    this.below = el("div");
    this.tools = el("div", { className: "tools" });
    const top = map ? [this.mapCanvas, this.event, this.cardSlot] : [], foot = map ? [] : [this.event];
    this.wrap = el("div", { className: "wrap" }, [...top, this.legend.element, this.lineCanvas, this.under, ...foot]);
    this.tip = new Tip(this.wrap);
    this.title = el("h2");
    this.sub = el("p", { className: "sub" });
    this.numbers = el("dl");
    this.footer = el("footer");
    this.box = el("div", { className: "box", tabIndex: 0, role: "group" }, [
      el("header", {}, [el("div", {}, [this.title, this.sub]), this.numbers]),
      this.wrap, this.controls.element, this.tools, this.below, this.footer, this.voice.element,
    ]);
    this.name();
    this.box.addEventListener("keydown", (e) => this.controls.key(e) || (e.key === "Escape" && this.escape()));
    this.pointers();
    const root = this.host.shadowRoot || this.host.attachShadow({ mode: "open" });
    this.style = el("style");
    root.replaceChildren(this.style, this.box);
    this.host.dataset.lmSuppressShortcuts = "true"; // JupyterLab would take space and arrows for its own
  }

  /** All that the data name: title, figures, legend, origin, warnings. */
  name() {
    const { meta, model, map, legend } = this, { warnings } = meta;
    this.title.textContent = meta.title;
    this.box.setAttribute("aria-label", meta.title);
    this.figures = model.figures().map(([label]) => {
      const value = el("dd");
      return { value, group: el("div", {}, [el("dt", { textContent: label }), value]) };
    });
    this.numbers.replaceChildren(...this.figures.map((f) => f.group));
    if (!this.panels) legend.set(map ? model.legendItems() : [], map ? meta.keys : [], model.series);
    const key = (k, text) => [el("kbd", { textContent: k }), text];
    const keys = [key("space", "play"), key("← →", "step"), key("shift", "1 %"), key("p", "peak"), key("[ ]", "marks")];
    const more = button("? keys", () => this.showKeys(), { title: "All keys (?)" });
    const parts = [el("span", { textContent: meta.origin }), el("span", { className: "keys" }, keys.flat()), more];
    if (warnings.length) {
      const list = el("ul", {}, warnings.map((w) => el("li", { textContent: w })));
      const count = `⚠ ${warnings.length} warning${warnings.length > 1 ? "s" : ""}`;
      parts.push(el("details", {}, [el("summary", { textContent: count }), list]));
    }
    this.footer.replaceChildren(...parts);
  }

  /** Open or close the list of keys. */
  showKeys() {
    const close = () => {
      this.help.remove();
      this.help = null;
    };
    if (this.help) return close();
    this.help = panel("Keys", close, [keyList([...(this.map?.keys || []), ...(this.panels?.keys || [])])]);
    this.below.prepend(this.help);
    this.help.scrollIntoView({ block: "nearest" });
  }

  /** Let go of the latest thing: a tip, what is chosen, what is zoomed into. */
  escape() {
    this.showTip(null);
    if (!this.panels?.escape()) this.zooming.all();
  }

  pointers() {
    const { mapCanvas } = this;
    if (!mapCanvas) return;
    for (const type of ["pointermove", "pointerdown"]) {
      mapCanvas.addEventListener(type, (e) => this.showTip(this.map.tipAt(...pointOn(mapCanvas, e)), e));
    }
    mapCanvas.addEventListener("pointerleave", () => this.showTip(null));
  }

  /** @param {string[] | null} lines @param {PointerEvent} [e] */
  showTip(lines, e) {
    this.tip.show(lines, e);
  }

  fits() {
    const width = this.wrap.clientWidth;
    return !width || Math.abs(width - this.width) < 1;
  }

  /** Take the width and the theme that are now, and draw. While detached the last width stays. */
  layout() {
    this.width = this.wrap.clientWidth || this.width || 800;
    const T = (this.T = this.meta.theme[isDark(this.options.theme || "auto") ? "dark" : "light"]);
    const dpr = (this.dpr = Math.min(2, devicePixelRatio || 1));
    for (const [name, ink] of Object.entries(T)) this.box.style.setProperty(`--${name}`, ink);
    this.box.style.colorScheme = T.scheme;
    this.legend.setTheme(T);
    const size = (canvas, height) => {
      canvas.width = Math.round(this.width * dpr);
      canvas.height = Math.round(height * dpr);
      canvas.style.height = `${height}px`;
      const g = canvas.getContext("2d");
      g.setTransform(dpr, 0, 0, dpr, 0, 0);
      return g;
    };
    if (this.map) {
      this.mapPen = size(this.mapCanvas, this.map.layout(this.width));
      this.map.setTheme(T, dpr);
    }
    const sub = this.map?.subtitle || this.meta.subtitle;
    this.sub.textContent = this.panels ? this.panels.subtitle(sub) : sub;
    this.linePen = size(this.lineCanvas, TIMELINE_HEIGHT);
    this.timeline.layout(this.width, T, dpr);
    this.panels?.layout();
    this.draw();
  }

  /** Go to the state after i events and draw it, at once. @param {number} i */
  seek(i) {
    if (i !== this.model.pos && !this.controls.playing) this.voice.forget();
    this.model.seek(i);
    this.draw();
    this.options.onSeek?.(i);
  }

  draw() {
    const { model, map, panels } = this, words = model.words();
    if (map) map.draw(this.mapPen);
    this.timeline.draw(this.linePen);
    const all = words + (map || this.timeline).words() + this.zooming.words() + (panels?.words() || "");
    (map ? this.mapCanvas : this.lineCanvas).setAttribute("aria-label", all);
    this.controls.show(words);
    if (!this.controls.speaks) this.voice.hear(all, this.controls.playing > 0);
    model.figures().forEach(([, text], k) => (this.figures[k].value.textContent = text));
    if (map) this.legend.show(panels ? panels.legendTexts() : model.legendTexts());
    const done = model.happened();
    this.event.replaceChildren(...done.flatMap((d) => [el("b", { textContent: d.verb }), `${d.text}  `]));
    const said = done.map((d) => `${d.verb} ${d.text}`).join(", ");
    this.event.title = `event ${formatCount(model.pos)}: ${said}`;
    panels?.draw();
    this.showTip(null);
  }

  /**
   * Show a run that has gone on: same kind, more events. The reader's place, and all that is open, stay.
   * @param {ArrayBuffer} buffer
   */
  renew(buffer) {
    const old = this.model, [Model] = KINDS[old.meta.kind], model = (this.model = new Model(decode(buffer)));
    const told = (m) => JSON.stringify([m.title, m.origin, m.warnings, m.owners, m.keys]);
    const renamed = told(model.meta) !== told(this.meta) || model.legendItems().length !== old.legendItems().length;
    this.meta = model.meta;
    if (this.map) this.map.model = model;
    this.map?.renew?.(model);
    this.zoom.extend(model.n);
    this.timeline = new Timeline(model, this.zoom);
    this.controls.renew(model);
    if (renamed) this.name();
    model.seek(old.pos >= old.n ? model.n : Math.min(old.pos, model.n));
    this.panels?.renew();
    this.layout();
  }

  play() {
    this.controls.play();
  }

  destroy() {
    this.controls.stop();
    this.voice.stop();
    this.resized.disconnect();
    this.unwatch();
  }
}
