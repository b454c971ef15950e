// Puts a chosen file into the text of its argument, as the schema encodes it.
addEventListener("change", async ({ target }) => {
  if (target.type !== "file" || !target.dataset.fills) return;
  const [file] = target.files;
  const { fills, encoding, max, tooLarge } = target.dataset;
  const field = document.getElementById(fills);
  const isTooLarge = file && file.size > Number(max);
  field.parentElement.querySelector("[data-file-problem]").textContent = isTooLarge ? tooLarge : "";
  if (!file || isTooLarge) return;
  if (encoding === "text") {
    field.value = await file.text();
    return;
  }
  const reader = new FileReader();
  reader.addEventListener("load", () => {
    field.value = encoding === "base64" ? reader.result.slice(reader.result.indexOf(",") + 1) : reader.result;
  });
  reader.readAsDataURL(file);
});
// Browsers may pass over the attribute while a page loads slowly.
document.querySelector("#run-form [autofocus]")?.focus();
