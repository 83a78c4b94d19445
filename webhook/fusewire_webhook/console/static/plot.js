// A signal around a moment: one line per attempt, the moment marked, what is not finite shown as such.

import { h, svg, setText } from "./dom.js";
import { ask, of } from "./net.js";
import { axis, linear, ticks } from "./scale.js";
import { clock, number, span } from "./words.js";

const HEIGHT = 220;
const EDGE = { left: 58, right: 12, top: 22, bottom: 26 };
const RELOAD_MS = 5_000;
const SPANS = [30, 120, 600, 3600];
const STYLES = 6;
const LABEL_WIDTH = 62;

/** Colour and dashes of an attempt's line: neighbours differ in both. */
const style = (one) => `line-${(Number(one.attempt) || 0) % STYLES}`;

const finite = (points) => points.filter(([, value]) => typeof value === "number");

/** Runs of finite values without a hole: a missed scrape breaks the line. */
function pieces(points, step) {
  const found = [];
  let last = null;
  for (const [at, value] of points) {
    if (typeof value !== "number") last = null;
    else {
      if (last === null || at - last > 2.5 * step) found.push([]);
      found.at(-1).push([at, value]);
      last = at;
    }
  }
  return found;
}

/** Stretches of one value that is not finite. */
function oddSpans(points) {
  const found = [];
  let last = null;
  for (const [at, value] of points) {
    if (typeof value === "number") last = null;
    else if (last?.value === value) last.to = at;
    else found.push((last = { from: at, to: at, value }));
  }
  return found;
}

function summary(data, moment) {
  const all = data.series.flatMap((one) => one.points);
  const values = finite(all).map(([, value]) => value);
  const odd = all.length - values.length;
  if (!all.length) return "Prometheus has no values of it here.";
  const before = finite(all).filter(([at]) => at <= moment).at(-1);
  const parts = [];
  if (values.length) parts.push(`lowest ${number(Math.min(...values))}, highest ${number(Math.max(...values))}`);
  if (before) parts.push(`last before it ${number(before[1])}`);
  if (odd) parts.push(`${odd} values that are not finite`);
  return `${parts.join("; ")}.`;
}

function draw(data, moment, caption, width) {
  const right = width - EDGE.right;
  const bottom = HEIGHT - EDGE.bottom;
  const x = linear(data.start, data.end, EDGE.left, right);
  const values = data.series.flatMap((one) => finite(one.points).map(([, value]) => value));
  const y = axis(values.length ? values : [0, 1], bottom, EDGE.top);
  const picture = svg("svg", { class: "plot", width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": caption });
  for (const value of y.ticks(4)) {
    const at = y.at(value);
    picture.append(
      svg("line", { class: "grid", x1: EDGE.left, x2: right, y1: at, y2: at }),
      svg("text", { class: "axis end", x: EDGE.left - 6, y: at + 4 }, number(value)));
  }
  const around = ticks(data.start - moment, data.end - moment, width < 480 ? 3 : 6);
  for (const offset of around) {
    const at = x.at(moment + offset);
    const text = offset === 0 ? clock(moment) : `${offset < 0 ? "−" : "+"}${span(Math.abs(offset))}`;
    picture.append(svg("text", { class: "axis middle", x: at, y: HEIGHT - 8 }, text));
  }
  const at = x.at(moment);
  picture.append(
    svg("line", { class: "moment", x1: at, x2: at, y1: EDGE.top - 6, y2: bottom }),
    svg("text", { class: "axis middle strong", x: at, y: 11 }, "trip"));
  const taken = []; // where the names of each row end
  for (const one of data.series) {
    for (const piece of pieces(one.points, data.step)) {
      const path = piece.map(([time, value]) => `${x.at(time).toFixed(1)},${y.at(value).toFixed(1)}`);
      picture.append(piece.length > 1
        ? svg("polyline", { class: `line ${style(one)}`, points: path.join(" ") })
        : svg("circle", { class: `dot ${style(one)}`, cx: x.at(piece[0][0]), cy: y.at(piece[0][1]), r: 2 }));
    }
    for (const gap of oddSpans(one.points)) {
      const [from, to] = [x.at(gap.from), x.at(gap.to)];
      picture.append(
        svg("line", { class: "odd", x1: from - 1, x2: to + 1, y1: EDGE.top + 3, y2: EDGE.top + 3 }),
        svg("text", { class: "odd middle", x: Math.min((from + to) / 2, right - 16), y: EDGE.top + 18 }, gap.value));
    }
    if (one.points.length) {
      const begins = Math.min(x.at(one.points[0][0]) + 3, right - LABEL_WIDTH);
      let row = taken.findIndex((end) => begins >= end);
      if (row < 0) row = taken.length;
      taken[row] = begins + LABEL_WIDTH;
      picture.append(svg("text", { class: `name ${style(one)}`, x: begins, y: bottom - 5 - 13 * row }, `attempt ${one.attempt}`));
    }
  }
  return picture;
}

/** Which line is which attempt. */
function legend(series) {
  return h("ul", { class: "legend" }, series.map((one) => h("li", {},
    svg("svg", { width: 40, height: 8, "aria-hidden": "true" }, svg("line", { class: `line ${style(one)}`, x1: 0, x2: 40, y1: 4, y2: 4 })),
    ` attempt ${one.attempt}`)));
}

/**
 * A figure of `run`'s signal around `moment` (Unix seconds) that is loaded when it is first shown.
 * `choices` are the catalogue's signals; the first of `suggested` is shown.
 */
export function figure(run, moment, { choices, suggested }) {
  const select = h("select", {}, choices.map(({ name }) => h("option", { value: name }, name)));
  select.value = suggested.find((name) => choices.some((choice) => choice.name === name)) ?? choices[0]?.name ?? "";
  const width = h("select", {}, SPANS.map((seconds) => h("option", { value: seconds }, `± ${span(seconds)}`)));
  width.value = "120";
  const place = h("div", { class: "canvas" });
  const words = h("figcaption", {});
  const element = h("figure", {},
    h("div", { class: "plot-bar" },
      h("label", {}, h("span", {}, "Signal "), select), h("label", {}, h("span", {}, "Around it "), width)),
    place, words);
  let data = null;
  let asked = 0;
  let later;

  /** What comes after a fresh trip is drawn as it comes, for as long as the plot can be seen. */
  function again() {
    clearTimeout(later);
    if (data === null || data.end < Date.now() / 1000) return;
    later = setTimeout(() => (element.isConnected && (place.clientWidth && !document.hidden ? load() : again())), RELOAD_MS);
  }

  function redraw() {
    if (data === null || !place.clientWidth) return;
    place.replaceChildren(draw(data, moment, words.textContent, place.clientWidth), legend(data.series));
  }

  async function load() {
    const mine = (asked += 1);
    const half = Number(width.value);
    try {
      const query = new URLSearchParams({ start: moment - half, end: moment + half });
      const answer = await ask("GET", `${of(run, "signals")}/${encodeURIComponent(select.value)}?${query}`);
      if (mine !== asked) return;
      data = answer;
      setText(words, `${data.help} Around ${clock(moment)}: ${summary(data, moment)}`);
      redraw();
      again();
    } catch (error) {
      if (mine !== asked) return;
      data = null;
      place.replaceChildren();
      setText(words, `No plot: ${error.message}`);
    }
  }

  select.addEventListener("change", load);
  width.addEventListener("change", load);
  new ResizeObserver(redraw).observe(place);
  return { element, load };
}
