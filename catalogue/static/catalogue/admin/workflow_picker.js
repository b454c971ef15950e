"use strict";

// What is ticked among the workflows that were found moves up to those that are picked. The Tab key enters and leaves each
// list, and the arrow keys go through them.

document.addEventListener("DOMContentLoaded", () => {
  const picker = document.getElementById("workflow-picker");
  if (!picker) return;
  const [picked, found, search] = ["#picked-workflows", "#found-workflows", "input[type=search]"].map((one) =>
    picker.querySelector(one),
  );
  const boxes = (list) => [...list.querySelectorAll("input[type=checkbox]")];
  const most = Number(picker.dataset.most);

  /** What the picked ones weigh, or how many too many they are. */
  const weigh = (chosen) => {
    if (most) return chosen.length > most ? `. The limit is ${most}.` : "";
    const tokens = chosen.reduce((sum, box) => sum + Number(box.closest("li").dataset.tokens), 0);
    const budget = Number(document.getElementById("id_token_budget")?.value);
    const told = budget ? ` of a budget of ${budget.toLocaleString("en")}` : "";
    return `, about ${tokens.toLocaleString("en")} tokens${told}, not counting the built-in tools`;
  };
  const tell = () => {
    const chosen = boxes(picked).filter((box) => box.checked);
    picker.querySelector("#picked-count").textContent = `${chosen.length} picked${weigh(chosen)}`;
  };
  const enter = (list, entry = boxes(list)[0]) => {
    for (const box of boxes(list)) box.tabIndex = box === entry ? 0 : -1;
  };
  const pick = (box) => {
    box.checked = true;
    picked.append(box.closest("li"));
  };
  const settle = () => {
    const known = new Set(boxes(picked).map((box) => box.value));
    for (const box of boxes(found)) if (known.has(box.value)) box.closest("li").remove();
    [picked, found].forEach((list) => enter(list));
  };
  const changed = () => picked.dispatchEvent(new Event("change", { bubbles: true }));

  found.addEventListener("change", (event) => {
    const next = event.target.closest("li").nextElementSibling?.querySelector("input") ?? search;
    pick(event.target);
    settle();
    next.focus();
  });
  picker.addEventListener("change", tell);
  document.getElementById("id_token_budget")?.addEventListener("input", tell);
  picker.querySelector("#pick-all-found").addEventListener("click", () => {
    boxes(found).forEach(pick);
    settle();
    changed();
  });
  picker.querySelector("#pick-none").addEventListener("click", () => {
    for (const box of boxes(picked)) box.checked = false;
    changed();
  });
  picker.addEventListener("focusin", (event) => {
    if (event.target.type === "checkbox") enter(event.target.closest("ul"), event.target);
  });
  picker.addEventListener("keydown", (event) => {
    if (event.target === search && event.key === "Enter") event.preventDefault();
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const places = [...boxes(picked), search, ...boxes(found)];
    if (!step || !places.includes(event.target)) return;
    event.preventDefault();
    places[places.indexOf(event.target) + step]?.focus();
  });
  // The form would ask for its preview, which a search does not change.
  search.addEventListener("input", (event) => event.stopPropagation());
  document.addEventListener("htmx:afterSwap", (event) => {
    if (event.target === found) settle();
  });
  settle();
  tell();
});
