// What a pass gained: launches if every call or group is a kernel, and the bytes that these read and write.

import { bytes, el, plural, share } from "./base.js";
import { doc, isConstant, nodeOf } from "./data.js";

const WIDTHS = { bool: 1, bfloat: 2 };

/** The bytes of a type's tensors; an open dimension counts as 1. */
export function bytesOfType(type) {
  return [...type.matchAll(/Tensor\[\(([^)]*)\), ([a-z]+)(\d*)\]/g)].reduce((sum, [, shape, kind, bits]) => {
    const count = shape.split(",").filter((size) => size.trim()).reduce((product, size) => product * (Number(size) || 1), 1);
    return sum + count * (WIDTHS[kind] ?? Math.ceil((Number(bits) || 8) / 8));
  }, 0);
}

const operandsOf = (fn, number) => fn.nodes[number][1];
const typeOf = (fn, input) => (isConstant(input) ? doc.constants[input.slice(1)][1] : doc.rows[fn.nodes[parseInt(input, 10)][0]][3]);

const readers = new Map();

/** By node of a function, the nodes that read it; found once. */
function readersOf(fn) {
  if (!readers.has(fn)) {
    const found = fn.nodes.map(() => []);
    fn.nodes.forEach(([, inputs], number) => inputs.filter((input) => !isConstant(input)).forEach((input) => found[parseInt(input, 10)].push(number)));
    readers.set(fn, found);
  }
  return readers.get(fn);
}

/** What calls read and write, together, as one kernel: operands from outside once each, and what is used outside. */
export function trafficOf(fn, numbers) {
  const inside = new Set(numbers);
  const read = new Set(numbers.flatMap((number) => operandsOf(fn, number)).filter((input) => isConstant(input) || !inside.has(parseInt(input, 10))));
  const results = numbers.filter((number) => parseInt(fn.result, 10) === number || readersOf(fn)[number].some((reader) => !inside.has(reader)));
  const written = results.length ? results : numbers.slice(-1);
  return [...read].reduce((sum, input) => sum + bytesOfType(typeOf(fn, input)), 0) + written.reduce((sum, number) => sum + bytesOfType(doc.rows[fn.nodes[number][0]][3]), 0);
}

/** A function's calls as kernels: each by itself, groups together. */
const kernelsIn = (fn) => {
  const alone = fn.nodes.flatMap(([row, , group], number) => (group < 0 && doc.rows[row][0] === "call" ? [[number]] : []));
  const groups = fn.groups.map(() => []);
  fn.nodes.forEach(([, , group], number) => group >= 0 && groups[group].push(number));
  return [...alone, ...groups.filter((numbers) => numbers.length)];
};

const figures = new Map();

function figuresOf(module) {
  if (!figures.has(module)) {
    const each = doc.modules[module].map((fn) => kernelsIn(fn).map((numbers) => trafficOf(fn, numbers)));
    figures.set(module, [each.reduce((sum, found) => sum + found.length, 0), each.flat().reduce((sum, count) => sum + count, 0)]);
  }
  return figures.get(module);
}

const difference = (before, after) => (before === after ? "" : el("span", { class: `delta ${after < before ? "less" : "more"}` }, ` ${after < before ? "−" : "+"}${share(Math.abs(after - before) / Math.max(before, 1))}`));

/** What a pass gained, in words with figures. */
export function gainText(pass) {
  const [[launches, moved], [launchesAfter, movedAfter]] = pass.modules.map(figuresOf);
  const fired = new Map();
  for (const [by, , taken] of pass.decisions) if (taken) fired.set(by, (fired.get(by) ?? 0) + 1);
  const rules = [...fired].sort((a, b) => b[1] - a[1]);
  return el("dl", { class: "gain" },
    el("dt", {}, "kernels, if each call or group is one"), el("dd", {}, `${launches.toLocaleString("en")} → ${launchesAfter.toLocaleString("en")}`, difference(launches, launchesAfter)),
    el("dt", {}, "which read and write"), el("dd", {}, `${bytes(moved)} → ${bytes(movedAfter)}`, difference(moved, movedAfter)),
    rules.length ? [el("dt", {}, "done"), el("dd", {}, rules.map(([rule, times]) => `${rule} × ${times}`).join(", "))] : null);
}

/** Of a group: kernels and bytes of its calls one by one, and together. */
export function groupGain(fn, group) {
  const numbers = fn.nodes.flatMap((node, number) => (node[2] === group && nodeOf(fn, number).kind === "call" ? [number] : []));
  if (numbers.length < 2) return null;
  const apart = numbers.reduce((sum, number) => sum + trafficOf(fn, [number]), 0);
  const together = trafficOf(fn, numbers);
  return el("span", { class: "gained" }, `${plural(numbers.length, "kernel")} → 1, ${bytes(apart)} → ${bytes(together)}`, difference(apart, together));
}
