// Drawing: a graph of rates, and bars of shares. Knows elements and numbers, nothing of the daemon.
"use strict";

const WIDE = 1000, HIGH = 100; // of a graph, in its own units
const LEAST_BARS = 6;
const SPANS_S = [60, 300, 900]; // that a graph may show: the shortest that has all points

function chart(box, at, series) {
  const svg = box.querySelector("svg") || prepare(box, series);
  const end = at[at.length - 1];
  const span = SPANS_S.find((s) => s >= end - at[0]) || SPANS_S[SPANS_S.length - 1];
  const most = Math.max(1, ...series.flatMap(([, values]) => values.filter((v) => v !== null)));
  const top = niceAbove(most);
  const x = (i) => (1 - (end - at[i]) / span) * WIDE;
  const y = (v) => HIGH * (1 - v / top);
  series.forEach(([, values], k) => {
    let pen = "M";
    const path = values.map((v, i) => {
      if (v === null) { pen = "M"; return ""; }
      const step = `${pen}${x(i).toFixed(1)} ${y(v).toFixed(1)}`;
      pen = "L";
      return step;
    });
    svg.querySelectorAll("path")[k].setAttribute("d", path.join(""));
  });
  box.querySelector(".top").textContent = `${number(top)}/s`;
  box.querySelector(".since").textContent = `${duration(span)} ago`;
  box.data = { at, series, end, span };
  point(box);
}

function prepare(box, series) {
  const SVG = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${WIDE} ${HIGH}`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", "inserts and samples per second");
  for (const height of [0, HIGH / 2, HIGH]) {
    const line = document.createElementNS(SVG, "line");
    for (const [name, value] of [["x1", 0], ["x2", WIDE], ["y1", height], ["y2", height]]) line.setAttribute(name, value);
    svg.append(line);
  }
  for (const [name] of series) {
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("class", name);
    svg.append(path);
  }
  const here = document.createElementNS(SVG, "line");
  here.setAttribute("class", "here");
  here.setAttribute("y1", 0);
  here.setAttribute("y2", HIGH);
  svg.append(here);
  const under = make("p");
  under.append(make("span", "since"), make("span", "told"), make("span", "", "now"));
  box.append(make("p", "top"), svg, under);
  svg.addEventListener("pointermove", (event) => {
    const { left: from, width: wide } = svg.getBoundingClientRect();
    box.share = (event.clientX - from) / wide;
    point(box);
  });
  svg.addEventListener("pointerleave", () => { box.share = undefined; point(box); });
  return svg;
}

// The values under the pointer, in words below the graph.
function point(box) {
  const here = box.querySelector(".here");
  const told = box.querySelector(".told");
  here.style.display = box.share === undefined ? "none" : "";
  if (box.share === undefined) { told.textContent = ""; return; }
  const { at, series, end, span } = box.data;
  const wanted = end - (1 - box.share) * span;
  let i = at.findIndex((t) => t >= wanted);
  if (i < 0) i = at.length - 1;
  for (const name of ["x1", "x2"]) here.setAttribute(name, box.share * WIDE);
  told.textContent = wanted < at[0] - 2 ? "not known" : `${duration(end - at[i])} ago: ` + series.map(([name, values]) => `${values[i] === null ? "–" : number(values[i])} ${name}s/s`).join(", ");
}

function niceAbove(n) {
  const power = 10 ** Math.floor(Math.log10(n));
  return [1, 2, 5, 10].find((step) => step * power >= n) * power;
}

function bars(box, names, counts, what, empty) {
  const total = counts.reduce((a, b) => a + b, 0);
  const message = box.querySelector("p") || box.appendChild(make("p", "empty"));
  message.textContent = empty;
  message.hidden = total > 0;
  const columns = [...box.querySelectorAll("div")];
  while (columns.length < counts.length) {
    const column = make("div");
    column.append(make("span"), make("i"), make("span"));
    columns.push(box.insertBefore(column, message));
  }
  box.classList.toggle("none", !total);
  const most = Math.max(1, ...counts);
  // Those at the ends in which nothing is are left out, so that the others have room.
  const first = Math.min(counts.findIndex((n) => n > 0), counts.length - LEAST_BARS);
  const last = Math.max(counts.findLastIndex((n) => n > 0), Math.max(first, 0) + LEAST_BARS - 1);
  columns.forEach((column, i) => {
    column.hidden = !total || i < first || i > last;
    const name = i < names.length ? names[i] : "more";
    const share = total ? counts[i] / total : 0;
    column.title = `${name}: ${number(counts[i])} ${what}`;
    column.firstChild.textContent = share >= 0.01 ? Math.round(share * 100) + "%" : "";
    column.children[1].style.height = `${(counts[i] / most) * 76}px`;
    column.children[1].style.visibility = counts[i] ? "visible" : "hidden";
    column.lastChild.textContent = name;
  });
}
