// The looks of what the block map's panels hold; the frames around them are in style.js. A panel below the timeline has no
// frame, so that its scale is the timeline's.

export const PANEL_CSS = `
.tools > label { display: flex; align-items: center; gap: 6px; color: var(--muted); white-space: nowrap; }
.tools select { height: 28px; }
.told { flex: 1 1 100%; margin: 0; color: var(--text); font-size: 12px; }
.told:empty { display: none; }
.card { margin: 10px 0 4px; }
.card .now { margin: 0; color: var(--text); font-weight: 600; font-size: 12px; }
.card dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(300px, 100%), 1fr)); gap: 4px 22px; margin: 6px 0 10px; }
.card dl div { display: flex; gap: 8px; min-width: 0; }
.card dl div:last-child { grid-column: 1 / -1; }
.card dt { flex: none; width: 9ch; font-size: 12px; letter-spacing: 0; text-transform: none; }
.card dd { font: 12px/19px var(--mono); white-space: normal; overflow-wrap: anywhere; min-width: 0; }
.acts { display: flex; flex-wrap: wrap; gap: 6px; }
.fields { display: flex; flex-wrap: wrap; gap: 8px 16px; align-items: center; }
.fields label { display: flex; align-items: center; gap: 6px; color: var(--muted); max-width: 100%; }
.fields input { width: 14ch; min-width: 0; height: 28px; padding: 0 8px; border: 1px solid var(--edge); border-radius: 8px;
  background: var(--paper); color: var(--text); font: 12px var(--mono); }
.fields input[aria-invalid=true] { border-color: var(--text); border-style: dashed; }
.wrap .panel:not(.card) { border: 0; padding: 0; }
.note { margin: 4px 0; color: var(--muted); font-size: 12px; overflow-wrap: anywhere; }
.columns { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(420px, 100%), 1fr)); gap: 4px 28px; }
.columns > div { min-width: 0; }
.scroll { overflow-x: auto; margin: 4px 0 8px; }
table { border-collapse: collapse; width: 100%; font-size: 12px; color: var(--text); margin: 0; }
caption { text-align: left; font-weight: 600; padding: 2px 0 4px; color: var(--text); }
th, td { padding: 3px 8px 3px 6px; text-align: right; font: 12px/18px var(--mono); font-variant-numeric: tabular-nums;
  white-space: nowrap; border-bottom: 1px solid var(--grid); background: none; }
thead th { color: var(--muted); font: 11px/16px var(--sans); }
th:first-child { min-width: 14ch; text-align: left; padding-left: 0; font-family: var(--sans); white-space: normal; overflow-wrap: anywhere; }
th .chip { display: inline-block; margin-right: 6px; vertical-align: -4px; }
th button { width: auto; height: auto; min-height: 24px; padding: 0; border: 0; background: none; text-align: left; font: inherit;
  display: inline; text-decoration: underline; text-underline-offset: 2px; }
@container (max-width: 480px) {
  th, td { padding: 3px 4px; font-size: 11px; line-height: 15px; white-space: normal; }
  th:first-child { min-width: 6ch; }
}
td.bar { background: linear-gradient(90deg, var(--back) var(--share), transparent 0) no-repeat 0 50% / 100% 14px; }
`;
