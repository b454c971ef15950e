/** One run: follows it until it is over, and shows how far it is, what it asks, and its result. */
import type { Bridge } from "./bridge";
import { expiryOf, showApproval } from "./approval";
import { button, h, visible } from "./dom";
import { makeForm } from "./form";
import { badge, fill, howToRead, lookOf, nameOfTool, opener, problem, wordsOf } from "./parts";
import { showResult } from "./results";
import type { Block, Execution, Question, RunResult, ToolResult } from "./types";
import { capital, dotted, duration, moment, webAddress } from "./words";

const DELAYS = [1, 2, 4, 8, 10]; // Seconds until the next question to the server; the last again and again
const PERSON_SECONDS = 60; // Hosts may ask the person before they call a tool
const MAX_FAILURES = 5; // In a row; then it waits for the person
const MAX_CHARACTERS = 4_000_000;

export interface Run {
  element: HTMLElement;
  /** The page has been shown or hidden, or the person wants news. */
  wake(): void;
  stop(): void;
}

/** `had`: what the host has already, for as long as nothing else is known. `isKnown`: the model has the run's result. */
export function followRun(bridge: Bridge, id: string, had: ToolResult, isKnown: boolean): Run {
  let run: Execution | undefined;
  let result: RunResult | null = null;
  let blocks: Block[] = [];
  let ahead = 0; // Of the server's clock, in milliseconds
  let timer = 0;
  let step = 0;
  let failures = 0;
  let isAsking = false;
  let acts = 0; // How often the person has changed the run: what was asked before is out of date
  let acting = 0; // Of them, those without an answer yet
  let isDone = false;
  let isStopped = false;
  let isConfirming = false;
  const asked = new Map<string, HTMLElement>(); // What is typed into one question stays when another is answered

  const titleLine = h("h1", nameOfTool(bridge));
  const stateSlot = h("span", { role: "status" }, badge("busy", "Loading"));
  const originSlot = h("span");
  const clock = h("span");
  const facts = h("p.quiet.row.between", originSlot, clock);
  const barFill = h("div");
  const bar = h("div.bar", { role: "progressbar", "aria-label": "Progress" }, barFill);
  const messageLine = h("p");
  const problemList = h("div");
  const notice = h("div", { role: "alert" });
  const refused = h("div", { role: "alert" });
  const approvalPart = h("section");
  const questionList = h("section");
  const failure = h("div");
  const outcome = h("section");
  const lines = h("ol.timeline");
  const timeline = h("details", { open: true }, h("summary", "Timeline"), lines);
  const actions = h("p.row");
  const parts = [facts, bar, messageLine, problemList, notice, refused, approvalPart, questionList, failure, outcome, actions, timeline];
  for (const part of parts) part.hidden = true;
  const element = h("article", { tabindex: -1 }, h("header", titleLine, stateSlot), ...parts);

  const ticks = setInterval(() => document.hidden || tick(), 1000);
  void poll();
  return { element, wake, stop };

  function wake(): void {
    step = failures = 0;
    if (document.hidden) clearTimeout(timer);
    else void poll();
  }

  function stop(): void {
    isStopped = true;
    clearTimeout(timer);
    clearInterval(ticks);
  }

  /** Asks once. Only its end sets the timer of the next, so that there are never two. Meanwhile the page may be
   * hidden, the card torn down, or the run changed by the person, whose action asks anew at its own end. */
  async function poll(): Promise<void> {
    clearTimeout(timer);
    if (isAsking || acting || isDone || isStopped) return;
    isAsking = true;
    const before = acts;
    let isOutdated = false;
    try {
      const [execution, others] = await load();
      isOutdated = before !== acts;
      if (!isOutdated && !isStopped) await take(execution, others);
      failures = 0;
      fill(notice, null, () => []);
    } catch (error) {
      failures++;
      if (!isStopped) fail(error as Error);
    }
    isAsking = false;
    if (document.hidden || failures >= MAX_FAILURES) return;
    const seconds = isOutdated ? 0 : DELAYS[Math.min(step++, DELAYS.length - 1)]!;
    timer = setTimeout(() => void poll(), seconds * 1000);
  }

  async function load(offset?: number): Promise<[Execution, Block[]]> {
    const wanted = { execution_id: id, ...(offset !== undefined && { output_offset: offset }) };
    const answer = await bridge.callTool("show_execution", wanted);
    const execution = answer.structuredContent as unknown as Execution | undefined;
    if (answer.isError || execution?.execution_id !== id) throw Error(wordsOf(answer));
    return [execution, (answer.content ?? []).filter((block) => block.type !== "text")];
  }

  async function take(execution: Execution, others: Block[]): Promise<void> {
    run = execution;
    ahead = Date.parse(run.now) - Date.now() || 0;
    show();
    if (!run.is_over) return;
    clearInterval(ticks);
    result = await loadAll(run.result);
    if (isStopped) return;
    blocks = others;
    isDone = true;
    timeline.open = false;
    show();
    if (isKnown) return;
    const tool = /^[\w.:/-]{1,128}$/.test(run.tool) ? ` of the tool ${run.tool}` : "";
    const state = /^\w+$/.test(run.state) ? run.state : "ended";
    bridge.tellModel(`The run ${id}${tool} is over: ${state}. ${howToRead(id)}`);
  }

  /** All parts as one, unless they are more than a card can show. */
  async function loadAll(first: RunResult | null): Promise<RunResult | null> {
    if (!first || first.next_offset === null || first.characters > MAX_CHARACTERS) return first;
    let whole = first.part;
    let next: number | null = first.next_offset;
    fill(outcome, 0, () => [h("p.quiet", "Loading the result…")]);
    while (next !== null && !isStopped) {
      const part: RunResult | null = (await load(next))[0].result;
      if (!part || (part.next_offset !== null && part.next_offset <= next)) throw Error("The result is no longer whole.");
      whole += part.part;
      next = part.next_offset;
    }
    return { ...first, part: whole, next_offset: null };
  }

  function fail(error: Error): void {
    fill(notice, [error.message, failures], () => [
      problem(h("span", "This card cannot ask the catalogue at present.", run?.is_over ? "" : " The run goes on without it."),
        h("span.quiet", visible(error.message)), button("Try again", wake)),
    ]);
    if (run) return;
    fill(stateSlot, 0, () => [badge("off", "State unknown")]);
    fill(outcome, 0, () => [showResult(null, had.content ?? [], bridge)]);
  }

  /** Has a tool change the run; then asks how it is. */
  async function act(tool: string, args: object): Promise<string | null> {
    acts++;
    acting++;
    try {
      const answer = await bridge.callTool(tool, { execution_id: id, ...args }, PERSON_SECONDS);
      const { outcome, message } = answer.structuredContent ?? {};
      if (outcome && outcome !== "cancelled" && outcome !== "cancel requested") return visible(message);
      return answer.isError ? wordsOf(answer) : null;
    } catch (error) {
      return visible((error as Error).message);
    } finally {
      acting--;
      wake();
    }
  }

  async function cancel(): Promise<void> {
    isConfirming = false;
    run = { ...run!, can_cancel: false, cancel_requested: true };
    show();
    const refusal = await act("cancel_execution", {});
    fill(refused, refusal, () => [refusal && problem(refusal)]);
  }

  async function answer(key: string, given: object): Promise<string | null> {
    const refusal = await act("answer_execution", { answers: { [key]: given } });
    const path = `/answers/${key.replaceAll("~", "~0").replaceAll("/", "~1")}/content`; // The form knows its own part
    if (refusal) return refusal.replaceAll(path, "");
    const { [key]: _, ...questions } = run!.questions;
    run = { ...run!, questions };
    show();
    return null;
  }

  // What it looks like

  function show(): void {
    const { title, tool, source, error, advice, is_over: isOver, started_at: started } = run!;
    const approval = isOver ? null : run!.approval;
    const questions = isOver ? [] : Object.entries(run!.questions);
    const name = title || tool;
    const look = lookOf(run!);
    const state = isOver ? run!.state_label : run!.cancel_requested ? "cancelling" : questions.length ? "waits for your answer" : run!.state_label;
    titleLine.textContent = visible(name);
    fill(stateSlot, [look, state], () => [badge(look, capital(visible(state)))]);
    originSlot.textContent = dotted(name !== tool && tool, source, `${started ? "started" : "asked for"} ${moment(started ?? run!.created_at, bridge)}`);
    facts.hidden = false;
    showProgress(run!);
    fill(problemList, run!.problems, () => run!.problems.map((words) => h("p.problem.mild", visible(words))));
    fill(approvalPart, approval, () => (approval ? showApproval(approval, bridge) : []));
    fill(questionList, questions, () => questions.map(showQuestion));
    fill(failure, [error, advice], () => [
      (error || advice) && problem(error && h("span.long", visible(error)), advice && h("span.quiet", visible(advice))),
    ]);
    fill(lines, run!.timeline, () => run!.timeline.map(({ at, text }) =>
      h("li", h("time", { datetime: at }, moment(at, bridge)), h("span", visible(text)))));
    timeline.hidden = lines.hidden;
    if (isDone) fill(outcome, true, outcomes);
    showActions();
    tick();
  }

  function outcomes(): (Node | string)[] {
    if (result || blocks.length) return [h("h2", "Result"), showResult(result, blocks, bridge)];
    return run!.succeeded ? [h("p.quiet", "It returned nothing.")] : [];
  }

  function showProgress({ is_over: isOver, approval, progress, message }: Execution): void {
    const isShown = !isOver && !approval;
    const isUnknown = progress === null;
    const percent = Math.round(Math.min(100, Math.max(0, progress ?? 0)));
    bar.hidden = !isShown || (isUnknown && lookOf(run!) === "wait");
    bar.classList.toggle("unknown", isUnknown);
    bar.ariaValueNow = isUnknown ? null : `${percent}`;
    barFill.style.width = `${percent}%`;
    messageLine.textContent = dotted(!isUnknown && `${percent} %`, message);
    messageLine.hidden = !isShown || !messageLine.textContent;
  }

  /** What changes each second. */
  function tick(): void {
    if (!run) return;
    const { approval, started_at: started, ended_at: ended, usual_seconds: usual, is_over: isOver } = run;
    const now = Date.now() + ahead;
    const seconds = ((ended ? Date.parse(ended) : now) - Date.parse(started ?? run.created_at)) / 1000;
    const verb = isOver ? (started ? "Took" : "Waited") : started ? "Running for" : "Waiting for";
    clock.textContent = `${verb} ${duration(seconds)}${usual === null ? "" : `, usually ${duration(usual)}`}`;
    const expiry = approvalPart.querySelector(".expiry");
    if (expiry && approval) expiry.textContent = expiryOf(approval, now, bridge);
  }

  function showQuestion(entry: [string, Question]): HTMLElement {
    const content = JSON.stringify(entry);
    const shown = asked.get(content) ?? makeQuestion(...entry);
    asked.set(content, shown);
    return shown;
  }

  function makeQuestion(key: string, { message, schema, url }: Question): HTMLElement {
    const slot = h("div", { hidden: true, role: "alert" });
    const say = async (given: object) => {
      decline.disabled = true;
      const refusal = await answer(key, given);
      fill(slot, refusal, () => [refusal && problem(refusal)]);
      decline.disabled = false;
    };
    const decline = button("Decline", () => void say({ action: "decline" }));
    const words = h("p.question", visible(message));
    if (!url) {
      const form = makeForm(schema ?? {}, {}, (content) => answer(key, { action: "accept", content }));
      form.lastElementChild!.append(decline);
      return h("div.asks", words, form, slot);
    }
    const address = webAddress(url);
    return h("div.asks", words, h("code.address", visible(url)), slot, h("p.row",
      address && opener(`Open ${visible(new URL(address).host)}`, url, bridge, "primary", () => void say({ action: "accept" })), decline));
  }

  function showActions(): void {
    const { url, can_cancel: may, cancel_requested: isRequested, is_over: isOver } = run!;
    const canCancel = may && !isRequested && !isOver;
    fill(actions, [canCancel, isConfirming, url], () =>
      canCancel && isConfirming
        ? // A double click, or Enter pressed twice, must not cancel
          [h("span", "Cancel this run?"), button("Keep it", () => confirm(false)), button("Yes, cancel it", () => void cancel(), { class: "danger" })]
        : [canCancel && button("Cancel the run", () => confirm(true)), webAddress(url) && opener("Open in the catalogue", url, bridge)]);
  }

  function confirm(wanted: boolean): void {
    isConfirming = wanted;
    showActions();
  }
}
