// Where boxes lie: layers of a graph by dagre, boxes inside boxes from the inside out, in a worker.

/** `boxes`: {id, parent, width, height}, `clusters`: {id, parent, header}, `edges`: [from, to] between boxes.
 *  Places are the upper left corners; an edge has its points. Runs in a worker, so it refers to nothing outside. */
export function layoutOf({ boxes, clusters, edges }) {
  const ROOT = "";
  const margin = 10;
  const parents = new Map([...boxes, ...clusters].map((one) => [one.id, one.parent ?? ROOT]));
  const members = new Map([[ROOT, []], ...clusters.map((c) => [c.id, []])]);
  for (const one of [...boxes, ...clusters]) members.get(one.parent ?? ROOT).push(one.id);
  const sizes = new Map(boxes.map((b) => [b.id, { width: b.width, height: b.height }]));
  const headers = new Map(clusters.map((c) => [c.id, c.header ?? 18]));
  const inner = new Map();
  const above = new Map();

  function chain(id) {
    if (!above.has(id)) above.set(id, id === ROOT ? [ROOT] : [...chain(parents.get(id)), id]);
    return above.get(id);
  }
  /** By container, the edges between its members; each edge of the drawing belongs to the one that holds both ends. */
  const between = new Map([...members.keys()].map((id) => [id, new Map()]));
  const homes = edges.map(([from, to]) => {
    const [a, b] = [chain(from), chain(to)];
    let depth = 0;
    while (depth + 1 < a.length && depth + 1 < b.length && a[depth + 1] === b[depth + 1]) depth += 1;
    const [start, stop] = [a[depth + 1], b[depth + 1]];
    if (start === undefined || stop === undefined || start === stop) return null;
    const key = `${start}\n${stop}`;
    between.get(a[depth]).set(key, [start, stop]);
    return { container: a[depth], key };
  });
  const routes = new Map();

  function place(id) {
    for (const member of members.get(id)) if (members.has(member)) place(member);
    const graph = new vendor.dagre.graphlib.Graph();
    graph.setGraph({ rankdir: "TB", nodesep: 22, ranksep: 30, edgesep: 10, ranker: members.get(id).length > 400 ? "longest-path" : "network-simplex" });
    graph.setDefaultEdgeLabel(() => ({}));
    for (const member of members.get(id)) graph.setNode(member, { ...sizes.get(member) });
    for (const [key, [from, to]] of between.get(id)) {
      graph.setEdge(from, to, {});
      routes.set(`${id}\n${key}`, { from, to });
    }
    vendor.dagre.layout(graph);
    const top = id === ROOT ? 0 : headers.get(id);
    let [width, height] = [0, 0];
    const places = new Map();
    for (const member of members.get(id)) {
      const node = graph.node(member);
      places.set(member, { x: node.x - node.width / 2 + margin, y: node.y - node.height / 2 + margin + top });
      width = Math.max(width, node.x + node.width / 2);
      height = Math.max(height, node.y + node.height / 2);
    }
    for (const edge of graph.edges()) {
      const points = graph.edge(edge).points.map(({ x, y }) => [x + margin, y + margin + top]);
      routes.get(`${id}\n${edge.v}\n${edge.w}`).points = points;
    }
    inner.set(id, places);
    sizes.set(id, { width: width + 2 * margin, height: height + 2 * margin + top });
  }
  place(ROOT);

  const absolute = new Map([[ROOT, { x: 0, y: 0 }]]);
  function settle(id) {
    const origin = absolute.get(id);
    for (const [member, at] of inner.get(id)) {
      absolute.set(member, { x: origin.x + at.x, y: origin.y + at.y });
      if (members.has(member)) settle(member);
    }
  }
  settle(ROOT);
  const placed = (one) => ({ ...absolute.get(one.id), ...sizes.get(one.id) });
  const lines = edges.map(([from, to], number) => {
    const [a, b] = [placed({ id: from }), placed({ id: to })];
    const [start, stop] = [[a.x + a.width / 2, a.y + a.height], [b.x + b.width / 2, b.y]];
    const home = homes[number];
    const route = home && routes.get(`${home.container}\n${home.key}`);
    const origin = home && absolute.get(home.container);
    const middle = (route?.points ?? []).slice(1, -1).map(([x, y]) => [x + origin.x, y + origin.y]);
    return [start, ...middle, stop];
  });
  return {
    boxes: Object.fromEntries(boxes.map((b) => [b.id, placed(b)])),
    clusters: Object.fromEntries(clusters.map((c) => [c.id, placed(c)])),
    lines,
    ...sizes.get(ROOT),
  };
}

let worker = null;
let asked = 0;
const waiting = new Map();

function startWorker() {
  const source = [
    document.getElementById("vendor").textContent,
    layoutOf.toString(),
    "onmessage = ({data}) => postMessage({id: data.id, layout: layoutOf(data.graph)});",
  ].join("\n");
  worker = new Worker(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
  worker.onmessage = ({ data }) => {
    waiting.get(data.id)?.(data.layout);
    waiting.delete(data.id);
  };
}

/** The layout of a graph, found beside the page. */
export function laidOut(graph) {
  if (worker === null) startWorker();
  asked += 1;
  worker.postMessage({ id: asked, graph });
  return new Promise((resolve) => waiting.set(asked, resolve));
}
