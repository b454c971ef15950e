"use strict";

// Select2 gives the field that it searches with no name of its own: it gets that of the choice.

window.addEventListener("load", () => {
  for (const choice of document.querySelectorAll("select.admin-autocomplete")) {
    const label = document.querySelector(`label[for="${choice.id}"]`)?.textContent.trim();
    const field = choice.nextElementSibling?.querySelector(".select2-search__field");
    if (label && field) field.setAttribute("aria-label", label);
  }
});
