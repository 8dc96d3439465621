// The passes in order, and what the chosen one changed: as text and as drawings, side by side.

import { clip, el, empty, plural, segmented, tell, time } from "./base.js";
import { doc, nodeText, shortType } from "./data.js";
import { changesOf, wordsApart } from "./differ.js";
import { Drawing } from "./drawing.js";
import { blockedIn, layoutPicture, sizesOf } from "./blocks.js";
import { gainText, groupGain } from "./gains.js";
import { shapesOf } from "./shapes.js";

const MOST_HUNKS = 60; // written at once; more when asked
const DRAWN = 6; // changes in a drawing
const state = { pass: null, way: "text", only: null, from: 0 };
let panel = null;
let rows = [];

const changed = (pass) => pass.modules[0] !== pass.modules[1];

export function passesView(wanted) {
  const firstChanged = doc.passes.findIndex(changed);
  if (wanted !== undefined && doc.passes[wanted]) state.pass = wanted;
  state.pass ??= Math.max(firstChanged, 0);
  panel = el("div", { class: "change" });
  rows = [];
  const view = el("section", { class: "view passes", "aria-label": "passes" }, el("div", { class: "timeline" }, summary(), timeline()), panel);
  if (doc.passes.length) choosePass(state.pass);
  else panel.append(empty("no pass ran"));
  return view;
}

function summary() {
  const total = Object.values(doc.seconds).reduce((sum, seconds) => sum + seconds, 0);
  const stages = Object.entries(doc.seconds).sort((a, b) => b[1] - a[1]);
  return el("div", { class: "stages" }, el("div", { class: "stack", role: "img", "aria-label": "time by stage" },
    stages.map(([name, seconds], i) => el("i", { class: `part-${i % 8}`, style: `flex-grow:${seconds / total}`, title: `${name}: ${time(seconds)}` }))),
  el("p", {}, stages.slice(0, 6).map(([name, seconds], i) => el("span", { class: `key part-${i % 8}` }, `${name} ${time(seconds)}`))));
}

/** A row for each pass that changed something; runs of others are folded. */
function timeline() {
  const longest = Math.max(...doc.passes.filter((p) => p.depth > 0).map((p) => p.seconds), 1e-9);
  const list = el("ol", { class: "steps" });
  let idle = [];
  const fold = () => {
    if (!idle.length) return;
    const seconds = idle.reduce((sum, n) => sum + doc.passes[n].seconds, 0);
    list.append(el("li", {}, el("details", {}, el("summary", { class: "fold" }, `${plural(idle.length, "pass")} unchanged, ${time(seconds)}`),
      el("ol", { class: "steps" }, idle.map((n) => el("li", {}, row(n, longest)))))));
    idle = [];
  };
  doc.passes.forEach((pass, number) => {
    const isWhole = pass.depth === 0 && doc.passes.some((other) => other.depth > 0);
    if (isWhole) return;
    if (!changed(pass)) idle.push(number);
    else {
      fold();
      list.append(el("li", {}, row(number, longest)));
    }
  });
  fold();
  return list;
}

function row(number, longest) {
  const pass = doc.passes[number];
  const [before, after] = pass.calls;
  const delta = after - before;
  const button = el("button", { type: "button", class: `step ${changed(pass) ? "" : "idle"}`, "data-pass": number, title: pass.name, click: () => choosePass(number) },
    el("span", { class: "name" }, "\u00a0".repeat(2 * Math.max(0, pass.depth - 1)) + pass.name),
    el("span", { class: "calls" }, changed(pass) ? (delta ? `${before} → ${after}` : `${after}`) : ""),
    el("span", { class: `delta ${delta < 0 ? "less" : delta > 0 ? "more" : ""}` }, delta ? `${delta > 0 ? "+" : "−"}${Math.abs(delta)}` : ""),
    el("span", { class: "took" }, time(pass.seconds)),
    el("i", { class: "spent", style: `width:${Math.max(1, (100 * pass.seconds) / longest)}%` }));
  rows.push(button);
  return button;
}

export function choosePass(number) {
  state.pass = number;
  Object.assign(state, { only: null, from: 0 });
  for (const button of rows) button.setAttribute("aria-current", String(Number(button.dataset.pass) === number));
  renderChange();
  tell("route", `passes/${number}`);
}

/** The next row that is shown. */
export function stepPass(step) {
  const shown = rows.filter((button) => button.offsetParent !== null);
  const at = shown.findIndex((button) => Number(button.dataset.pass) === state.pass);
  const next = shown[at + step];
  next?.scrollIntoView({ block: "nearest" });
  if (next) choosePass(Number(next.dataset.pass));
}

