"use strict";

// Unfold's key for the search does nothing in inputs, and takes boxes to tick for such.
addEventListener("keydown", (event) => {
  const isKey = event.key === "k" && (event.ctrlKey || event.metaKey);
  if (!isKey || !event.target.matches?.("input:is([type=checkbox], [type=radio])")) return;
  event.preventDefault();
  dispatchEvent(new CustomEvent("opencommand"));
});
