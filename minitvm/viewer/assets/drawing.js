// A graph that is laid out, as SVG that one zooms, moves and selects in.

import { clip, el, svg, tipped } from "./base.js";
import { laidOut } from "./layout.js";
import { pictureButtons, styledCopy } from "./picture.js";

const LEGIBLE = 0.32; // below this scale labels are left out
const TITLE = "600 12.5px";
const SMALL = "400 10.5px";

const ruler = document.createElement("canvas").getContext("2d");

/** Pixels of a text in the page's font. */
function widthOf(text, font) {
  ruler.font = `${font} ${getComputedStyle(document.body).fontFamily}`;
  return ruler.measureText(text).width;
}

/** As much of a text as has room. */
function clipped(text, font, width) {
  let most = text.length;
  while (most > 4 && widthOf(clip(text, most), font) > width) most -= 1;
  return clip(text, most);
}

/** The size of a box with a title and lines of smaller text. */
export function boxSize(title, lines) {
  const longest = Math.max(widthOf(title, TITLE), ...lines.map((line) => widthOf(line, SMALL)));
  return { width: Math.round(Math.max(64, longest + 22)), height: 25 + 13 * lines.length };
}

function curve(points) {
  if (points.length === 2) {
    const [[x0, y0], [x1, y1]] = points;
    const bend = Math.max(10, (y1 - y0) / 2);
    return `M${x0},${y0}C${x0},${y0 + bend} ${x1},${y1 - bend} ${x1},${y1}`;
  }
  let path = `M${points[0]}`;
  for (let i = 1; i < points.length - 1; i += 1) {
    const [x, y] = points[i];
    const [nextX, nextY] = points[i + 1];
    const last = i === points.length - 2;
    path += `Q${x},${y} ${last ? nextX : (x + nextX) / 2},${last ? nextY : (y + nextY) / 2}`;
  }
  return path;
}

export class Drawing {
  /** `onSelect(id)` is told of clicks on boxes and clusters, `onOpen(id)` of double clicks on them. */
  constructor({ label, onSelect = () => {}, onOpen = () => {} }) {
    this.onSelect = onSelect;
    this.onOpen = onOpen;
    this.layer = svg("g", { class: "layer" });
    this.root = svg("svg", { class: "drawing", role: "group", "aria-label": label, tabindex: "0" }, this.layer);
    this.busy = el("div", { class: "busy" }, "laying out …");
    this.element = el("div", { class: "canvas" }, this.root, this.busy);
    const extent = () => [[0, 0], [this.root.clientWidth || 1, this.root.clientHeight || 1]];
    this.zoom = vendor.zoom().extent(extent).scaleExtent([0.02, 4]).on("zoom", ({ transform }) => this.moved(transform));
    vendor.select(this.root).call(this.zoom).on("dblclick.zoom", null);
    this.shapes = new Map();
    this.layout = null;
    this.version = 0;
    this.transform = { k: 1, x: 0, y: 0 };
  }

  moved(transform) {
    this.transform = transform;
    this.layer.setAttribute("transform", transform);
    this.root.classList.toggle("far", transform.k < LEGIBLE);
  }

  /** Draw {boxes, clusters, edges}; boxes have a title, lines, classes and a hint. True when it is the last one asked. */
  async show(graph, keepPlace = false) {
    const version = (this.version += 1);
    this.busy.textContent = graph.boxes.length ? "laying out …" : "nothing to draw";
    this.busy.hidden = false;
    if (!graph.boxes.length) return false;
    const plain = ({ id, parent, width, height, header }) => ({ id, parent, width, height, header });
    const layout = await laidOut({ boxes: graph.boxes.map(plain), clusters: graph.clusters.map(plain), edges: graph.edges });
    if (version !== this.version) return false;
    this.layout = layout;
    this.shapes.clear();
    const clusters = graph.clusters.map((c) => this.cluster(c, layout.clusters[c.id]));
    const lines = layout.lines.map((points, i) => svg("path", { class: `edge ${graph.edges[i][2] ?? ""}`, d: curve(points), "marker-end": "url(#arrow)" }));
    const boxes = graph.boxes.map((b) => this.box(b, layout.boxes[b.id]));
    this.layer.replaceChildren(arrowHead(), ...clusters, ...lines, ...boxes);
    this.edges = graph.edges.map(([from, to], i) => ({ from, to, line: lines[i] }));
    this.busy.hidden = true;
    this.firstBox = layout.boxes[(graph.boxes.find((box) => !box.classes?.includes("faint")) ?? graph.boxes[0]).id];
    if (!keepPlace) this.begin();
    return true;
  }

