// All about what was clicked: where it is from, its types, what was decided about it and why, its kernel and its time.

import { bytes, clip, el, flop, on, plural, rate, share, svg, tell, time } from "./base.js";
import { blockedIn, layoutPicture, sizesOf } from "./blocks.js";
import { callsIn, decisionsAbout, doc, heldOf, kernelOf, makerOf, measuredOf, measuredText, nodeOf, roleOf, runOfGroup, runsOf, shortType } from "./data.js";
import { scopesAround } from "./shapes.js";

const panel = el("aside", { id: "inspector", "aria-label": "details", hidden: true });

export function inspector() {
  on("select", show);
  return panel;
}

export function closeInspector() {
  const wasOpen = !panel.hidden;
  panel.hidden = true;
  return wasOpen;
}

function show(what) {
  const parts = { node: nodeParts, group: groupParts, kernel: kernelParts, scope: scopeParts }[what.kind](what);
  panel.hidden = false;
  panel.replaceChildren(el("button", { type: "button", class: "icon close", title: "close (Esc)", "aria-label": "close", click: closeInspector }, "×"), ...parts.flat().filter(Boolean));
  panel.scrollTop = 0;
}

const section = (title, ...children) => el("section", {}, el("h3", {}, title), children);

const facts = (rows) => el("dl", {}, rows.filter(([, value]) => value || value === 0).map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));

const origin = (spans, kind = "call") => section("Origin in the model", spans.length
  ? el("ul", { class: "origin-list" }, spans.map((span) => el("li", {}, el("code", {}, span))))
  : el("p", { class: "note" }, kind === "var" ? "a parameter" : "made by the compiler"));

function nodeParts({ fn, number, module }) {
  const node = nodeOf(fn, number);
  const group = node.group >= 0 ? fn.groups[node.group] : null;
  const operands = node.inputs.map((input) => nodeOf(fn, input));
  return [
    el("h2", {}, node.name),
    origin(node.spans, node.kind),
    section(node.kind === "call" ? "Call" : "Value", facts([
      ["type", el("code", {}, shortType(node.type))],
      ["attributes", node.attributes && el("code", {}, node.attributes)],
      ["operands", node.operands.length > 0 && el("ul", { class: "operands" }, node.operands.map((text) => el("li", {}, el("code", {}, clip(text, 90)))))],
      ["of types", operands.length ? operands.map((one) => el("code", { class: "block" }, `${one.label}: ${shortType(one.type)}`)) : ""],
      ["made by", passLink(makerOf(node.row))],
      ["fusion", node.kind === "call" ? node.fusion.toLowerCase().replaceAll("_", " ") : ""],
    ])),
    heldParts(fn, number, module),
    layoutParts([node]),
    weightParts([node]),
    group && kernelSummary(group.kernel, runOfGroup(group), group.name),
    why(node.spans, node.name),
  ];
}

function passLink(pass) {
  return pass === undefined ? "" : el("button", { type: "button", class: "link", click: () => tell("go", "passes", pass) }, doc.passes[pass].name);
}

function groupParts({ fn, number }) {
  const group = fn.groups[number];
  const spans = doc.spans[group.span];
  const calls = fn.nodes.map((_, n) => nodeOf(fn, n)).filter((node) => node.group === number);
  return [
    el("h2", {}, roleOf(group.kernel) || clip(group.name, 60)),
    origin(spans),
    section("Calls of the group", el("ol", { class: "operands" }, calls.map((node) => el("li", {}, el("code", {}, `${node.name}: ${shortType(node.type)}`))))),
    kernelSummary(group.kernel, runOfGroup(group), group.name),
    layoutParts(calls),
    weightParts(calls),
    why(spans),
  ];
}

/** The branches and bodies of a call, which are entered. */
function heldParts(fn, number, module) {
  const held = heldOf(fn, number);
  if (!held.length) return null;
  return section("Decided as the model runs", held.map(([n, inside]) => el("button", { type: "button", class: "link block", click: () => tell("go", "graph", { function: n, module: module === doc.last ? undefined : module }) },
    `${inside.name}: ${plural(callsIn(inside), "call")}${inside.groups.length ? `, ${plural(inside.groups.length, "group")}` : ""} →`)));
}

/** The blocks that nodes' results lie in. */
function layoutParts(nodes) {
  const found = new Map(nodes.flatMap((node) => blockedIn(node.attributes).filter((layout) => node.attributes.includes(`out_layout="${layout}"`) || node.attributes.includes(`dst_layout="${layout}"`)).map((layout) => [layout, node])));
  return found.size ? section("Layout of the result", [...found].map(([layout, node]) => layoutPicture(layout, sizesOf(layout, node.type)))) : null;
}

