// Drawing, by uPlot: graphs over time and bars of shares. Knows elements and numbers, nothing of the daemon. A box holds one
// plot, as wide as itself, and in words what is under the pointer; its label has the values for those who cannot see it.
"use strict";

const GRAPH_HIGH = 150, BARS_HIGH = 128, ABOVE_BARS = 16; // pixels; the last are for the shares
const LEAST_BARS = 6;
const LETTER = 7; // the width of one in a label, about
const SPANS_S = [60, 300, 900]; // that a graph may show: the shortest that has all points

// Colours are read when something is drawn, since the reader may turn to dark ones at any time.
const colour = (name) => () => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const letters = (size) => `${size}px system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif`;

function plotIn(box, options, data) {
  if (box.plot) { box.plot.setData(data); return; }
  box.setAttribute("role", "img");
  const setCursor = () => box.plot && box.tell();
  const cursor = { y: false, drag: { x: false, y: false }, ...options.cursor };
  const scales = { x: { time: false, range: options.across }, y: { range: options.up } };
  const size = { width: box.clientWidth, height: options.height };
  const hooks = { setCursor: [setCursor], draw: options.draw ? [options.draw] : [] };
  box.plot = new uPlot({ ...size, padding: options.padding, legend: { show: false }, cursor, scales, hooks, axes: options.axes, series: [{}, ...options.series] }, data, box);
  box.append(make("p", "told"));
  widths.observe(box);
}

const plots = () => [...document.querySelectorAll(".plot")].map((box) => box.plot).filter(Boolean);
const widths = new ResizeObserver((changes) => changes.forEach(({ target }) => target.plot.setSize({ width: target.clientWidth, height: target.plot.height })));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => plots().forEach((plot) => plot.redraw()));

// --- graphs over time ----------------------------------------------------------------------------------------------

// Lines: [{name, colour, values, dash}]. A unit has `text`, which says a value, and `size`, of which the axis shows a round number.
function graph(box, at, lines, unit) {
  const end = at[at.length - 1];
  box.span = SPANS_S.find((s) => s >= end - at[0]) || SPANS_S[SPANS_S.length - 1];
  box.tell = () => {
    const { idx: i, left } = box.plot.cursor;
    const known = i != null && box.plot.posToVal(left, "x") >= at[0] - end - 2;
    const values = () => lines.map(({ name, values }) => `${values[i] === null ? "–" : unit.text(values[i])} ${name}`).join(", ");
    box.querySelector(".told").textContent = i == null ? "" : known ? `${duration(end - at[i])} ago: ${values()}` : "not known";
  };
  plotIn(box, box.plot ? {} : graphOptions(box, lines, unit), [at.map((t) => t - end), ...lines.map(({ values }) => values)]);
  box.tell();
  box.setAttribute("aria-label", lines.map(({ name, values }) => `${unit.text(values[values.length - 1] ?? 0)} ${name}`).join(", "));
}

function graphOptions(box, lines, unit) {
  const axis = { stroke: colour("dim"), font: letters(12), ticks: { show: false }, grid: { stroke: colour("line"), width: 1 } };
  const ago = (s) => (s ? `${duration(-s)} ago` : "now");
  const steps = (plot) => (plot.width < 500 ? 2 : 4);
  const isAlone = (plot, i) => plot.data[i].filter((v) => v !== null).length === 1;
  return {
    height: GRAPH_HIGH,
    padding: [10, 18, 0, 0],
    across: () => [-box.span, 0],
    up: (plot, least, most) => [0, niceAbove(most || 1, unit.size(most || 1))],
    axes: [
      { ...axis, size: 28, gap: 9, splits: (plot) => Array.from({ length: steps(plot) + 1 }, (_, i) => -box.span * (1 - i / steps(plot))), values: (plot, splits) => splits.map(ago) },
      { ...axis, size: 64, gap: 6, splits: (plot, _, low, high) => [low, (low + high) / 2, high], values: (plot, splits) => splits.map((v) => unit.text(v).replace(/\d+\.\d+/, (digits) => +digits)) },
    ],
    series: lines.map(({ name, colour: of, dash }) => ({ label: name, stroke: colour(of), width: 1.8, dash, points: { show: isAlone, size: 4, fill: colour(of) } })),
  };
}

function niceAbove(n, unit) {
  const power = unit * 10 ** Math.floor(Math.log10(n / unit));
  return [1, 2, 5, 10].find((step) => step * power >= n) * power;
}

// --- bars ----------------------------------------------------------------------------------------------------------

function bars(box, names, counts, what, empty) {
  const total = counts.reduce((a, b) => a + b, 0);
  const message = box.querySelector(".empty") || box.appendChild(make("p", "empty"));
  message.textContent = total ? "" : empty;
  box.classList.toggle("none", !total);
  if (!total) { box.setAttribute("aria-label", empty); return; }
  // Those at the ends in which nothing is are left out, so that the others have room.
  const first = Math.max(0, Math.min(counts.findIndex((n) => n > 0), counts.length - LEAST_BARS));
  const last = Math.max(counts.findLastIndex((n) => n > 0), first + LEAST_BARS - 1);
  const some = counts.slice(first, last + 1);
  const shares = some.map((n) => (100 * n) / total);
  box.names = some.map((_, i) => names[first + i] ?? "more");
  const said = box.names.map((name, i) => `${name}: ${number(some[i])} ${what}, ${shares[i] > 0 && shares[i] < 1 ? "<1" : Math.round(shares[i])} %`);
  box.tell = () => { box.querySelector(".told").textContent = said[box.plot.cursor.idx] ?? ""; };
  plotIn(box, box.plot ? {} : barsOptions(box), [some.map((_, i) => i), shares]);
  box.tell();
  box.setAttribute("aria-label", said.filter((_, i) => some[i]).join("; "));
}

function barsOptions(box) {
  const columnOf = (plot) => plot.bbox.width / uPlot.pxRatio / box.names.length;
  const fill = colour(box.classList.contains("sample") ? "sample" : "plain");
  // Each name, or every other one, … as there is room.
  const each = (plot) => Math.ceil((Math.max(...box.names.map((name) => name.length)) * LETTER + 4) / columnOf(plot));
  return {
    height: BARS_HIGH,
    padding: [0, 0, 0, 0],
    across: () => [-0.5, box.names.length - 0.5],
    up: (plot, least, most) => [0, (most * BARS_HIGH) / (BARS_HIGH - ABOVE_BARS - 20)],
    cursor: { x: false, points: { show: false } },
    axes: [
      { stroke: colour("dim"), font: letters(11), ticks: { show: false }, grid: { show: false }, size: 20, gap: 4, splits: () => box.names.map((_, i) => i), values: (plot, splits) => splits.map((i) => (i % each(plot) ? "" : box.names[i])) },
      { show: false },
    ],
    series: [{ stroke: fill, fill, width: 0, paths: uPlot.paths.bars({ size: [0.94, Infinity], radius: 0.04 }), points: { show: false } }],
    draw: (plot) => {
      const { ctx } = plot;
      ctx.save();
      Object.assign(ctx, { font: letters((columnOf(plot) < 30 ? 9 : 11) * uPlot.pxRatio), fillStyle: colour("dim")(), textAlign: "center", textBaseline: "bottom" });
      plot.data[1].forEach((share, i) => {
        if (share >= 1) ctx.fillText(`${Math.round(share)}%`, plot.valToPos(i, "x", true), plot.valToPos(share, "y", true) - 3 * uPlot.pxRatio);
      });
      ctx.restore();
    },
  };
}
