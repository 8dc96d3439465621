// The graph after any pass: calls, kernels or scopes as boxes.

import { clip, el, empty, plural, segmented, tell } from "./base.js";
import { doc, hasScopes, nodeOf } from "./data.js";
import { Drawing } from "./drawing.js";
import { shapesOf } from "./shapes.js";

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
  seen.set(doc.last, "after all passes");
  return el("select", { id: "module", title: "which module", change: (event) => choose(Number(event.target.value), 0) },
    [...seen].map(([number, text]) => el("option", { value: number, selected: number === state.module }, text)));
}

function functionChoice() {
  const functions = doc.modules[state.module];
  if (functions.length < 2) return null;
  return el("select", { title: "which function", change: (event) => choose(state.module, Number(event.target.value)) },
    functions.map((fn, n) => el("option", { value: n, selected: n === state.fn }, clip(fn.name, 40))));
}

function choose(module, fn) {
  Object.assign(state, { module, fn, turned: new Set() });
  if (currentFunction().groups.length === 0 && state.mode === "kernels") state.mode = "calls";
  render();
}

let host = null;

export function graphView() {
  host = el("section", { class: "view graph", "aria-label": "graph" });
  choose(state.module ?? doc.last, state.fn);
  return host;
}

function render() {
  const fn = currentFunction();
  drawing = new Drawing({ label: "the graph", onSelect: selected, onOpen: turn });
  const modes = [["calls", "Calls", "every call, groups as boxes"], ["kernels", "Kernels", "a box for each kernel"]];
  if (hasScopes()) modes.push(["scopes", "Scopes", "by the names in the model"]);
  note = el("span", { class: "note" });
  const bar = el("div", { class: "bar" }, moduleChoice(), functionChoice(),
    segmented("boxes", modes, state.mode, (mode) => {
      Object.assign(state, { mode, turned: new Set() });
      draw();
    }), note, legend());
  drawing.element.append(drawing.buttons());
  host.replaceChildren(bar, fn.nodes.length ? drawing.element : empty("this function computes nothing"));
  requestAnimationFrame(() => draw());
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
  if (id.startsWith("n:")) return;
  if (!state.turned.delete(id)) state.turned.add(id);
  await draw(true);
  drawing.reveal(id, drawing.transform.k);
}

function selected(id) {
  drawing.select(id);
  const fn = currentFunction();
  if (id.startsWith("n:")) tell("select", { kind: "node", fn, number: Number(id.slice(2)), module: state.module });
  else if (id.startsWith("g:")) tell("select", { kind: "group", fn, number: Number(id.slice(2)), module: state.module });
  else tell("select", { kind: "scope", name: id.slice(2), fn });
  state.selected = id;
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

