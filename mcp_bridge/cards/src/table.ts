/** Results that are rows: sorted, filtered, in pages, and as CSV. */
import { button, h } from "./dom";
import { addInParts, grouped, isFilled, isNumber, isObject, nameOf, own, showValue, textOf, type Row } from "./values";

const PAGE = 100;
const FILTERED = 20; // More rows than these have a filter
const COLUMNS = 60; // More are JSON only

export interface Table {
  columns: string[];
  numbers: Set<string>;
  rows: Row[];
  /** What the result has beside its rows. */
  others: Row;
}

const areRows = (value: unknown): value is Row[] => Array.isArray(value) && value.length > 0 && value.every(isObject);

/** null if the value is not made of rows. */
export function asTable(value: unknown): Table | null {
  if (!isObject(value)) return areRows(value) ? tableOf(value, {}) : null;
  const found = Object.entries(value).filter(([, one]) => areRows(one)) as [string, Row[]][];
  if (found.length !== 1) return null;
  const [name, rows] = found[0]!;
  const { [name]: _rows, ...others } = value;
  return tableOf((name === "series" && joinSeries(rows)) || rows, others);
}

function tableOf(rows: Row[], others: Row): Table | null {
  const columns = new Set<string>();
  for (const row of rows) {
    for (const name of Object.keys(row)) columns.add(name);
    if (columns.size > COLUMNS) return null;
  }
  const areNumbers = (name: string) => {
    const filled = rows.map((row) => own(row, name)).filter(isFilled);
    return filled.length > 0 && filled.every(isNumber);
  };
  return { columns: [...columns], numbers: new Set([...columns].filter(areNumbers)), rows, others };
}

/** `[{name, points: [[x, y]]}]`, also with `{x, y}` or other pairs, as rows by x. */
function joinSeries(series: Row[]): Row[] | null {
  const rows = new Map<unknown, Map<string, unknown>>();
  for (const [at, { name, points }] of series.entries()) {
    if (!Array.isArray(points)) return null;
    for (const point of points) {
      const [x, y] = isScalarPair(point) ? Object.values(point) : [];
      if (!isNumber(y)) return null;
      if (!rows.has(x)) rows.set(x, new Map([["x", x]]));
      rows.get(x)!.set(String(name ?? at), y);
    }
  }
  return rows.size ? [...rows.values()].map((row) => Object.fromEntries(row)) : null;
}

const isScalarPair = (point: unknown): point is object => !!point && Object.values(point).length === 2;

const byText = new Intl.Collator("en", { numeric: true });

/** Numbers before texts. */
function compare(a: unknown, b: unknown): number {
  if (isNumber(a) && isNumber(b)) return a < b ? -1 : Number(a > b);
  return Number(isNumber(b)) - Number(isNumber(a)) || byText.compare(textOf(a), textOf(b));
}

/** Its element, and what gives all rows that match the filter, in the order shown. */
export function showTable(table: Table): [HTMLElement, () => Row[]] {
  const { columns } = table;
  const total = table.rows.length;
  let [rows, page, sorted, direction] = [table.rows, 0, "", 0];
  let texts: string[] | undefined;

  const filter = h("input", { type: "search", placeholder: "Filter rows", "aria-label": "Filter rows", oninput: select });
  const count = h("span.quiet", { role: "status" });
  const earlier = button("‹", () => turn(page - 1), { "aria-label": "Earlier rows" });
  const later = button("›", () => turn(page + 1), { "aria-label": "Later rows" });
  const kind = (name: string) => (table.numbers.has(name) ? "number" : "");
  const heads = columns.map((name) => h("th", { class: kind(name) }, button(nameOf(name), () => sort(name))));
  const body = h("tbody");
  const grid = h("table", h("thead", h("tr", ...heads)), body);
  const region = h("div.rows", { tabindex: 0, role: "region", "aria-label": "Rows of the result" }, grid);

  function select(): void {
    const wanted = filter.value.toLowerCase();
    texts ??= table.rows.map((row) => Object.values(row).map(textOf).join("\n").toLowerCase());
    rows = table.rows.filter((_row, at) => texts![at]!.includes(wanted));
    const keyed = direction ? rows.map((row) => ({ row, key: own(row, sorted) })) : [];
    const order = (a: { key: unknown }, b: { key: unknown }) => Number(!isFilled(a.key)) - Number(!isFilled(b.key)) || direction * compare(a.key, b.key);
    if (direction) rows = keyed.sort(order).map(({ row }) => row);
    turn(0);
  }
  /** Up, down, and as it came. */
  function sort(name: string): void {
    direction = sorted !== name || !direction ? 1 : direction > 0 ? -1 : 0;
    sorted = name;
    for (const [at, head] of heads.entries()) head.ariaSort = columns[at] === name && direction ? (direction > 0 ? "ascending" : "descending") : null;
    select();
  }
  function turn(to: number): void {
    page = to;
    const [first, end] = [page * PAGE, Math.min((page + 1) * PAGE, rows.length)];
    const line = (row: Row) => h("tr", ...columns.map((name) => h("td", { class: kind(name) }, showValue(own(row, name)))));
    body.replaceChildren(...rows.slice(first, end).map(line));
    const part = rows.length > PAGE ? `${grouped(first + 1)}–${grouped(end)} of ` : "";
    count.textContent = `${part}${grouped(rows.length)}${rows.length < total ? ` of all ${grouped(total)}` : ""} rows`;
    earlier.disabled = !page;
    later.disabled = end === rows.length;
    region.scrollTop = 0;
  }
  turn(0);
  const tools = total > FILTERED && h("div.tools", filter, count, ...(total > PAGE ? [earlier, later] : []));
  return [h("div", showFields(table.others), tools, region), () => rows];
}

/** An object as names and values. */
export function showFields(value: Row): HTMLElement {
  const [entries, list] = [Object.entries(value), h("dl")];
  addInParts(list, entries.length, (at) => h("div", h("dt", nameOf(entries[at]![0])), h("dd", showValue(entries[at]![1]))));
  return list;
}

/** Spreadsheets run cells of text that begin so as formulas. */
const FORMULA = /^[=+\-@\t\r]/;

export function writeCsv({ columns }: Table, rows: Row[]): string {
  const cell = (value: unknown) => {
    const text = (FORMULA.test(typeof value === "string" ? value : "") ? "'" : "") + textOf(value);
    return /[",;\s]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const lines = [columns, ...rows.map((row) => columns.map((name) => own(row, name)))];
  return lines.map((line) => `${line.map(cell).join()}\r\n`).join("");
}
