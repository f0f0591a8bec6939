// What Python packed for a page, from the file where it lies.
import { readFileSync } from "node:fs";
import { decode } from "../../kvviz/view/player/data.js";

/** @param {string} path @returns {{meta: any, col: Record<string, any>}} */
export function packedAt(path) {
  const file = readFileSync(path);
  return decode(file.buffer.slice(file.byteOffset, file.byteOffset + file.byteLength));
}
