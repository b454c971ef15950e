// Forms with a question are sent only once it was answered.
document.addEventListener("submit", (event) => {
  const { question } = event.target.dataset;
  if (question && !confirm(question)) event.preventDefault();
});
