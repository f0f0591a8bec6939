// Which events and which addresses are shown. Pure arithmetic, no DOM; tested in node.

const FEWEST_EVENTS = 16;

/** A window low … high on 0 … end, never narrower than `least`. */
export class Reach {
  /** @param {number} end @param {number} least */
  constructor(end, least) {
    this.end = end;
    this.least = Math.min(least, end);
    this.low = 0;
    this.high = end;
  }

  /** Is nothing hidden? */
  get whole() {
    return this.low <= 0 && this.high >= this.end;
  }

  /** Show these as nearly as the ends allow. @param {number} low @param {number} high @returns {boolean} has anything changed? */
  set(low, high) {
    const { end, least } = this, size = Math.max(least, Math.min(end, high - low));
    const from = Math.max(0, Math.min(end - size, (low + high - size) / 2));
    const changed = from !== this.low || from + size !== this.high;
    this.low = from;
    this.high = from + size;
    return changed;
  }

  /** A window `factor` times as wide, with `around` where it was in it. @param {number} factor @param {number} around */
  by(factor, around) {
    const size = this.high - this.low, share = size ? Math.max(0, Math.min(1, (around - this.low) / size)) : 0;
    const wanted = Math.max(this.least, Math.min(this.end, size * factor)), low = around - share * wanted;
    return this.set(low, low + wanted);
  }

  /** @param {number} by  in its own units */
  move(by) {
    return this.set(this.low + by, this.high + by);
  }

  /**
   * Move so that a place is inside: by a page where it was just left, to the middle where it is far.
   * @param {number} at @returns {boolean} had it to move?
   */
  follow(at) {
    const { low, high } = this, size = high - low;
    if (at >= low && at <= high) return false;
    const ahead = at > high ? 0.1 : 0.9, near = Math.max(low - at, at - high) < size;
    const from = at - size * (near ? ahead : 0.5);
    return this.set(from, from + size);
  }

  all() {
    return this.set(0, this.end);
  }
}

/** The two windows of a player, and who wants to know of a change. */
export class Zoom {
  /** @param {number} events  as many as there are */
  constructor(events) {
    this.time = new Reach(events, FEWEST_EVENTS);
    this.place = new Reach(0, 0); // the block map says how much there is
    this.seen = -1; // where the cursor was when it was last looked at
    /** @type {(() => void)[]} */
    this.listeners = [];
  }

  /** The first and the last state shown: after so many events. */
  get from() {
    return Math.floor(this.time.low);
  }

  get to() {
    return Math.ceil(this.time.high);
  }

  /** What of the map is shown, in units along all that it would lay out. */
  get low() {
    return this.place.low;
  }

  get high() {
    return this.place.high;
  }

  /** Are events hidden? */
  get timed() {
    return !this.time.whole;
  }

  /** Are addresses hidden? */
  get placed() {
    return !this.place.whole;
  }

  /** @param {number} event @param {number} width px @returns {number} px, outside 0 … width where it is hidden */
  x(event, width) {
    const { from, to } = this;
    return to > from ? ((event - from) / (to - from)) * width : 0;
  }

  /** @param {number} x px @param {number} width px @returns {number} the state there */
  eventAt(x, width) {
    const { from, to } = this;
    return Math.round(from + Math.min(1, Math.max(0, x / width)) * (to - from));
  }

  /** There are more events now, as in a run that goes on; who saw all sees all. @param {number} events */
  extend(events) {
    const { time } = this, { whole } = time;
    time.end = events;
    time.least = Math.min(FEWEST_EVENTS, events);
    if (whole) time.all();
    this.tell();
  }

  /** Who moves the cursor wants to see it; who looks elsewhere while it rests is left there. @param {number} cursor a state */
  look(cursor) {
    if (cursor === this.seen) return;
    this.seen = cursor;
    if (this.time.follow(cursor)) this.tell();
  }

  tell() {
    for (const listener of this.listeners) listener();
  }
}
