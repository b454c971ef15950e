"use strict";

// Finds tools among hundreds; without it they are a plain list of boxes.

class ToolPicker {
  constructor(fieldset) {
    this.most = Number(fieldset.dataset.most);
    this.search = fieldset.querySelector("#tool-search");
    this.onlyPicked = fieldset.querySelector("#only-picked");
    this.count = fieldset.querySelector("#tool-count");
    this.lines = [...fieldset.querySelectorAll("#tool-list li")].map((line) => ({
      line,
      box: line.querySelector("input"),
      text: `${line.textContent} ${line.dataset.words}`.toLowerCase(),
    }));
    fieldset.querySelector(".tool-search").hidden = false;
    fieldset.addEventListener("input", () => this.narrow());
    fieldset.addEventListener("click", (event) => this.#pick(event.target.closest("[data-pick]")?.dataset.pick));
    fieldset.addEventListener("keydown", (event) => this.#move(event));
    this.narrow();
  }

  get shown() {
    return this.lines.filter(({ line }) => !line.hidden);
  }

  /** Show what has all the words. */
  narrow() {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const { line, box, text } of this.lines) {
      line.hidden = !words.every((word) => text.includes(word)) || (this.onlyPicked.checked && !box.checked);
    }
    this.#enter(this.shown[0]?.box);
    this.#tell();
  }

  #pick(which) {
    if (!which) return;
    for (const { box } of which === "shown" ? this.shown : this.lines) box.checked = which === "shown";
    this.narrow();
  }

  /** The Tab key enters and leaves the list, the arrow keys go through it. */
  #enter(entry) {
    for (const { box } of this.lines) box.tabIndex = box === entry ? 0 : -1;
  }

  #move(event) {
    if (event.target === this.search && event.key === "Enter") event.preventDefault();
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || (event.target.name !== "tools" && event.target !== this.search)) return;
    event.preventDefault();
    const boxes = this.shown.map(({ box }) => box);
    const next = boxes[boxes.indexOf(event.target) + step];
    if (!next) return;
    this.#enter(next);
    next.focus();
  }

  #tell() {
    const picked = this.lines.filter(({ box }) => box.checked).length;
    const tooMany = picked > this.most ? ` The limit is ${this.most}.` : "";
    const told = `${this.shown.length} of ${this.lines.length} tools shown, ${picked} picked.${tooMany}`;
    if (this.count.textContent !== told) this.count.textContent = told;
  }
}

document.addEventListener("DOMContentLoaded", () => {
  const fieldset = document.getElementById("tool-picker");
  if (fieldset?.querySelector("#tool-list")) new ToolPicker(fieldset);
});
