/** A run's output in the views that suit it, and its content blocks. All of it is data: text, never markup or a link. */
import { asChart, showChart } from "./chart";
import { button, h } from "./dom";
import { asTable, showFields, showTable, writeCsv } from "./table";
import type { Block, Host, RunResult } from "./types";
import { addInParts, grouped, isObject, isScalar, parseJson, showBranch, showText, showValue, writeJson, type Row } from "./values";
import { dotted } from "./words";

const SMALL = 1_000; // Characters of JSON that is shown unfolded
const [LINES, FOLDED] = [40, 4_000]; // Of a text; the rest comes with a button
const FILES = { JSON: ["json", "application/json"], CSV: ["csv", "text/csv"], text: ["txt", "text/plain"] } as const;

interface View {
  name: string;
  make(): HTMLElement;
  /** What its buttons copy and save. */
  format: keyof typeof FILES;
  write(): string;
}

export function showResult(result: RunResult | null, blocks: Block[], host: Host): HTMLElement {
  const isCut = !!result && result.next_offset !== null;
  const cut = isCut && `The result is too large for this card: here are the first ${grouped(result.part.length)} of ${grouped(result.characters)} characters.`;
  return h("div.result", result && showOutput(result.part, host, isCut), cut && h("p.quiet", cut), ...blocks.map((block, at) => showBlock(block, at + 1, host)));
}

const showOutput = (text: string, host: Host, isCut = false) => showViews((!isCut && viewsOf(text)) || [textView(text)], host);

function textView(text: string): View {
  const lines = text.split("\n", LINES + 1).slice(0, LINES).join("\n").length;
  const first = text.length - lines > 1 || lines > FOLDED ? Math.min(lines, FOLDED) : text.length;
  return { name: "Text", make: () => showText(text, first, "pre.text"), format: "text", write: () => text };
}

/** null if the text is not JSON with parts. */
function viewsOf(text: string): View[] | null {
  let value: unknown;
  try {
    value = parseJson(text);
  } catch {
    return null;
  }
  if (isScalar(value) || !Object.keys(value as object).length) return null;
  const json = { format: "JSON", write: () => writeJson(value, 2) ?? text } as const;
  const found: View[] = [{ name: "JSON", make: () => h("div.tree", showBranch("", value, 0, text.length < SMALL)), ...json }];
  const table = asTable(value);
  if (table) {
    const [element, shown] = showTable(table);
    const chart = asChart(table);
    const csv = { format: "CSV", write: () => writeCsv(table, shown()) } as const;
    if (chart) found.unshift({ name: "Chart", make: () => showChart(chart), ...csv });
    found.unshift({ name: "Table", make: () => element, ...csv });
  } else if (isObject(value)) found.unshift({ name: "Fields", make: () => showFields(value as Row), ...json });
  else if ((value as unknown[]).every(isScalar)) found.unshift({ name: "List", make: () => showList(value as unknown[]), ...json });
  return found;
}

function showList(items: unknown[]): HTMLElement {
  const list = h("ol");
  addInParts(list, items.length, (at) => h("li", showValue(items[at])));
  return list;
}

let made = 0;

/** Tabs if there is more than one view; each is made when it is first selected. */
function showViews(views: View[], host: Host): HTMLElement {
  const id = `views${++made}`;
  const said = h("span.quiet", { role: "status" });
  const say = (words: string) => (said.textContent = words);
  const copy = button("", async () => say((await copyText(views[at]!.write())) ? "Copied." : "Copying is not allowed here."));
  const save = button("", async () => say((await saveView(views[at]!, host)) ? "Saved." : "It was not saved."));
  const hasTabs = views.length > 1;
  const panels = views.map((_view, nth) => h("div", hasTabs && { id: `${id}p${nth}`, role: "tabpanel", "aria-labelledby": `${id}t${nth}` }));
  const tabs = views.map(({ name }, nth) => button(name, () => select(nth), { role: "tab", id: `${id}t${nth}`, "aria-controls": `${id}p${nth}` }));
  let at = 0;
  function select(wanted: number): void {
    at = (wanted + views.length) % views.length;
    const { make, format } = views[at]!;
    if (!panels[at]!.firstChild) panels[at]!.append(make());
    for (const [nth, tab] of tabs.entries()) {
      panels[nth]!.hidden = nth !== at;
      tab.ariaSelected = String(nth === at);
      tab.tabIndex = nth === at ? 0 : -1;
    }
    copy.textContent = `Copy ${format}`;
    save.textContent = `Download ${format}`;
    say("");
  }
  const onkeydown = (event: Event) => {
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: -1 }[(event as KeyboardEvent).key];
    if (to === undefined) return;
    event.preventDefault();
    select(to);
    tabs[at]!.focus();
  };
  select(0);
  const list = hasTabs && h("div", { role: "tablist", "aria-label": "Views of the result", onkeydown }, ...tabs);
  return h("div", h("div.tools", list, h("span", said, copy, host.capabilities.downloadFile && save)), ...panels);
}

function saveView({ format, write }: View, host: Host): Promise<boolean> {
  const [ending, mediaType] = FILES[format];
  const mark = format === "CSV" ? "\ufeff" : ""; // By which spreadsheets know UTF-8
  return host.download(`result.${ending}`, mediaType, mark + write()).catch(() => false);
}

/** The older way where the frame has no permission for the newer one. */
async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const focused = document.activeElement as HTMLElement | null;
    const area = h("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    focused?.focus();
    return done;
  }
}

function showBlock(block: Block, nth: number, host: Host): HTMLElement {
  const { type, text, data, mimeType } = block;
  const line = (...words: unknown[]) => h("p", dotted(...words).slice(0, 2_000));
  const size = (encoded: unknown) => typeof encoded === "string" && `${grouped(Math.floor(encoded.length * 0.75))} bytes`;
  if (type === "text") return showOutput(String(text), host);
  if (type === "image" && /^image\/(png|jpeg|gif|webp)$/.test(String(mimeType))) {
    const onerror = () => image.replaceWith(line(`Image ${nth} cannot be shown`, mimeType, size(data)));
    const image = h("img", { src: `data:${mimeType};base64,${data}`, alt: `Image ${nth} of the result`, onerror });
    return image;
  }
  if (type === "resource_link") return line("Resource", block.title ?? block.name, block.uri, block.description, block.mimeType);
  if (type === "resource" && isObject(block.resource)) {
    const { uri, mimeType, text, blob } = block.resource;
    return h("div", line("Resource", uri, mimeType, size(blob)), typeof text === "string" && showOutput(text, host));
  }
  return line(`Content ${nth} is not shown here`, type, mimeType, size(data));
}
