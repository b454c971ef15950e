/** Shows the face that fits what the host tells: a form, a run, or a result as it is. */
import { bridgeTo } from "./bridge";
import { h, visible, type Child } from "./dom";
import { makeForm } from "./form";
import { badge, howToRead, nameOfTool, wordsOf } from "./parts";
import { showResult } from "./results";
import { followRun, type Run } from "./run";
import type { FormRequest, ToolResult, Values } from "./types";

const EXECUTION_ID = "workflow-catalogue/execution-id";
const UUID = /^[0-9a-f-]{36}$/i;
const START_SECONDS = 120;

const root = h("main");
let input: Values | null = null;
let latest: ToolResult | null = null;
let run: { id: string; face: Run } | null = null;
let isTornDown = false;

const bridge = bridgeTo({
  ready: () => (latest ? showLatest() : say("Waiting for the tool's answer", "busy")),
  silent: () => latest || say("This host does not answer", "bad"),
  toolInput: (args) => (input = args),
  toolResult: (result) => {
    latest = result;
    showLatest();
  },
  toolCancelled: (reason) => latest ||
    say("The call was cancelled", "off", `${reason ? `${visible(reason)}. ` : ""}If it has started a run, the run goes on: look in the catalogue.`),
  teardown: () => {
    isTornDown = true;
    run?.face.stop();
  },
});

/** Without a run of its own. */
function show(title: string, state: HTMLElement | null, ...children: Child[]): void {
  run?.face.stop();
  run = null;
  root.replaceChildren(h("article", h("header", h("h1", title), h("span", { role: "status" }, state)), ...children));
}

function say(words: string, look: "busy" | "bad" | "off", more = ""): void {
  show(nameOfTool(bridge), badge(look, words), more && h("p.quiet", more));
}

function showLatest(): void {
  const result = latest;
  if (isTornDown || !result) return;
  const id = idOf(result);
  const form = formOf(result);
  const canCall = Boolean(bridge.capabilities.serverTools);
  if (form && canCall) showForm(form);
  else if (id && canCall) showRun(id, result, !result.structuredContent?.next);
  else showAsItIs(result);
}

function idOf(result: ToolResult): string | null {
  const id = result._meta?.[EXECUTION_ID] ?? result.structuredContent?.execution_id;
  return typeof id === "string" && UUID.test(id) ? id : null;
}

/** Only the answer to a call that names this workflow: an engine's output may look like a form, too. */
function formOf(result: ToolResult): FormRequest | null {
  const form = result.structuredContent?.form as FormRequest | undefined;
  const isAsked = typeof form?.name === "string" && form.name === input?.name && !result._meta?.[EXECUTION_ID];
  return isAsked && !result.isError ? form : null;
}

/** `isKnown`: the model has got the run's result, not only its handle, which names the call to make next. */
function showRun(id: string, result: ToolResult, isKnown: boolean): void {
  if (run?.id === id) return run.face.wake();
  run?.face.stop();
  run = { id, face: followRun(bridge, id, result, isKnown) };
  root.replaceChildren(run.face.element);
}

function showForm({ name, title, description, schema, given }: FormRequest): void {
  const form = makeForm(schema ?? {}, given ?? {}, (values) => start(name, values), "Start");
  show(visible(title || name), null, description && h("p.quiet", visible(description)), form);
}

async function start(name: string, values: Values): Promise<string | null> {
  let result: ToolResult;
  try {
    result = await bridge.callTool("execute_workflow", { name, arguments: values }, START_SECONDS);
  } catch (error) {
    const why = visible((error as Error).message);
    return `${why} The run may have started: look in the catalogue before you send it again.`;
  }
  const id = idOf(result);
  if (!id && result.isError) return wordsOf(result);
  if (id) bridge.tellModel(`The person has filled in the form, and the run ${id} has started. ${howToRead(id)}`);
  if (!id) showAsItIs(result);
  else if (!isTornDown) showRun(id, result, false);
  return null;
}

function showAsItIs(result: ToolResult): void {
  const { structuredContent, content = [] } = result;
  const isOurs = structuredContent && ("form" in structuredContent || structuredContent.execution_id === idOf(result));
  const text = structuredContent && !isOurs && JSON.stringify(structuredContent);
  const whole = text ? { media_type: "", characters: text.length, offset: 0, part: text, next_offset: null } : null;
  const blocks = whole ? content.filter((block) => block.type !== "text") : content;
  show(nameOfTool(bridge), result.isError ? badge("bad", "Failed") : null, showResult(whole, blocks, bridge));
}

document.onvisibilitychange = () => run?.face.wake();
document.body.append(root);
bridge.connect();
