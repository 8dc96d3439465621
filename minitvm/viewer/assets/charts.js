// Figures as pictures: the roofline, memory over time, and what threads did when.

import { bytes, clip, el, empty, flop, plural, rate, segmented, share, svg, tail, tell, time, tipped } from "./base.js";
import { chartPicture, pictureButtons } from "./picture.js";
import { doc, kernelOf, measuredOf, measuredText, roleOf, timeOf } from "./data.js";

const WIDTH = 1100;
const saves = (box) => pictureButtons(() => chartPicture(document.querySelector(`${box} svg`)));
const HUES = 8;

// --- roofline -------------------------------------------------------------------------------------------------------

export function rooflineView() {
  const points = doc.graph.flatMap((node, number) => pointOf(node, number));
  const note = doc.run ? "measured; hollow circles are predicted, as their measurement is unreliable" : "predicted: the model was not run";
  return el("section", { class: "view chart roofline", "aria-label": "roofline" },
    el("header", { class: "bar" }, el("h2", {}, "Roofline"),
      el("span", { class: "note" }, `${doc.machine} · peak ${rate(doc.rates.flops)} · kernels ${note}; a circle's area is its time`), saves(".plot")),
    points.length ? rooflinePlot(points) : empty("no kernel computes anything"));
}

function pointOf(node, number) {
  const kernel = node.kind === "kernel" ? kernelOf(node.func) : undefined;
  const found = measuredOf(number);
  const seconds = found?.seconds ?? kernel?.predicted;
  if (!kernel?.flops || !kernel.bytes || !(seconds > 0)) return [];
  const done = kernel.atPeak * doc.rates.flops; // of Winograd's algorithm fewer than the convolution has
  return [{ node, number, kernel, seconds, found, predicted: found?.predicted ?? kernel.predicted, bound: found?.bound ?? kernel.bound, x: done / kernel.bytes, y: done / seconds }];
}

