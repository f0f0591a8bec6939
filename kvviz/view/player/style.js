// The player's looks. Inks come as CSS variables, set by mount.js from the theme that the data brings.

import { MONO, SANS } from "./draw.js";

export const CSS = `
:host { display: block; margin: 4px 0; }
.box { --sans: ${SANS}; --mono: ${MONO};
  container-type: inline-size; font: 13px/1.45 var(--sans); color: var(--text); background: var(--paper);
  border: 1px solid var(--rule); border-radius: 12px; padding: 16px 18px 12px; max-width: 2400px; text-align: left; }
.box, .box * { box-sizing: border-box; }
.box:focus-visible, button:focus-visible, input:focus-visible, select:focus-visible, summary:focus-visible {
  outline: 2px solid var(--focus); outline-offset: 2px; }
header { display: flex; align-items: flex-start; gap: 10px 24px; margin-bottom: 14px; }
h3 { font: 650 16px/22px var(--sans); letter-spacing: -.01em; margin: 0; }
.sub { color: var(--muted); font-size: 12.5px; line-height: 19px; margin: 0; }
dl { display: flex; gap: 22px; margin: 0 0 0 auto; }
dl div { display: flex; flex-direction: column-reverse; text-align: right; }
dt { font-size: 10.5px; line-height: 19px; letter-spacing: .05em; text-transform: uppercase; color: var(--muted);
  white-space: nowrap; }
dd { margin: 0; font: 600 15px/22px var(--mono); font-variant-numeric: tabular-nums; white-space: nowrap; }
.wrap { position: relative; }
canvas { display: block; width: 100%; touch-action: pan-y; }
.event { font: 12px/20px var(--mono); height: 20px; margin: 10px 0 0; color: var(--muted); overflow: hidden;
  text-overflow: ellipsis; white-space: nowrap; }
.event b { color: var(--text); font-weight: 600; margin-right: 1ch; }
ul.legend { display: flex; flex-wrap: wrap; gap: 6px 18px; list-style: none; margin: 8px 0 10px; padding: 0;
  font-size: 12px; color: var(--muted); }
.legend li, .inks span { display: flex; align-items: center; gap: 6px; white-space: nowrap; margin: 0; }
.legend i { flex: none; width: 16px; height: 16px; border-radius: 4px; font: 700 10px/16px var(--sans); text-align: center; }
.legend b { font: inherit; color: var(--text); font-variant-numeric: tabular-nums; min-width: 9ch; }
.legend i.hatch { background: repeating-linear-gradient(135deg, var(--hatch) 0 1px, var(--free) 1px 4px);
  border: 1px solid var(--edge); }
.legend i.dash { border: 1px dashed var(--dash); }
.legend i.tint { background: linear-gradient(90deg, var(--muted) 50%, var(--grid) 50%); border: 1px solid var(--muted); }
.legend i.area { height: 10px; border-radius: 2px; }
.legend i.line { height: 2px; border-radius: 1px; }
.legend li.inks { margin-left: auto; gap: 18px; }
.controls { display: flex; flex-wrap: wrap; align-items: center; gap: 8px; margin-top: 10px; }
.buttons { display: flex; gap: 4px; }
button, select { height: 32px; border: 1px solid var(--rule); border-radius: 8px; background: var(--panel);
  color: var(--text); cursor: pointer; font: 500 12px var(--sans); padding: 0; margin: 0; }
button { width: 34px; display: grid; place-items: center; }
button:hover, select:hover { border-color: var(--muted); }
button svg { width: 16px; height: 16px; fill: currentColor; }
select { padding: 0 4px; }
input[type=range] { flex: 1 1 160px; min-width: 120px; height: 24px; margin: 0 4px; accent-color: var(--text); }
.place { font: 12px var(--mono); color: var(--muted); font-variant-numeric: tabular-nums; white-space: nowrap;
  min-width: 24ch; text-align: right; }
footer { display: flex; flex-wrap: wrap; gap: 2px 18px; margin-top: 10px; padding-top: 8px;
  border-top: 1px solid var(--grid); font-size: 11.5px; color: var(--muted); }
footer .keys { margin-left: auto; }
kbd { font: 10.5px var(--mono); border: 1px solid var(--rule); border-radius: 4px; padding: 0 4px; color: var(--text);
  background: var(--panel); margin: 0 2px 0 6px; box-shadow: none; }
details { flex-basis: 100%; }
summary { cursor: pointer; }
details ul { margin: 4px 0 0; padding-left: 20px; }
.tip { position: absolute; z-index: 5; pointer-events: none; display: none; max-width: min(440px, 90cqw); padding: 7px 10px;
  border-radius: 8px; background: var(--text); color: var(--paper); font: 11.5px/1.5 var(--mono); white-space: pre-wrap;
  overflow-wrap: anywhere; }
.tip b { display: block; font: 600 12.5px/1.5 var(--sans); }
@container (max-width: 720px) {
  header { flex-wrap: wrap; }
  dl { margin: 0; width: 100%; justify-content: space-between; gap: 10px; }
  dl div { text-align: left; }
  dd { font-size: 13.5px; }
  footer .keys { display: none; }
  .legend li.inks { margin-left: 0; }
}
@container (max-width: 480px) {
  dl { display: grid; grid-template-columns: 1fr 1fr; }
  .buttons { flex: 1 1 100%; }
  .buttons button { flex: 1; height: 36px; }
  .place { flex: 1; }
}
@media print { .controls, .keys { display: none; } }
`;
