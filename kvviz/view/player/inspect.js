// The card of the chosen block, or of a chosen empty place: it stays while the cursor moves.

import { button, el } from "./dom.js";
import { formatBytes, formatCount } from "./format.js";
import { lastUpTo } from "./layout.js";
import { ageOf, eventsOf, facts, lives, placeFacts } from "./pick.js";
import { put } from "./table.js";

export class Card {
  /** @param {any} panels */
  constructor(panels) {
    this.panels = panels;
    this.row = -1;
    this.place = -1; // of an empty place on the axis
    this.element = el("section", { className: "panel card" });
    /** @type {HTMLElement[]} */
    this.values = [];
  }

  get open() {
    return this.row >= 0 || this.place >= 0;
  }

  /** @param {number} row -1: none @param {number} [place]  of the axis, where there is no block */
  choose(row, place = -1) {
    const { panels, element } = this, { model } = panels.player;
    this.row = row;
    this.place = row < 0 ? place : -1;
    if (!this.open) return element.remove();
    const pins = button("What pins this segment", () => panels.open("pins"));
    const close = button("×", () => panels.choose(-1), { className: "close", title: "Close (Esc)", "aria-label": "Close the block's card" });
    this.title = el("h3");
    this.now = el("p", { className: "now" });
    const acts = row < 0 ? [pins] : this.acts(pins);
    const said = this.said();
    this.values = said.map(() => el("dd"));
    const list = said.map(([label], k) => el("div", {}, [el("dt", { textContent: label }), this.values[k]]));
    element.setAttribute("aria-label", row < 0 ? "Chosen place" : "Chosen block");
    element.replaceChildren(
      el("div", { className: "head" }, [this.chip = el("i", { className: "chip" }), this.title, this.now, close]),
      el("dl", {}, list), el("div", { className: "acts" }, acts),
    );
    this.chip.hidden = row < 0;
    panels.player.cardSlot.append(element);
    if (row >= 0) put(this.title, `${model.meta.owners[model.owner[row]].name} · ${formatBytes(model.size[row])}`);
    this.draw();
  }

  /** What one can do with a block. */
  acts(pins) {
    const { panels, row } = this, { player } = panels, [birth, death] = eventsOf(player.model, row);
    this.follow = button("Follow", () => panels.follow(!player.map.followed), {
      title: "Keep its place framed and in view, also while it does not live",
    });
    return [
      button("Go to birth", () => player.controls.jump(birth), { title: `Event ${formatCount(birth)}` }),
      button("Go to death", () => player.controls.jump(death), {
        disabled: death < 0, title: death < 0 ? "It lives to the last event here" : `Event ${formatCount(death)}`,
      }),
      this.follow, pins,
    ];
  }

  /** @returns {[string, string][]} */
  said() {
    const { model } = this.panels.player;
    return this.row < 0 ? placeFacts(model, this.place) : facts(model, this.row);
  }

  /** @returns {string} in words, for a screen reader */
  words() {
    return `chosen: ${[this.title.textContent, this.now.textContent, ...this.said().map((f) => f.join(" "))].filter(Boolean).join(", ")}`;
  }

  /** @returns {string} the same in short: said of every state */
  brief() {
    const { panels: { player: { model } }, row } = this;
    return row < 0 ? "" : `; chosen: ${this.title.textContent}, ${lives(model, row) ? "age " : ""}${ageOf(model, row)}`;
  }

  draw() {
    const { panels: { player, paint }, row } = this, { model, map } = player, said = this.said();
    said.forEach(([, text], k) => put(this.values[k], text));
    if (row < 0) return put(this.title, said[0][1]);
    const ink = paint.inks[paint.of(row)], here = lives(model, row);
    put(this.chip, ink.letter);
    this.chip.style.cssText = `--color:${ink.color};--ink:${ink.ink}`;
    const folded = map.folded && model.still?.[lastUpTo(model.cuts, model.address[row])];
    put(this.now, !here ? ageOf(model, row) : folded ? "in the folded bar" : "");
    this.follow.setAttribute("aria-pressed", String(Boolean(map.followed)));
  }
}
