// The shell: header, map, legend, timeline, controls, footer in a shadow root. What is drawn on the map is a module of
// its own, and so is what its data mean: see kinds.js.

import { Controls } from "./controls.js";
import { decode } from "./data.js";
import { el } from "./dom.js";
import { formatCount } from "./format.js";
import { KINDS } from "./kinds.js";
import { CSS } from "./style.js";
import { isDark, watchTheme } from "./theme.js";
import { Timeline, TIMELINE_HEIGHT } from "./timeline.js";

/**
 * Mount a player on a host element.
 * @param {HTMLElement} host @param {ArrayBuffer} buffer  see data.js
 * @param {{theme?: string, autoplay?: boolean}} [options]
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
  constructor(host, model, map, options) {
    this.host = host;
    this.model = model;
    this.map = map;
    this.meta = model.meta;
    this.options = options;
    this.width = 0;
    this.timing = {};
    this.timeline = new Timeline(model);
    this.controls = new Controls(model, (i) => this.seek(i), () => host.isConnected);
    this.build();
    host.kvviz = this;
    this.refresh = () => requestAnimationFrame(() => this.layout());
    this.unwatch = watchTheme(this.refresh);
    this.resized = new ResizeObserver(() => this.fits() || this.layout());
    this.resized.observe(this.box);
    model.seek(Math.max(0, Math.min(model.n, this.meta.start)));
    this.layout();
    if (!this.box.clientWidth) this.refresh(); // laid out while detached: again once it is on the page
    if (options.autoplay && !this.controls.calm.matches) this.controls.play();
    host.dataset.ready = "1";
  }

  build() {
    const { meta, map } = this;
    this.figures = this.model.figures().map(([label]) => {
      const value = el("dd");
      return { value, group: el("div", {}, [el("dt", { textContent: label }), value]) };
    });
    this.tip = el("div", { className: "tip", role: "presentation" });
    this.mapCanvas = map && el("canvas", { className: "map", role: "img" });
    this.lineCanvas = el("canvas", { className: "line" });
    // alone, the timeline is the picture; under a map it repeats what the slider says
    this.lineCanvas.setAttribute(...(map ? ["aria-hidden", "true"] : ["role", "img"]));
    this.event = el("p", { className: "event" });
    this.wrap = el("div", { className: "wrap" }, [
      ...(map ? [this.mapCanvas, this.event, this.legend()] : [this.legend()]), this.lineCanvas,
      ...(map ? [] : [this.event]), this.tip,
    ]);
    this.box = el("div", { className: "box", tabIndex: 0, role: "group", "aria-label": meta.title }, [
      el("header", {}, [
        el("div", {}, [el("h3", { textContent: meta.title }), (this.sub = el("p", { className: "sub" }))]),
        el("dl", {}, this.figures.map((f) => f.group)),
      ]),
      this.wrap, this.controls.element, this.footer(),
    ]);
    map?.attach?.(this);
    this.box.addEventListener("keydown", (e) => (e.key === "Escape" ? this.showTip(null) : this.controls.key(e)));
    this.pointers();
    const root = this.host.shadowRoot || this.host.attachShadow({ mode: "open" });
    root.replaceChildren(el("style", { textContent: CSS + (this.map?.css || "") }), this.box);
    this.host.dataset.lmSuppressShortcuts = "true"; // JupyterLab would take space and arrows for its own
  }

  legend() {
    const { meta, map } = this;
    const swatch = (className, text, name = "li") => el(name, {}, [el("i", { className }), text]);
    this.items = map ? this.model.legendItems().map(({ name, letter, color, ink }) => {
      const chip = el("i", { textContent: letter });
      Object.assign(chip.style, { background: color, color: ink });
      const text = el("b");
      return { text, item: el("li", {}, [chip, name, text]) };
    }) : [];
    const keys = map ? meta.keys.map(([className, text]) => swatch(className, text)) : [];
    this.inks = this.model.series.map((s, k) => swatch(k < 2 ? "area" : "line", s.name, "span"));
    const together = el("li", { className: "inks" }, this.inks);
    return el("ul", { className: "legend" }, [...this.items.map((o) => o.item), ...keys, together]);
  }

  footer() {
    const { meta } = this, key = (k, text) => [el("kbd", { textContent: k }), text];
    const keys = el("span", { className: "keys" }, [
      ...key("space", "play"), ...key("← →", "step"), ...key("shift", "1 %"), ...key("p", "peak"), ...key("[ ]", "marks"),
      ...(this.map?.keys || []).flatMap(([k, text]) => key(k, text)),
    ]);
    const parts = [el("span", { textContent: meta.origin }), keys];
    if (meta.warnings.length) {
      const count = `${meta.warnings.length} warning${meta.warnings.length > 1 ? "s" : ""}`;
      parts.push(el("details", {}, [
        el("summary", { textContent: `⚠ ${count}` }),
        el("ul", {}, meta.warnings.map((w) => el("li", { textContent: w }))),
      ]));
    }
    return el("footer", {}, parts);
  }

  pointers() {
    const { lineCanvas, mapCanvas } = this;
    const at = (canvas, e) => [e.clientX - canvas.getBoundingClientRect().left, e.clientY - canvas.getBoundingClientRect().top];
    const scrub = (e) => {
      const [x] = at(lineCanvas, e);
      if (e.buttons & 1) (this.controls.stop(), this.controls.to(this.timeline.eventAt(x)));
      this.showTip(this.timeline.tipAt(x), e);
    };
    lineCanvas.style.cursor = "ew-resize";
    lineCanvas.addEventListener("pointerdown", (e) => (lineCanvas.setPointerCapture(e.pointerId), scrub(e)));
    lineCanvas.addEventListener("pointermove", scrub);
    lineCanvas.addEventListener("pointerleave", () => this.showTip(null));
    if (!mapCanvas) return;
    for (const type of ["pointermove", "pointerdown"]) {
      mapCanvas.addEventListener(type, (e) => this.showTip(this.map.tipAt(...at(mapCanvas, e)), e));
    }
    mapCanvas.addEventListener("pointerleave", () => this.showTip(null));
  }

  /** @param {string[] | null} lines @param {PointerEvent} [e] */
  showTip(lines, e) {
    const { tip, wrap } = this;
    tip.style.display = lines ? "block" : "none";
    if (!lines) return;
    tip.replaceChildren(el("b", { textContent: lines[0] }), lines.slice(1).join("\n"));
    const box = wrap.getBoundingClientRect(), x = e.clientX - box.left, y = e.clientY - box.top;
    const flip = y + 18 + tip.offsetHeight > box.height && y - 12 - tip.offsetHeight > -80;
    tip.style.left = `${Math.max(0, Math.min(x + 14, box.width - tip.offsetWidth))}px`;
    tip.style.top = `${flip ? y - 12 - tip.offsetHeight : y + 18}px`;
  }

  fits() {
    const width = this.wrap.clientWidth;
    return !width || Math.abs(width - this.width) < 1;
  }

  /** Take the width and the theme that are now, and draw. While detached the last width stays. */
  layout() {
    this.width = this.wrap.clientWidth || this.width || 800;
    const T = this.meta.theme[isDark(this.options.theme || "auto") ? "dark" : "light"];
    const dpr = Math.min(2, devicePixelRatio || 1);
    for (const [name, ink] of Object.entries(T)) this.box.style.setProperty(`--${name}`, ink);
    this.box.style.colorScheme = T.scheme;
    [T.back, T.front, T.line].forEach((ink, k) => (this.inks[k].firstChild.style.background = ink));
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
    this.sub.textContent = this.map?.subtitle || this.meta.subtitle;
    this.linePen = size(this.lineCanvas, TIMELINE_HEIGHT);
    this.timeline.layout(this.width, T, dpr);
    this.draw();
  }

  /** Go to the state after i events and draw it, at once. @param {number} i */
  seek(i) {
    this.model.seek(i);
    this.draw();
    this.options.onSeek?.(i);
  }

  draw() {
    const { model, map } = this, words = model.words();
    if (map) map.draw(this.mapPen);
    this.timeline.draw(this.linePen);
    (map ? this.mapCanvas : this.lineCanvas).setAttribute("aria-label", words + (map || this.timeline).words());
    this.controls.show(words);
    model.figures().forEach(([, text], k) => (this.figures[k].value.textContent = text));
    if (map) model.legendTexts().forEach((text, k) => (this.items[k].text.textContent = text));
    const done = model.happened();
    this.event.replaceChildren(...done.flatMap((d) => [el("b", { textContent: d.verb }), `${d.text}  `]));
    const said = done.map((d) => `${d.verb} ${d.text}`).join(", ");
    this.event.title = `event ${formatCount(model.pos)}: ${said}`;
    this.showTip(null);
  }

  play() {
    this.controls.play();
  }

  destroy() {
    this.controls.stop();
    this.resized.disconnect();
    this.unwatch();
  }
}