export function nextWay() {
  const ways = ["text", "drawing", "decisions"];
  state.way = ways[(ways.indexOf(state.way) + 1) % ways.length];
  renderChange();
}

function renderChange() {
  const pass = doc.passes[state.pass];
  const changes = changed(pass) ? changesOf(pass) : [];
  const ways = [["text", `Text ${changes.length || ""}`], ["drawing", "Drawing"], ["decisions", `Decisions ${pass.decisions.length}`]];
  const head = el("header", { class: "bar" }, el("h2", {}, pass.name),
    el("span", { class: "note" }, changed(pass) ? `${plural(changes.length, "change")} · ${pass.calls[0]} → ${pass.calls[1]} calls · ${time(pass.seconds)}` : `unchanged · ${time(pass.seconds)}`),
    segmented("how", ways, state.way, (way) => {
      state.way = way;
      renderChange();
    }));
  const body = { text: textOf, drawing: drawingsOf, decisions: decisionsOf }[state.way];
  panel.replaceChildren(head, about(pass, changes), body(pass, changes));
}

/** What the pass says of itself, where more is said, and what it gained. */
function about(pass, changes) {
  const [first, ...rest] = (pass.about || "").split(/\n\s*\n/);
  const said = first ? el("p", {}, spoken(first), " ", el("a", { href: `${doc.pages}passes/#:~:text=${pass.name}`, target: "_blank", rel: "noreferrer" }, "its page")) : null;
  const more = rest.length ? el("details", {}, el("summary", {}, "more"), rest.map((text) => el("p", {}, spoken(text)))) : null;
  const layouts = changed(pass) ? madeLayouts(changes) : [];
  return el("div", { class: "about" }, said, more, changed(pass) ? gainText(pass) : null, layouts.map(([layout, sizes]) => layoutPicture(layout, sizes)));
}

