// node layouts.mjs '{"cuts": […], "unit": 512, "widths": […]}' prints the layout for each width.
import { flow, spans } from "../../kvviz/view/player/layout.js";

const { cuts, unit, widths, ranges } = JSON.parse(process.argv[2]);
console.log(JSON.stringify(widths.map((width) => {
  const laid = flow(cuts, unit, width);
  return { ...laid, spans: ranges.map(([start, units, apart]) => spans(laid, start, units, apart)) };
})));
