// What every picture draws with.

export const SANS = 'Inter, system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';
export const MONO = 'ui-monospace, "JetBrains Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace';

/**
 * Text whose middle is at height y.
 * @param {CanvasRenderingContext2D} g @param {string | number} text @param {number} x @param {number} y
 * @param {string} ink @param {string} font @param {CanvasTextAlign} [align]
 */
export function say(g, text, x, y, ink, font, align = "left") {
  g.font = font;
  g.textAlign = align;
  g.textBaseline = "middle";
  g.fillStyle = ink;
  g.fillText(String(text), x, y);
}

/**
 * A path around a box with rounded corners.
 * @param {CanvasRenderingContext2D} g @param {number} x @param {number} y @param {number} w @param {number} h @param {number} radius
 */
export function round(g, x, y, w, h, radius) {
  g.beginPath();
  g.roundRect(x, y, w, h, Math.max(0, radius));
}

/**
 * Diagonal lines as a fill.
 * @param {number} dpr @param {number} size px from line to line @param {string} paper @param {string} ink @param {number} weight px
 * @param {boolean} falling
 */
export function pattern(dpr, size, paper, ink, weight, falling) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = size * dpr;
  const g = tile.getContext("2d");
  g.scale(dpr, dpr);
  g.fillStyle = paper;
  g.fillRect(0, 0, size, size);
  if (falling) g.transform(-1, 0, 0, 1, size, 0);
  g.strokeStyle = ink;
  g.lineWidth = weight;
  g.beginPath();
  for (const shift of [-size, 0, size]) {
    g.moveTo(shift - 1, size + 1);
    g.lineTo(shift + size + 1, -1);
  }
  g.stroke();
  const fill = g.createPattern(tile, "repeat");
  fill.setTransform(new DOMMatrix([1 / dpr, 0, 0, 1 / dpr, 0, 0]));
  return fill;
}

/** A colour thinned with paper, both "#rrggbb". @param {string} color @param {string} paper @param {number} share of the colour */
export function mix(color, paper, share) {
  const part = (hex, k) => parseInt(hex.slice(k, k + 2), 16);
  const mixed = [1, 3, 5].map((k) => Math.round(share * part(color, k) + (1 - share) * part(paper, k)));
  return `#${mixed.map((c) => c.toString(16).padStart(2, "0")).join("")}`;
}
