// Builds mcp_bridge/cards/card.html, one file with its script and style; `--print` writes it to the standard output.
import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { fileURLToPath } from "node:url";

const root = new URL("../../", import.meta.url);
const cards = new URL("mcp_bridge/cards/", root);
const { buildSync } = createRequire(new URL("tests/e2e/node/", root))("esbuild");

function built(file, options) {
  const entry = fileURLToPath(new URL(file, cards));
  const { outputFiles } = buildSync({ entryPoints: [entry], minify: true, write: false, target: "es2022", legalComments: "none", ...options });
  return outputFiles[0].text.trim();
}

// Nothing in the script may end its element, nor begin a comment in it.
const script = built("src/main.ts", { bundle: true, format: "iife" }).replace(/<(?=\/script|!--)/gi, "\\x3c");
const style = ["card.css", "form.css", "results.css"].map((file) => built(file, { target: "chrome123" })).join("\n");
const html = readFileSync(new URL("card.template.html", cards), "utf8")
  .replace("/* card.css */", () => style)
  .replace("/* src/main.ts */", () => script);
if (process.argv.includes("--print")) process.stdout.write(html);
else writeFileSync(new URL("card.html", cards), html);
