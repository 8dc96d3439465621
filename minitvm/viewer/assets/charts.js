// Figures as pictures: the roofline, and memory over time.

import { bytes, el, empty, flop, rate, share, svg, tail, tell, time, tipped } from "./base.js";
import { cutApart } from "./labels.js";
import { chartPicture, pictureButtons } from "./picture.js";
import { doc, kernelOf, measuredOf, measuredText } from "./data.js";
import { Zoomed } from "./zoomed.js";

const WIDTH = 1100;
export const saves = (box) => pictureButtons(() => chartPicture(document.querySelector(`${box} svg`)));
export const HUES = 8;

/** What colours and marks mean: [class, text] each. */
const legendOf = (keys) => el("div", { class: "legend", role: "list", "aria-label": "legend" }, keys.map(([kind, text]) => el("span", { class: `key ${kind}`, role: "listitem" }, text)));

// --- roofline -------------------------------------------------------------------------------------------------------

export function rooflineView() {
  const points = doc.graph.flatMap((node, number) => pointOf(node, number));
  const note = doc.run ? "measured" : "predicted: the model was not run";
  return el("section", { class: "view chart roofline", "aria-label": "roofline" },
    el("header", { class: "bar" }, el("h2", {}, "Roofline"),
      el("span", { class: "note" }, `${doc.machine} · peak ${rate(doc.rates.flops)} · kernels ${note}; a circle's area is its time`), saves(".plot")),
    points.length ? [rooflineLegend(points), rooflinePlot(points)] : empty("no kernel computes anything"));
}

function rooflineLegend(points) {
  const bounds = [...new Set(points.map((point) => point.bound))];
  const about = { compute: "bound by arithmetic", memory: "by main memory", launch: "by being launched" };
  const isOpen = points.some(({ found }) => found && !found.isReliable);
  return legendOf([...bounds.map((bound) => [`bound-${bound}`, about[bound] ?? `by ${bound}`]),
    ["stroke strong", "the machine's peak"], ["stroke", "what a level of memory allows"], ...(isOpen ? [["hollow", "predicted"]] : [])]);
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

let zoomed = null;
export const memoryZoom = () => zoomed;

const MEMORY_KEYS = [["many", "a value, from the step that makes it to the last that reads it"], ["workspace", "a kernel's own workspace"],
  ["alive", "bytes alive"], ["stroke dashed", "the most of them: no plan can go below"]];

function memoryPlot(memory) {
  const running = doc.graph.flatMap((node, n) => (node.kind === "input" ? [] : [n]));
  const host = el("div", { class: "plot" });
  zoomed = new Zoomed(host, [Math.min(running[0] ?? 0, memory.steps - 1), memory.steps], [74, WIDTH - 16], (span) => host.replaceChildren(drawnMemory(memory, span)));
  zoomed.draw();
  return [legendOf(MEMORY_KEYS), host,
    el("p", { class: "note" }, "As wide as it is needed, as high as it is large, where it lies in the arena. Wheel, W and S: closer and further away; drag, A and D: along the run; J and K: from value to value.")];
}

function drawnMemory({ values, nbytes, lower, steps }, [from, to]) {
  const [height, left, bottom] = [540, 74, 40];
  const right = WIDTH - 16;
  const x = (step) => left + ((step - from) / (to - from)) * (right - left);
  const y = (offset) => height - bottom - (offset / nbytes) * (height - bottom - 16);
  const seen = values.filter(([, first, last]) => last + 1 > from && first < to);
  const rects = seen.map((value) => valueRect(value, values.indexOf(value), x, y));
  const roomy = seen.map(([name, first, last, offset, size]) => [valueName(name, first), Math.max(x(first), left), Math.min(x(last + 1), right), offset, size])
    .filter(([, start, end, , size]) => end - start > 60 && (size / nbytes) * (height - 56) > 14);
  const labels = cutApart(roomy.map(([name, start, end]) => [name, Math.floor((end - start) / 6.4)]), tail);
  const texts = roomy.map(([, start, end, offset, size], i) => svg("text", { class: "value-label", x: (start + end) / 2, y: y(offset + size / 2) + 4, "text-anchor": "middle" }, labels[i]));
  const marks = [0, 0.25, 0.5, 0.75, 1].map((part) => svg("text", { class: "tick", x: left - 8, y: y(part * nbytes) + 4, "text-anchor": "end" }, bytes(part * nbytes)));
  return svg("svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "group", "aria-label": "memory plan" },
    svg("defs", {}, svg("clipPath", { id: "ground" }, svg("rect", { x: left, y: 0, width: right - left, height }))),
    svg("rect", { class: "ground", x: left, y: y(nbytes), width: right - left, height: y(0) - y(nbytes) }),
    svg("g", { "clip-path": "url(#ground)" }, liveArea(values, x, y, steps, Math.floor(from)), rects, texts), marks,
    svg("line", { class: "least", x1: left, x2: right, y1: y(lower), y2: y(lower) }),
    svg("text", { class: "axis", x: (left + WIDTH) / 2, y: height - 10, "text-anchor": "middle" }, "steps of a run, in order"));
}

function valueRect([name, from, to, offset, size, isWorkspace], i, x, y) {
  const choose = () => selectRun(from);
  const label = `${name}\n${bytes(size)} at ${offset.toLocaleString("en")}\nsteps ${from} to ${to}`;
  return tipped(svg("rect", {
    class: `value ${isWorkspace ? "workspace" : `part-${i % HUES}`}`, x: x(from), width: Math.max(1.5, x(to + 1) - x(from) - 0.6), y: y(offset + size), height: Math.max(1, y(offset) - y(offset + size) - 0.6), rx: 2,
    tabindex: "0", role: "button", "aria-label": label, click: choose, keydown: (event) => event.key === "Enter" && choose(),
  }), label);
}

/** A value by the last of the model's nodes that its kernel computes. */
const valueName = (name, step) => doc.graph[step]?.spans.at(-1) ?? name;

function liveArea(values, x, y, steps, first) {
  const alive = new Array(steps + 2).fill(0);
  for (const [, from, to, , size] of values) for (let step = from; step <= to; step += 1) alive[step] += size;
  let path = `M${x(first)},${y(0)}`;
  for (let step = first; step < steps; step += 1) path += `V${y(alive[step])}H${x(step + 1)}`;
  return svg("path", { class: "alive", d: `${path}V${y(0)}Z` });
}

export function selectRun(number) {
  const node = doc.graph[number];
  if (node?.kind === "kernel") tell("select", { kind: "kernel", symbol: node.func, run: number });
}
