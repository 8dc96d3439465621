// The build at a glance: the model, what was done to it, where the time goes, what to look at next, and its kernels in
// order with blocks that repeat put together.

import { bytes, el, empty, plural, share, spansText, tell, time } from "./base.js";
import { callsIn, doc, heldOf, kernelOf, measuredOf, nodeOf, roleOf, timeOf } from "./data.js";

const MOST_NEXT = 4;
const MOST_OPEN = 3; // of so few rows, blocks are open

/** The seconds of a step: measured, or predicted; and whether they are to be believed. */
function costOf(number) {
  const found = measuredOf(number);
  const kernel = kernelOf(doc.graph[number].func);
  return { seconds: found?.seconds ?? kernel?.predicted ?? 0, floor: found?.floor ?? kernel?.floor ?? 0, isReliable: found?.isReliable ?? false };
}

const secondsOf = (numbers) => numbers.reduce((sum, number) => sum + costOf(number).seconds, 0);
const numbersOf = (items) => items.flatMap((item) => (Array.isArray(item) ? item[3] : [item]));
const shownTime = (numbers) => timeOf(secondsOf(numbers), numbers.every((number) => costOf(number).isReliable));

export function overviewView() {
  const { model, told, blocks } = doc.overview;
  const all = numbersOf(blocks);
  const total = Math.max(secondsOf(all), 1e-12);
  const section = (title, ...children) => el("section", {}, el("h2", {}, title), children);
  const left = el("div", { class: "glance" },
    section("The model", el("dl", {}, model.map(([name, text]) => [el("dt", {}, name), el("dd", {}, text)]))),
    section("What the compiler did", el("ul", { class: "told" }, told.map(([text, view]) => el("li", {}, `${text} `, link(view, () => tell("go", view)))))),
    section(`Where the time goes: ${shownTime(all)}${doc.run ? "" : ", predicted"}`, kinds(all, total)),
    section("What to look at next", el("ul", { class: "told" }, nextOf(all, total))));
  const flow = el("div", { class: "flow" }, el("h2", {}, `The model as it runs: ${plural(all.length, "step")}`), blocks.length ? listOf(blocks, total) : empty("nothing runs"));
  return el("section", { class: "view overview", "aria-label": "overview" }, left, flow);
}

const link = (text, act) => el("button", { type: "button", class: "link", click: act }, `${text} →`);

// --- the steps ------------------------------------------------------------------------------------------------------

const listOf = (items, total) => el("ol", {}, items.map((item) => el("li", {}, Array.isArray(item) ? blockRow(item, total) : stepRow(item, total))));

function blockRow([times, name, items, numbers], total) {
  return el("details", { class: "block-row", open: doc.overview.blocks.length <= MOST_OPEN },
    el("summary", {}, el("span", { class: "name" }, el("b", {}, `${times} × `), name), meter(numbers, total)), listOf(items, total));
}

function stepRow(number, total) {
  const node = doc.graph[number];
  const held = node.kind === "python" ? heldBy(node) : [];
  const open = () => (node.kind === "kernel" ? tell("select", { kind: "kernel", symbol: node.func, run: number }) : held.length ? tell("go", "graph", { node: node.spans[0], as: "calls" }) : null);
  const inside = held.length ? `${held.length > 1 ? plural(held.length, "branch") : "body"} of ${held.map((fn) => plural(callsIn(fn), "call")).join(" and ")}` : "";
  return el("button", { type: "button", class: "step-row", title: node.spans.join("\n"), click: open },
    el("span", { class: "name" }, roleOf(node.func) || node.name, el("small", {}, inside, " ", spansText(node.spans, 40))), meter([number], total));
}

/** The functions that a node holds which runs in Python. */
function heldBy(node) {
  const [main] = doc.modules[doc.last];
  const number = main.nodes.findIndex((_, n) => heldOf(main, n).length && String(nodeOf(main, n).spans) === String(node.spans));
  return number < 0 ? [] : heldOf(main, number).map(([, fn]) => fn);
}

const meter = (numbers, total) => [
  el("span", { class: "track" }, el("i", { style: `width:${(100 * secondsOf(numbers)) / total}%` })), el("span", { class: "figure" }, shownTime(numbers)),
];

// --- the time -------------------------------------------------------------------------------------------------------

/** What a role is without its sizes: "conv", "dense", "layer norm". */
const kindOf = (number) => (roleOf(doc.graph[number].func) || doc.graph[number].name).split(/ *[\d,+]/)[0];

function kinds(all, total) {
  const found = new Map();
  for (const number of all) found.set(kindOf(number), [...(found.get(kindOf(number)) ?? []), number]);
  const sorted = [...found].sort((a, b) => secondsOf(b[1]) - secondsOf(a[1]));
  return el("div", { class: "kinds" }, sorted.slice(0, 8).map(([kind, numbers]) =>
    el("div", { class: "kind-row" }, el("span", {}, `${kind} × ${numbers.length}`), meter(numbers, total), el("small", {}, share(secondsOf(numbers) / total)))));
}

/** Kernels whose launches lose most against their floor, and what was wanted and declined most often. */
function nextOf(all, total) {
  const symbols = [...new Set(all.map((number) => doc.graph[number].func))].filter(kernelOf);
  const lost = symbols.map((symbol) => {
    const numbers = all.filter((number) => doc.graph[number].func === symbol);
    return { symbol, numbers, floor: numbers.reduce((sum, number) => sum + costOf(number).floor, 0) };
  }).map((one) => ({ ...one, more: secondsOf(one.numbers) - one.floor })).filter(({ more }) => more > 0).sort((a, b) => b.more - a.more);
  const kernels = lost.slice(0, MOST_NEXT).map(({ symbol, numbers, floor, more }) => el("li", {},
    `${roleOf(symbol)}${numbers.length > 1 ? `, ${numbers.length} times` : ""}: ${shownTime(numbers)}, of which the machine needs ${time(floor)}; the rest is ${share(more / total)} of the run. `,
    link("code", () => tell("go", "kernels", symbol))));
  const declined = doc.passes.map((pass, number) => [pass, number, pass.decisions.filter(([, , taken]) => !taken)]).filter(([, , found]) => found.length).sort((a, b) => b[2].length - a[2].length);
  const passes = declined.slice(0, 2).map(([pass, number, found]) => el("li", {}, `${pass.name} declined ${found.length} times, as with ${found[0][1]}: ${found[0][3]}. `, link("decisions", () => tell("go", "passes", number))));
  const host = all.filter((number) => doc.graph[number].kind === "python");
  const python = host.length ? [el("li", {}, `${plural(host.length, "step")} run in Python: ${[...new Set(host.map(kindOf))].slice(0, 5).join(", ")}.`)] : [];
  const { weights, nbytes } = doc.memory;
  return [...kernels, ...python, ...passes, el("li", {}, `A run holds ${bytes(weights + nbytes)}: ${bytes(weights)} of weights and ${bytes(nbytes)} of values. `, link("memory", () => tell("go", "memory")))];
}
