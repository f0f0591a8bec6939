// Numbers as people read them. No state, no DOM.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

/** 1181116 -> "1.13 MiB"; exact below 1 KiB. @param {number} bytes @param {boolean} [fixed] decimals of whole numbers too */
export function formatBytes(bytes, fixed = false) {
  let power = 0;
  while (power < 4 && Math.abs(bytes) >= 1024 ** (power + 1)) power++;
  const value = bytes / 1024 ** power;
  const digits = power === 0 || (Number.isInteger(value) && !fixed) ? 0 : power === 1 ? 1 : 2;
  return `${value.toFixed(digits)} ${UNITS[power]}`;
}

/** The short form that fits on a block: 33554432 -> "32M". @param {number} bytes @returns {string} */
export function formatShort(bytes) {
  if (bytes < 1024) return `${bytes}`;
  let power = 1;
  while (power < 4 && bytes >= 1024 ** (power + 1)) power++;
  const value = bytes / 1024 ** power;
  return (value < 9.95 && !Number.isInteger(value) ? value.toFixed(1) : Math.round(value)) + UNITS[power][0];
}

/** 250000 -> "250,000", the same in every locale. @param {number} count @returns {string} */
export function formatCount(count) {
  return count.toLocaleString("en-US");
}

/**
 * How numbers of something read: "1 slot", "1,024 slots"; bytes where it has no name.
 * @param {string} [one] @returns {(count: number) => string}
 */
export function formatOf(one) {
  return one ? (count) => `${formatCount(count)} ${one}${count === 1 ? "" : "s"}` : formatBytes;
}
