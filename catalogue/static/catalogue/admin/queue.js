"use strict";

// The queue of curation: a key clicks the control that shows it, and the next candidate, which is there already,
// takes the place of the decided one while the decision is sent.

const part = (name) => document.getElementById(`queue-${name}`);
const shown = () => part("current").querySelector("[data-card]");

/** The next candidate comes to the front where nothing is shown. */
const promote = () => {
  for (const one of part("next").children) {
    if (one.dataset.card && one.dataset.card === shown()?.dataset.card) one.remove();
  }
  if (shown() || !part("next").firstElementChild) return;
  part("current").append(part("next").firstElementChild);
  begin();
};

/** Screen readers go on at its name, and a reload shows it again. */
const begin = () => {
  const { card } = shown().dataset;
  shown().querySelector("h2").focus({ preventScroll: true });
  const address = new URL(location);
  if (card) address.searchParams.set("at", card);
  else address.searchParams.delete("at");
  history.replaceState(history.state, "", address);
};

document.addEventListener("DOMContentLoaded", () => {
  if (!document.getElementById("queue")) return;
  promote();
  part("filters").addEventListener("change", ({ currentTarget }) => currentTarget.requestSubmit());
  part("help").addEventListener("click", ({ currentTarget }) => {
    part("keys").hidden = !part("keys").hidden;
    currentTarget.ariaExpanded = String(!part("keys").hidden);
  });

  document.addEventListener("submit", ({ target }) => {
    if (!target.matches("[data-advances], [data-passes]") || !shown()) return;
    if (target.matches("[data-passes]")) target.elements.place.value = shown().dataset.place ?? "";
    // It stays in the page until its answer is there: htmx sends nothing for what is gone.
    part("leaving").append(shown());
    promote();
  }, true);

  document.addEventListener("htmx:configRequest", ({ detail: { elt, parameters } }) => {
    if (!elt.closest("#queue")) return;
    const place = shown()?.dataset.place ?? "";
    parameters.now = place;
    if (parameters.place === "") parameters.place = place;
  });

  document.addEventListener("htmx:afterRequest", ({ detail: { elt, successful } }) => {
    if (!elt.closest("#queue")) return;
    const card = elt.closest("#queue-leaving [data-card]") ?? (elt.matches("[data-passes]") && part("leaving").firstElementChild);
    if (successful) {
      if (card) card.remove();
    } else {
      if (card) part("next").prepend(card);
      part("notes").textContent = document.getElementById("queue").dataset.failed;
    }
    promote();
  });

  document.addEventListener("htmx:oobAfterSwap", ({ detail: { target } }) => {
    if (target.id !== "queue-current") return;
    // Once Alpine has shown what is open.
    setTimeout(() => {
      const field = shown()?.querySelector("[data-panel]:not([hidden]) input:not([type=hidden])");
      if (field) field.focus();
      else if (shown()) begin();
    });
  });
});

document.addEventListener("keydown", (event) => {
  if (event.repeat || event.ctrlKey || event.metaKey || event.altKey || !document.getElementById("queue")) return;
  if (event.target.matches("input:not([type=checkbox]), textarea, select, [contenteditable]")) return;
  const controls = document.querySelectorAll(`#queue [data-key="${CSS.escape(event.key.toLowerCase())}"]`);
  const control = [...controls].find((one) => one.checkVisibility());
  if (!control) return;
  event.preventDefault();
  event.stopImmediatePropagation();
  control.click();
}, true);
