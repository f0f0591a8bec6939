// Wheel, two fingers, dragging: what a pointer does on a canvas, in its own px.

import { pointOn } from "./dom.js";

/**
 * @typedef {object} Acts  each says whether anything changed
 * @property {() => boolean} eager  may a plain wheel zoom, too?
 * @property {(factor: number, x: number, y: number) => boolean} zoom  factor above 1: more is shown
 * @property {(dx: number, dy: number) => boolean} move  what is shown, by so many px
 * @property {(x: number, y: number, e: PointerEvent) => void} [press]
 * @property {(x: number, y: number, dx: number, e: PointerEvent) => void} [drag]  with one pointer down
 * @property {(x: number, y: number, e: PointerEvent) => void} [hover]
 */

const PER_PX = 0.002, PER_LINE = 0.05; // of a wheel: powers of two
const CLOSE = 12; // px: fingers nearer than that count as so far apart

/** @param {any} canvas @param {Acts} acts */
export function gestures(canvas, acts) {
  /** @type {Map<number, number[]>} */
  const fingers = new Map();

  canvas.addEventListener("wheel", (e) => {
    const forced = e.ctrlKey || e.metaKey, [x, y] = pointOn(canvas, e), px = e.deltaMode ? 20 : 1;
    const sideways = !forced && (e.shiftKey || Math.abs(e.deltaX) > Math.abs(e.deltaY));
    let done = false;
    if (sideways) done = acts.move((e.deltaX || e.deltaY) * px, 0);
    else if (forced || acts.eager()) {
      const power = e.deltaY * (e.deltaMode ? PER_LINE : PER_PX) * (forced ? 5 : 1); // a touchpad's pinch comes in little
      done = acts.zoom(2 ** Math.max(-1, Math.min(1, power)), x, y);
    }
    if (forced || done) e.preventDefault(); // else the page scrolls
  }, { passive: false });

  canvas.addEventListener("pointerdown", (e) => {
    if (e.pointerType === "mouse" && e.button) return;
    const [x, y] = pointOn(canvas, e);
    fingers.set(e.pointerId, [x, y]);
    if (fingers.size === 1) acts.press?.(x, y, e);
  });
  canvas.addEventListener("pointermove", (e) => {
    const [x, y] = pointOn(canvas, e), before = fingers.get(e.pointerId);
    if (!before) return acts.hover?.(x, y, e);
    fingers.set(e.pointerId, [x, y]);
    if (fingers.size === 1) return acts.drag?.(x, y, x - before[0], e);
    if (fingers.size !== 2) return;
    const [other] = [...fingers].filter(([id]) => id !== e.pointerId).map(([, place]) => place);
    const apart = (a) => Math.max(CLOSE, Math.hypot(a[0] - other[0], a[1] - other[1]));
    acts.zoom(apart(before) / apart([x, y]), (x + other[0]) / 2, (y + other[1]) / 2);
    acts.move((before[0] - x) / 2, (before[1] - y) / 2);
  });
  for (const type of ["pointerup", "pointercancel", "lostpointercapture"]) {
    canvas.addEventListener(type, (e) => fingers.delete(e.pointerId));
  }
}
