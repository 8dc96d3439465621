// The graph after any pass: calls, kernels or scopes as boxes.

import { clip, el, empty, plural, segmented, tell } from "./base.js";
import { callsIn, doc, hasScopes, heldOf, nodeOf } from "./data.js";
import { Drawing } from "./drawing.js";
import { scopesAround, shapesOf } from "./shapes.js";

const state = { module: null, fn: 0, mode: "kernels", turned: new Set(), found: [], at: 0 };
let drawing = null;
let note = null;

const currentFunction = () => doc.modules[state.module][state.fn];

/** Whether a cluster is one box: by the mode, or the other way round where it was opened or closed by hand. */
function isCollapsed(id) {
  const usual = id.startsWith("g:") ? state.mode !== "calls" : true;
  return usual !== state.turned.has(id);
}

function moduleChoice() {
  const seen = new Map([[doc.passes[0]?.modules[0] ?? doc.last, "as imported"]]);
  doc.passes.forEach((pass, n) => {
    if (pass.modules[0] !== pass.modules[1] && pass.depth <= 1) seen.set(pass.modules[1], `${n + 1}. after ${pass.name}`);
  });
  seen.set(doc.last, seen.has(doc.last) ? "as it is" : "after all passes");
  if (seen.size < 2) return null;
  return el("select", { id: "module", "aria-label": "which module", change: (event) => choose(Number(event.target.value), 0) },
    [...seen].map(([number, text]) => el("option", { value: number, selected: number === state.module }, text)));
}

function functionChoice() {
  const functions = doc.modules[state.module];
  if (functions.length < 2) return null;
  return el("select", { "aria-label": "which function", change: (event) => choose(state.module, Number(event.target.value)) },
    functions.map((fn, n) => el("option", { value: n, selected: n === state.fn }, `${"\u00a0\u00a0".repeat(depthOf(functions, fn))}${clip(fn.name, 40)}: ${plural(callsIn(fn), "call")}`)));
}

const depthOf = (functions, fn) => (fn.of ? 1 + depthOf(functions, functions[fn.of[0]]) : 0);

/** Goes into the first function that a call holds, or from there back to the call. */
function enter(id) {
  const [held] = id.startsWith("n:") ? heldOf(currentFunction(), Number(id.slice(2))) : [];
  if (held) tell("go", "graph", { function: held[0], module: state.module === doc.last ? undefined : state.module });
  return Boolean(held);
}

function outside() {
  const { of } = currentFunction();
  if (!of) return null;
  const [above, number] = of;
  const node = nodeOf(doc.modules[state.module][above], number);
  return el("button", { type: "button", class: "link", click: () => tell("go", "graph", { node: node.spans[0] ?? node.label, function: above || undefined, module: state.module === doc.last ? undefined : state.module, as: "calls" }) }, `← ${node.name}`);
}

function choose(module, fn, at) {
  Object.assign(state, { module, fn, turned: new Set() });
  if (currentFunction().groups.length === 0 && state.mode === "kernels") state.mode = "calls";
  render(at);
}

let host = null;

/** `at`: what an address says ({node, nth, scope, module, function, as}). */
export function graphView(at) {
  host = el("section", { class: "view graph", "aria-label": "graph" });
  if (!at) choose(state.module ?? doc.last, state.fn);
  else {
    const module = doc.modules[at.module] ? Number(at.module) : doc.last;
    const isMode = ["calls", "scopes", "kernels"].includes(at.as);
    state.mode = isMode ? at.as : at.scope === undefined ? "kernels" : "scopes";
    choose(module, doc.modules[module][at.function] ? Number(at.function) : 0, at);
  }
  return host;
}

/** Nodes by the name of an address: one of the model's, a variable's, or a number in the text. */
const named = (fn, name) => fn.nodes.map((_, n) => nodeOf(fn, n)).filter((node) =>
  node.spans.includes(name) || node.label === name || (node.kind === "var" && node.name === name));

const nameOf = (node) => (node.kind === "var" ? node.name : node.spans[0] ?? node.label);

/** The address of a box: what :func:`graphView` takes. */
function addressOf(id) {
  const fn = currentFunction();
  const place = { module: state.module === doc.last ? undefined : state.module, function: state.fn || undefined };
  if (id.startsWith("s:")) return { scope: id.slice(2), ...place };
  const number = Number(id.slice(2));
  const node = id.startsWith("n:") ? nodeOf(fn, number) : fn.nodes.map((_, n) => nodeOf(fn, n)).find((one) => one.group === number);
  const nth = named(fn, nameOf(node)).findIndex((one) => one.number === node.number);
  const isInside = id.startsWith("n:") && node.group >= 0;
  return { node: nameOf(node), nth: nth || undefined, ...place, as: isInside ? "calls" : state.mode === "scopes" ? "scopes" : undefined };
}

/** Selects what an address names; scopes around it are opened. */
async function goToAddress({ node, nth, scope }) {
  if (node === undefined && scope === undefined) return;
  const fn = currentFunction();
  const found = scope === undefined ? named(fn, node)[nth ?? 0] : null;
  if (scope === undefined && !found) {
    note.textContent = `no node is called ${clip(node, 60)}`;
    return;
  }
  const path = scope === undefined ? (state.mode === "scopes" ? scopesAround(found) : []) : scope.split("/").slice(0, -1);
  path.forEach((_, i) => state.turned.add(`s:${path.slice(0, i + 1).join("/")}`));
  if (path.length) await draw();
  const id = found ? state.shownAs.get(found.number) : `s:${scope}`;
  selected(id, true);
  drawing.reveal(id);
}

