/** What waits for approval, and the way to the page where people decide. The card itself decides nothing. */
import { h, visible } from "./dom";
import { opener } from "./parts";
import type { Approval, Host } from "./types";
import { duration, moment } from "./words";

const LONG = 160;
type Fact = [string, string | HTMLElement];

export function showApproval(approval: Approval, host: Host): HTMLElement[] {
  const { needed, agreed, before, arguments: given, changed, version } = approval;
  const names = Object.keys(given ?? {});
  const facts: Fact[] = [
    ["Asked by", `${visible(approval.asked_by)}, ${moment(approval.requested_at, host)}`],
    ["Tool", h("span", h("code", visible(approval.tool)), version && ` version ${visible(version)}`)],
    ["Why", visible(approval.reason || "The catalogue asks people before this tool runs.")],
  ];
  if (before) facts.push(["Before", history(before, host)]);
  if (changed?.names.length) facts.push(["Changed", visible(`${changed.names.join(", ")}, by ${changed.by}`)]);
  facts.push(["Agreed", `${agreed} of ${needed} ${needed === 1 ? "person" : "people"}`]);
  return [
    listOf("dl.facts", facts),
    h("h2", !given ? "Its arguments are on the approval page" : names.length ? "It will run with these arguments" : "It will run without arguments"),
    listOf("dl.arguments", names.map((name) => [visible(name), written(given![name])])),
    h("p.row", opener("Open the approval page", approval.url, host, "primary"), h("span.quiet.expiry")),
    h("p.quiet", "Nothing in this chat can approve it."),
  ];
}

const listOf = (tag: "dl.facts" | "dl.arguments", facts: Fact[]) => h(tag, ...facts.flatMap(([name, fact]) => [h("dt", name), h("dd", fact)]));

export function expiryOf(approval: Approval, now: number, host: Host): string {
  const left = (Date.parse(approval.expires_at ?? "") - now) / 1000;
  if (isNaN(left)) return "";
  return left > 0 ? `Expires in ${duration(left)}, ${moment(approval.expires_at, host)}` : "Has expired";
}

function history({ runs, succeeded, last_at }: NonNullable<Approval["before"]>, host: Host): string {
  if (!runs) return "It has not run before.";
  return `${succeeded} of ${runs} ${runs === 1 ? "run" : "runs"} succeeded${last_at ? `, the last ${moment(last_at, host)}` : ""}.`;
}

/** JSON with all its characters; what is long is folded. */
function written(value: unknown): HTMLElement {
  const text = visible(JSON.stringify(value, markRounded, 2));
  if (text.length <= LONG && text.split("\n").length <= 6) return h("pre", text);
  const beginning = text.slice(0, 60).replace(/\s+/g, " ");
  const size = `${text.length.toLocaleString("en")} characters`;
  return h("details", h("summary", h("code", beginning, "…"), ` ${size}`), h("pre", text));
}

/** JavaScript has rounded it before the card could read it. */
const markRounded = (_: string, value: unknown) =>
  Number.isInteger(value) && !Number.isSafeInteger(value) ? `≈ ${value} (exact on the approval page)` : value;