/** A docstring's marks as elements. */
const spoken = (text) => text.replace(/\s+/g, " ").replace(/:\w+:`~?([^`]*)`/g, "``$1``").split("``").map((part, i) => (i % 2 ? el("code", {}, part) : part));

/** Layouts with blocks that calls have after a pass and had not before: that of most data, and that of most weights. */
function madeLayouts(changes) {
  const before = new Set(changes.flatMap((change) => change.before.flatMap((node) => blockedIn(node.attributes))));
  const found = new Map();
  for (const node of changes.flatMap((change) => change.after)) {
    for (const layout of blockedIn(node.attributes)) {
      const isResult = node.attributes.includes(`out_layout="${layout}"`) || node.attributes.includes(`dst_layout="${layout}"`);
      if (!before.has(layout) && isResult) found.set(layout, [...(found.get(layout) ?? []), sizesOf(layout, node.type)]);
    }
  }
  const sorted = [...found].sort(([, one], [, other]) => other.length - one.length);
  const isData = ([layout]) => layout.startsWith("N") && layout.includes("C");
  return [sorted.find(isData), sorted.find((one) => !isData(one))].filter(Boolean).map(([layout, [sizes]]) => [layout, sizes]);
}

// --- text -----------------------------------------------------------------------------------------------------------

function textOf(pass, changes) {
  if (!changes.length) return empty("Nothing changed.");
  const list = el("div", { class: "diff" }, el("div", { class: "sides" }, el("span", {}, "before"), el("span", {}, "after")));
  let shown = 0;
  const more = () => {
    for (const change of changes.slice(shown, shown + MOST_HUNKS)) list.append(hunk(change));
    shown += MOST_HUNKS;
    if (shown >= changes.length) return;
    const button = el("button", { type: "button", class: "again", click: () => { button.remove(); more(); } }, `${plural(changes.length - shown, "change")} more`);
    list.append(button);
  };
  more();
  return list;
}

function hunk(change) {
  const title = change.title.length ? change.title.join(", ") : "made by the pass";
  const head = el("button", { type: "button", class: "origin", title: "show it as a drawing", click: () => { state.only = change.title; state.way = "drawing"; renderChange(); } },
    change.group ? el("span", { class: "badge" }, "group") : null, clip(title, 160), change.name === "main" ? "" : ` in ${clip(change.name, 40)}`, change.group ? groupGain(change.fn, change.number) : null);
  return el("div", { class: "hunk" }, head, change.group ? el("div", { class: "grouped" }, change.after.map((node) => lineOf(node, [[nodeText(node), false]], "same"))) : linesOf(change));
}

/** Calls of the same operators, one to one, stand side by side with their words apart; others in two columns. */
function linesOf({ before, after }) {
  const isAligned = before.length === after.length && before.every((node, i) => node.name === after[i].name);
  if (isAligned) return before.map((node, i) => sides(node, after[i]));
  const column = (nodes, kind) => el("div", { class: nodes.length ? kind : "none" }, nodes.map((node) => lineOf(node, [[nodeText(node), false]], kind)));
  return el("div", { class: "pair" }, column(before, "gone"), column(after, "come"));
}

function sides(before, after) {
  const [old, made] = wordsApart(nodeText(before), nodeText(after));
  return el("div", { class: "pair" }, lineOf(before, old, "gone"), lineOf(after, made, "come"));
}

function lineOf(node, pieces, kind) {
  const text = pieces.map(([part, differs]) => (differs ? el("mark", {}, part) : part));
  const choose = () => tell("select", { kind: "node", fn: node.fn, number: node.number });
  return el("code", { class: kind, tabindex: "0", role: "button", click: choose, keydown: (event) => event.key === "Enter" && choose() },
    el("b", {}, `${node.label} = `), text, el("span", { class: "type" }, ` : ${shortType(node.type)}`));
}

// --- drawings -------------------------------------------------------------------------------------------------------

function drawingsOf(pass, changes) {
  if (!changes.length) return empty("Nothing changed.");
  const chosen = state.only ? changes.filter((c) => c.title.some((span) => state.only.includes(span))) : changes.slice(state.from, state.from + DRAWN);
  const name = chosen[0].name;
  const within = chosen.filter((change) => change.name === name);
  const both = el("div", { class: "drawings" });
  for (const [side, module, kind] of [["before", pass.modules[0], "gone"], ["after", pass.modules[1], "come"]]) {
    const fn = doc.modules[module].find((one) => one.name === name);
    both.append(el("figure", {}, el("figcaption", {}, side), fn ? sideDrawing(fn, within.flatMap((c) => c[side]), kind, module) : empty("not there")));
  }
  const again = (text, values) => el("button", { type: "button", class: "again", click: () => { Object.assign(state, values); renderChange(); } }, text);
  const note = state.only
    ? el("p", { class: "note" }, `around ${clip(state.only.join(", "), 100)} `, again("all changes", { only: null }))
    : el("p", { class: "note" }, `changes ${state.from + 1} to ${state.from + within.length} of ${changes.length}, with their neighbours `,
      state.from > 0 ? again("←", { from: state.from - DRAWN }) : null, state.from + DRAWN < changes.length ? again("→", { from: state.from + DRAWN }) : null);
  return el("div", { class: "drawn" }, note, both);
}

/** The changed calls of one side with their neighbours, which are faint. */
function sideDrawing(fn, changedNodes, kind, module) {
  const marked = new Set(changedNodes.map((node) => node.number));
  const near = new Set(marked);
  fn.nodes.forEach(([, inputs], number) => {
    for (const input of inputs.map((i) => parseInt(i, 10)).filter((i) => i >= 0)) {
      if (marked.has(number)) near.add(input);
      if (marked.has(input)) near.add(number);
    }
  });
  const shapes = shapesOf(fn, { only: near, classOf: (node) => (marked.has(node.number) ? kind : "faint") });
  const drawing = new Drawing({
    label: kind === "gone" ? "before" : "after",
    onSelect: (id) => {
      drawing.select(id);
      if (id.startsWith("n:")) tell("select", { kind: "node", fn, number: Number(id.slice(2)), module });
      else tell("select", { kind: "group", fn, number: Number(id.slice(2)), module });
    },
  });
  drawing.element.append(drawing.buttons());
  requestAnimationFrame(() => drawing.show(shapes));
  return drawing.element;
}

// --- decisions ------------------------------------------------------------------------------------------------------

function decisionsOf(pass) {
  if (!pass.decisions.length) return empty("Nothing was decided.");
  const counted = new Map();
  for (const [by, about, taken, reason, spans] of pass.decisions) {
    const key = `${by}\n${about}\n${taken}\n${reason}`;
    if (!counted.has(key)) counted.set(key, { by, about, taken, reason, spans: [] });
    counted.get(key).spans.push(...spans);
  }
  const found = [...counted.values()].sort((a, b) => b.taken - a.taken);
  return el("div", { class: "decided" }, found.slice(0, 400).map(({ by, about, taken, reason, spans }) =>
    el("div", { class: `decision ${taken ? "taken" : "declined"}` }, el("b", {}, taken ? "✓" : "✗"),
      el("div", {}, el("p", {}, el("strong", {}, by), ` ${about} `, el("span", { class: "reason" }, reason)),
        spans.length ? el("p", { class: "spans" }, clip([...new Set(spans)].join(", "), 240)) : null))));
}
