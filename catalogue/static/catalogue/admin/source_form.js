"use strict";

// A source's form works without this: it hides what another choice has made pointless, and reports a test of
// the connection that failed itself.

document.addEventListener("DOMContentLoaded", () => {
  const form = document.getElementById("source_form");
  if (!form) return;

  const chosen = (name) => {
    const field = form.elements[name];
    if (!field) return null;
    return field.type === "checkbox" ? String(field.checked) : field.value;
  };

  const matters = (conditions) =>
    Object.entries(conditions).every(([name, values]) => {
      const value = chosen(name);
      return value === null || values.includes(value);
    });

  const showWhatMatters = () => {
    for (const field of form.querySelectorAll("[data-only-if]")) {
      const line = field.closest(".field-line");
      const hide = !matters(JSON.parse(field.dataset.onlyIf)) && !line.classList.contains("errors");
      line.classList.toggle("hidden", hide);
    }
    for (const row of form.querySelectorAll(".form-row, fieldset")) {
      if (!row.querySelector("[data-only-if]")) continue;
      const lines = [...row.querySelectorAll(".field-line")];
      row.classList.toggle("hidden", lines.every((line) => line.classList.contains("hidden")));
    }
  };

  // Who sees the fields come and go need not be told when they matter.
  for (const told of form.querySelectorAll("[data-condition]")) told.hidden = true;
  form.addEventListener("change", showWhatMatters);
  showWhatMatters();

  for (const failure of ["htmx:sendError", "htmx:responseError"]) {
    document.body.addEventListener(failure, ({ detail }) => {
      if (detail.target.id !== "test-result") return;
      const answer = detail.xhr.status ? ` The server answered ${detail.xhr.status}.` : "";
      detail.target.textContent = `The connection could not be tested.${answer}`;
    });
  }
});
