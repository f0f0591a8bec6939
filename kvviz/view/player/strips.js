// Pictures of the map's lines, one pixel high: what stands upright in a line is painted once and stretched.

import { ROW_GAP } from "./layout.js";

/** As many blocks as there may be, a line costs its pixels: that is what keeps the map quick. */
export class Strips {
  /** @param {number} width device px @param {number} lines */
  constructor(width, lines) {
    this.canvas = document.createElement("canvas");
    this.canvas.width = this.width = Math.max(1, width);
    this.canvas.height = Math.max(1, lines);
    this.pen = this.canvas.getContext("2d", { willReadFrequently: true });
    this.image = this.pen.createImageData(this.width, this.canvas.height);
    this.pixels = new Uint32Array(this.image.data.buffer);
    this.empty = true;
  }

  clear() {
    this.pixels.fill(0);
    this.empty = true;
  }

  /** @param {number} line @param {number} from device px @param {number} to @param {number} color  see packed */
  fill(line, from, to, color) {
    const { pixels, width } = this, end = line * width + Math.min(width, to);
    for (let at = line * width + Math.max(0, from); at < end; at++) pixels[at] = color;
    this.empty = false;
  }

  /**
   * Stretch them onto the map.
   * @param {CanvasRenderingContext2D} g scaled to CSS px @param {import("./layout.js").Flow} flow @param {number} dpr
   * @param {number[][]} stretches  [px below the line's upper edge, px high]
   */
  stamp(g, { rowHeight, top }, dpr, stretches) {
    if (this.empty) return;
    this.pen.putImageData(this.image, 0, 0);
    g.imageSmoothingEnabled = false;
    for (let line = 0; line < this.canvas.height; line++) {
      const y = top + line * (rowHeight + ROW_GAP);
      for (const [below, high] of stretches) {
        g.drawImage(this.canvas, 0, line, this.width, 1, 0, y + below, this.width / dpr, high);
      }
    }
  }
}

/** "#rrggbb" as a pixel of an image. @param {string} color @param {number} [alpha] 0 … 1 @returns {number} */
export function packed(color, alpha = 1) {
  const rgb = parseInt(color.slice(1), 16);
  return ((Math.round(alpha * 255) << 24) | ((rgb & 0xff) << 16) | (rgb & 0xff00) | (rgb >> 16)) >>> 0;
}
