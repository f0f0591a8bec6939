// Which blocks are shown: by owner (or whatever else colour means), by size, by call site. What is hidden is always said.

import { button, el } from "./dom.js";
import { formatBytes, formatCount, formatOf } from "./format.js";
import { put } from "./table.js";

/** "64k", "1.5 MiB", "512" -> bytes; NaN where it cannot be read. @param {string} text @returns {number} */
export function parseBytes(text) {
  const found = /^\s*(\d+(?:\.\d*)?|\.\d+)\s*([KMGT]?)(?:i?B)?\s*$/i.exec(text);
  return found ? Math.round(Number(found[1]) * 1024 ** " KMGT".indexOf(found[2].toUpperCase() || " ")) : NaN;
}

export class Filter {
  /** @param {any} model a BlockModel */
  constructor(model) {
    this.model = model;
    this.clear();
  }

  /** Show everything. */
  clear() {
    this.from = 0; // bytes, rounded sizes, both ends included
    this.to = Infinity;
    this.text = "";
    /** @type {Map<string, {paint: import("./colours.js").Paint, off: Set<string>}>} */
    this.off = new Map(); // names that are switched off in the legend, for each meaning of colour
    this.change();
  }

  /** @param {string} scheme @param {import("./colours.js").Paint} paint @param {number} index of its inks */
  toggle(scheme, paint, index) {
    const { name } = paint.inks[index], off = this.off.get(scheme)?.off || new Set();
    if (!off.delete(name)) off.add(name);
    this.off.set(scheme, { paint, off });
    this.change();
  }

  /** @param {string} scheme @param {string} name of an ink @returns {boolean} */
  shows(scheme, name) {
    return !this.off.get(scheme)?.off.has(name);
  }

  /** The run has gone on. @param {any} model @param {(scheme: string) => import("./colours.js").Paint | null} paintFor */
  renew(model, paintFor) {
    this.model = model;
    for (const [scheme, known] of this.off) known.paint = paintFor(scheme) || known.paint;
    this.change();
  }

  get on() {
    return this.from > 0 || this.to < Infinity || this.text !== "" || [...this.off.values()].some(({ off }) => off.size);
  }

  /** To be called after a change: who is hidden is worked out once. */
  change() {
    const { model: { size, stack, meta }, from, to } = this, wanted = this.text.trim().toLowerCase();
    this.hidden = null;
    if (!this.on) return;
    const named = ["", ...meta.stacks].map((text) => text.toLowerCase().includes(wanted));
    const off = [...this.off.values()].filter((o) => o.off.size).map(({ paint, off: names }) => {
      const faded = paint.inks.map(({ name }) => names.has(name));
      return (row) => faded[paint.of(row)];
    });
    const hidden = (this.hidden = new Uint8Array(size.length));
    for (let row = 0; row < size.length; row++) {
      if (size[row] < from || size[row] > to || !named[stack[row]] || off.some((faded) => faded(row))) hidden[row] = 1;
    }
  }

  /** Is it hidden? null where nothing is. @returns {((row: number) => boolean) | null} */
  get veil() {
    const { hidden } = this;
    return hidden && ((row) => hidden[row] === 1);
  }

  /** @returns {{shown: number, all: number, shownBytes: number, allBytes: number}} of this state */
  count() {
    const { model: { blocks, size }, hidden } = this, c = { shown: 0, all: 0, shownBytes: 0, allBytes: 0 };
    for (const row of blocks.rows()) {
      c.all++;
      c.allBytes += size[row];
      if (hidden?.[row]) continue;
      c.shown++;
      c.shownBytes += size[row];
    }
    return c;
  }

  /** @returns {string} what is shown, and what is not */
  sentence() {
    const { from, to } = this, { shown, all, shownBytes, allBytes } = this.count(), faded = all - shown;
    const part = `showing ${formatCount(shown)} of ${formatOf("block")(all)}, ${formatBytes(shownBytes)} of ${formatBytes(allBytes)}`;
    const rest = faded ? `; ${formatCount(faded)} ${faded === 1 ? "is" : "are"} faded` : "";
    return part + rest + (from > to ? "; “size from” is larger than “to”: nothing matches" : "");
  }
}

/** What is to be seen, in fields; the legend's entries switch owners. */
export class FilterPanel {
  /** @param {any} panels */
  constructor(panels) {
    this.title = "Filter";
    this.panels = panels;
    this.told = el("p", { className: "note" });
    this.element = el("div");
    this.build();
  }

  build() {
    const { filter } = this.panels, written = (bytes) => (bytes > 0 && bytes < Infinity ? formatBytes(bytes) : "");
    const size = (key, empty) => (text) => {
      const bytes = text ? parseBytes(text) : empty;
      if (!Number.isNaN(bytes)) filter[key] = bytes;
      return !Number.isNaN(bytes);
    };
    const fields = [
      this.field("size from", written(filter.from), "64 KiB", size("from", 0)),
      this.field("to", written(filter.to), "2 MiB", size("to", Infinity)),
    ];
    if (filter.model.meta.stacks.length) {
      fields.push(this.field("call site contains", filter.text, "attn", (text) => ((filter.text = text), true)));
    }
    const all = button("Clear", () => (filter.clear(), this.build(), this.panels.refilter()));
    const where = el("p", { className: "note", textContent: "Sizes are the rounded ones. Click an entry of the legend to fade its blocks." });
    this.element.replaceChildren(el("div", { className: "fields" }, [...fields, all]), this.told, where);
  }

  /** @param {(text: string) => boolean} set  false: the text cannot be read */
  field(label, value, placeholder, set) {
    const input = el("input", { type: "text", value, placeholder, spellcheck: false, oninput: () => {
      const fine = set(input.value.trim());
      input.setAttribute("aria-invalid", String(!fine));
      if (!fine) return put(this.told, `“${input.value}” is no size; write 512, 64k or 1.5 MiB`);
      this.panels.filter.change();
      this.panels.refilter();
    } });
    return el("label", {}, [`${label} `, input]);
  }

  draw() {
    put(this.told, this.panels.filter.sentence());
  }
}
