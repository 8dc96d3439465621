// The document: unpacked on demand, and what is looked up in it.

import { share, time } from "./base.js";

/** What stands in the file under a name, unpacked. */
export async function chunk(name) {
  const packed = document.getElementById(`data-${name}`).textContent;
  const bytesOf = Uint8Array.from(atob(packed.trim()), (c) => c.charCodeAt(0));
  const stream = new Blob([bytesOf]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

export const doc = {};
const codes = new Map();
const kernelsBySymbol = new Map();
const decisionsBySpan = new Map();
const measuredByNode = new Map();
const nodesByKernel = new Map();

export async function open() {
  Object.assign(doc, await chunk("main"));
  for (const kernel of doc.kernels) kernelsBySymbol.set(kernel.symbol, kernel);
  doc.passes.forEach((pass, number) => pass.decisions.forEach((decision) => remember(pass.name, number, decision)));
  for (const decision of doc.placement) remember("placement", -1, decision);
  for (const [node, form, predicted, floor, bound, , seconds] of doc.run?.kernels ?? []) {
    measuredByNode.set(node, { ...form, measured: form.seconds, seconds, predicted, floor, bound, isReliable: form.verdict === "reliable" });
  }
  doc.graph.forEach((node, number) => {
    if (node.kind === "kernel") nodesByKernel.set(node.func, [...(nodesByKernel.get(node.func) ?? []), number]);
  });
  return doc;
}

function remember(stage, pass, [by, about, taken, reason, spans]) {
  const decision = { stage, pass, by, about, taken: Boolean(taken), reason };
  for (const key of keysOf(spans, about)) {
    if (!decisionsBySpan.has(key)) decisionsBySpan.set(key, []);
    decisionsBySpan.get(key).push(decision);
  }
}

/** What decisions are found by: the model's nodes; of what comes from none, the operator. */
const keysOf = (spans, operator) => (spans.length ? spans : [`\n${operator}`]);

/** A kernel's listings by kind of back end. */
export async function codeOf(symbol) {
  if (!codes.has(symbol)) codes.set(symbol, chunk(`code-${doc.code.indexOf(symbol)}`));
  return codes.get(symbol);
}

export const kernelOf = (symbol) => kernelsBySymbol.get(symbol);
/** What a kernel is for. */
export const roleOf = (symbol) => kernelsBySymbol.get(symbol)?.role ?? "";
export const measuredOf = (node) => measuredByNode.get(node);
export const runsOf = (symbol) => nodesByKernel.get(symbol) ?? [];

/** The seconds of all runs of a kernel together, predicted where measurements are unreliable; undefined where none was made. */
export function secondsOf(symbol) {
  const found = runsOf(symbol).map(measuredOf).filter(Boolean);
  return found.length ? found.reduce((sum, one) => sum + one.seconds, 0) : undefined;
}

export const isReliable = (symbol) => runsOf(symbol).every((node) => measuredOf(node)?.isReliable ?? true);

/** Seconds as text; "~" stands before what is predicted, because the measurement is unreliable. */
export const timeOf = (seconds, reliable) => `${reliable ? "" : "~"}${time(seconds)}`;

/** A measurement in words: why it is not believed, and what is known instead. */
export const measuredText = (found) => found.isReliable ? `${time(found.measured)}, the median of ${found.runs}, spread ${share(found.spread)}`
  : `unreliable (${found.verdict}); ~${time(found.seconds)} is predicted`;

/** What was decided about any of the model's nodes, or an operator that comes from none. */
export function decisionsAbout(spans, operator = "") {
  const found = keysOf(spans, operator).flatMap((key) => decisionsBySpan.get(key) ?? []);
  return [...new Set(found)].sort((a, b) => a.pass - b.pass);
}

let makers = null;

/** The number of the pass that made a row, whatever constants it is over now; undefined where it was imported. */
export function makerOf(row) {
  if (makers === null) {
    makers = new Map(rowsIn(doc.passes[0]?.modules[0] ?? doc.last).map((known) => [known, undefined]));
    doc.passes.forEach(({ modules: [, after] }, pass) => {
      for (const made of rowsIn(after)) if (!makers.has(made)) makers.set(made, pass);
    });
  }
  return makers.get(doc.rows[row].join("\n"));
}

const rowsIn = (module) => doc.modules[module].flatMap((fn) => fn.nodes.map(([row]) => doc.rows[row].join("\n")));

const labels = new Map();

/** The nodes' names as in the module's text: variables by name, all others by number. */
function labelsOf(fn) {
  if (!labels.has(fn)) {
    let bound = 0;
    labels.set(fn, fn.nodes.map(([row]) => `%${doc.rows[row][0] === "var" ? doc.rows[row][1] : bound++}`));
  }
  return labels.get(fn);
}

/** One node of a function's table. `inputs`: the numbers of nodes; `operands`: as text. */
export function nodeOf(fn, number) {
  const [row, inputs, group] = fn.nodes[number];
  const [kind, name, attributes, type, span, fusion] = doc.rows[row];
  return {
    fn, number, row, kind, name, attributes, type, fusion, group,
    label: labelsOf(fn)[number],
    spans: doc.spans[span],
    inputs: inputs.filter((input) => !isConstant(input)).map((input) => parseInt(input, 10)),
    operands: inputs.map((input) => operandText(fn, input)),
    constants: inputs.filter(isConstant).map((input) => doc.constants[Number(input.slice(1))]),
  };
}

export const isConstant = (input) => typeof input === "string" && input.startsWith("c");

function operandText(fn, input) {
  if (!isConstant(input)) return String(input).replace(/^\d+/, (number) => labelsOf(fn)[number]);
  const [name, type, value] = doc.constants[Number(input.slice(1))];
  return value || `${name || "const"}: ${shortType(type)}`;
}

export function nodeText(node) {
  if (node.kind === "var") return `%${node.name}`;
  const inside = [...node.operands, ...(node.attributes ? [node.attributes] : [])].join(", ");
  return node.kind === "tuple" ? `(${inside})` : `${node.name}(${inside})`;
}

/** The functions that a node holds, branches and bodies, as [number in the module, function]. */
export function heldOf(fn, number) {
  const functions = doc.modules.find((module) => module.includes(fn)) ?? [];
  return functions.flatMap((held, n) => (held.of && functions[held.of[0]] === fn && held.of[1] === number ? [[n, held]] : []));
}

export const callsIn = (fn) => fn.nodes.filter(([row]) => doc.rows[row][0] === "call").length;

/** The name of a node's place in the model, and of what is around it. */
const separator = () => {
  const names = doc.spans.flat();
  const having = (mark) => names.filter((name) => name.includes(mark)).length;
  return names.length === 0 ? null : having("/") > names.length / 4 ? "/" : having(".") > names.length / 2 ? "." : null;
};

let mark;

export function scopeOf(spans) {
  if (mark === undefined) mark = separator();
  if (mark === null || spans.length === 0) return [];
  return spans[0].split(mark).filter(Boolean).slice(0, -1);
}

export const hasScopes = () => doc.spans.some((spans) => scopeOf(spans).length > 0);

/** A type's shape in few characters. */
export const shortType = (type) => type.replace(/Tensor\[\((.*?),?\), (\w+)\]/g, "$2[$1]").replace(/,\]/g, "]").replace(/\s+/g, " ");

/** The executed node of each group of the last module: groups and calls run in the order of the table. */
export function runOfGroup(group) {
  return runsOf(group.kernel).find((number) => sameSpans(doc.graph[number].spans, doc.spans[group.span])) ?? runsOf(group.kernel)[0];
}

const sameSpans = (one, other) => one.length === other.length && one.every((name, i) => name === other[i]);
