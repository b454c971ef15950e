// Unfold gives the field of Ctrl-K the keyboard 20 ms later. On a busy machine it is not shown by then, and
// what somebody types next is lost.
addEventListener("DOMContentLoaded", () => {
  const field = document.getElementById("search-input-command");
  if (field) new IntersectionObserver(([seen]) => seen.isIntersecting && field.focus()).observe(field);
});
