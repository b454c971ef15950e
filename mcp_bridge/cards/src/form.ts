/** A form for the values of a JSON Schema, by the rules of the admin's page to run a workflow. What no field can show is JSON. */
import { button, h, visible } from "./dom";
import type { Schema, Submit, Values } from "./types";
import { isObject, isScalar, own, writeJson } from "./values";

const DEPTH = 4; // Objects, lists and alternatives within one another
const FIELDS = 400;
const SHORT = 100; // Longest text with a single line
const INPUTS: Schema = { date: "date", "date-time": "datetime-local", email: "email", uri: "url", password: "password" };
/** A schema with what it refers to and its only alternative; without `null`. */
interface Resolved {
  schema: Schema;
  types: string[];
  canBeNull: boolean;
  alternatives: unknown[];
}

/** The browser ignores what is none. */
type Bounds = Record<string, number | undefined>;

interface Place {
  schema: unknown;
  name: string;
  /** undefined if there is no value. */
  given: unknown;
  required: boolean;
  isRow?: boolean;
  isChosen?: boolean;
  depth: number;
}

type Part = Omit<Place, "schema"> & Resolved;

interface Field {
  element: HTMLElement;
  /** undefined if it is left out. Throws what is wrong. */
  read(): unknown;
  /** Shows what is wrong at this path within the value. */
  blame(steps: string[], message: string): void;
}

let made = 0;

export function makeForm(schema: Schema, given: Values, submit: Submit, label = "Send"): HTMLElement {
  const fields = fieldsOf(schema);
  const body = h("div");
  const refused = h("p.problem", { role: "alert", tabindex: -1, hidden: true });
  const send = button(label, () => void press(), { class: "primary" });
  const swap = button("", change);
  const form = h("form", { onkeydown: enter }, refused, body, h("div.tools", send, swap));
  let root: Field;
  let isJson = false;
  show(given);
  return form;

  function show(value: unknown): void {
    root = fields.whole(value, isJson);
    swap.textContent = isJson ? "Edit in fields" : "Write as JSON";
    body.replaceChildren(root.element);
  }
  function change(): void {
    if (!check(isJson)) return;
    const value = root.read() ?? {};
    isJson = !isJson;
    show(value);
  }
  /** `all`: also what is missing or out of bounds, rather than only what cannot be read. */
  function check(all: boolean): boolean {
    const wrong = [...form.elements].filter((control) => fields.checks.get(control)?.(all) === false) as HTMLInputElement[];
    wrong[0]?.focus(); // Its problem is beside it: the browser's bubble would cover the next one
    return !wrong.length;
  }
  /** Hosts that do not allow forms in their frames refuse to submit one, and `submit` is not even heard of. */
  function enter(event: Event): void {
    const { key, isComposing } = event as KeyboardEvent;
    if (key !== "Enter" || isComposing || !(event.target instanceof HTMLInputElement)) return;
    event.preventDefault();
    void press();
  }
  async function press(): Promise<void> {
    if (send.disabled || !check(true)) return;
    refused.hidden = send.disabled = swap.disabled = true;
    const refusal = await submit((root.read() ?? {}) as Values);
    if (refusal === null) return;
    refused.hidden = send.disabled = swap.disabled = false;
    refused.textContent = visible(refusal);
    for (const [, pointer, message] of refusal.matchAll(/^[-* ]*(\/[^\s:]*): (.+)/gm)) root.blame(stepsOf(pointer!), message!);
    refused.focus();
  }
}

const stepsOf = (pointer: string) => pointer.split("/").slice(1).map((step) => step.replaceAll("~1", "/").replaceAll("~0", "~"));
const typeOf = (value: unknown) => (value === null ? "null" : Array.isArray(value) ? "array" : Number.isInteger(value) ? "integer" : typeof value);
const listOf = (value: unknown): unknown[] => (Array.isArray(value) ? value : []);
const membersOf = (value: unknown): Schema => (isObject(value) ? value : {});
const shown = (value: unknown) => visible(typeof value === "boolean" ? (value ? "yes" : "no") : typeof value === "string" ? value : writeJson(value));
const isSame = (a: unknown, b: unknown) => writeJson(a) === writeJson(b);
const isText = (value: unknown) => typeof value === "string";
const titleOf = ({ name, schema }: Part) => visible((isText(schema.title) && schema.title) || name || "Values");
const isMarked = ({ required, isRow }: Part) => required && !isRow && h("span.quiet", " required");

