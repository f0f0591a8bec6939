// What is written on blocks: the most that fits.

import { SANS } from "./draw.js";
import { formatShort } from "./format.js";

const widths = new Map(); // font and text -> px

/**
 * @typedef {{x: number, y: number, w: number, bytes: number, look: any, waits: boolean, solid: number}} Label
 *   look: name, letter, ink; solid: px until the over-reserved part begins, where the paper's ink is needed
 */

/** @param {CanvasRenderingContext2D} g @param {Label[]} labels @param {number} h px: the height of a line @param {any} T */
export function drawLabels(g, labels, h, T) {
  const font = (g.font = `600 ${h > 28 ? 12 : 11}px ${SANS}`); // to ask g for it takes as long as to write a label
  g.textBaseline = "middle";
  g.textAlign = "left";
  for (const { x, y, w, bytes, look, waits, solid } of labels) {
    const text = fitting(g, font, look, bytes, w);
    if (!text) continue;
    const taken = measured(g, font, text), at = x + (text.length === 1 ? (w - taken) / 2 : 6), middle = y + h / 2 + 0.5;
    const put = (ink, from, to) => {
      g.save();
      g.beginPath();
      g.rect(from, y, to - from, h);
      g.clip();
      g.fillStyle = ink;
      g.fillText(text, at, middle);
      g.restore();
    };
    if (waits) { // the stripes would swallow the letters
      g.fillStyle = T.paper;
      g.fillRect(at - 3, y + 4, taken + 6, h - 8);
    }
    if (solid >= at - x + taken) {
      g.fillStyle = look.ink;
      g.fillText(text, at, middle);
    } else {
      if (solid > 0) put(look.ink, x, x + solid);
      put(T.text, x + solid, x + w);
    }
  }
}

/** Name and size, name, letter, nothing. */
function fitting(g, font, { name, letter }, bytes, width) {
  for (const text of [`${name}  ${formatShort(bytes)}`, name]) if (measured(g, font, text) + 13 <= width) return text;
  return measured(g, font, letter) + 4 <= width ? letter : "";
}

function measured(g, font, text) {
  const key = font + text;
  let width = widths.get(key);
  if (width === undefined) {
    if (widths.size > 5000) widths.clear(); // of a million sizes only those on the screen are asked for
    widths.set(key, (width = g.measureText(text).width));
  }
  return width;
}