function render(at) {
  const fn = currentFunction();
  drawing = new Drawing({ label: "the graph", onSelect: selected, onOpen: turn });
  const modes = [["calls", "Calls", "every call, groups as boxes"], ["kernels", "Kernels", "a box for each kernel"]];
  if (hasScopes()) modes.push(["scopes", "Scopes", "by the names in the model"]);
  note = el("span", { class: "note" });
  const bar = el("div", { class: "bar" }, outside(), moduleChoice(), functionChoice(),
    segmented("boxes", modes, state.mode, (mode) => {
      Object.assign(state, { mode, turned: new Set() });
      draw();
    }), note, legend());
  drawing.element.append(drawing.buttons());
  host.replaceChildren(bar, fn.nodes.length ? drawing.element : empty("this function computes nothing"));
  requestAnimationFrame(async () => {
    await draw();
    if (at) await goToAddress(at);
  });
}

const KINDS = [["OUT_ELEMWISE_FUSABLE", "convolution, product"], ["ELEMWISE", "element-wise"], ["BROADCAST", "broadcast"],
  ["INJECTIVE", "movement"], ["COMM_REDUCE", "reduction"], ["OPAQUE", "by itself"]];

const legend = () => el("div", { class: "legend" }, KINDS.map(([kind, text]) => el("span", { class: `key fusion-${kind}` }, text)));

async function draw(keepPlace = false) {
  const fn = currentFunction();
  const shapes = shapesOf(fn, { scopes: state.mode === "scopes", collapsed: isCollapsed });
  state.shownAs = shapes.shownAs;
  const calls = fn.nodes.filter(([row]) => doc.rows[row][0] === "call").length;
  note.textContent = `${plural(calls, "call")}${fn.groups.length ? `, ${plural(fn.groups.length, "group")}` : ""}`;
  if (await drawing.show(shapes, keepPlace)) {
    drawing.element.dataset.drawn = String(shapes.boxes.length);
    highlight();
  }
}

/** Open or close a cluster. */
async function turn(id) {
  if (id.startsWith("n:")) {
    enter(id);
    return;
  }
  if (!state.turned.delete(id)) state.turned.add(id);
  await draw(true);
  drawing.reveal(id, drawing.transform.k);
}

/** `isThere`: the address says so already. */
function selected(id, isThere = false) {
  drawing.select(id);
  const fn = currentFunction();
  if (id.startsWith("n:")) tell("select", { kind: "node", fn, number: Number(id.slice(2)), module: state.module });
  else if (id.startsWith("g:")) tell("select", { kind: "group", fn, number: Number(id.slice(2)), module: state.module });
  else tell("select", { kind: "scope", name: id.slice(2), fn });
  state.selected = id;
  if (!isThere) tell("route", addressOf(id));
}

/** Mark what a search finds; the number of nodes. */
export function searchGraph(text) {
  const wanted = text.trim().toLowerCase();
  const fn = currentFunction();
  const hits = !wanted ? [] : fn.nodes.map((_, n) => nodeOf(fn, n)).filter((node) =>
    [node.name, node.attributes, node.type, ...node.spans, fn.groups[node.group]?.name ?? ""].some((part) => part.toLowerCase().includes(wanted)));
  const ids = hits.map((node) => state.shownAs?.get(node.number)).filter(Boolean);
  Object.assign(state, { found: [...new Set(ids)], at: 0, searching: Boolean(wanted) });
  highlight();
  return hits.length;
}

function highlight() {
  drawing?.found(state.searching ? new Set(state.found) : null);
}

/** Go to the next thing found. */
export function nextFound(step = 1) {
  if (!state.found.length) return;
  const id = state.found[(state.at + state.found.length) % state.found.length];
  state.at = (state.at + step + state.found.length) % state.found.length;
  drawing.reveal(id);
  selected(id);
}

/** From the selected box along its edges: to what it feeds (1) or what feeds it (-1). */
export function walk(step) {
  if (!drawing.layout) return;
  const [first] = [...drawing.shapes.keys()].filter((id) => drawing.layout.boxes[id]);
  const next = (drawing.edges ?? []).find(({ from, to }) => (step > 0 ? from : to) === state.selected);
  const id = next ? (step > 0 ? next.to : next.from) : drawing.layout.boxes[state.selected] ? null : first;
  if (id) goTo(id);
}

/** To the next box on the right (1) or on the left (-1) at the same height. */
export function walkSideways(step) {
  const here = drawing.layout?.boxes[state.selected];
  if (!here) return walk(step);
  const apart = ({ x }) => step * (x - here.x);
  const beside = Object.entries(drawing.layout.boxes).filter(([, box]) => box.y < here.y + here.height && here.y < box.y + box.height && apart(box) > 0);
  const [next] = beside.sort(([, a], [, b]) => apart(a) - apart(b));
  if (next) goTo(next[0]);
  return undefined;
}

function goTo(id) {
  selected(id);
  drawing.reveal(id, drawing.transform.k);
}

export const turnSelected = () => state.selected && turn(state.selected);
export const graphDrawing = () => drawing;

