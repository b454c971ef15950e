"use strict";

// A source's form works without this: it hides what another choice has made pointless, and tries settings
// without leaving the page, so that secrets need not be typed again.

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

  const [good, bad] = document.getElementById("test-result")?.children ?? [];

  const tell = (ok, text) => {
    for (const box of [good, bad]) box.classList.add("hidden");
    const box = ok ? good : bad;
    box.textContent = text;
    box.classList.remove("hidden");
    box.scrollIntoView({ block: "center" });
  };

  const tryIt = async (button) => {
    const body = new FormData(form);
    body.set(button.name, button.value);
    const headers = { "X-Requested-With": "XMLHttpRequest" };
    const answer = await fetch(window.location.href, { method: "POST", body, headers });
    if (!answer.ok) throw new Error(`The server answered ${answer.status}.`);
    return answer.json();
  };

  form.addEventListener("submit", async (event) => {
    const button = event.submitter;
    if (button?.name !== "_test" || !good || !bad) return;
    event.preventDefault();
    if (button.ariaDisabled === "true") return;
    // Not `disabled`, which would take the focus from whoever pressed it.
    button.ariaDisabled = "true";
    try {
      const { ok, told } = await tryIt(button);
      tell(ok, told.join("\n"));
    } catch (error) {
      tell(false, `The connection could not be tested. ${error.message}`);
    } finally {
      button.ariaDisabled = null;
    }
  });
});
