/** Elements, whose text is never markup. */

export type Child = Node | string | null | undefined | false;
type Attributes = Record<string, string | number | boolean | ((event: Event) => void) | null | undefined>;

/** Controls (but line breaks and tabs), characters without a shape, and those that turn the direction of text. */
const UNSEEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Zl}\p{Zp}\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0\ufe00-\ufe0e\u{e0100}-\u{e01ef}]/gu;
const EMOJI = /\p{Extended_Pictographic}/u;

/** Outside text keeps its letters, and shows what cannot be seen: `⟨U+202E⟩`. */
export function visible(text: unknown): string {
  return String(text).replace(UNSEEN, (char, at: number, whole: string) => {
    if (char === "\n" || char === "\t") return char;
    if (char === "\r" && whole[at + 1] === "\n") return "";
    if (char === "\u200d" && EMOJI.test(whole.slice(at + 1, at + 3))) return char; // Families, professions
    return `⟨U+${char.codePointAt(0)!.toString(16).toUpperCase().padStart(4, "0")}⟩`;
  });
}

/** `h("p.note", {onclick}, "text", child)`: classes in the tag; strings are text, false and null are nothing, also
 * as attributes. A function is a listener. */
export function h<Tag extends keyof HTMLElementTagNameMap>(
  tag: Tag | `${Tag}.${string}`,
  ...given: (Attributes | Child)[]
): HTMLElementTagNameMap[Tag] {
  const [name, ...classes] = tag.split(".");
  const element = document.createElement(name as Tag);
  if (classes[0]) element.className = classes.join(" ");
  for (const one of given) {
    if (one instanceof Node || typeof one === "string") element.append(one);
    else if (one) for (const [key, value] of Object.entries(one)) set(element, key, value);
  }
  return element;
}

function set(element: HTMLElement, key: string, value: Attributes[string]): void {
  if (typeof value === "function") element.addEventListener(key.slice(2), value);
  else if (value != null && value !== false) element.setAttribute(key, String(value));
}

export const button = (words: string, onclick: () => void, more: Attributes = {}) => h("button", { type: "button", onclick, ...more }, words);
