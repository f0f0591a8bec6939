// All that helps to understand the map: choosing a block, colours, filters, and the panels, which are closed until asked
// for. A panel is {title, element, draw()}; it is made when it opens and gone when it closes.

import { BreakdownPanel } from "./breakdown.js";
import { SCHEMES, paintBy } from "./colours.js";
import { button, el, pointOn } from "./dom.js";
import { Filter, FilterPanel } from "./filters.js";
import { formatBytes } from "./format.js";
import { panel } from "./help.js";
import { Card } from "./inspect.js";
import { EXTRAS } from "./kinds.js";
import { LifePanel } from "./lifebars.js";
import { PANEL_CSS } from "./panelstyle.js";
import { neighbour, rowOf } from "./pick.js";
import { PinPanel } from "./pins.js";
import { put } from "./table.js";

/** key of a panel -> [its button's text, its class, the key that opens it] @type {Record<string, [string, any, string]>} */
const PANELS = {
  filter: ["Filter", FilterPanel, "/"], lives: ["Lifetimes", LifePanel, "l"], breakdown: ["Breakdown", BreakdownPanel, "d"],
  pins: ["Pinned", PinPanel, "i"],
};

export class Panels {
  /** @param {any} player  of a block map */
  constructor(player) {
    this.player = player;
    this.css = PANEL_CSS;
    this.scheme = "owner";
    this.paint = paintBy(player.model, this.scheme);
    this.filter = new Filter(player.model);
    this.card = new Card(this);
    /** @type {Map<string, {view: any, frame: HTMLElement}>} */
    this.shown = new Map();
    /** @type {[string, string][]} */
    this.keys = [
      ["n b", "next and previous block in address order"], ["enter", "the block of this event"], ["esc", "close the chosen block"],
      ["c", "colour by something else"],
    ];
    for (const [text, , letter] of Object.values(PANELS)) this.keys.push([letter, text.toLowerCase()]);
    this.buttons = this.build();
    this.listen();
    this.recolour();
  }

  build() {
    const { model, tools } = this.player;
    this.select = el("select", { onchange: () => this.colourBy(this.select.value) }, SCHEMES.map(([value, textContent]) =>
      el("option", { value, textContent, disabled: value === "site" && !model.meta.stacks.length })));
    const buttons = Object.entries(PANELS).map(([key, [text, , letter]]) =>
      button(text, () => this.turn(key), { title: `${text} (${letter})`, "aria-expanded": "false" }));
    this.told = el("p", { className: "told" }); // what a filter hides
    tools.prepend(el("label", {}, ["Colour by ", this.select]), ...buttons, this.told);
    return buttons;
  }

  listen() {
    const { player } = this, { mapCanvas, map, controls } = player;
    let began = [0, 0];
    mapCanvas.addEventListener("pointerdown", (e) => (began = [e.clientX, e.clientY]));
    mapCanvas.addEventListener("click", (e) => {
      if (e.detail > 1 || Math.hypot(e.clientX - began[0], e.clientY - began[1]) > 4) return;
      const [x, y] = pointOn(mapCanvas, e), row = map.rowAt(x, y);
      this.choose(row, row < 0 ? map.unitUnder(x, y) : -1);
    });
    const next = (direction) => {
      const row = neighbour(player.model, this.card.row, direction, this.filter.veil);
      if (row >= 0) this.choose(row, -1, true);
    };
    const happened = () => {
      const row = rowOf(player.model);
      if (row >= 0) this.choose(row, -1, true);
    };
    const schemes = () => [...this.select.options].filter((o) => !o.disabled).map((o) => o.value);
    Object.assign(controls.more, {
      n: () => next(1), b: () => next(-1), Enter: happened,
      c: () => this.colourBy(schemes()[(schemes().indexOf(this.scheme) + 1) % schemes().length]),
    });
    for (const [key, [, , letter]] of Object.entries(PANELS)) controls.more[letter] = () => this.turn(key);
  }

  /** Choose a block, or an empty place, or nothing. @param {number} row @param {number} [place] @param {boolean} [byKey] */
  choose(row, place = -1, byKey = false) {
    const { player, card } = this, { map } = player;
    map.picked = row;
    map.followed = map.followed && row >= 0;
    card.choose(row, place);
    this.showLife();
    if (byKey) map.reveal(row);
    player.draw();
    if (byKey) player.voice.say(card.words()); // more than a state has to say of it
  }

