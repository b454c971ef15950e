/** Numbers over time as lines, and by category as bars. The table beside it has the same numbers. */
import { h, visible } from "./dom";
import type { Table } from "./table";
import { isNumber, isScalar, own } from "./values";

const [FEWEST, MOST, LINES] = [2, 500, 3];
const [HEIGHT, TOP, RIGHT, LETTER] = [200, 8, 14, 6.8];
const TIME = /^\d{4}-\d\d(-\d\d([T ]\d\d:\d\d\S*)?)?$/;
const COUNTED = /^(year|quarter|month|week|day|hour|x)$/i; // Numbers that are not measured
const ID = /(^i|_i|I)d$/;

type Values = (number | null)[];

export interface Chart {
  axis: string;
  labels: string[];
  /** null for categories. */
  times: number[] | null;
  names: string[];
  lines: Values[];
}

/** null if the table is no series of numbers. */
export function asChart({ columns, numbers, rows }: Table): Chart | null {
  const axes = columns.filter((name) => !numbers.has(name) || COUNTED.test(name));
  const names = columns.filter((name) => !axes.includes(name) && !ID.test(name));
  const axis = axes[0]!;
  if (axes.length !== 1 || !names.length || names.length > LINES || rows.length < FEWEST || rows.length > MOST) return null;
  const labels = rows.map((row) => String(own(row, axis) ?? ""));
  if (labels.includes("") || !rows.every((row) => isScalar(own(row, axis)))) return null;
  const moments = labels.map((label) => (numbers.has(axis) ? Number(label) : TIME.test(label) ? Date.parse(label) : NaN));
  const areTimes = !moments.some(Number.isNaN);
  const order = rows.map((_row, at) => at);
  if (areTimes) order.sort((a, b) => moments[a]! - moments[b]!);
  const value = (at: number, name: string) => {
    const one = own(rows[at]!, name);
    return isNumber(one) && Number.isFinite(Number(one)) ? Number(one) : null;
  };
  const lines = names.map((name) => order.map((at) => value(at, name)));
  return {
    axis,
    labels: order.map((at) => visible(labels[at])),
    times: areTimes ? order.map((at) => moments[at]!) : null,
    names,
    lines,
  };
}

function svg(tag: string, shape: Record<string, string | number>, ...children: (Node | string)[]): SVGElement {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const name in shape) element.setAttribute(name, String(shape[name]));
  element.append(...children);
  return element;
}

const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 4 });
const short = (value: number) => (Math.abs(value) < 1e4 ? String(Number(value.toPrecision(6))) : compact.format(value));
const widest = (texts: string[]) => Math.max(...texts.map((text) => text.length)) * LETTER;
const cut = (text: string, width: number) => (text.length * LETTER > width ? `${text.slice(0, width / LETTER - 1)}…` : text);
const known = (chart: Chart) => chart.lines.flat().filter((one) => one !== null);

/** Drawn for the width there is, again when that changes. */
export function showChart(chart: Chart): HTMLElement {
  const { axis, labels, times, names } = chart;
  const title = visible(`${names.join(", ")} by ${axis}`);
  const about = `${labels.length} values, ${labels[0]} to ${labels.at(-1)}. The table has them all.`;
  const place = h("div.plot");
  let width = 0;
  new ResizeObserver(() => {
    if (place.clientWidth === width || !place.clientWidth) return;
    width = place.clientWidth;
    const [height, parts] = times ? drawLines(chart, times, width) : drawBars(chart, width);
    place.replaceChildren(svg("svg", { width, height, role: "img" }, svg("title", {}, title), svg("desc", {}, about), ...parts));
  }).observe(place);
  const key = names.map((name, at) => h("li", { class: `line${at}` }, visible(name)));
  return h("figure", h("ul", { "aria-hidden": "true" }, ...key, h("li", visible(`by ${axis}`))), place);
}