/** The weights that nodes read: how their numbers are spread, and the first of them. */
function weightParts(nodes) {
  const found = new Map(nodes.flatMap((node) => node.constants).filter(([, , , content]) => doc.weights[content]?.size).map((one) => [one[3], one]));
  if (!found.size) return null;
  return section(plural(found.size, "weight"), [...found.values()].map(([label, type, , content]) => {
    const { low, high, mean, zeros, odd, counts, first, size, looked_at: looked } = doc.weights[content];
    const number = (value) => String(Number(value.toPrecision(4)));
    const text = `${number(low)} to ${number(high)}, mean ${number(mean)}${zeros ? `, ${share(zeros)} zeros` : ""}${odd ? `, ${share(odd)} not finite` : ""}${looked < size ? `; of ${looked.toLocaleString("en")} numbers of ${size.toLocaleString("en")}` : ""}`;
    return el("div", { class: "weight" }, el("p", {}, el("b", {}, label), el("code", {}, ` ${shortType(type)}`)), histogram(counts, `${label}: ${text}`), el("p", { class: "note" }, text),
      el("p", { class: "note" }, el("code", {}, `${first.join(", ")}${size > first.length ? ", …" : ""}`)));
  }));
}

function histogram(counts, label) {
  const most = Math.max(...counts, 1);
  return svg("svg", { class: "histogram", viewBox: `0 0 ${counts.length * 10} 60`, preserveAspectRatio: "none", role: "img", "aria-label": label },
    counts.map((count, i) => svg("rect", { x: i * 10, width: 9, y: 60 - (60 * count) / most, height: (60 * count) / most })));
}

function scopeParts({ name, fn }) {
  const inside = fn.nodes.map((_, n) => nodeOf(fn, n)).filter((node) => node.kind === "call" && `${scopesAround(node).join("/")}/`.startsWith(`${name}/`));
  const counts = new Map();
  for (const node of inside) counts.set(node.name, (counts.get(node.name) ?? 0) + 1);
  return [el("h2", {}, name), section(plural(inside.length, "call"), facts([...counts].sort((a, b) => b[1] - a[1]).map(([op, count]) => [String(count), op])))];
}

function kernelParts({ symbol, run }) {
  const kernel = kernelOf(symbol);
  if (!kernel) return [el("h2", {}, symbol), el("p", { class: "note" }, "no kernel: it runs in Python, or moves nothing")];
  return [
    el("h2", {}, kernel.role),
    origin(run === undefined ? kernel.nodes : doc.graph[run].spans),
    kernelSummary(symbol, run ?? runsOf(symbol)[0], symbol),
    section("Why these loops", decisionList(kernel.decisions.map(([by, about, taken, reason]) => ({ by, about, taken: Boolean(taken), reason, stage: "" })))),
    kernel.candidates.length ? section("Ways that were weighed", el("ol", { class: "operands" }, kernel.candidates.map(([text, cycles, against], i) =>
      el("li", { class: i === 0 ? "chosen" : "" }, `${text}: ${Math.round(cycles).toLocaleString("en")} cycles${against ? `, but ${against}` : ""}`)))) : null,
    why(kernel.nodes),
  ];
}

function kernelSummary(symbol, run, name) {
  const kernel = kernelOf(symbol);
  if (!kernel) return section("Kernel", el("p", { class: "note" }, `${clip(name, 60)} runs nothing: only the shape is another one`));
  const found = run === undefined ? undefined : measuredOf(run);
  const { floor, predicted, bound } = found ?? kernel;
  const seconds = found?.isReliable ? found.measured : undefined;
  const longest = Math.max(seconds ?? 0, predicted);
  const bar = (label, value, kind) => el("div", { class: "meter-row" }, el("span", {}, label), el("span", { class: "track" }, el("i", { class: kind, style: `width:${(100 * value) / longest}%` })), el("b", {}, time(value)));
  return section("Kernel",
    el("button", { type: "button", class: "link", click: () => tell("go", "kernels", symbol) }, clip(symbol, 54), " →"),
    el("div", { class: "meters" }, bar("floor", floor, "floor"), bar("predicted", predicted, "predicted"), seconds === undefined ? null : bar("measured", seconds, "measured")),
    facts([
      ["template", kernel.template],
      ["work", flop(kernel.flops)],
      ["memory", `${bytes(kernel.bytes)}, ${(kernel.flops / Math.max(kernel.bytes, 1)).toFixed(2)} operations a byte`],
      ["measured", found && measuredText(found)],
      ["speed", seconds ? `${rate(kernel.flops / seconds)}, ${share(kernel.atPeak / seconds)} of peak` : ""],
      ["bound by", el("span", { class: `bound ${bound}` }, bound)],
    ]));
}

function why(spans, operator) {
  const found = decisionsAbout(spans, operator);
  return section(`Rules and passes (${found.length})`, found.length ? decisionList(found) : el("p", { class: "note" }, "nothing was decided about it"));
}

function decisionList(found) {
  const sorted = [...found].sort((a, b) => b.taken - a.taken);
  return el("div", { class: "decided" }, sorted.slice(0, 200).map(({ stage, by, about, taken, reason, pass }) =>
    el("div", { class: `decision ${taken ? "taken" : "declined"}` }, el("b", {}, taken ? "✓" : "✗"),
      el("div", {}, el("p", {}, pass >= 0 ? el("button", { type: "button", class: "link", click: () => tell("go", "passes", pass) }, stage) : stage, stage && by !== stage ? " · " : "", by !== stage ? el("strong", {}, by) : null, el("small", {}, ` ${about}`)), el("p", { class: "reason" }, reason)))));
}
