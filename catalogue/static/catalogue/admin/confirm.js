// Forms with a question are sent only once it was answered. No form is sent twice by a double click: the answer
// to the first request, such as a token's secret, would not be shown.
const SAME_CLICK = 5_000;
let sentAt = new WeakMap();
// Somebody who goes back to the form means to send it once more.
addEventListener("pageshow", () => (sentAt = new WeakMap()));
// On the window, which hears of it after the scripts that send a form themselves.
addEventListener("submit", (event) => {
  const form = event.target;
  // A field may be called "method".
  if (event.defaultPrevented || form.getAttribute("method") !== "post") return;
  const { question } = form.dataset;
  if (event.timeStamp - sentAt.get(form) < SAME_CLICK || (question && !confirm(question))) {
    event.preventDefault();
  } else {
    sentAt.set(form, event.timeStamp);
  }
});
