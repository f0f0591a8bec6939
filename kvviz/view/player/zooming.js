// How a reader zooms: wheel, fingers, keys and buttons; and the line that says what is hidden.

import { button, el, pointOn } from "./dom.js";
import { gestures } from "./gestures.js";

const STEP = 2, PLACE_STEP = 4; // how much more or less one press shows
const MARGIN = 0.04; // of a segment, beside it

export const ZOOM_CSS = `
.shown { margin: 2px 0 -5px; min-height: 16px; font-size: 11.5px; line-height: 16px; color: var(--text);
  font-variant-numeric: tabular-nums; }
.zoom { order: 1; margin-left: auto; display: flex; flex-wrap: wrap; align-items: center; gap: 6px 12px; color: var(--muted); }
.zoom div { display: flex; align-items: center; gap: 4px; }
.zoom div button { width: 28px; padding: 0; font-size: 14px; }
.zoom button[aria-disabled=true] { opacity: .5; cursor: default; }
`;

export class Zooming {
  /** @param {any} player  its box, canvases and controls exist; it has not been drawn yet */
  constructor(player) {
    const { map, zoom, controls } = player;
    this.player = player;
    this.zoom = zoom;
    this.waiting = 0; // the frame that will show a change
    this.dragging = false; // is a pointer moving what is shown?
    this.mapped = Boolean(map?.alongAt); // can addresses be zoomed?
    this.build();
    zoom.listeners.push(() => this.changed());
    this.onTimeline();
    if (this.mapped) this.onMap();
    const closer = () => this.timeBy(1 / STEP);
    Object.assign(controls.more, {
      "+": closer, "=": closer, "-": () => this.timeBy(STEP), 0: () => this.all(), o: () => this.failure(),
    });
    if (this.mapped) Object.assign(controls.more, { z: () => this.placeBy(1 / PLACE_STEP), Z: () => this.placeBy(PLACE_STEP) });
    player.box.addEventListener("keydown", (e) => this.key(e));
    if (!map) return;
    const keys = [
      ["+ −", "fewer or more events"], ["alt ← →", "move along the events"], ["0", "show all"], ["o", "next out of memory"],
    ];
    const places = [["z Z", "zoom the map in or out"], ["alt ↑ ↓", "move along the addresses"]];
    map.keys = [...(map.keys || []), ...keys, ...(this.mapped ? places : [])];
  }

  build() {
    const one = (text, title, act) => button(text, act, { title, "aria-label": title });
    const pair = (name, more, less, step, by) => el("div", { role: "group", "aria-label": name }, [
      name, one("−", less, () => by(step)), one("+", more, () => by(1 / step)),
    ]);
    const groups = [pair("Events", "Zoom in on events (+)", "Zoom out to more events (-)", STEP, (factor) => this.timeBy(factor))];
    if (this.mapped) {
      const [more, less] = ["Zoom in on addresses (z)", "Zoom out to more addresses (Z)"];
      groups.push(pair("Addresses", more, less, PLACE_STEP, (factor) => this.placeBy(factor)));
    }
    this.whole = button("Everything", () => this.all(), { title: "Show everything (0)" });
    this.text = el("p", { className: "shown" });
    this.player.lineCanvas.after(this.text);
    this.player.tools.append(el("div", { className: "zoom" }, [...groups, this.whole]));
    this.say();
  }

  /** What is shown, where something is hidden. @returns {string} */
  shown() {
    const { timeline, map } = this.player, { timed, placed } = this.zoom;
    const shown = [timed && timeline.shown(), this.mapped && placed && map.shown()].filter(Boolean);
    return shown.length ? `showing ${shown.join(" · ")}` : "";
  }

  /** The same, for those who do not see it. @returns {string} */
  words() {
    const shown = this.shown();
    return shown && `; ${shown}`;
  }

  say() {
    this.text.textContent = this.shown();
    this.whole.setAttribute("aria-disabled", String(!this.text.textContent));
  }

  /** Something else is shown now: say so, and draw it with the next frame. @returns {true} */
  changed() {
    this.say();
    this.waiting ||= requestAnimationFrame(() => {
      this.waiting = 0;
      this.player.draw();
    });
    return true;
  }

  /** @param {number} factor @param {number} [around] a state, else the cursor's */
  timeBy(factor, around = this.player.model.pos) {
    return this.zoom.time.by(factor, around) && this.changed();
  }

  /** Zoom the map where the picked block or what the last event touched is. @param {number} factor */
  placeBy(factor) {
    const { map, model } = this.player, { place } = this.zoom, half = ((place.high - place.low) * factor) / 2;
    const event = model.happened().find((h) => h.units), row = map.picked;
    const at = row >= 0 ? map.alongOf(model.address[row], model.size[row] / model.unit)
      : event ? map.alongOf(event.address, event.units) : (place.low + place.high) / 2;
    return place.set(at - half, at + half) && this.changed();
  }