function rooflinePlot(points) {
  const [height, left, bottom] = [560, 74, 46];
  const peak = doc.rates.flops;
  const low = (values) => 10 ** Math.floor(Math.log10(Math.min(...values)));
  const high = (values) => 10 ** Math.ceil(Math.log10(Math.max(...values)));
  const xs = [low(points.map((p) => p.x)), Math.max(high(points.map((p) => p.x)), 1000)];
  const ys = [low(points.map((p) => p.y)), high([peak, ...points.map((p) => p.y)])];
  const scale = (value, [from, to], start, stop) => start + ((Math.log10(value) - Math.log10(from)) / (Math.log10(to) - Math.log10(from))) * (stop - start);
  const x = (value) => scale(value, xs, left, WIDTH - 20);
  const y = (value) => scale(value, ys, height - bottom, 16);
  const decades = ([from, to]) => Array.from({ length: Math.round(Math.log10(to / from)) + 1 }, (_, i) => from * 10 ** i);
  const grid = [
    ...decades(xs).flatMap((v) => [svg("line", { class: "grid", x1: x(v), x2: x(v), y1: y(ys[0]), y2: y(ys[1]) }), svg("text", { class: "tick", x: x(v), y: height - bottom + 18, "text-anchor": "middle" }, String(Number(v.toPrecision(1))))]),
    ...decades(ys).flatMap((v) => [svg("line", { class: "grid", x1: x(xs[0]), x2: x(xs[1]), y1: y(v), y2: y(v) }), svg("text", { class: "tick", x: left - 8, y: y(v) + 4, "text-anchor": "end" }, (v / 1e9).toLocaleString("en"))]),
    svg("text", { class: "axis", x: (left + WIDTH) / 2, y: height - 8, "text-anchor": "middle" }, "operations for each byte"),
    svg("text", { class: "axis", transform: `translate(16,${height / 2}) rotate(-90)`, "text-anchor": "middle" }, "GFLOP a second"),
  ];
  const roofs = doc.rates.levels.map(([name, , speed], i) => roof(i, name, speed, peak, xs, ys, x, y));
  const most = Math.max(...points.map((p) => p.seconds));
  const circles = [...points].sort((a, b) => b.seconds - a.seconds).map((p) => rooflinePoint(p, x, y, 4 + 14 * Math.sqrt(p.seconds / most)));
  const top = svg("line", { class: "roof peak", x1: x(peak / doc.rates.levels[0][2]), x2: x(xs[1]), y1: y(peak), y2: y(peak) });
  const label = svg("text", { class: "roof-label", x: x(xs[1]) - 4, y: y(peak) - 6, "text-anchor": "end" }, `peak ${rate(peak)}`);
  return el("div", { class: "plot" }, svg("svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "group", "aria-label": "roofline" }, grid, roofs, top, label, circles));
}

function roof(number, name, speed, peak, xs, ys, x, y) {
  const start = Math.max(xs[0], ys[0] / speed);
  const stop = Math.min(peak / speed, xs[1]);
  const at = Math.min(start * 1.4 * 2.6 ** number, stop); // beside the other roofs' names, not on them
  const angle = (-180 / Math.PI) * Math.atan2(y(start * speed) - y(stop * speed), x(stop) - x(start));
  return [svg("line", { class: "roof", x1: x(start), x2: x(stop), y1: y(start * speed), y2: y(stop * speed) }),
    svg("text", { class: "roof-label", transform: `translate(${x(at)},${y(at * speed) - 5}) rotate(${angle})` }, `${name} ${(speed / 1e9).toFixed(0)} GB/s`)];
}

function rooflinePoint(p, x, y, radius) {
  const text = () => `${p.kernel.role}\n${p.node.spans.join(", ") || p.node.name}\n${p.found ? `${measuredText(p.found)}, ` : ""}predicted ${time(p.predicted)}\n${flop(p.kernel.flops)}, ${bytes(p.kernel.bytes)}\n${rate(p.y)}: ${share(p.y / doc.rates.flops)} of peak, bound by ${p.bound}`;
  const isCertain = (one) => one.found?.isReliable ?? true;
  const choose = () => tell("select", { kind: "kernel", symbol: p.kernel.symbol, run: p.number });
  return tipped(svg("circle", {
    class: `point bound-${p.bound} ${isCertain(p) ? "" : "unreliable"}`, cx: x(p.x), cy: y(p.y), r: radius, tabindex: "0", role: "button", "aria-label": p.kernel.role, click: choose,
    keydown: (event) => event.key === "Enter" && choose(),
  }), text);
}

// --- memory ---------------------------------------------------------------------------------------------------------

export function memoryView() {
  const { memory } = doc;
  const facts = [["arena", memory.nbytes], ["least possible", memory.lower], ["without sharing", memory.naive], ["weights", memory.weights]];
  return el("section", { class: "view chart memory", "aria-label": "memory" },
    el("header", { class: "bar" }, el("h2", {}, "Memory over a run"), facts.map(([name, count]) => el("span", { class: "fact" }, name, el("b", {}, bytes(count)))), saves(".plot")),
    memory.values.length ? memoryPlot(memory) : empty("nothing is planned: sizes are known only when the model runs, or there are no values"));
}

function memoryPlot({ values, nbytes, lower, steps }) {
  const [height, left, bottom] = [540, 74, 40];
  const x = (step) => left + (step / steps) * (WIDTH - left - 16);
  const y = (offset) => height - bottom - (offset / nbytes) * (height - bottom - 16);
  const runs = doc.graph.map((node, n) => [node, n]).filter(([node]) => node.kind !== "input").map(([, n]) => n);
  const first = runs[0] ?? 0;
  const shift = (step) => x(((Math.max(step, first) - first) / Math.max(1, steps - first)) * steps);
  const rects = values.map(([name, from, to, offset, size, isWorkspace], i) => tipped(svg("rect", {
    class: `value ${isWorkspace ? "workspace" : `part-${i % HUES}`}`, x: shift(from), width: Math.max(1.5, shift(to + 1) - shift(from) - 0.6), y: y(offset + size), height: Math.max(1, y(offset) - y(offset + size) - 0.6), rx: 2,
    click: () => selectRun(from),
  }), `${name}\n${bytes(size)} at ${offset.toLocaleString("en")}\nsteps ${from} to ${to}`));
  const texts = values.filter(([, from, to, , size]) => shift(to + 1) - shift(from) > 60 && (size / nbytes) * (height - 56) > 14).map(([name, from, to, offset, size]) =>
    svg("text", { class: "value-label", x: (shift(from) + shift(to + 1)) / 2, y: y(offset + size / 2) + 4, "text-anchor": "middle" }, tail(valueName(name, from), Math.floor((shift(to + 1) - shift(from)) / 6.4))));
  const marks = [0, 0.25, 0.5, 0.75, 1].map((part) => svg("text", { class: "tick", x: left - 8, y: y(part * nbytes) + 4, "text-anchor": "end" }, bytes(part * nbytes)));
  const least = svg("line", { class: "least", x1: left, x2: WIDTH - 16, y1: y(lower), y2: y(lower) });
  return el("div", { class: "plot" }, svg("svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": "memory plan" },
    svg("rect", { class: "ground", x: left, y: y(nbytes), width: WIDTH - left - 16, height: y(0) - y(nbytes) }), liveArea(values, shift, y, steps, first), rects, texts, marks, least,
    svg("text", { class: "axis", x: (left + WIDTH) / 2, y: height - 10, "text-anchor": "middle" }, "steps of a run, in order")),
  el("p", { class: "note" }, "A box is a value: as wide as it is needed, as high as it is large, where it lies in the arena. Dashed boxes: a kernel's own workspace. Grey: bytes alive; dashed line: the most of them, which no plan can go below."));
}

/** A value by the last of the model's nodes that its kernel computes. */
const valueName = (name, step) => doc.graph[step]?.spans.at(-1) ?? name;

function liveArea(values, shift, y, steps, first) {
  const alive = new Array(steps + 2).fill(0);
  for (const [, from, to, , size] of values) for (let step = from; step <= to; step += 1) alive[step] += size;
  let path = `M${shift(first)},${y(0)}`;
  for (let step = first; step < steps; step += 1) path += `V${y(alive[step])}H${shift(step + 1)}`;
  return svg("path", { class: "alive", d: `${path}V${y(0)}Z` });
}

function selectRun(number) {
  const node = doc.graph[number];
  if (node?.kind === "kernel") tell("select", { kind: "kernel", symbol: node.func, run: number });
}

// --- threads --------------------------------------------------------------------------------------------------------

const threads = { scale: 1 };
let lanes = null;

export function threadsView() {
  if (!doc.run?.slices?.length) return el("section", { class: "view chart" }, empty("The model was not run: minitvm view without --no-run measures it."));
  const run = doc.run;
  const ends = Math.max(run.seconds, ...run.slices.map(([, , , end]) => end));
  const scales = [[1, "whole run"], [4, "4 x"], [16, "16 x"], [64, "64 x"]];
  lanes = el("div", { class: "lanes" });
  const view = el("section", { class: "view chart threads", "aria-label": "threads" },
    el("header", { class: "bar" }, el("h2", {}, "Threads"), el("span", { class: "fact" }, "a run", el("b", {}, timeOf(run.seconds, run.measured.verdict === "reliable"))), el("span", { class: "fact" }, "threads", el("b", {}, String(run.threads))),
      (run.idle ?? []).map((part, thread) => el("span", { class: "fact" }, `thread ${thread} waits`, el("b", {}, share(part)))),
      segmented("scale", scales, threads.scale, (scale) => { threads.scale = scale; drawLanes(run, ends); }), saves(".lanes")),
    lanes, el("p", { class: "note" }, `A median run: each kernel on each thread; thin bars are waiting. ${(run.notes ?? []).join("; ")}.`), slowest(run));
  drawLanes(run, ends);
  return view;
}

function drawLanes({ slices, threads: count }, ends) {
  const [width, high, left] = [WIDTH * threads.scale, 46, 10];
  const x = (seconds) => left + (seconds / ends) * (width - 20);
  const order = [...new Set(slices.map(([, node]) => doc.graph[node].func))];
  const boxes = slices.map(([thread, node, start, end]) => {
    const { name, func, spans } = doc.graph[node];
    const box = svg("rect", { class: `slice part-${order.indexOf(func) % HUES}`, x: x(start), y: 30 + thread * (high + 10), width: Math.max(0.8, x(end) - x(start) - 0.4), height: high, rx: 2, click: () => selectRun(node) });
    const label = x(end) - x(start) > 46 ? svg("text", { class: "value-label", x: x(start) + 5, y: 30 + thread * (high + 10) + 27 }, clip(roleOf(func) || name, Math.floor((x(end) - x(start)) / 6.8))) : null;
    const found = measuredOf(node);
    if (found && !found.isReliable) box.classList.add("unreliable");
    return [tipped(box, `${spans.join(", ") || name}\n${found && !found.isReliable ? `${measuredText(found)}; in this run ` : ""}${time(end - start)} from ${time(start)} on, thread ${thread}`), label];
  });
  const waits = waiting(slices, count).filter(([, start, end]) => x(end) - x(start) > 0.5).map(([thread, start, end]) =>
    tipped(svg("rect", { class: "wait", x: x(start), y: 30 + thread * (high + 10) + high / 2 - 4, width: x(end) - x(start), height: 8 }), `thread ${thread} waits ${time(end - start)}`));
  const step = roundStep(ends / (8 * threads.scale));
  const ticks = Array.from({ length: Math.floor(ends / step) + 1 }, (_, i) => i * step).map((seconds) => [
    svg("line", { class: "grid", x1: x(seconds), x2: x(seconds), y1: 18, y2: 34 + count * (high + 10) }),
    svg("text", { class: "tick", x: x(seconds), y: 12, "text-anchor": seconds ? "middle" : "start" }, seconds ? time(seconds) : "0")]);
  const height = 40 + count * (high + 10);
  lanes.replaceChildren(svg("svg", { width: threads.scale === 1 ? "100%" : width, height: threads.scale === 1 ? null : height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "threads" }, ticks, waits, boxes));
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
  return el("div", { class: "slowest" }, el("h3", {}, `The longest of ${plural(kernels.length, "kernel")}`), found.map(([node, { seconds, predicted, bound, isReliable }]) =>
    el("button", { type: "button", class: "bar-row", click: () => selectRun(node) },
      el("span", { title: doc.graph[node].spans.join("\n") }, roleOf(doc.graph[node].func) || clip(doc.graph[node].name, 46)), el("span", { class: "track" }, el("i", { style: `width:${(100 * seconds) / most}%` }), el("u", { style: `left:${Math.min(100, (100 * predicted) / most)}%`, title: "predicted" })),
      el("b", {}, timeOf(seconds, isReliable)), el("small", {}, share(seconds / all)), el("small", { class: `bound ${bound}` }, bound))));
}
