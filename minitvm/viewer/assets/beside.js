// Another build beside this one: what both come to, kernels that changed with their code, and passes that did something else.

import { bytes, el, empty, plural, share, spansText, tell, time } from "./base.js";
import { codeOf, chunk, doc } from "./data.js";

const UNITS = { text: (value) => value, count: (value) => value.toLocaleString("en"), bytes, time };
const AROUND = 3; // equal lines that stand around those that differ
const MOST_LINES = 4_000;
const state = { row: 0, language: "loops" };
let others = null;
let under = null;
let rows = [];

export function besideView() {
  const { names, facts, kernels, alike, passes, measured } = doc.beside;
  const section = (title, ...children) => el("section", {}, el("h2", {}, title), children);
  under = el("div", { class: "under" });
  const changed = `${plural(kernels.length, "place")} of the model with other kernels`;
  const same = alike[0] ? `${plural(alike[0], "launch")} alike: ${time(alike[1])} and ${time(alike[2])}, ${measured ? "measured" : "predicted"}.` : "None is alike.";
  const view = el("section", { class: "view beside", "aria-label": "two builds" },
    el("div", { class: "compared" },
      section("Two builds", table(["", "this build", names[1]], facts.map(([name, unit, ...two]) => factRow(name, unit, two)), "figures")),
      section(changed, el("p", { class: "note" }, `${same}${kernels.length ? " Of times and bytes, this build's stand above the other's. A click shows what differs in the code." : ""}`), kernels.length ? kernelTable(kernels) : null),
      section(`${plural(passes.length, "pass")} that did something else`, passes.length ? passTable(passes) : null)), under);
  if (kernels.length) choose(Math.min(state.row, kernels.length - 1));
  else under.append(empty("All kernels are alike."));
  return view;
}

const table = (heads, body, label) => el("div", { class: "table", role: "region", "aria-label": label, tabindex: "0" },
  el("table", {}, el("thead", {}, el("tr", {}, heads.map((head) => (head ? el("th", { scope: "col" }, head) : el("td", {}))))), el("tbody", {}, body)));

/** How much less or more this build takes than the other. */
function change([here, there]) {
  if (!(there > 0) || Math.abs(1 - here / there) < 0.0005) return "";
  return el("span", { class: `delta ${here < there ? "less" : "more"}` }, `${here < there ? "−" : "+"}${share(Math.abs(1 - here / there))}`);
}

function factRow(name, unit, two) {
  const isAlike = two[0] === two[1];
  return el("tr", { class: isAlike ? "alike" : "" }, el("th", { scope: "row" }, name), two.map((value, side) =>
    el("td", {}, UNITS[unit](value), side === 0 && unit !== "text" && !isAlike && two[1] > 0 ? [" ", change(two)] : null)));
}

// --- kernels --------------------------------------------------------------------------------------------------------

const ordered = (kernels) => [...kernels].sort((a, b) => Math.abs(b.seconds[1] - b.seconds[0]) - Math.abs(a.seconds[1] - a.seconds[0]));

function kernelTable(kernels) {
  rows = ordered(kernels).map((row, number) => el("tr", { "data-kernel": number, "aria-selected": "false", click: () => choose(number) },
    el("td", { title: row.spans.join("\n") }, el("button", { type: "button", class: "link" }, spansText(row.spans, 34) || "made by the compiler")),
    row.sides.map((side) => el("td", {}, side.length ? side.map(([, role]) => el("span", { class: "block" }, role)) : "-")),
    [["seconds", time], ["bytes", bytes]].map(([what, text]) => el("td", { class: "figure" }, row[what].map((value, side) => el("span", { class: "block" }, `${what === "seconds" && !row.sure[side] ? "~" : ""}${text(value)}`)), change(row[what])))));
  return table(["nodes of the model", "this build", doc.beside.names[1], "time", "bytes"], rows, "kernels that changed");
}

