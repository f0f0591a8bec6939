// What can be shown. Each kind's file enters itself, so that a page brings the source of its own kind alone.

/**
 * Kind of data -> [its model, its map]. A kind without a map shows the timeline alone. A model has n, pos, peak, marks,
 * series, seek, figures, legendItems, legendTexts, words, happened; a map layout, setTheme, draw, tipAt, words.
 * @type {Record<string, [any, any]>}
 */
export const KINDS = {};

/**
 * Kind of data -> what it brings beside its map: made with the player, see panels.js.
 * @type {Record<string, (player: any) => any>}
 */
export const EXTRAS = {};
