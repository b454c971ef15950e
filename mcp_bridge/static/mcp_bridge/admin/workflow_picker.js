"use strict";

// What is ticked among the workflows that were found moves up to those that are picked.

document.addEventListener("DOMContentLoaded", () => {
  const picker = document.getElementById("workflow-picker");
  if (!picker) return;
  const [picked, found, search] = ["#picked-workflows", "#found-workflows", "input[type=search]"].map((one) =>
    picker.querySelector(one),
  );
  const boxes = (list) => [...list.querySelectorAll("input[type=checkbox]")];

  const tell = () => {
    const chosen = boxes(picked).filter((box) => box.checked);
    const tokens = chosen.reduce((sum, box) => sum + Number(box.closest("li").dataset.tokens), 0);
    const budget = Number(document.getElementById("id_token_budget")?.value);
    const told = budget ? ` of a budget of ${budget.toLocaleString("en")}` : "";
    picker.querySelector("#picked-count").textContent =
      `${chosen.length} picked, about ${tokens.toLocaleString("en")} tokens${told}, not counting the built-in tools`;
  };
  const pick = (box) => {
    box.checked = true;
    picked.append(box.closest("li"));
  };

  found.addEventListener("change", (event) => {
    const next = event.target.closest("li").nextElementSibling?.querySelector("input") ?? search;
    pick(event.target);
    next.focus();
  });
  picker.addEventListener("change", tell);
  document.getElementById("id_token_budget")?.addEventListener("input", tell);
  picker.querySelector("#pick-all-found").addEventListener("click", () => {
    boxes(found).forEach(pick);
    picked.dispatchEvent(new Event("change", { bubbles: true }));
  });
  // The form would ask for its preview, which a search does not change.
  search.addEventListener("input", (event) => event.stopPropagation());
  search.addEventListener("keydown", (event) => {
    if (event.key === "Enter") event.preventDefault();
  });
  document.addEventListener("htmx:afterSwap", (event) => {
    if (event.target !== found) return;
    const known = new Set(boxes(picked).map((box) => box.value));
    for (const box of boxes(found)) if (known.has(box.value)) box.closest("li").remove();
  });
  tell();
});
