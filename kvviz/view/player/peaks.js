// The largest of any stretch of a long curve, without looking at all of it. Pure; tested in node.

const BLOCK = 64;

export class Peaks {
  /** @param {ArrayLike<number>} values  at least one, none below 0 */
  constructor(values) {
    this.values = values;
    const blocks = (this.blocks = new Float64Array(Math.ceil(values.length / BLOCK)));
    for (let k = 0; k < blocks.length; k++) blocks[k] = largest(values, k * BLOCK, Math.min(values.length, (k + 1) * BLOCK), 0);
  }

  /** The largest of from … to - 1. @param {number} from @param {number} to @returns {number} */
  most(from, to) {
    const first = Math.ceil(from / BLOCK), last = Math.floor(to / BLOCK);
    if (last <= first) return largest(this.values, from, to, 0);
    const edges = largest(this.values, last * BLOCK, to, largest(this.values, from, first * BLOCK, 0));
    return largest(this.blocks, first, last, edges);
  }
}

function largest(values, from, to, most) {
  for (let i = from; i < to; i++) if (values[i] > most) most = values[i];
  return most;
}
