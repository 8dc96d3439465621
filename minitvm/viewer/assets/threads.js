// What threads did when, in one run.

import { el, empty, plural, share, svg, time, tipped } from "./base.js";
import { HUES, saves, selectRun } from "./charts.js";
import { doc, measuredOf, measuredText, roleOf, timeOf } from "./data.js";
import { cutApart } from "./labels.js";
import { Zoomed } from "./zoomed.js";

const WIDTH = 1100;
let zoomed = null;
export const threadsZoom = () => zoomed;

export function threadsView() {
  if (!doc.run?.slices?.length) return el("section", { class: "view chart" }, empty("The model was not run: minitvm view without --no-run measures it."));
  const run = doc.run;
  const ends = Math.max(run.seconds, ...run.slices.map(([, , , end]) => end));
  const lanes = el("div", { class: "lanes" });
  const waits = waiting(run.slices, run.threads);
  zoomed = new Zoomed(lanes, [0, ends], [10, WIDTH - 10], (span) => lanes.replaceChildren(drawnLanes(run, waits, span)));
  zoomed.draw();
  return el("section", { class: "view chart threads", "aria-label": "threads" },
    el("header", { class: "bar" }, el("h2", {}, "Threads"), el("span", { class: "fact" }, "a run", el("b", {}, timeOf(run.seconds, run.measured.verdict === "reliable"))), el("span", { class: "fact" }, "threads", el("b", {}, String(run.threads))),
      (run.idle ?? []).map((part, thread) => el("span", { class: "fact" }, `thread ${thread} waits`, el("b", {}, share(part)))), saves(".lanes")),
    lanes, el("p", { class: "note" }, `A median run: each kernel on each thread; thin bars are waiting. Wheel, W and S: closer and further away; drag, A and D: along the run; J and K: from kernel to kernel. ${(run.notes ?? []).join("; ")}.`), slowest(run));
}

const HIGH = 46;
const laneOf = (thread) => 30 + thread * (HIGH + 10);

function drawnLanes({ slices, threads: count }, waits, [from, to]) {
  const x = (seconds) => 10 + ((seconds - from) / (to - from)) * (WIDTH - 20);
  const isSeen = (start, end) => end >= from && start <= to;
  const order = [...new Set(slices.map(([, node]) => doc.graph[node].func))];
  const seen = slices.filter(([, , start, end]) => isSeen(start, end));
  const roomy = seen.filter(([, , start, end]) => Math.min(x(end), WIDTH - 10) - Math.max(x(start), 10) > 46);
  const roomOf = ([, , start, end]) => Math.floor((Math.min(x(end), WIDTH - 10) - Math.max(x(start), 10) - 8) / 6.4);
  const labels = cutApart(roomy.map((slice) => [roleOf(doc.graph[slice[1]].func) || doc.graph[slice[1]].name, roomOf(slice)]));
  const texts = roomy.map(([thread, , start], i) => svg("text", { class: "value-label", x: Math.max(x(start), 10) + 5, y: laneOf(thread) + 27 }, labels[i]));
  const bars = waits.filter(([, start, end]) => isSeen(start, end) && x(end) - x(start) > 0.5).map(([thread, start, end]) =>
    tipped(svg("rect", { class: "wait", x: x(start), y: laneOf(thread) + HIGH / 2 - 4, width: x(end) - x(start), height: 8 }), `thread ${thread} waits ${time(end - start)}`));
  const height = 40 + count * (HIGH + 10);
  return svg("svg", { width: "100%", viewBox: `0 0 ${WIDTH} ${height}`, role: "group", "aria-label": "threads" },
    svg("defs", {}, svg("clipPath", { id: "lanes" }, svg("rect", { x: 10, y: 0, width: WIDTH - 20, height }))),
    ticks(from, to, x, height), svg("g", { "clip-path": "url(#lanes)" }, bars, seen.map((slice) => sliceRect(slice, order, x)), texts));
}

function sliceRect([thread, node, start, end], order, x) {
  const { name, func, spans } = doc.graph[node];
  const found = measuredOf(node);
  const isOpen = found && !found.isReliable;
  const choose = () => selectRun(node);
  const box = svg("rect", {
    class: `slice part-${order.indexOf(func) % HUES} ${isOpen ? "unreliable" : ""}`, x: x(start), y: laneOf(thread), width: Math.max(0.8, x(end) - x(start) - 0.4), height: HIGH, rx: 2,
    tabindex: "0", role: "button", "aria-label": `${roleOf(func) || name}, thread ${thread}`, click: choose, keydown: (event) => event.key === "Enter" && choose(),
  });
  return tipped(box, `${spans.join(", ") || name}\n${isOpen ? `${measuredText(found)}; in this run ` : ""}${time(end - start)} from ${time(start)} on, thread ${thread}`);
}

function ticks(from, to, x, height) {
  const step = roundStep((to - from) / 8);
  const first = Math.ceil(from / step);
  return Array.from({ length: Math.floor(to / step) - first + 1 }, (_, i) => (first + i) * step).map((seconds) => [
    svg("line", { class: "grid", x1: x(seconds), x2: x(seconds), y1: 18, y2: height - 6 }),
    svg("text", { class: "tick", x: x(seconds), y: 12, "text-anchor": seconds ? "middle" : "start" }, seconds ? time(seconds) : "0")]);
}

/** [thread, start, end] of what lies between a thread's kernels, and before and behind them, as long as any runs. */
function waiting(slices, count) {
  const last = Math.max(...slices.map(([, , , end]) => end));
  return Array.from({ length: count }, (_, thread) => {
    const own = [...slices.filter(([of]) => of === thread).map(([, , start, end]) => [start, end]), [last, last]].sort((a, b) => a[0] - b[0]);
    const ends = own.map(([, end]) => end);
    return own.map(([start], i) => [thread, i ? ends[i - 1] : 0, start]).filter(([, from, to]) => to > from);
  }).flat();
}

/** The next 1, 2 or 5 times a power of ten. */
function roundStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((digit) => digit * power).find((step) => step >= least);
}

function slowest({ kernels }) {
  const found = [...kernels].map(([node]) => [node, measuredOf(node)]).sort((a, b) => b[1].seconds - a[1].seconds).slice(0, 12);
  const all = kernels.reduce((sum, kernel) => sum + kernel.at(-1), 0);
  const most = found[0]?.[1].seconds;
  const names = cutApart(found.map(([node]) => [roleOf(doc.graph[node].func) || doc.graph[node].name, 40]));
  return el("div", { class: "slowest" }, el("h3", {}, `The longest of ${plural(kernels.length, "kernel")}`), found.map(([node, { seconds, predicted, bound, isReliable }], i) =>
    el("button", { type: "button", class: "bar-row", click: () => selectRun(node) },
      el("span", { title: doc.graph[node].spans.join("\n") }, names[i]), el("span", { class: "track" }, el("i", { style: `width:${(100 * seconds) / most}%` }), el("u", { style: `left:${Math.min(100, (100 * predicted) / most)}%`, title: "predicted" })),
      el("b", {}, timeOf(seconds, isReliable)), el("small", {}, share(seconds / all)), el("small", { class: `bound ${bound}` }, bound))));
}
