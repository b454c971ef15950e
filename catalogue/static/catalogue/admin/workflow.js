"use strict";

/** The tab that the address names, itself or by a field in it. */
const tabOf = (hash) =>
  getCurrentTab() ?? document.getElementById(hash.slice(1))?.closest("[id$=-group]")?.id.replace("-group", "");

/** Alpine shows the tab in the next frame, before which nothing in it can have the focus. */
const focusNamed = () => requestAnimationFrame(() => document.getElementById(location.hash.slice(1))?.focus());

// Unfold warns before typed values are lost; those of a refused form were typed before.
addEventListener("load", () => {
  if (document.querySelector("#workflow_form .errors")) {
    setTimeout(() => document.querySelector("#workflow_form input").dispatchEvent(new Event("input")));
  }
});
