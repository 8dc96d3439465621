// The page: its views, the search, the address of what is shown.

import { el, on, plural } from "./base.js";
import { besideView, stepBeside } from "./beside.js";
import { kernelsView, searchKernels, stepKernel } from "./kernels.js";
import { memoryView, memoryZoom, rooflineView } from "./charts.js";
import { doc, kernelOf, open } from "./data.js";
import { graphDrawing, graphView, nextFound, searchGraph, turnSelected, walk, walkSideways } from "./graph.js";
import { closeInspector, inspector } from "./inspector.js";
import { helpDialog, listen } from "./keys.js";
import { overviewView } from "./overview.js";
import { nextWay, passesView, stepPass } from "./passes.js";
import { themeButton, toggleTheme } from "./theme.js";
import { threadsView, threadsZoom } from "./threads.js";

const VIEWS = { overview: "Overview", passes: "Passes", graph: "Graph", kernels: "Kernels", roofline: "Roofline", memory: "Memory", threads: "Threads", beside: "Beside" };
const MAKERS = { overview: overviewView, passes: (at) => passesView(at === undefined ? undefined : Number(at)), graph: graphView, kernels: kernelsView, roofline: rooflineView, memory: memoryView, threads: threadsView, beside: besideView };
const views = () => Object.keys(VIEWS).filter((name) => name !== "beside" || doc.beside);

let current = null;
const stage = el("main", {});
const search = el("input", { type: "search", id: "search", placeholder: "search nodes and kernels  /", "aria-label": "search", input: searched, keydown: searchKey });
const found = el("span", { id: "found", role: "status" });
const tabs = el("nav", { role: "tablist", "aria-label": "views" });
const tab = (name, i) => el("button", { type: "button", role: "tab", id: `tab-${name}`, title: `${VIEWS[name]} (${i + 1})`, click: () => go(name) }, VIEWS[name]);

/** Shows a view, at a pass, a kernel or a place in the graph. */
function go(name, at) {
  show(name, at);
  setRoute(at === undefined ? name : typeof at === "object" ? at : `${name}/${at}`);
}

function show(name, at) {
  current = name;
  for (const tab of tabs.children) tab.setAttribute("aria-selected", String(tab.id === `tab-${name}`));
  stage.replaceChildren(MAKERS[name](at));
  stage.firstElementChild.dataset.view = name;
  if (name !== "graph" && name !== "kernels") found.textContent = "";
}

let isApplying = false; // what an address asked for is not a new one
let isStepping = false; // keys go through many: they are one step back

/** The address of what is shown: a text, or by name (`node=layer1.conv`). */
function setRoute(route) {
  if (isApplying) return;
  const given = typeof route === "object" ? Object.entries(route).filter(([, value]) => value !== undefined) : [];
  const text = typeof route === "object" ? new URLSearchParams(given).toString().replaceAll("%2F", "/") : encodeURI(route);
  if (location.hash === `#${text}`) return;
  const isFirst = document.body.dataset.ready === undefined;
  history[isFirst || isStepping ? "replaceState" : "pushState"](null, "", `#${text}`);
}

/** Shows what the address says. */
function follow() {
  isApplying = true;
  closeInspector();
  const hash = location.hash.slice(1);
  const named = Object.fromEntries(new URLSearchParams(hash));
  const [view, ...at] = safely(decodeURI, hash).split("/");
  const place = at.join("/");
  if (["node", "scope", "function"].some((name) => named[name] !== undefined)) show("graph", named);
  else if (view === "kernels" && kernelOf(place)) show("kernels", place);
  else if (view === "passes" && doc.passes[Number(place || NaN)]) show("passes", Number(place));
  else show(views().includes(view) ? view : "overview");
  isApplying = false;
}

function safely(decode, text) {
  try {
    return decode(text);
  } catch {
    return text; // a % that escapes nothing
  }
}

function searched() {
  if (current !== "kernels" && current !== "graph") go("graph");
  const count = current === "kernels" ? searchKernels(search.value) : searchGraph(search.value);
  found.textContent = search.value.trim() ? plural(count, current === "kernels" ? "kernel" : "node") : "";
}

function searchKey(event) {
  if (event.key === "Enter") {
    if (current === "graph") nextFound(event.shiftKey ? -1 : 1);
    else stepKernel(0);
    event.preventDefault();
  } else if (event.key === "Escape") {
    search.value = "";
    searched();
    search.blur();
    event.stopPropagation();
  }
}

