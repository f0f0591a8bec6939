// node layouts.mjs '{"cuts": […], "unit": 512, "widths": […], "folded": […] or null, …}' prints the layout for each width.
import { bar, flow, unitAt } from "../../kvviz/view/player/layout.js";
import { spans } from "./spans.mjs";

const { cuts, unit, widths, ranges, folded, shares } = JSON.parse(process.argv[2]);
console.log(JSON.stringify(widths.map((width) => {
  const laid = flow(cuts, unit, width, folded);
  const middles = laid.parts.map((p) => unitAt(laid, p.x + p.w / 2, p.y + 1) - p.start - p.units / 2);
  return {
    ...laid, spans: ranges.map(([start, units, apart]) => spans(laid, start, units, apart)), bar: bar(shares, width),
    astray: Math.max(0, ...middles.map(Math.abs)), above: unitAt(laid, 5, 9),
  };
})));
