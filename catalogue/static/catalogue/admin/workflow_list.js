"use strict";

// A selection of workflows that stays while filters and pages change, until it is cleared.
const MOST = 2000;

document.addEventListener("DOMContentLoaded", () => {
  const form = document.getElementById("changelist-form");
  const boxes = () => [...document.querySelectorAll("#result_list .action-select")];
  if (!form) return;
  const place = `selected-workflows-${form.dataset.user}`;
  const kept = new Map(JSON.parse(sessionStorage.getItem(place) ?? "[]"));
  const counter = form.querySelector(".action-counter");
  const told = form.querySelector("#selection [data-text]");
  // Within the bar, where it moves no rows.
  counter?.before(told.parentElement);

  const tell = () => {
    const here = boxes().filter((box) => box.checked).length;
    told.textContent = told.dataset.text.replace("%all", kept.size).replace("%here", here);
    if (counter) counter.textContent = told.textContent;
    told.parentElement.hidden = !kept.size;
    form.toggleAttribute("data-selected", kept.size > 0);
  };
  const keep = () => {
    for (const box of boxes()) {
      if (!box.checked) kept.delete(box.value);
      else if (kept.size < MOST || kept.has(box.value)) kept.set(box.value, box.dataset.seen);
      else box.checked = false;
    }
    sessionStorage.setItem(place, JSON.stringify([...kept]));
    tell();
  };
  const show = () => {
    for (const box of boxes()) {
      box.checked = kept.has(box.value);
      box.closest("tr").classList.toggle("selected", box.checked);
      // What the page shows now has been seen.
      if (box.checked) kept.set(box.value, box.dataset.seen);
    }
    keep();
  };
  // Before an action, Django asks whether changes of rows may be lost. These are saved with their row.
  const keepFromDjango = () => {
    for (const cell of document.querySelectorAll("#result_list tbody td:not(.action-checkbox)"))
      cell.onchange = (event) => event.stopPropagation();
  };
  keepFromDjango();
  document.addEventListener("htmx:load", keepFromDjango);
  // After Django's own scripts, which count the boxes of this page.
  addEventListener("pageshow", () => setTimeout(show));
  document.addEventListener("htmx:load", () => setTimeout(show));
  document.addEventListener("change", ({ target }) => {
    if (target.matches(".action-select")) keep();
  });
  let goesOn = false; // The next row is edited after this one is saved.
  // The form of a row takes the focus, and gives it back to the row.
  document.addEventListener("htmx:afterSettle", ({ detail: { requestConfig } }) => {
    const row = /\/([0-9]+)\/row\/$/.exec(requestConfig?.path.split("?")[0])?.[1];
    const headings = [...document.querySelectorAll("#result_list thead th")];
    // More columns than are shown would make the others narrow.
    for (const cell of document.querySelectorAll(".edit-row td"))
      cell.colSpan = headings.filter((one) => one.checkVisibility()).length || 1;
    if (row) document.querySelector(`#row-${row} :is([name=tool_name], .name)`)?.focus();
    if (row && goesOn) document.querySelector(`#row-${row}.data-row + tr [data-edit]`)?.click();
    goesOn = false;
  });
  document.addEventListener("keydown", (event) => {
    const row = event.target.closest(".edit-row");
    if (row && event.key === "Escape") row.querySelector("[data-cancel]").click();
    if (!row || event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    goesOn = true;
    row.querySelector("form").requestSubmit();
  });
  document.getElementById("action-toggle")?.addEventListener("click", ({ target }) => {
    // Also those that were put into the page since Django's script counted them.
    for (const box of boxes()) box.checked = target.checked;
    setTimeout(keep);
  });
  form.addEventListener("submit", () => {
    form.elements.chosen.value = [...kept].map((pair) => pair.join(":")).join(",");
  });
  document.getElementById("selection-clear")?.addEventListener("click", () => {
    kept.clear();
    show();
    // The button that had the focus is gone.
    (document.getElementById("action-toggle") ?? document.getElementById("searchbar")).focus();
  });
});
