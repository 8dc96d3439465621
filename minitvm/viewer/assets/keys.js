// The keyboard, and the page that says what its keys do.

import { el } from "./base.js";

const KEYS = [
  ["1 … 8", "views: overview, passes, graph, kernels, roofline, memory, threads, another build"],
  ["/", "search (Enter: next, Shift+Enter: back)"],
  ["j k  ↓ ↑", "next and previous pass, kernel or mark of a chart; along the graph's edges"],
  ["← →", "graph: the box beside"],
  ["d", "passes: text, drawing, decisions"],
  ["+ − f", "graph, memory, threads: closer, further away, all of it"],
  ["w s a d", "memory, threads: closer, further away, back and on in time"],
  ["← → ↑ ↓", "with Shift: move the graph"],
  ["Enter", "graph: open or close the selected box"],
  ["t", "light or dark"],
  ["Esc", "close what is open"],
  ["?", "this list"],
];

export function helpDialog() {
  return el("dialog", { id: "help", "aria-label": "keys" }, el("h2", {}, "Keys"),
    el("dl", {}, KEYS.map(([keys, text]) => [el("dt", {}, keys.split(" ").filter(Boolean).map((key) => el("kbd", {}, key))), el("dd", {}, text)])),
    el("form", { method: "dialog" }, el("button", { type: "submit" }, "close")));
}

/** `actions` by key; those in a text field are the field's, and in a dialog the dialog's. */
export function listen(actions) {
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const inField = event.target.matches?.("input, select, textarea");
    if (inField && event.key !== "Escape") return;
    if (event.target.matches?.(".scroller, .text, .table") && /^(Arrow|Page|Home|End)/.test(event.key)) return; // it scrolls
    const isButton = event.target.matches?.("button, summary") && (event.key === "Enter" || event.key === " ");
    const action = actions[event.shiftKey && event.key.startsWith("Arrow") ? `Shift+${event.key}` : event.key];
    if (!action || isButton) return;
    if (action(event) !== false) event.preventDefault();
  });
}