  /** The chosen block's life, as a line at the timeline's foot. */
  showLife() {
    const { player: { timeline, model }, card: { row } } = this;
    timeline.life = row < 0 ? null : [Math.max(0, model.born[row]), model.died[row]];
  }

  /** @param {boolean} follows  does the picture go where the chosen block is, also while it does not live? */
  follow(follows) {
    this.player.map.followed = follows;
    this.player.draw();
  }

  /** @param {string} scheme  of SCHEMES */
  colourBy(scheme) {
    const paint = paintBy(this.player.model, scheme);
    if (!paint) return;
    this.scheme = this.select.value = scheme;
    this.paint = paint;
    this.recolour();
    this.player.layout();
  }

  recolour() {
    const { player, paint, filter } = this, { model, legend } = player;
    const toggle = (k) => {
      filter.toggle(this.scheme, this.paint, k);
      this.refilter();
    };
    player.map.paint = paint;
    legend.set(paint.inks, model.meta.keys, model.series, paint.moves ? null : toggle);
    this.check();
  }

  /** What the legend says of each entry: is it shown? */
  check() {
    this.player.legend.check((k) => this.filter.shows(this.scheme, this.paint.inks[k].name));
  }

  /** The filter has changed. */
  refilter() {
    this.player.map.veiled = this.filter.veil;
    this.check();
    for (const { view } of this.shown.values()) view.refilter?.();
    this.player.draw();
  }

  /** Open or close a panel. @param {string} key */
  turn(key) {
    return this.shown.has(key) ? this.close(key) : this.open(key);
  }

  open(key) {
    const { player } = this, known = this.shown.get(key);
    if (known) return void known.frame.scrollIntoView({ block: "nearest" });
    const view = new PANELS[key][1](this), frame = panel(view.title, () => this.close(key), [view.element]);
    this.shown.set(key, { view, frame });
    (view.under ? player.under : player.below).prepend(frame); // the newest first: it is the one that is looked at
    this.mark(key, true);
    view.layout?.();
    player.draw();
    frame.scrollIntoView({ block: "nearest" });
  }

  close(key) {
    this.shown.get(key).frame.remove();
    this.shown.delete(key);
    this.mark(key, false);
    this.button(key).focus();
    this.player.draw(); // what a filter hides is said elsewhere now
  }

  button(key) {
    return this.buttons[Object.keys(PANELS).indexOf(key)];
  }

  mark(key, open) {
    this.button(key).setAttribute("aria-expanded", String(open));
  }

  /** Escape: let go what is chosen. @returns {boolean} was there anything? */
  escape() {
    const { open } = this.card;
    if (open) this.choose(-1);
    return open;
  }

  /** The run has grown: the model is another one. */
  renew() {
    const { player: { model }, filter } = this;
    filter.renew(model, (scheme) => paintBy(model, scheme));
    this.player.map.veiled = filter.veil;
    this.paint = paintBy(model, this.scheme) || paintBy(model, (this.scheme = this.select.value = "owner"));
    this.recolour();
    [...this.select.options].forEach((o) => (o.disabled = o.value === "site" && !model.meta.stacks.length));
    this.showLife();
    for (const { view } of this.shown.values()) view.refilter?.();
  }

  /** What stands behind each entry of the legend. @returns {string[]} */
  legendTexts() {
    const { player: { model }, paint } = this;
    return this.scheme === "owner" ? model.legendTexts() : bytesBy(model, paint).map((bytes) => formatBytes(bytes));
  }

  /** @param {string} text of the map @returns {string} with what colour means now */
  subtitle(text) {
    const [, name] = SCHEMES.find(([key]) => key === this.scheme);
    return text.replace("colour = owner", `colour = ${name}`);
  }

  /** @returns {string} for those who do not see the picture */
  words() {
    return (this.filter.on ? `; ${this.filter.sentence()}` : "") + this.card.brief();
  }

  /** After each seek. */
  draw() {
    const { card, filter, told, player } = this;
    if (card.open) card.draw();
    if (player.map.followed) player.map.reveal(card.row);
    put(told, filter.on && !this.shown.has("filter") ? filter.sentence() : "");
    for (const { view } of this.shown.values()) view.draw();
  }

  /** The map's width or theme has changed. */
  layout() {
    for (const { view } of this.shown.values()) view.layout?.();
  }
}

/** Active bytes of each ink in this state. */
function bytesBy(model, { inks, of }) {
  const bytes = new Float64Array(inks.length);
  for (const row of model.blocks.rows()) bytes[of(row)] += model.size[row];
  return [...bytes];
}

EXTRAS.blocks = (player) => new Panels(player);