function fieldsOf(root: Schema) {
  /** Shows what is wrong with what is in a control; false if something is. */
  const checks = new WeakMap<Element, (all: boolean) => boolean>();
  let left = FIELDS;
  return { checks, whole };

  function whole(given: unknown, asJson: boolean): Field {
    left = FIELDS;
    const place = { schema: root, given, name: "", required: true, depth: 0 };
    return asJson ? jsonField({ ...place, ...resolve({ type: "object" }) }) : make(place);
  }

  function resolve(schema: unknown, hops = 8): Resolved {
    let { $ref, allOf, ...whole } = membersOf(schema);
    if (hops && isText($ref)) whole = joined(resolve(target($ref), hops - 1).schema, whole);
    for (const part of hops ? listOf(allOf) : []) whole = joined(resolve(part, hops - 1).schema, whole);
    const { oneOf, anyOf, ...rest } = whole;
    const all = [oneOf, anyOf].map(listOf).find((one) => one.length) ?? [];
    const alternatives = all.filter((one) => membersOf(one).type !== "null" && membersOf(one).const !== null);
    const inner = hops && alternatives.length === 1 ? resolve(alternatives[0], hops - 1) : null;
    const types = inner ? inner.types : typesOf(whole);
    const canBeNull = alternatives.length < all.length || !!inner?.canBeNull || (types.length > 1 && types.includes("null"));
    return { schema: inner ? joined(inner.schema, rest) : whole, types: types.filter((one) => one !== "null"), canBeNull, alternatives: inner ? inner.alternatives : alternatives };
  }

  function target(reference: string): unknown {
    let found: unknown = root;
    for (const step of stepsOf(reference[0] === "#" ? reference : "/ ")) found = isScalar(found) ? {} : own(found as Schema, step);
    return found;
  }

  function make(place: Place): Field {
    const part = { ...place, ...resolve(place.schema) };
    const { schema, types, alternatives, required, name, depth } = part;
    const { properties, items } = schema;
    if (required && part.given === undefined) part.given = schema.default;
    const { given } = part;
    const only = types.length === 1 ? types[0] : "";
    const choices = choicesOf(part);
    if (--left < 0 || depth > DEPTH) return jsonField(part);
    if (choices.length) return fit(part, choiceField(part, choices));
    if (!name || (only === "object" && Object.keys(membersOf(properties)).length)) return given === undefined || isObject(given) ? objectField(part) : jsonField(part);
    if (alternatives.length > 1 && given === undefined) return alternativesField(part);
    if (only === "array" && isObject(items) && (given === undefined || Array.isArray(given))) return arrayField(part);
    if (only === "number" || only === "integer") return fit(part, numberField(part));
    if (only === "string") return fit(part, textField(part));
    return only ? jsonField(part) : fit(part, jsonField(part, true));
  }

  /** The field, or JSON if it cannot show the given value. */
  function fit(part: Part, field: Field): Field {
    const { given, canBeNull } = part;
    if (given === undefined || (given === null && canBeNull)) return field;
    try {
      const read = field.read();
      if (isSame(read, given) || (part.schema.format === "date-time" && Date.parse(read as string) === Date.parse(given as string))) return field;
    } catch {
      // It is shown as JSON
    }
    return jsonField(part);
  }

  /** Values with their labels. */
  function choicesOf({ schema, types, alternatives }: Part): [unknown, string][] {
    const some = alternatives.map((one) => resolve(one).schema);
    if (some.length && some.every((one) => "const" in one)) return some.map((one) => [one.const, shown(one.title ?? one.const)]);
    const listed = Array.isArray(schema.enum) ? schema.enum : "const" in schema ? [schema.const] : types.join() === "boolean" ? [true, false] : [];
    return listed.map((one, at) => [one, shown(listOf(schema.enumNames)[at] ?? one)]);
  }

  /** A control with its name, its hint, and place for what is wrong. */
  function fieldOf(part: Part, control: HTMLInputElement | HTMLSelectElement | HTMLTextAreaElement, convert: (text: string) => unknown, inner?: Node): Field {
    const { required, isRow, canBeNull, types } = part;
    const id = `field${++made}`;
    const wrong = h("p.wrong", { id: `${id}w` });
    const mayBeEmpty = isRow && types.join() === "string";
    control.id = id;
    control.required = required && !canBeNull && !mayBeEmpty;
    control.setAttribute("aria-describedby", `${id}h ${id}w`);
    const tell = (message: string) => {
      wrong.textContent = visible(message);
      control.ariaInvalid = message ? "true" : null;
    };
    const read = () => (control.value ? convert(control.value) : mayBeEmpty ? "" : required && canBeNull ? null : undefined);
    const check = (all: boolean) => {
      control.setCustomValidity("");
      try {
        read();
      } catch (error) {
        control.setCustomValidity((error as Error).message);
      }
      const { customError, badInput, valid } = control.validity;
      const isGood = all ? valid : !customError && !badInput;
      tell(isGood ? "" : control.validationMessage);
      return isGood;
    };
    control.addEventListener("input", () => tell("")); // Not when it loses the focus: the button that is pressed must stay
    control.onchange = () => check(!!control.value);
    checks.set(control, check);
    const blame = (steps: string[], message: string) => tell([...steps, message].join(": "));
    return { element: h("div.field", h("label", { for: id }, titleOf(part), isMarked(part)), h("p.hint", { id: `${id}h` }, hintOf(part)), control, wrong, inner), read, blame };
  }

  function choiceField(part: Part, choices: [unknown, string][]): Field {
    const control = select(part, choices.map(([, label]) => label));
    const at = part.required && choices.length === 1 ? 0 : choices.findIndex(([value]) => isSame(value, part.given));
    if (at >= 0) control.value = String(at);
    return fieldOf(part, control, (text) => choices[Number(text)]![0]);
  }

  /** One of them, and its fields. */
  function alternativesField(part: Part): Field {
    const box = h("div.within");
    let inner: Field | undefined;
    const control = select(part, part.alternatives.map((one) => nameOf(one)));
    control.oninput = () => {
      const schema = part.alternatives[Number(control.value || NaN)];
      inner = schema === undefined ? schema : make({ ...part, schema, required: true, isRow: false, isChosen: true, depth: part.depth + 1 });
      box.replaceChildren(...(inner ? [inner.element] : []));
    };
    const { element, blame } = fieldOf(part, control, String, box);
    return { element, read: () => inner?.read(), blame: (steps, message) => (inner?.blame ?? blame)(steps, message) };
  }

  /** Its title, the name of what it refers to, or its type. */
  function nameOf(alternative: unknown): string {
    const { schema, types } = resolve(alternative);
    const { $ref } = membersOf(alternative);
    return shown(schema.title || (isText($ref) ? $ref.split("/").pop() : types.join(" or ")) || "any");
  }

  function objectField(part: Part): Field {
    const { schema, name, required, depth, isChosen } = part;
    const members = membersOf(schema.properties);
    const must = listOf(schema.required).filter(isText);
    const names = new Set([...must, ...Object.keys(members)]);
    const given = membersOf(part.given);
    if (Object.keys(given).some((one) => !names.has(one))) return jsonField(part);
    const box = h("div.fields");
    let inner: Map<string, Field> | null = null;
    const fill = (values: Schema) => {
      const field = (one: string) => make({ schema: own(members, one), given: own(values, one), name: one || " ", required: must.includes(one), depth: depth + 1 });
      inner = new Map([...names].map((one) => [one, field(one)]));
      box.append(...[...inner.values()].map(({ element }) => element));
      if (!names.size) box.append("No values are needed.");
    };
    const read = () => inner ? Object.fromEntries([...inner].map(([one, field]) => [one, field.read()]).filter(([, value]) => value !== undefined)) : undefined;
    const blame = ([step, ...steps]: string[], message: string) => inner?.get(step!)?.blame(steps, message);
    if (required || part.given !== undefined) fill(given);
    const field = { element: box, read, blame };
    if (!name || isChosen) return field;
    const words = () => (inner ? "Remove" : "Add");
    const turn = button(words(), () => {
      if (inner) {
        box.replaceChildren();
        inner = null;
      } else fill({});
      turn.textContent = words();
      if (inner) focusWithin(box);
    });
    return { ...field, element: group(part, box, !required && turn) };
  }

  function arrayField(part: Part): Field {
    const { schema, required, canBeNull, depth } = part;
    const rows: Field[] = [];
    const box = h("div.fields");
    const add = button("Add a row", () => focusWithin(grow(undefined)));
    const grow = (given: unknown) => {
      const row = make({ schema: schema.items, given, name: "Row", required: true, isRow: true, depth: depth + 1 });
      const drop = () => {
        rows.splice(rows.indexOf(row), 1);
        line.remove();
        add.focus();
      };
      const line = h("div.entry", row.element, button("×", drop, { "aria-label": "Remove this row" }));
      rows.push(row);
      box.append(line);
      return line;
    };
    listOf(part.given).forEach(grow);
    const read = () => (rows.length || (required && !canBeNull) ? rows.map((row) => row.read() ?? null) : required ? null : undefined);
    const blame = ([step, ...steps]: string[], message: string) => rows[Number(step)]?.blame(steps, message);
    return { element: group(part, box, add), read, blame };
  }

  function numberField(part: Part): Field {
    const { schema, types, given } = part;
    const { minimum, exclusiveMinimum, maximum, exclusiveMaximum } = schema as Bounds;
    const control = h("input", { type: "number", step: "any", min: minimum ?? exclusiveMinimum, max: maximum ?? exclusiveMaximum });
    control.value = String(given ?? "");
    const convert = (text: string) => {
      const value = Number(text);
      if (types[0] === "integer" && !Number.isInteger(value)) throw Error("Enter a whole number.");
      if (Number.isInteger(value) && !Number.isSafeInteger(value)) throw Error("This number is too large for this form.");
      return value;
    };
    return fieldOf(part, control, convert);
  }

  function textField(part: Part): Field {
    const { schema, given } = part;
    const { format, pattern } = schema;
    const { minLength, maxLength } = schema as Bounds;
    const type = (own(INPUTS, String(format)) ?? "text") as string;
    const isMoment = type === "datetime-local";
    const bounds = { minlength: minLength, maxlength: maxLength };
    const isShort = format || pattern || Number(maxLength) <= SHORT;
    const control = isShort ? h("input", { type, step: isMoment && 1, ...bounds }) : h("textarea", { rows: 1, ...bounds });
    if (isText(given)) control.value = isMoment ? localTime(given) : given;
    const convert = (text: string) => {
      if (!matches(pattern, text)) throw Error(`This must match ${pattern}`);
      return isMoment ? new Date(text).toISOString().replace(".000", "") : text;
    };
    return fieldOf(part, control, convert);
  }

  /** `takesText`: a text needs no quotes, where the types allow one. */
  function jsonField(part: Part, takesText = false): Field {
    const { types, given, name } = part;
    const has = (type: string) => !types.length || types.includes(type);
    takesText &&= has("string");
    const control = h("textarea.json", { rows: takesText ? 1 : name ? 2 : 10, placeholder: takesText ? "Text, or JSON" : "JSON" });
    const convert = (text: string) => {
      let value: unknown;
      try {
        value = JSON.parse(text);
      } catch (error) {
        if (!takesText) throw error;
        return text;
      }
      const fits = has(typeOf(value)) || (typeof value === "number" && has("number"));
      if (takesText && !fits) return text;
      if (given === undefined && !fits) throw Error(`Enter JSON: ${types.join(" or ")}.`);
      return value;
    };
    if (given !== undefined) control.value = (takesText && isText(given) && convert(given) === given ? given : writeJson(given, 2)) ?? "";
    return fieldOf(part, control, convert);
  }
}

