// Bundle the parts of d3 named in entry.js into src/headwise/plots/views/d3/: d3.js, the licences of what is in it, and
// bundle.json, which says what it was made of. `npm ci && npm run build`; `npm run check` makes it again and compares.
import { createHash } from "node:crypto";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { build, version } from "esbuild";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));
const out = "../../src/headwise/plots/views/d3/";
const read = (path) => readFileSync(here(path), "utf8");

const made = await build({
  absWorkingDir: here("."), entryPoints: ["entry.js"], bundle: true, minify: true, write: false, metafile: true,
  format: "iife", globalName: "d3", target: "es2020", charset: "ascii", legalComments: "none",
});
const inside = Object.values(made.metafile.outputs)[0].inputs;
const used = (path) => inside[path]?.bytesInOutput > 0 && path.match(/^node_modules\/([^/]+)\//)?.[1];
const names = [...new Set(Object.keys(inside).map(used).filter(Boolean))].sort();
const packages = Object.fromEntries(names.map((name) => [name, JSON.parse(read(`node_modules/${name}/package.json`)).version]));
const licences = new Map();
for (const name of names) {
  const text = read(`node_modules/${name}/LICENSE`).trim();
  licences.set(text, [...(licences.get(text) || []), name]);
}

// A page that is handed on carries the code, so the permission goes with it, once.
const [permission] = [...licences].find(([, own]) => own.includes("d3-array"));
const brewer = [...licences.keys()].join("\n").match(/Copyright.*Cynthia Brewer.*/)[0];
const banner = `/*! Parts of ${Object.entries(packages).map((pair) => pair.join(" ")).join(", ")}.\n\n${permission}\n\nColours of ColorBrewer: ${brewer},\nlicensed under the Apache License, Version 2.0. */`;
const code = made.outputFiles[0].text.replace(/^"use strict";/, "").trim();
const script = `${banner}\n${code}\nexport default d3;\n`;
if (script.includes("<" + "/") || script.includes("<!--")) throw new Error("this would end a script in a page");
const notice = [...licences].map(([text, own]) => `## ${own.join(", ")}\n\n${text}\n`).join("\n");
const files = {
  "d3.js": script,
  "LICENSE.md": `# Licences of what d3.js was made of\n\n${notice}`,
  "bundle.json": `${JSON.stringify({ made_by: "tools/d3_bundle", esbuild: version, packages, sha256: createHash("sha256").update(script).digest("hex") }, null, 2)}\n`,
};
if (process.argv.includes("--check")) {
  const other = Object.keys(files).filter((name) => read(out + name) !== files[name]);
  if (other.length) throw new Error(`${other.join(", ")}: not what this build makes; run \`npm run build\``);
  console.log("the bundle is what this build makes");
} else {
  mkdirSync(here(out), { recursive: true });
  for (const [name, text] of Object.entries(files)) writeFileSync(here(out + name), text);
  console.log(`${script.length} bytes of ${names.length} packages`);
}
