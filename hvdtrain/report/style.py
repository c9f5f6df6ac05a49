"""How the page looks: dark and light by the reader's own setting, one column on a phone, and on paper."""

from __future__ import annotations

STYLE = """
:root {
  color-scheme: light dark;
  --page: #f4f5f7; --card: #ffffff; --line: #e1e4e9; --ink: #171b22; --muted: #5a6372; --grid: #d5d9e0;
  --hatch: rgb(255 255 255 / 0.75);
  --accent: #0a5bc4; --good: #12693f; --good-fill: #dff3e7; --warn: #8a4b00; --warn-fill: #fdecd2;
  --series-1: #0a5bc4; --series-2: #c04a00; --series-3: #0b7a5e; --series-4: #8136b5; --series-5: #8a6a00;
  --series-6: #b02a5b;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #0f1217; --card: #181c23; --line: #2a303a; --ink: #e7eaef; --muted: #9aa4b3; --grid: #343b47;
    --hatch: rgb(0 0 0 / 0.6);
    --accent: #6fb0ff; --good: #7fdba8; --good-fill: #143524; --warn: #ffc773; --warn-fill: #3d2b0c;
    --series-1: #6fb0ff; --series-2: #ff9a5a; --series-3: #4fd1ab; --series-4: #c99bf5; --series-5: #e3c04d;
    --series-6: #ff8fb4;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink); overflow-wrap: anywhere;
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}
main { max-width: 1280px; margin: 0 auto; padding: 28px 32px 48px; }
header { margin-bottom: 20px; }
h1 { font-size: 26px; line-height: 1.25; letter-spacing: -0.01em; margin: 0 0 6px; }
h2 { font-size: 18px; margin: 32px 0 12px; }
h3 { font-size: 15px; margin: 0 0 8px; }
h3 small { font-weight: 400; font-size: 13px; color: var(--muted); }
p { margin: 0; }
.muted { color: var(--muted); }
.chips { display: flex; flex-wrap: wrap; gap: 8px; margin-top: 10px; }
.chip { padding: 2px 10px; border-radius: 999px; font-size: 13px; background: var(--card); }
.chip { border: 1px solid var(--line); }
.chip.good { color: var(--good); background: var(--good-fill); border-color: transparent; }
.chip.warn { color: var(--warn); background: var(--warn-fill); border-color: transparent; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 16px; min-width: 0; }
.tiles { display: grid; gap: 12px; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); }
.tile { padding: 14px; }
.tile .name { font-size: 13px; color: var(--muted); }
.tile .value { white-space: nowrap; font-size: 22px; font-weight: 600; line-height: 1.25; letter-spacing: -0.01em; }
.tile .more { font-size: 12.5px; color: var(--muted); }
.charts { display: grid; gap: 16px; margin-top: 16px; grid-template-columns: repeat(3, minmax(0, 1fr)); }
.charts { grid-auto-flow: dense; }
.charts + .card { margin-top: 16px; }
.charts .two { grid-column: span 2; }
.charts svg { display: block; width: 100%; height: auto; }
.charts svg * { stroke-linejoin: round; stroke-linecap: butt; }
.charts svg text { font-family: inherit !important; font-variant-numeric: tabular-nums; }
.charts svg.narrow { display: none; }
.charts svg.key { display: inline-block; width: 34px; height: 10px; margin-right: 6px; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 16px; list-style: none; margin: 0 0 8px; padding: 0; }
.legend, .parts { font-size: 13px; }
.parts { list-style: none; margin: 0; padding: 0; }
.parts li { margin-bottom: 9px; }
.parts .told { display: flex; justify-content: space-between; gap: 12px; }
.parts .bar { height: 8px; border-radius: 2px; background: var(--series-1); min-width: 1px; }
.columns { display: grid; gap: 16px; grid-template-columns: repeat(2, minmax(0, 1fr)); align-items: start; }
.columns > div { display: grid; gap: 16px; grid-template-columns: minmax(0, 1fr); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; font-size: 15px; padding-bottom: 8px; }
th, td { text-align: left; vertical-align: top; padding: 5px 12px 5px 0; border-top: 1px solid var(--line); }
thead th, thead td { border-top: 0; }
th { font-weight: 500; color: var(--muted); }
thead th { color: var(--ink); font-weight: 600; }
th[scope=row] { width: 40%; min-width: 9.5em; }
.compared th[scope=row] { width: auto; }
.compared td, .compared thead th { min-width: 8.5em; }
.best { font-weight: 600; color: var(--good); }
summary { cursor: pointer; font-weight: 600; color: var(--accent); }
details[open] summary { margin-bottom: 10px; }
footer { margin-top: 32px; font-size: 13px; color: var(--muted); }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
@media (max-width: 1000px) { .charts { grid-template-columns: repeat(2, minmax(0, 1fr)); } }
@media (max-width: 720px) {
  main { padding: 18px 14px 36px; }
  h1 { font-size: 22px; }
  .tiles { grid-template-columns: repeat(2, minmax(0, 1fr)); }
  .tile .value { font-size: 20px; }
  .charts, .columns { grid-template-columns: minmax(0, 1fr); }
  .charts .two { grid-column: auto; }
  .charts svg.wide { display: none; }
  .charts svg.narrow { display: block; }
  .card { padding: 12px; }
}
@media print {
  body { background: none; }
  .card { break-inside: avoid; }
}
"""
