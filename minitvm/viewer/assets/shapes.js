// Which boxes stand for which nodes: calls, groups that are kernels, and the scopes of the model around them.

import { clip, plural, spansText } from "./base.js";
import { doc, heldOf, measuredOf, nodeOf, roleOf, runOfGroup, scopeOf, shortType, timeOf } from "./data.js";
import { boxSize } from "./drawing.js";
import { cutApart } from "./labels.js";

const MOST = 36; // characters of a line in a box

export const operatorName = (name) => name.replace(/^nn\./, "").replace(/^contrib_/, "");

/** The names of the scopes around a node, outermost first; a group's calls are where its first node is. */
export const scopesAround = (node) => scopeOf(node.group >= 0 ? doc.spans[node.fn.groups[node.group].span] : node.spans);

/** The clusters around a node, outermost first, as [id, title]. */
function around(fn, node, scopes) {
  const group = node.group >= 0 ? fn.groups[node.group] : null;
  const path = scopes ? scopesAround(node) : [];
  const found = path.map((part, i) => [`s:${path.slice(0, i + 1).join("/")}`, part]);
  return group ? [...found, [`g:${node.group}`, group.name]] : found;
}

/** {boxes, clusters, edges} of a function, of the nodes in `only` where given.
 *  `collapsed(id, depth)`: whether a cluster is one box. `classOf(node)`: more classes of a node's box. */
export function shapesOf(fn, { scopes = false, collapsed = () => false, only = null, classOf = () => "" } = {}) {
  const nodes = fn.nodes.map((_, number) => nodeOf(fn, number)).filter((node) => !only || only.has(node.number));
  const used = new Set([...nodes.flatMap((node) => node.inputs), parseInt(fn.result, 10)]);
  const shownAs = new Map();
  const [boxes, clusters, members] = [new Map(), new Map(), new Map()];
  for (const node of nodes) {
    if (node.kind === "var" && !used.has(node.number)) continue;
    let parent = null;
    let id = null;
    for (const [cluster, title] of around(fn, node, scopes)) {
      if (!members.has(cluster)) members.set(cluster, { id: cluster, parent, title, nodes: [] });
      members.get(cluster).nodes.push(node);
      if (id !== null) continue;
      if (collapsed(cluster)) id = cluster;
      else {
        if (!clusters.has(cluster)) clusters.set(cluster, clusterOf(fn, members.get(cluster)));
        parent = cluster;
      }
    }
    shownAs.set(node.number, id ?? `n:${node.number}`);
    if (id === null) boxes.set(`n:${node.number}`, callBox(node, parent, classOf(node)));
    else boxes.set(id, null);
  }
  for (const [id, box] of boxes) if (box === null) boxes.set(id, clusterBox(fn, members.get(id)));
  return { boxes: cutTitles([...boxes.values()]), clusters: cutClusters([...clusters.values()]), edges: edgesOf(nodes, shownAs), shownAs };
}

function edgesOf(nodes, shownAs) {
  const edges = new Map();
  for (const node of nodes) {
    for (const input of node.inputs) {
      const [from, to] = [shownAs.get(input), shownAs.get(node.number)];
      if (from !== undefined && from !== to) edges.set(`${from}\n${to}`, [from, to]);
    }
  }
  return [...edges.values()];
}

/** Boxes with titles that differ where they are cut, and as large as these need. */
function cutTitles(boxes) {
  const titles = cutApart(boxes.map(({ title, most }) => [title, most ?? MOST]));
  return boxes.map((box, i) => ({ ...box, title: titles[i], ...boxSize(titles[i], box.lines) }));
}

function cutClusters(clusters) {
  const titles = cutApart(clusters.map(({ title }) => [title, 46]));
  return clusters.map((cluster, i) => ({ ...cluster, title: titles[i] }));
}

function callBox(node, parent, classes) {
  const held = node.kind === "call" ? heldOf(node.fn, node.number) : [];
  const inside = held.length ? [`▸ ${held.map(([, fn]) => fn.name.split(" ").at(-1)).join(", ")}`] : [];
  const lines = [clip(shortType(node.type), MOST), ...(node.spans.length ? [spansText(node.spans, MOST)] : []), ...inside];
  const title = node.kind === "var" ? node.name : operatorName(node.name);
  const kind = node.kind === "call" ? `fusion-${node.fusion}` : node.kind;
  const hint = `${node.name}\n${node.attributes || "no attributes"}\n${node.type}`;
  return ({ id: `n:${node.number}`, parent, title, lines, classes: `${kind} ${classes}`, hint });
}

function clusterOf(fn, { id, parent, title }) {
  const isGroup = id.startsWith("g:");
  return { id, parent, title: isGroup ? roleOf(fn.groups[Number(id.slice(2))].kernel) || title.replace(/^fused_/, "") : title, header: 18, classes: isGroup ? "group" : "scope", hint: title };
}

/** What was measured of a group's own run. */
export function measuredOfGroup(group) {
  const run = group.kernel ? runOfGroup(group) : undefined;
  return run === undefined ? undefined : measuredOf(run);
}

function clusterBox(fn, { id, parent, title, nodes }) {
  if (!id.startsWith("g:")) {
    const kernels = new Set(nodes.map((node) => node.group).filter((group) => group >= 0));
    const lines = [plural(nodes.length, "call") + (kernels.size ? `, ${plural(kernels.size, "kernel")}` : "")];
    return ({ id, parent, title: `${title} /`, lines, classes: "closed scope", hint: `${title}: double click opens it` });
  }
  const group = fn.groups[Number(id.slice(2))];
  const found = measuredOfGroup(group);
  const names = nodes.filter((node) => node.kind === "call").map((node) => operatorName(node.name)).join(" + ");
  const last = nodes.at(-1);
  const lines = [clip(shortType(last.type), MOST), spansText(doc.spans[group.span], MOST) || clip(group.name, MOST)];
  if (found !== undefined) lines.push(timeOf(found.seconds, found.isReliable));
  return ({ id, parent, title: roleOf(group.kernel) || names, most: MOST + 8, lines, classes: `closed group fusion-${strongest(nodes)}`, hint: title });
}

const ORDER = ["ELEMWISE", "BROADCAST", "INJECTIVE", "TUPLE", "COMM_REDUCE", "OUT_ELEMWISE_FUSABLE", "OPAQUE"];
const strongest = (nodes) => ORDER[Math.max(...nodes.map((node) => ORDER.indexOf(node.fusion)))] ?? "OPAQUE";
