// What a screen reader hears while the cursor moves: the state once it rests, and now and then while the run plays.

import { el } from "./dom.js";

const STILL_FOR = 500, SPEAK_EVERY = 2000; // ms

export class Voice {
  constructor() {
    this.element = el("p", { className: "said", role: "status", "aria-live": "polite" });
    this.timer = 0;
    this.words = null; // nothing is said of the state that the picture opens with
  }

  /** The state may be said, unless another comes soon. @param {string} words @param {boolean} playing */
  hear(words, playing) {
    if (this.words === null || words === this.words) return void (this.words = words);
    this.words = words;
    if (playing && this.timer) return;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.say(this.words), playing ? SPEAK_EVERY : STILL_FOR);
  }

  /** @param {string} text  said now */
  say(text) {
    this.stop();
    this.element.textContent = text;
  }

  /** The cursor has moved: what was said is of another state. */
  forget() {
    this.say("");
  }

  stop() {
    clearTimeout(this.timer);
    this.timer = 0;
  }
}