  /** Everything again. */
  all() {
    const timed = this.zoom.time.all(), placed = this.zoom.place.all();
    return (timed || placed) && this.changed();
  }

  /** The next request that found no room; behind the last one the first. */
  failure() {
    const { controls, model } = this.player, states = (model.meta.failures || []).map(([event]) => event + 1);
    const next = states.find((state) => state > model.pos) ?? states[0];
    if (next !== undefined) controls.jump(next);
  }

  /** The timeline: scrub, move the window on its strip, zoom. */
  onTimeline() {
    const { player, zoom } = this, { lineCanvas: canvas, controls } = player;
    const exactly = (x) => zoom.from + (x / player.width) * (zoom.to - zoom.from);
    const tip = (x, y, e) => player.showTip(player.timeline.onStrip(y) ? null : player.timeline.tipAt(x), e);
    const scrub = (x, y, e) => {
      controls.stop();
      controls.to(player.timeline.eventAt(x));
      tip(x, y, e);
    };
    canvas.style.cursor = "ew-resize";
    gestures(canvas, {
      eager: () => canvas.getRootNode().activeElement !== null,
      zoom: (factor, x) => Boolean(this.timeBy(factor, exactly(x))),
      move: (dx) => Boolean(zoom.time.move((dx / player.width) * (zoom.to - zoom.from)) && this.changed()),
      press: (x, y, e) => {
        canvas.setPointerCapture(e.pointerId);
        this.dragging = player.timeline.onStrip(y);
        if (!this.dragging) return scrub(x, y, e);
        const { left, size } = player.timeline.grip();
        if (x < left || x > left + size) this.slide(x - left - size / 2); // beside the window: bring it here
      },
      drag: (x, y, dx, e) => (this.dragging ? this.slide(dx) : scrub(x, y, e)),
      hover: tip,
    });
    canvas.addEventListener("pointerleave", () => player.showTip(null));
    canvas.addEventListener("dblclick", () => zoom.time.all() && this.changed());
  }

  /** Move the window on the strip. @param {number} dx px */
  slide(dx) {
    const { player: { timeline, width }, zoom: { time } } = this, room = width - timeline.grip().size;
    if (room > 0 && time.move((dx / room) * (time.end - time.high + time.low))) this.changed();
  }

  /** The map: zoom, and move what is shown with alt and a mouse, or with a finger from side to side. */
  onMap() {
    const { player } = this, { mapCanvas: canvas, map } = player;
    let moved = 0; // px since the press
    const moves = (e) => e.altKey || e.pointerType === "touch";
    gestures(canvas, {
      eager: () => false,
      zoom: (factor, x, y) => Boolean(this.zoom.place.by(factor, map.alongAt(x, y)) && this.changed()),
      move: (dx, dy) => Boolean(this.zoom.place.move(map.unitsIn(dx, dy)) && this.changed()),
      press: () => (moved = 0),
      drag: (x, y, dx, e) => {
        if (!moves(e) || !this.zoom.placed) return;
        moved += Math.abs(dx);
        if (this.zoom.place.move(map.unitsIn(-dx, 0))) this.changed();
      },
    });
    canvas.addEventListener("click", (e) => moved > 4 && e.stopImmediatePropagation(), { capture: true });
    canvas.addEventListener("dblclick", (e) => {
      const found = map.segmentAt(...pointOn(canvas, e));
      if (found) this.into(found[0], found[1]);
    });
  }

  /** A segment fills the map; once more, and everything is back. @param {number} from @param {number} to along the map */
  into(from, to) {
    const { place } = this.zoom, margin = (to - from) * MARGIN, { low, high } = place;
    if (!place.set(from - margin, to + margin) || (low === place.low && high === place.high)) place.all();
    this.changed();
  }

  /** @param {KeyboardEvent} e */
  key(e) {
    const target = /** @type {HTMLInputElement} */ (e.composedPath()[0]), { time } = this.zoom, { map } = this.player;
    if (!e.altKey || e.ctrlKey || e.metaKey || /^(select|text)/.test(target.type || target.localName)) return;
    const aside = { ArrowLeft: -0.25, ArrowRight: 0.25 }[e.key], down = { ArrowUp: -1, ArrowDown: 1 }[e.key];
    const done = aside ? time.move(aside * (time.high - time.low))
      : this.mapped && down ? this.zoom.place.move(map.unitsIn(0, down * map.lineStep)) : false;
    if (!done) return; // nothing was hidden there: the key is the browser's
    e.preventDefault();
    e.stopPropagation();
    this.changed();
  }
}