  box(box, { x, y, width, height }) {
    const texts = box.lines.map((line, i) => svg("text", { class: "small", x: 11, y: 29 + 13 * i }, line));
    const shape = svg("g", {
      class: `box ${box.classes ?? ""}`, transform: `translate(${x},${y})`, "data-id": box.id,
      click: (event) => this.clicked(event, box.id), dblclick: () => this.onOpen(box.id),
    },
      svg("rect", { width, height, rx: 5 }),
      svg("rect", { class: "stripe", width: 4, height, rx: 2 }),
      svg("text", { class: "title", x: 11, y: 16 }, box.title), texts);
    this.shapes.set(box.id, shape);
    return box.hint ? tipped(shape, box.hint) : shape;
  }

  cluster(cluster, { x, y, width, height }) {
    const title = clipped(cluster.title, SMALL, width - 16);
    const shape = svg("g", {
      class: `cluster ${cluster.classes ?? ""}`, transform: `translate(${x},${y})`, "data-id": cluster.id,
      click: (event) => this.clicked(event, cluster.id), dblclick: () => this.onOpen(cluster.id),
    },
      svg("rect", { width, height, rx: 7 }),
      svg("text", { class: "title", x: 9, y: 14 }, title));
    this.shapes.set(cluster.id, shape);
    return cluster.hint ? tipped(shape, cluster.hint) : shape;
  }

  clicked(event, id) {
    event.stopPropagation();
    this.root.focus({ preventScroll: true });
    this.onSelect(id);
  }

  /** Mark one box as selected, and the edges at it. */
  select(id) {
    for (const shape of this.shapes.values()) shape.classList.remove("selected");
    this.shapes.get(id)?.classList.add("selected");
    for (const { from, to, line } of this.edges ?? []) line.classList.toggle("at-selected", from === id || to === id);
  }

  /** Dim all but those found. */
  found(ids) {
    this.root.classList.toggle("searching", ids !== null);
    for (const [id, shape] of this.shapes) shape.classList.toggle("hit", ids?.has(id) ?? false);
  }

  place(id) {
    return this.layout?.boxes[id] ?? this.layout?.clusters[id];
  }

  /** Move a box to the middle. */
  reveal(id, scale = Math.max(this.transform.k, 0.8)) {
    const at = this.place(id);
    if (at) this.centre(at.x + at.width / 2, at.y + at.height / 2, scale);
  }

  /** The part that no panel lies over. */
  room() {
    const { left, width, height } = this.root.getBoundingClientRect();
    const over = document.getElementById("inspector")?.getBoundingClientRect();
    return { width: over?.width && over.left > left ? Math.min(width, over.left - left) : width, height };
  }

  centre(x, y, k) {
    const { width, height } = this.room();
    const to = vendor.zoomIdentity.translate(width / 2 - k * x, height / 2 - k * y).scale(k);
    vendor.select(this.root).call(this.zoom.transform, to);
  }

  /** All of it, or where that would be too small to read, the beginning. */
  begin() {
    if (!this.layout) return;
    const { width, height } = this.root.getBoundingClientRect();
    const whole = Math.min(width / (this.layout.width + 40), height / (this.layout.height + 40), 1.2);
    if (whole > 0.5) return this.fit();
    const scale = Math.min(0.9, Math.max(0.55, width / (this.layout.width + 40)));
    const first = this.firstBox;
    this.centre(whole * 2 > scale ? this.layout.width / 2 : first.x + first.width / 2, Math.max(first.y - 90, 0) + height / 2 / scale - 14, scale);
  }

  fit() {
    if (!this.layout) return;
    const { width, height } = this.root.getBoundingClientRect();
    const scale = Math.min(width / (this.layout.width + 40), height / (this.layout.height + 40), 1.4);
    this.centre(this.layout.width / 2, this.layout.height / 2, Math.max(scale, 0.02));
  }

  scaleBy(factor) {
    vendor.select(this.root).call(this.zoom.scaleBy, factor);
  }

  shift(dx, dy) {
    vendor.select(this.root).call(this.zoom.translateBy, dx / this.transform.k, dy / this.transform.k);
  }

  /** All of the graph, whatever part of it is seen, at its own size. */
  picture() {
    const [{ width, height }, margin] = [this.layout, 20];
    const whole = svg("svg", { viewBox: `${-margin} ${-margin} ${width + 2 * margin} ${height + 2 * margin}`, width: width + 2 * margin, height: height + 2 * margin });
    const layer = styledCopy(this.layer);
    layer.removeAttribute("transform");
    whole.append(layer);
    return whole;
  }

  buttons() {
    const button = (text, hint, act) => el("button", { type: "button", class: "icon", title: hint, "aria-label": hint, click: act }, text);
    return el("div", { class: "zooms" },
      button("+", "closer (+)", () => this.scaleBy(1.3)), button("−", "further away (-)", () => this.scaleBy(1 / 1.3)),
      button("⤢", "all of it (f)", () => this.fit()), pictureButtons(() => this.picture()));
  }
}

function arrowHead() {
  return svg("defs", {}, svg("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 6, markerHeight: 6, orient: "auto" },
    svg("path", { class: "arrow", d: "M0,0.8L8,4L0,7.2z" })));
}
