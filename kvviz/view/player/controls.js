// Buttons, slider, keys and playing: everything that chooses an event. It knows of a model only n, pos, marks, peak.

import { formatCount } from "./format.js";
import { el } from "./dom.js";

const ICONS = {
  play: "M4 2.5v11l9.5-5.5z", pause: "M3.5 2.5h3.2v11H3.5zM9.3 2.5h3.2v11H9.3z",
  back: "M11 2.8 5.2 8l5.8 5.2z", next: "M5 2.8 10.8 8 5 13.2z",
  backMark: "M12.5 2.8 6.7 8l5.8 5.2zM3.2 2.8h2v10.4h-2z", nextMark: "M3.5 2.8 9.3 8l-5.8 5.2zM10.8 2.8h2v10.4h-2z",
  peak: "M1.5 13.2 6.4 4l1.6 2.7L9.2 5l5.3 8.2z",
};
const SPEEDS = [0.25, 0.5, 1, 2, 4, 8];
const CALM = 600; // ms between pictures where the reader asked for less motion

function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 16 16");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

export class Controls {
  /**
   * @param {any} model
   * @param {(event: number) => void} seek  called at most once a picture
   * @param {() => boolean} alive  false once the player left the page
   */
  constructor(model, seek, alive) {
    this.model = model;
    this.seek = seek;
    this.alive = alive;
    this.wanted = -1; // the event that was asked for last
    this.waiting = 0; // the frame that will show what is wanted
    this.playing = 0;
    this.speed = 1;
    /** @type {Record<string, () => void>} */
    this.more = {}; // keys that others listen to
    this.calm = matchMedia("(prefers-reduced-motion: reduce)");
    const button = (name, label, act) => {
      const b = el("button", { type: "button", title: label, "aria-label": label, onclick: act });
      b.append(icon(name));
      return b;
    };
    this.playButton = button("play", "Play", () => this.toggle());
    const buttons = el("div", { className: "buttons" }, [
      button("backMark", "Previous mark", () => this.mark(-1)), button("back", "Step back", () => this.by(-1)),
      this.playButton, button("next", "Step forward", () => this.by(1)),
      button("nextMark", "Next mark", () => this.mark(1)), button("peak", "Jump to the peak", () => this.to(this.model.peak)),
    ]);
    this.slider = el("input", {
      type: "range", min: "0", max: String(model.n), step: "1", "aria-label": "Event",
      oninput: () => this.to(+this.slider.value),
    });
    const speeds = SPEEDS.map((s) => el("option", { value: String(s), textContent: `${s}×`, selected: s === 1 }));
    const select = el("select", { "aria-label": "Speed", title: "Speed", onchange: () => this.setSpeed(+select.value) }, speeds);
    this.place = el("span", { className: "place" });
    this.element = el("div", { className: "controls" }, [buttons, select, this.slider, this.place]);
  }

  /** Go to an event; several wishes before the next picture become one. */
  to(event) {
    this.wanted = Math.max(0, Math.min(this.model.n, Math.round(event)));
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => {
      this.waiting = 0;
      this.seek(this.wanted);
    });
  }

  by(events) {
    this.stop();
    this.to((this.waiting ? this.wanted : this.model.pos) + events);
  }

  /** Stop, and go to an event. @param {number} event */
  jump(event) {
    this.stop();
    this.to(event);
  }

  /** The run has gone on. @param {any} model */
  renew(model) {
    this.model = model;
    this.slider.max = String(model.n);
  }

  /** Does the slider tell a screen reader of each step? */
  get speaks() {
    return this.slider.matches(":focus");
  }

  /** The nearest mark before (-1) or after (1) this event; the ends count as marks. */
  mark(direction) {
    this.stop();
    const { n, pos, marks } = this.model, places = [0, ...marks.map((m) => m[0]), n];
    const next = direction > 0 ? places.find((p) => p > pos) : places.reverse().find((p) => p < pos);
    if (next !== undefined) this.to(next);
  }

  /** The whole trace takes between 4 and 24 seconds at speed 1. */
  rate() {
    const { n } = this.model;
    return (n / Math.min(24, Math.max(4, n / 8))) * this.speed;
  }

  toggle() {
    return this.playing ? this.stop() : this.play();
  }

  play() {
    const { model } = this;
    if (!model.n) return;
    // at the end, or where the picture opened close to it, there is nothing left to play: begin at the beginning
    const over = model.pos >= model.n || (model.pos === model.meta.start && model.n - model.pos < model.n / 50);
    let from = this.waiting ? this.wanted : over ? 0 : model.pos, since = 0, shown = 0;
    this.restart = () => ((from = model.pos), (since = 0));
    const frame = (now) => {
      if (!this.alive()) return this.stop();
      since = since || now;
      if (!this.calm.matches || now - shown >= CALM) {
        shown = now;
        const event = Math.min(model.n, Math.floor(from + ((now - since) / 1000) * this.rate()));
        if (event !== model.pos) this.seek(event);
        if (event >= model.n) return this.stop();
      }
      this.playing = requestAnimationFrame(frame);
    };
    this.playing = requestAnimationFrame(frame);
    this.face("pause", "Pause");
  }

  stop() {
    cancelAnimationFrame(this.playing);
    this.playing = 0;
    this.face("play", "Play");
  }

  setSpeed(speed) {
    this.speed = speed;
    if (this.playing) this.restart();
  }

  face(name, label) {
    this.playButton.replaceChildren(icon(name));
    this.playButton.setAttribute("aria-label", (this.playButton.title = label));
  }

  /** Show where the model is. @param {string} words the state, for a screen reader */
  show(words) {
    const { pos, n } = this.model;
    this.slider.value = String(pos);
    this.slider.setAttribute("aria-valuetext", words);
    this.place.textContent = `event ${formatCount(pos)} / ${formatCount(n)}`;
  }

  /** @param {KeyboardEvent} e @returns {boolean} was it one of the player's keys? */
  key(e) {
    if (e.ctrlKey || e.metaKey || e.altKey) return false;
    const target = /** @type {HTMLInputElement} */ (e.composedPath()[0]), { n } = this.model;
    if (target.localName === "select" || target.type === "text") return false; // they have their own keys
    if ((e.key === " " || e.key === "Enter") && /^(button|summary)$/.test(target.localName)) return false; // it is pressed
    if (target.className === "scroll" && /^(Arrow|Home|End)/.test(e.key)) return false; // it scrolls
    const step = e.shiftKey ? Math.max(1, Math.round(n / 100)) : 1;
    const act = {
      ArrowLeft: () => this.by(-step), ArrowRight: () => this.by(step), Home: () => this.jump(0),
      End: () => this.jump(n), p: () => this.jump(this.model.peak),
      "[": () => this.mark(-1), "]": () => this.mark(1), " ": () => this.toggle(), ...this.more,
    }[e.key];
    if (!act) return false;
    act();
    e.preventDefault();
    e.stopPropagation();
    return true;
  }
}
