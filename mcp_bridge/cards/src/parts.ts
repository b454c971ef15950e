/** Pieces that several faces have. */
import { button, h, visible, type Child } from "./dom";
import type { Execution, Host, ToolResult } from "./types";
import { webAddress } from "./words";

export type Look = "busy" | "wait" | "good" | "bad" | "off";

/** What a person sees first: the state's sign and words. */
export const badge = (look: Look, words: string) => h(`span.state.${look}`, words);

export function lookOf(execution: Execution): Look {
  if (execution.is_over) return execution.succeeded ? "good" : execution.state === "cancelled" ? "off" : "bad";
  const waits = execution.approval || Object.keys(execution.questions).length || !execution.started_at;
  return waits ? "wait" : "busy";
}

/** Opens a page in the browser; where the host cannot, its address is there to be copied. */
export function opener(words: string, url: string | null | undefined, host: Host, kind = "", opened = () => {}): HTMLElement | null {
  const address = webAddress(url);
  const copied = h("code.address", { tabindex: 0 }, visible(address ?? url));
  if (!address) return url ? copied : null;
  if (!host.capabilities.openLinks) return h("span", `${words}: `, copied);
  const opening = button(words, async () => {
    if (await host.openLink(address)) opened();
    else opening.after(copied);
  }, { class: kind });
  return opening;
}

export const nameOfTool = ({ context: { toolInfo } }: Host) => visible(toolInfo?.tool.title ?? toolInfo?.tool.name ?? "Workflow");

/** The words of a tool's result. */
export function wordsOf(result: ToolResult): string {
  const texts = (result.content ?? []).filter((block) => block.type === "text").map((block) => block.text);
  return visible(texts.join("\n") || "There was no message.");
}

export const problem = (...words: Child[]) => h("p.problem", ...words);

/** For the model. */
export const howToRead = (id: string) => `Read it with get_execution_status {"execution_id": "${id}"}.`;

/** Replaces what an element shows if `of` has changed. What a person has unfolded or typed stays otherwise. */
export function fill(element: HTMLElement, of: unknown, build: () => Child[]): void {
  const key = JSON.stringify(of);
  if (filled.get(element) === key) return;
  filled.set(element, key);
  const hadFocus = element.contains(document.activeElement);
  element.replaceChildren(...h("p", ...build()).childNodes);
  element.hidden = !element.hasChildNodes();
  if (hadFocus) (element.querySelector<HTMLElement>("button, input, summary") ?? element.closest<HTMLElement>("article"))?.focus();
}
const filled = new WeakMap<HTMLElement, string>();