async function choose(number) {
  state.row = number;
  rows.forEach((row, n) => row.setAttribute("aria-selected", String(n === number)));
  const row = ordered(doc.beside.kernels)[number];
  others ??= await chunk("beside");
  const sides = await Promise.all([Promise.all(row.sides[0].map(([symbol]) => ownCode(symbol))), row.sides[1].map(([symbol]) => others[symbol])]);
  const found = sides.map((side) => side.flat().filter((listing) => listing?.lines));
  const languages = [...new Set(found.flat().map(({ language }) => language))];
  if (!languages.includes(state.language)) [state.language] = languages;
  const head = el("header", { class: "bar" }, el("h2", {}, spansText(row.spans, 60) || "made by the compiler"),
    el("div", { class: "segmented", role: "radiogroup", "aria-label": "code" }, languages.map((language) => el("button", {
      type: "button", role: "radio", "aria-checked": String(language === state.language), click: () => { state.language = language; choose(number); },
    }, language))),
    row.sides[0].length ? el("button", { type: "button", class: "link", click: () => tell("go", "kernels", row.sides[0][0][0]) }, "in this build →") : null);
  const lines = found.map((side) => side.filter(({ language }) => language === state.language).flatMap((listing) => listing.lines).slice(0, MOST_LINES));
  if (state.row === number) under.replaceChildren(head, languages.length ? difference(...lines) : empty("There is no code of either."));
}

const ownCode = async (symbol) => (doc.code.includes(symbol) ? Object.values(await codeOf(symbol))[0] : []);

/** Two texts beside each other, without what is equal but for a few lines around. */
function difference(here, there) {
  const parts = vendor.diffArrays(here, there);
  const shown = [];
  parts.forEach(({ value, added, removed }, i) => {
    if (added && parts[i - 1]?.removed) return; // stands beside what it replaces
    const other = removed && parts[i + 1]?.added ? parts[i + 1].value : [];
    if (removed) shown.push(pairOf(value, other));
    else if (added) shown.push(pairOf([], value));
    else shown.push(equalLines(value, i === 0, i === parts.length - 1));
  });
  return el("div", { class: "text", role: "region", "aria-label": "code that differs", tabindex: "0" }, el("div", { class: "sides" }, el("span", {}, "this build"), el("span", {}, doc.beside.names[1])), el("div", { class: "hunk" }, shown));
}

const linesOf = (lines, kind) => el("div", { class: lines.length ? kind : "none" }, lines.map((line) => el("code", {}, line)));
const pairOf = (here, there) => el("div", { class: "pair" }, linesOf(here, "come"), linesOf(there, "gone"));

function equalLines(lines, isFirst, isLast) {
  const [before, after] = [isFirst ? 0 : AROUND, isLast ? 0 : AROUND];
  if (lines.length <= before + after + 1) return el("div", { class: "pair" }, linesOf(lines, ""), linesOf(lines, ""));
  const pair = (some) => (some.length ? el("div", { class: "pair" }, linesOf(some, ""), linesOf(some, "")) : null);
  return [pair(lines.slice(0, before)), el("p", { class: "origin" }, plural(lines.length - before - after, "equal line")), pair(after ? lines.slice(-after) : [])];
}

export function stepBeside(step) {
  const next = rows[state.row + step];
  next?.scrollIntoView({ block: "nearest" });
  if (next) choose(state.row + step);
}

// --- passes ---------------------------------------------------------------------------------------------------------

function passTable(passes) {
  return table(["pass", "this build", doc.beside.names[1]], passes.map(({ name, numbers, done }) => el("tr", {},
    el("th", { scope: "row" }, numbers[0] === null ? name : el("button", { type: "button", class: "link", click: () => tell("go", "passes", numbers[0]) }, name)),
    done.map((one, side) => el("td", { class: "roles" }, one ? doneText(one) : "did not run")))), "passes");
}

function doneText({ changed, more, fired, declined }) {
  const calls = changed ? `${more > 0 ? "+" : more < 0 ? "−" : "±"}${Math.abs(more)} calls` : "changed nothing";
  const rules = fired.map(([rule, times]) => `${rule} × ${times}`).join(", ");
  return [calls, rules, declined ? `declined ${declined} times` : ""].filter(Boolean).join("; ");
}
