"use strict";

// What unfold leaves to be wished for by those who use the keyboard, or who hear the page instead of seeing it.

const CLICKED = ":is(div, span, a:not([href]))[x-on\\:click]:not(#changelist-filter-close)";
const ICON = ".material-symbols-outlined:not([aria-label])";
const ICON_NAMES = {
  account_tree: "Overview",
  close: "Close",
  dock_to_right: "Menu",
  more_horiz: "More actions",
  more_vert: "Related objects",
  search: "Search",
};
/** Parts that lie over the page while the state of this name is true. */
const PANELS = {
  filterOpen: { place: "#changelist-filter", dialogue: "Filters" },
  openCommandResults: { place: "[x-show=openCommandResults]", dialogue: "Search everything" },
  openRelatedWidgetWrapper: { place: "nav[x-show=openRelatedWidgetWrapper]" },
  openUserLinks: { place: "nav[x-show=openUserLinks]" },
  sidebarMobileOpen: { place: "#nav-sidebar" },
};

const wordsOf = (element) => element.textContent.replace(/\s+/g, " ").trim();

const stopsOf = (area) =>
  [...area.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex]")].filter(
    (one) => one.tabIndex >= 0 && !one.disabled && one.checkVisibility({ visibilityProperty: true }),
  );

/** Icons would be read as the words that their font makes them of, and rows and filters all alike. */
const nameThings = (area) => {
  for (const icon of area.querySelectorAll(ICON)) {
    const control = icon.closest("a, button, [role=button]");
    if (control !== icon) icon.ariaHidden = "true";
    if (!control || control.title || control.ariaLabel) continue;
    const named = control.cloneNode(true);
    for (const one of named.querySelectorAll(ICON)) one.remove();
    const name = wordsOf(icon);
    if (control === icon || !wordsOf(named)) control.ariaLabel = ICON_NAMES[name] ?? name.replaceAll("_", " ");
  }
  for (const box of area.querySelectorAll("input.action-select")) {
    const row = box.closest("tr")?.querySelector("a[href]");
    if (row) box.ariaLabel = `Select ${wordsOf(row)}`;
  }
  for (const label of area.querySelectorAll('label[for=""]')) {
    const group = label.closest(".field-line") ?? label.parentElement;
    Object.assign(group, { role: "group", ariaLabel: wordsOf(label) });
  }
};

/** Select2 names its boxes after what is chosen in them alone. */
const nameBoxes = () => {
  for (const box of document.querySelectorAll(".select2-selection")) {
    const select = box.closest(".select2-container").previousElementSibling;
    const label = select?.labels?.[0];
    if (!label) continue;
    label.id ||= `${select.id}-label`;
    for (const part of [box, ...box.querySelectorAll("[role=searchbox]")]) {
      part.setAttribute("aria-labelledby", `${label.id} ${part.getAttribute("aria-labelledby") ?? ""}`);
    }
  }
};

/** Into a panel once it is shown, round within it, and back once it is closed. */
const leadThrough = (panel, name, dialogue) => {
  // Where there is room, the panel is a part of the page instead.
  const asDialogue = { role: "dialog", ariaModal: "true", ariaLabel: dialogue };
  const asPart = { role: null, ariaModal: null, ariaLabel: dialogue };
  const state = Alpine.$data(panel);
  let before = null;
  let isOpen = false;
  document.addEventListener("focusin", ({ target }) => {
    if (!isOpen && !panel.contains(target)) before = target;
  });
  // A busy machine shows it late: what is not shown cannot have the focus.
  new IntersectionObserver(([seen]) => {
    const isNow = Boolean(state[name]) && seen.isIntersecting;
    if (isNow === isOpen) return;
    isOpen = isNow;
    if (dialogue) Object.assign(panel, isOpen ? asDialogue : asPart);
    const isLost = document.activeElement === document.body || panel.contains(document.activeElement);
    if (isOpen) stopsOf(panel).find((one) => one.role !== "region")?.focus();
    else if (isLost) before?.focus();
  }).observe(panel);
  panel.addEventListener("keydown", (event) => {
    if (!isOpen || event.defaultPrevented) return;
    if (event.key === "Escape") {
      event.preventDefault();
      state.handleOutsideClick?.();
      state[name] = false;
    }
    if (event.key !== "Tab") return;
    const stops = stopsOf(panel);
    const [end, next] = event.shiftKey ? [stops[0], stops.at(-1)] : [stops.at(-1), stops[0]];
    if (document.activeElement !== end) return;
    event.preventDefault();
    next.focus();
  });
};