const focusWithin = (box: HTMLElement) => box.querySelector<HTMLElement>("input, select, textarea, button")?.focus();

function select({ required, canBeNull }: Part, labels: string[]): HTMLSelectElement {
  const options = labels.map((label, value) => h("option", { value }, label));
  return h("select", h("option", { value: "" }, required && !canBeNull ? "Choose…" : "(left out)"), ...options);
}

function group(part: Part, box: HTMLElement, tool: HTMLElement | false): HTMLElement {
  return h("fieldset", h("legend", titleOf(part), isMarked(part)), h("p.hint", hintOf(part)), box, tool);
}

function hintOf({ schema }: Part): string {
  const { description } = schema;
  const usual = (schema.default ?? null) !== null && `Default: ${shown(schema.default).slice(0, SHORT)}.`;
  return visible([isText(description) && description, usual].filter(Boolean).join(" "));
}

/** The inner keywords win; members and required ones are those of both. */
function joined(outer: Schema, inner: Schema): Schema {
  const properties = { ...membersOf(outer.properties), ...membersOf(inner.properties) };
  const required = [...listOf(outer.required), ...listOf(inner.required)];
  return { ...outer, ...inner, ...(Object.keys(properties).length && { properties }), ...(required.length && { required }) };
}

/** As stated, or of what has members or items; none for any. */
function typesOf(schema: Schema): string[] {
  if (schema.type) return [schema.type].flat().filter(isText);
  return "properties" in schema ? ["object"] : "items" in schema ? ["array"] : [];
}

function matches(pattern: unknown, text: string): boolean {
  try {
    return typeof pattern !== "string" || new RegExp(pattern, "u").test(text);
  } catch {
    return true; // Of another dialect: the server decides
  }
}

function localTime(given: string): string {
  const time = new Date(given);
  time.setMinutes(time.getMinutes() - time.getTimezoneOffset());
  return Number.isNaN(+time) ? "" : time.toISOString().slice(0, 19);
}
