// The player's looks. Inks come as CSS variables, set by mount.js from the theme that the data brings.

import { MONO, SANS } from "./draw.js";

export const CSS = `
:host { display: block; margin: 4px 0; }
[hidden] { display: none !important; }
.box { --sans: ${SANS}; --mono: ${MONO};
  container-type: inline-size; font: 13px/1.45 var(--sans); color: var(--text); background: var(--paper);
  border: 1px solid var(--rule); border-radius: 12px; padding: 16px 18px 12px; max-width: 2400px; text-align: left; }
.box, .box * { box-sizing: border-box; }
.box:focus-visible, button:focus-visible, input:focus-visible, select:focus-visible, summary:focus-visible {
  outline: 2px solid var(--focus); outline-offset: 2px; }
header { display: flex; align-items: flex-start; gap: 10px 24px; margin-bottom: 14px; }
header > div { min-width: 0; }
h2 { font: 650 16px/22px var(--sans); letter-spacing: -.01em; margin: 0; color: var(--text); }
h3 { font: 600 13px/20px var(--sans); margin: 0; color: var(--text); }
h2, h3, .sub, footer, .legend, details li { overflow-wrap: anywhere; }
.sub { color: var(--muted); font-size: 12.5px; line-height: 19px; margin: 0; }
header dl { display: flex; gap: 22px; margin: 0 0 0 auto; }
header dl div { display: flex; flex-direction: column-reverse; text-align: right; }
dt { font-size: 10.5px; line-height: 19px; letter-spacing: .05em; text-transform: uppercase; color: var(--muted);
  white-space: nowrap; }
dd { margin: 0; font: 600 15px/22px var(--mono); font-variant-numeric: tabular-nums; white-space: nowrap; }
.wrap { position: relative; }
canvas { display: block; width: 100%; touch-action: pan-y; }
.event { font: 12px/20px var(--mono); height: 20px; margin: 10px 0 0; color: var(--muted); overflow: hidden;
  text-overflow: ellipsis; white-space: nowrap; }
.event b { color: var(--text); font-weight: 600; margin-right: 1ch; }
.said { position: absolute; width: 1px; height: 1px; margin: 0; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
.chip, .legend i { flex: none; width: 16px; height: 16px; border-radius: 4px; font: 700 10px/16px var(--sans); text-align: center; }
.chip { background: var(--color); color: var(--ink); }
ul.legend { display: flex; flex-wrap: wrap; gap: 6px 18px; list-style: none; margin: 8px 0 10px; padding: 0;
  font-size: 12px; color: var(--muted); }
ul.many { max-height: 240px; overflow-y: auto; }
.legend li, .legend button, .inks span { display: flex; align-items: center; gap: 6px; margin: 0; max-width: 100%; }
.legend li { min-height: 24px; }
.legend button { width: auto; height: 24px; border: 0; padding: 0; background: none; font: inherit; color: inherit; }
.legend button:hover { color: var(--text); }
.legend li > span, .legend button > span { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.legend b { font: inherit; color: var(--text); font-variant-numeric: tabular-nums; min-width: 9ch; text-align: left; white-space: nowrap; }
.legend [aria-checked=false] { text-decoration: line-through; }
.legend [aria-checked=false] .chip { background: none; color: var(--text); border: 1px dashed var(--edge); line-height: 14px; }
.legend i.hatch { background: repeating-linear-gradient(135deg, var(--hatch) 0 1px, var(--free) 1px 4px);
  border: 1px solid var(--edge); }
.legend i.dash { border: 1px dashed var(--dash); }
.legend i.tint { background: linear-gradient(90deg, var(--muted) 50%, var(--grid) 50%); border: 1px solid var(--muted); }
.legend i.area { height: 10px; border-radius: 2px; }
.legend i.line { height: 2px; border-radius: 1px; }
.legend li.inks { margin-left: auto; gap: 18px; flex-wrap: wrap; }
.controls { display: flex; flex-wrap: wrap; align-items: center; gap: 8px; margin-top: 10px; }
.buttons { display: flex; gap: 4px; }
button, select { height: 32px; border: 1px solid var(--rule); border-radius: 8px; background: var(--panel);
  color: var(--text); cursor: pointer; font: 500 12px var(--sans); padding: 0; margin: 0; }
.buttons button { width: 34px; display: grid; place-items: center; }
button:hover, select:hover { border-color: var(--muted); }
button:disabled { color: var(--muted); cursor: default; border-style: dashed; }
button svg { width: 16px; height: 16px; fill: currentColor; }
select { padding: 0 4px; }
input[type=range] { flex: 1 1 160px; min-width: 120px; height: 24px; margin: 0 4px; accent-color: var(--text); }
.place { font: 12px var(--mono); color: var(--muted); font-variant-numeric: tabular-nums; white-space: nowrap;
  min-width: 24ch; text-align: right; }
.tools { display: flex; flex-wrap: wrap; align-items: center; gap: 6px; margin-top: 10px; font-size: 12px; }
.tools:empty { display: none; }
.tools button, .acts button, .fields button { width: auto; height: 28px; padding: 0 10px; }
button[aria-expanded=true], .acts [aria-pressed=true] { background: var(--text); border-color: var(--text); color: var(--paper); }
.panel { margin-top: 10px; padding: 10px 12px; border: 1px solid var(--rule); border-radius: 8px; background: var(--paper); }
.head { display: flex; flex-wrap: wrap; align-items: center; gap: 4px 8px; margin-bottom: 4px; }
.close { margin-left: auto; width: 28px; height: 28px; font-size: 16px; }
.keylist { columns: 260px; column-gap: 28px; list-style: none; margin: 0; padding: 0; font-size: 12px; }
.keylist li { break-inside: avoid; padding: 2px 0; display: flex; gap: 8px; }
.keylist span { flex: none; min-width: 92px; }
footer { display: flex; flex-wrap: wrap; align-items: center; gap: 2px 18px; margin-top: 10px; padding-top: 8px;
  border-top: 1px solid var(--grid); font-size: 11.5px; color: var(--muted); }
footer .keys { margin-left: auto; }
footer button { height: 24px; padding: 0 8px; font-size: 11.5px; }
kbd { font: 10.5px var(--mono); border: 1px solid var(--rule); border-radius: 4px; padding: 0 4px; color: var(--text);
  background: var(--panel); margin: 0 2px 0 6px; box-shadow: none; }
details { flex-basis: 100%; }
summary { cursor: pointer; min-height: 24px; }
details ul { margin: 4px 0 0; padding-left: 20px; }
.tip { position: absolute; z-index: 5; pointer-events: none; display: none; max-width: min(440px, 90cqw); padding: 7px 10px;
  border-radius: 8px; background: var(--text); color: var(--paper); font: 11.5px/1.5 var(--mono); white-space: pre-wrap;
  overflow-wrap: anywhere; }
.tip b { display: block; font: 600 12.5px/1.5 var(--sans); }
@container (max-width: 720px) {
  header { flex-wrap: wrap; }
  header dl { margin: 0; width: 100%; justify-content: space-between; gap: 10px; }
  header dl div { text-align: left; }
  header dd { font-size: 13.5px; }
  footer .keys { display: none; }
  .legend li.inks { margin-left: 0; }
}
@container (max-width: 480px) {
  header dl { display: grid; grid-template-columns: 1fr 1fr; }
  .buttons { flex: 1 1 100%; }
  .buttons button { flex: 1; height: 36px; }
  .place { flex: 1; }
}
@media (prefers-reduced-motion: no-preference) { button { transition: background-color .1s, border-color .1s; } }
@media (forced-colors: active) {
  canvas, .legend i, .chip, .tip { forced-color-adjust: none; }
  button { border: 1px solid ButtonText; }
  :focus-visible { outline-color: Highlight !important; }
}
@media print {
  .controls, .keys, .tools, .tip, .close, .acts, footer button { display: none !important; }
  .box { border-color: #999; break-inside: avoid; }
  ul.many { max-height: none; }
}
`;
