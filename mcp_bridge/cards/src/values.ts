/** Values of a result: read without loss, and shown as text or as a tree that grows as it is opened. */
import { button, h, visible } from "./dom";

export type Row = Record<string, unknown>;
const CHARACTERS = 200_000; // That a browser lays out without a pause
const CHILDREN = 200;
const DEPTH = 30; // Of a tree
const CELL = 300; // Characters

export const isObject = (value: unknown): value is Row => !!value && typeof value === "object" && !Array.isArray(value);
export const isNumber = (value: unknown): value is number | bigint => typeof value === "number" || typeof value === "bigint";
export const isFilled = (value: unknown) => value !== null && value !== undefined;
export const isScalar = (value: unknown) => typeof value !== "object" || value === null;
export const own = (holder: Row, name: string): unknown => (Object.hasOwn(holder, name) ? holder[name] : undefined);
export const grouped = (count: number) => count.toLocaleString("en");
export const nameOf = (name: string) => visible(name.slice(0, CELL));

type Source = { source?: string };
const { rawJSON } = JSON as unknown as { rawJSON: (text: string) => unknown };

/** Whole numbers that JavaScript would round, such as the ids of some services, become `bigint`. */
export function parseJson(text: string): unknown {
  const value: unknown = JSON.parse(text);
  const exact = (_name: string, one: unknown, { source = "" }: Source = {}) => (typeof one === "number" && !Number.isSafeInteger(one) && /^-?\d+$/.test(source) ? BigInt(source) : one);
  try {
    return /[:[,\s]-?\d{16}/.test(text) ? JSON.parse(text, exact as (name: string, one: unknown) => unknown) : value;
  } catch {
    return value; // Nested too deep for the second reading
  }
}

/** null if it is nested too deep. */
export function writeJson(value: unknown, indent = 0): string | null {
  try {
    return JSON.stringify(value, (_name, one: unknown) => (typeof one === "bigint" ? rawJSON(String(one)) : one), indent);
  } catch {
    return null;
  }
}

export const textOf = (value: unknown): string => (!isFilled(value) ? "" : isScalar(value) ? String(value) : (writeJson(value) ?? outline(value)));

/** `make(index)` for the first 200, and a button for as many more. */
export function addInParts(box: HTMLElement, count: number, make: (index: number) => HTMLElement): void {
  let at = 0;
  const more = button("", grow);
  box.append(more);
  grow();
  function grow(): void {
    const first = at;
    while (at < Math.min(first + CHILDREN, count)) more.before(make(at++));
    more.textContent = `Show more (${grouped(count - at)} left)`;
    if (at === count) more.remove();
    if (first) focusOn(box.children[first] as HTMLElement);
  }
}

/** Where the button that had the focus is gone. */
function focusOn(element: HTMLElement): void {
  element.tabIndex = -1;
  element.focus();
}

/** The beginning, and a button for the rest. */
export function showText(text: string, first: number, tag: "pre.text" | "span.text" = "span.text"): HTMLElement {
  let at = 0;
  const more = button("", () => grow(CHARACTERS));
  const box = h(tag, more);
  grow(first);
  return box;
  function grow(size: number): void {
    const start = at;
    at += size;
    if (/[\ud800-\udbff]/.test(text[at - 1] ?? "")) at++; // A character has two halves there
    const part = h("span", visible(text.slice(start, at)));
    more.before(part);
    if (start) focusOn(part);
    const left = text.length - at;
    more.textContent = left > CHARACTERS ? `Show more (${grouped(left)} characters left)` : "Show all";
    if (left <= 0) more.remove();
  }
}

/** A value within a table, a list or fields. */
export function showValue(value: unknown): Node | string {
  if (!isScalar(value)) return showBranch("", value as object, 1);
  if (value === null) return h("span.quiet", "null");
  const text = value === undefined ? "" : String(value);
  return text.length > CELL ? showText(text, CELL) : visible(text);
}

/** `[12]`, `{id, name, …}` */
function outline(value: unknown): string {
  if (Array.isArray(value)) return `[${value.length || ""}]`;
  const names = Object.keys(value as Row);
  return visible(`{${names.slice(0, 3).join(", ").slice(0, 60)}${names.length > 3 ? ", …" : ""}}`);
}

/** A line for a scalar; for what holds others, an element that makes them when it is first opened. */
export function showBranch(name: string, value: unknown, depth: number, open = false): HTMLElement {
  const label = name && h("span.name", nameOf(name), ": ");
  if (isScalar(value)) return h("div", label, ...(typeof value === "string" ? ['"', showValue(value), '"'] : [showValue(value)]));
  const names = Array.isArray(value) ? null : Object.keys(value as Row);
  const count = names?.length ?? (value as unknown[]).length;
  const about = h("span.quiet", outline(value));
  if (!count || depth > DEPTH) return h("div", label, about, count ? " Copy the JSON to see more." : "");
  const ontoggle = () => {
    if (details.children[1]) return;
    const within = h("div.within");
    details.append(within);
    addInParts(within, count, (at) => showBranch(names?.[at] ?? String(at), (value as Row)[names?.[at] ?? at], depth + 1, open));
  };
  const details = h("details", { ontoggle, open: open || !depth }, h("summary", label, about));
  return details;
}
