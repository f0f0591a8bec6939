// node pagelayouts.mjs '{"pools": [[{"pages": 64, "most": {…}}, …], …], "widths": […], "tables": […], "letters": […]}'
// prints where pages and tables lie, for Python to compare.
import { fit, items, layout, place, shareLines } from "../../kvviz/view/player/pagelayout.js";
import { letterOf } from "../../kvviz/view/player/pagemodel.js";

const { pools, widths, tables, lines, letters } = JSON.parse(process.argv[2]);
const indices = (table) => Object.fromEntries(table.map(([index, page]) => [page, index]));
console.log(JSON.stringify({
  layouts: pools.map((some) => widths.map((width) => layout(some, width))),
  tables: tables.map(([table, perLine, most]) => {
    const boxes = items(table.map(([, page]) => page), indices(table));
    return [place(boxes, perLine), fit(boxes, perLine, most)];
  }),
  lines: lines.map(([needs, most]) => shareLines(needs, most)),
  letters: letters.map(letterOf),
}));
