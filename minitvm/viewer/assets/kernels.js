// The kernels as a table that one sorts, and the code of the chosen one.

import { bytes, clip, el, empty, flop, share, spansText, tell, time } from "./base.js";
import { codeView } from "./code.js";
import { cutApart } from "./labels.js";
import { doc, isReliable, kernelOf, runsOf, secondsOf, timeOf } from "./data.js";

const runs = (kernel) => Math.max(runsOf(kernel.symbol).length, 1);
const each = (kernel) => {
  const seconds = secondsOf(kernel.symbol);
  return seconds === undefined ? undefined : seconds / runs(kernel);
};

/** Heading: [the figure that is sorted by, its text, a hint]. */
const COLUMNS = {
  kernel: [(k) => k.role, (k) => shortRoles.get(k.symbol), "what it is for"],
  nodes: [(k) => k.nodes.length, (k) => spansText(k.nodes, 22), "the model's nodes that it computes"],
  template: [(k) => k.template, (k) => clip(k.template.replace(/^template /, "").replace(/^.*\./, ""), 26), "who writes its loops"],
  runs: [runs, (k) => String(runs(k)), "calls in one run"],
  work: [(k) => k.flops, (k) => flop(k.flops), "operations of one call"],
  memory: [(k) => k.bytes, (k) => bytes(k.bytes), "bytes of operands and results, each once"],
  floor: [(k) => k.floor, (k) => time(k.floor), "at the machine's peak"],
  predicted: [(k) => k.predicted, (k) => time(k.predicted), "as the machine model has it"],
  measured: [(k) => each(k) ?? -1, (k) => (each(k) === undefined ? "-" : timeOf(each(k), isReliable(k.symbol))), "one call, median; ~: predicted, the measurement is unreliable"],
  "of run": [(k) => secondsOf(k.symbol) ?? -1, (k) => `${isReliable(k.symbol) ? "" : "~"}${share(secondsOf(k.symbol) / total())}`, "all its calls, of all kernels' time"],
  "of peak": [(k) => k.atPeak / (each(k) ?? Infinity), (k) => `${isReliable(k.symbol) ? "" : "~"}${share(k.atPeak / each(k))}`, "time of its operations at the machine's peak, of its own"],
  "bound by": [(k) => k.bound, (k) => k.bound, "what most of the predicted time is for"],
};
const TEXTS = new Set(["kernel", "nodes", "template", "bound by"]);
const total = () => doc.run.kernels.reduce((sum, kernel) => sum + kernel.at(-1), 0);

const MOST = 44; // characters of a role
const shortRoles = new Map();
const table = { by: "", falling: true, chosen: null, wanted: "" };
let body = null;
let under = null;

export function kernelsView(symbol) {
  table.by ||= doc.run ? "of run" : "predicted";
  table.chosen = kernelOf(symbol)?.symbol ?? table.chosen ?? ordered()[0]?.symbol;
  cutApart(doc.kernels.map((kernel) => [kernel.role, MOST])).forEach((text, i) => shortRoles.set(doc.kernels[i].symbol, text));
  body = el("tbody");
  under = el("div", { class: "under" });
  const shown = Object.keys(COLUMNS).filter((name) => doc.run || !["measured", "of run", "of peak"].includes(name));
  const heads = shown.map((name) => el("th", { scope: "col", class: TEXTS.has(name) ? "" : "figure", title: COLUMNS[name][2], "data-column": name },
    el("button", { type: "button", click: () => sortBy(name) }, name)));
  table.heads = heads;
  table.shown = shown;
  const view = el("section", { class: "view kernels", "aria-label": "kernels" },
    el("div", { class: "table" }, el("table", {}, el("thead", {}, el("tr", {}, heads)), body)), under);
  if (!doc.kernels.length) return el("section", { class: "view kernels" }, empty("the model needs no kernel"));
  fill();
  chooseKernel(table.chosen, false);
  return view;
}

function ordered() {
  const [key] = COLUMNS[table.by];
  const sign = table.falling ? -1 : 1;
  const hit = (kernel) => [kernel.role, kernel.symbol, kernel.template, ...kernel.nodes].some((part) => part.toLowerCase().includes(table.wanted));
  const compared = (a, b) => (typeof a === "string" ? a.localeCompare(b) : a - b);
  return doc.kernels.filter(hit).sort((a, b) => sign * compared(key(a), key(b)));
}

function sortBy(name) {
  table.falling = table.by === name ? !table.falling : !TEXTS.has(name);
  table.by = name;
  fill();
}

function fill() {
  for (const head of table.heads) {
    const isChosen = head.dataset.column === table.by;
    head.setAttribute("aria-sort", isChosen ? (table.falling ? "descending" : "ascending") : "none");
  }
  const most = doc.run ? Math.max(...doc.kernels.map((k) => secondsOf(k.symbol) ?? 0)) : 0;
  body.replaceChildren(...ordered().map((kernel) => el("tr", {
    "data-kernel": kernel.symbol, "aria-selected": String(kernel.symbol === table.chosen), click: () => chooseKernel(kernel.symbol),
  }, table.shown.map((name) => cell(kernel, name, most)))));
}

function cell(kernel, name, most) {
  const text = COLUMNS[name][1](kernel);
  const bar = name === "of run" && most ? el("i", { class: "meter", style: `width:${(100 * (secondsOf(kernel.symbol) ?? 0)) / most}%` }) : null;
  const title = name === "kernel" ? kernel.symbol : name === "nodes" ? kernel.nodes.join("\n") : name === "template" ? kernel.template : null;
  return el("td", { class: TEXTS.has(name) ? "" : "figure", title }, bar, el("span", { class: name === "bound by" ? `bound ${text}` : "" }, text));
}

const headOf = (symbol) => el("header", { class: "bar" }, el("h2", {}, kernelOf(symbol).role), el("code", { class: "note" }, clip(symbol, 90)));

export async function chooseKernel(symbol, isAsked = true) {
  table.chosen = symbol;
  for (const one of body.children) one.setAttribute("aria-selected", String(one.dataset.kernel === symbol));
  if (!symbol) return;
  if (isAsked) {
    tell("select", { kind: "kernel", symbol });
    tell("route", `kernels/${symbol}`);
  }
  under.replaceChildren(headOf(symbol), el("p", { class: "busy" }, "unpacking …"));
  const code = await codeView(symbol);
  if (table.chosen === symbol) under.replaceChildren(headOf(symbol), code);
}

export function searchKernels(text) {
  table.wanted = text.trim().toLowerCase();
  fill();
  return body.children.length;
}

export function stepKernel(step) {
  const all = [...body.children];
  const next = all[all.findIndex((one) => one.dataset.kernel === table.chosen) + step];
  next?.scrollIntoView({ block: "nearest" });
  if (next) chooseKernel(next.dataset.kernel);
}