// Before Alpine reads the page.
document.addEventListener("alpine:init", () => {
  for (const one of document.querySelectorAll("[x-on\\:click]")) {
    if (one.matches(CLICKED)) Object.assign(one, { role: "button", tabIndex: 0 });
    const opened = one.getAttribute("x-on:click").match(/^(\w+) = !\1\b/)?.[1];
    if (opened) one.setAttribute("x-bind:aria-expanded", opened);
  }
});
document.addEventListener("alpine:initialized", () => {
  for (const [name, { place, dialogue }] of Object.entries(PANELS)) {
    for (const panel of document.querySelectorAll(place)) leadThrough(panel, name, dialogue);
  }
});
document.addEventListener("keydown", (event) => {
  if (!["Enter", " "].includes(event.key) || !event.target.matches(`${CLICKED}[role=button]`)) return;
  event.preventDefault();
  event.target.click();
});

// The rows of lists by keys. Nothing is done while someone types; a checkbox takes no letters.
const isTyping = (one) => one.isContentEditable || one.matches("textarea, select, input:not([type=checkbox], [type=radio])");
const LETTERS = {
  j: (row) => step(row, 1),
  k: (row) => step(row, -1),
  x: (row) => row?.querySelector(".action-select")?.click(),
  e: (row) => row?.querySelector("[data-edit]")?.click(),
  o: (row) => row?.querySelector("th a[href], a[href]")?.click(),
  "/": () => document.getElementById("searchbar")?.focus(),
  "?": () => document.getElementById("list-help")?.showModal(),
};
const step = (row, distance) => {
  const rows = [...document.querySelectorAll("#result_list .data-row")];
  const next = rows[row ? rows.indexOf(row) + distance : 0];
  next?.querySelector("th a[href], a[href]")?.focus();
};
document.addEventListener("keydown", (event) => {
  const { target, key } = event;
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || isTyping(target)) return;
  if (!document.getElementById("result_list") || target.closest("dialog, [role=dialog]")) return;
  const opens = key === "Enter" && target.matches(".action-select");
  const act = opens ? LETTERS.o : LETTERS[key];
  if (!act) return;
  event.preventDefault();
  act(target.closest(".data-row"));
}, true);
document.addEventListener("click", ({ target }) => {
  const opened = target.closest("[data-opens]")?.dataset.opens;
  if (opened) document.getElementById(opened).showModal();
});

const lastTold = new Map();
const tell = (words) => {
  const place = document.getElementById("told");
  if (place) place.textContent = words;
};
/** What htmx has changed of what people wait for. */
const tellChanges = () => {
  for (const one of document.querySelectorAll("[data-told]")) {
    const words = wordsOf(one);
    if (lastTold.get(one.id) !== words) tell(words);
    lastTold.set(one.id, words);
  }
};

document.addEventListener("DOMContentLoaded", () => {
  nameThings(document);
  const content = document.getElementById("content");
  if (content) Object.assign(content, { role: "main", tabIndex: -1 });
  // A button that sends nothing: the search begins while one types.
  document.getElementById("command-submit")?.toggleAttribute("disabled", true);
  for (const one of document.querySelectorAll("[data-told]")) lastTold.set(one.id, wordsOf(one));
  document.addEventListener("htmx:load", ({ detail }) => nameThings(detail.elt));
  document.addEventListener("htmx:afterSettle", tellChanges);
});
addEventListener("load", () => {
  setTimeout(nameBoxes);
  const messages = document.getElementById("messages");
  // Screen readers tell what changes in a page, not what it begins with.
  if (messages && wordsOf(messages)) setTimeout(() => tell(wordsOf(messages)), 200);
});
addEventListener("told", ({ detail }) => tell(detail));
document.addEventListener("change", ({ target }) => {
  if (!target.matches(".action-select, #action-toggle")) return;
  setTimeout(() => {
    tell(wordsOf(document.querySelector(".action-counter")));
    // The bar of actions is there now.
    target.scrollIntoView({ block: "nearest" });
  });
});

// Parts that are renewed while somebody is in them with the keyboard.
let kept = null;
document.addEventListener("htmx:oobBeforeSwap", ({ detail: { target } }) => {
  const one = document.activeElement;
  if (target.contains(one)) kept = { id: target.id, words: wordsOf(one) };
});
document.addEventListener("htmx:oobAfterSwap", () => {
  const area = kept && document.getElementById(kept.id);
  if (!area || area.contains(document.activeElement)) return;
  area.tabIndex = -1;
  (stopsOf(area).find((one) => wordsOf(one) === kept.words) ?? area).focus();
  kept = null;
});