/** One below the other, with the name on the left and the value at the end. */
function drawBars(chart: Chart, width: number): [number, SVGElement[]] {
  const { labels, lines } = chart;
  const [left, right] = [Math.min(widest(labels) + 8, width * 0.4), widest(known(chart).map(short)) + 8];
  const [low, high] = [Math.min(0, ...known(chart)), Math.max(0, ...known(chart))];
  const zero = left + (low < 0 ? right : 0);
  const scale = (width - right - zero) / (high - low || 1);
  const thick = lines.length > 1 ? 11 : 14;
  const each = thick * lines.length + 8;
  const parts = labels.flatMap((label, at) => {
    const middle = (at + 0.5) * each;
    const bars = lines.flatMap((values, nth) => {
      const value = values[at]!;
      if (value === null) return [];
      const y = at * each + 4 + nth * thick;
      const x = zero + (Math.min(value, 0) - low) * scale;
      const size = Math.max(Math.abs(value) * scale, 1);
      const end = value < 0 ? { x: x - 4, "text-anchor": "end" } : { x: x + size + 4, "text-anchor": "start" };
      return [svg("rect", { class: `line${nth}`, x, y, width: size, height: thick - 1, rx: 1 }), svg("text", { ...end, y: y + thick / 2 }, short(value))];
    });
    return [svg("text", { x: left - 8, y: middle, "text-anchor": "end" }, cut(label, left - 8), svg("title", {}, label)), ...bars];
  });
  return [labels.length * each, parts];
}

/** Steps of 1, 2 or 5 around the values. */
function ticksOf(low: number, high: number): number[] {
  const rough = (high - low || 1) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((one) => one * power >= rough * 0.999)!;
  const first = Math.floor(low / step + 1e-9);
  const count = Math.ceil(high / step - 1e-9) - first;
  return count > 0 && count < 9 ? Array.from({ length: count + 1 }, (_one, at) => (first + at) * step) : [low, high];
}

function drawLines(chart: Chart, times: number[], width: number): [number, SVGElement[]] {
  let [low, high] = [Math.min(...known(chart)), Math.max(...known(chart))];
  if (low > 0 && low < high / 2) low = 0; // Else the difference would not be seen
  const ticks = ticksOf(low, high === low ? low + 1 : high);
  [low, high] = [ticks[0]!, ticks.at(-1)!];
  const left = widest(ticks.map(short)) + 8;
  const [bottom, last] = [HEIGHT - 24, times.length - 1];
  const x = (at: number) => left + ((times[at]! - times[0]!) / (times[last]! - times[0]! || 1)) * (width - left - RIGHT);
  const y = (value: number) => bottom - ((value - low) / (high - low)) * (bottom - TOP);
  const parts = ticks.flatMap((tick) => [
    svg("path", { d: `M${left} ${y(tick)}H${width - RIGHT}` }),
    svg("text", { x: left - 6, y: y(tick), "text-anchor": "end" }, short(tick)),
  ]);
  for (const [nth, values] of chart.lines.entries()) {
    const point = (value: number | null, at: number) => (value === null ? "" : `${values[at - 1] == null ? "M" : "L"}${x(at)} ${y(value)}h0`);
    parts.push(svg("path", { class: `line${nth}`, d: values.map(point).join("") }));
  }
  const labels = shortTimes(chart.labels);
  const wide = Math.min(widest(labels), 110);
  let free = 0;
  for (const [at, label] of labels.entries()) {
    const middle = Math.min(Math.max(x(at), wide / 2), width - wide / 2);
    if (middle - wide / 2 < free) continue;
    free = middle + wide / 2 + 12;
    parts.push(svg("text", { x: middle, y: HEIGHT - 8, "text-anchor": "middle" }, cut(label, 110)));
  }
  return [HEIGHT, parts];
}

/** Without the day, the clock or the year that all have in common. */
function shortTimes(labels: string[]): string[] {
  const differ = (from: number, to: number) => new Set(labels.map((one) => one.slice(from, to))).size > 1;
  const clock = differ(11, 16);
  const from = clock && !differ(0, 10) ? 11 : !differ(0, 5) && labels[0]!.length > 9 ? 5 : 0;
  return labels.map((one) => one.slice(from, clock ? 16 : 10).replace("T", " "));
}