function step(by) {
  const steps = { passes: stepPass, kernels: stepKernel, graph: walk, beside: stepBeside, roofline: stepMark, memory: stepMark, threads: stepMark };
  return steps[current] ? stepping(() => steps[current](by)) : false;
}

function stepping(act) {
  isStepping = true;
  act();
  isStepping = false;
  return true;
}

const aside = (by) => (current === "graph" ? stepping(() => walkSideways(by)) : false);

function zoomed(act) {
  const drawing = current === "graph" ? graphDrawing() : null;
  if (!drawing) return false;
  act(drawing);
  return true;
}

/** A key of a chart over time. */
const timed = (key) => ({ memory: memoryZoom, threads: threadsZoom })[current]?.()?.key(key) ?? false;

/** The next mark of a chart has the focus, and all about it is shown. */
function stepMark(by) {
  const marks = [...stage.querySelectorAll("svg [tabindex]")];
  const next = marks[marks.indexOf(document.activeElement) + by] ?? (by > 0 ? marks[0] : marks.at(-1));
  next?.focus();
  next?.dispatchEvent(new MouseEvent("click", { bubbles: true }));
}

function keyActions(help) {
  const numbers = views().map((name, i) => [String(i + 1), () => go(name)]);
  const moves = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] };
  const shifts = Object.entries(moves).map(([key, by]) => [`Shift+${key}`, () => zoomed((drawing) => drawing.shift(...by))]);
  return {
    ...Object.fromEntries([...numbers, ...shifts]),
    "/": () => search.focus(),
    j: () => step(1), k: () => step(-1), ArrowDown: () => step(1), ArrowUp: () => step(-1),
    ArrowLeft: () => aside(-1), ArrowRight: () => aside(1),
    d: () => (current === "passes" ? nextWay() : timed("d")),
    w: () => timed("w"), a: () => timed("a"), s: () => timed("s"),
    "+": () => timed("+") || zoomed((drawing) => drawing.scaleBy(1.3)),
    "-": () => timed("-") || zoomed((drawing) => drawing.scaleBy(1 / 1.3)),
    f: () => timed("f") || zoomed((drawing) => drawing.fit()),
    Enter: () => (current === "graph" && turnSelected() ? true : false),
    t: toggleTheme,
    "?": () => help.showModal(),
    Escape: () => closeInspector(),
  };
}

function title() {
  const kernels = plural(doc.kernels.length, "kernel");
  return el("div", { class: "model" }, el("h1", {}, doc.title), el("span", {}, `${doc.target} · ${plural(doc.threads, "thread")} · ${kernels}${doc.beside ? ` · beside ${doc.beside.names[1]}` : ""}`));
}

/** A part of the page by itself, as in the cell of a notebook. */
function startEmbedded(name) {
  document.body.classList.add("embedded");
  document.body.append(el("div", { id: "frame" }, stage, inspector()));
  on("go", (view, at) => (view === "graph" || view === "passes" ? show(view, at) : null));
  listen(keyActions({ showModal: () => {} }));
  show(name);
  document.body.dataset.ready = "true";
}

async function start() {
  const theme = themeButton();
  await open();
  if (doc.embedded) {
    startEmbedded(doc.embedded);
    return;
  }
  tabs.append(...views().map(tab));
  const help = helpDialog();
  const keys = el("button", { type: "button", class: "icon", title: "keys (?)", "aria-label": "keys", click: () => help.showModal() }, "?");
  document.body.append(el("header", { id: "top" }, el("a", { class: "mark", href: "#overview" }, "minitvm"), title(), tabs, el("div", { class: "finder" }, search, found), theme, keys),
    doc.run?.doubts.length ? el("p", { id: "doubts", role: "status" }, doc.run.doubts.join("; ")) : "",
    el("div", { id: "frame" }, stage, inspector()), help);
  on("go", go);
  on("route", setRoute);
  listen(keyActions(help));
  addEventListener("popstate", follow);
  follow();
  document.body.dataset.ready = "true";
}

start().catch((error) => {
  document.body.append(el("pre", { class: "failed" }, `The page cannot be drawn: ${error.message}`));
  throw error;
});
