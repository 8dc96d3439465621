// What a pass changed: calls that have no equal on the other side, put together by the model's nodes they come from.

import { doc, isConstant, nodeOf } from "./data.js";

const functionsOf = (module) => new Map(doc.modules[module].map((fn) => [fn.name, fn]));

/** What a node computes: operator, attributes, type, and its constants' contents. Names and numbers are no part of it. */
function valueOf([row, inputs]) {
  const [kind, name, attributes, type] = doc.rows[row];
  return [kind, kind === "var" ? "" : name, attributes, type, ...inputs.map((input) => (isConstant(input) ? doc.constants[input.slice(1)][3] : ""))].join("\n");
}

/** Those of the nodes without a partner among the others: each takes one that has the same key. */
function without(nodes, others, keyOf) {
  const left = new Map();
  for (const node of others) left.set(keyOf(node), (left.get(keyOf(node)) ?? 0) + 1);
  return nodes.filter((node) => {
    const count = left.get(keyOf(node)) ?? 0;
    left.set(keyOf(node), count - 1);
    return count <= 0;
  });
}

/** The nodes of each side without an equal on the other: first those that are the same row, then those of equal value. */
function unmatched(fn, other) {
  const [own, theirs] = [fn?.nodes ?? [], other?.nodes ?? []];
  const rowOf = ([row]) => row;
  const rest = [without(own, theirs, rowOf), without(theirs, own, rowOf)];
  const left = new Set(without(...rest, valueOf));
  return own.flatMap((node, number) => (left.has(node) && (doc.rows[node[0]][0] !== "var" || !other) ? [nodeOf(fn, number)] : []));
}

/** Nodes whose spans have a name in common belong together. */
function joinedBySpans(nodes) {
  const leaders = new Map();
  const leader = (key) => {
    while (leaders.has(key) && leaders.get(key) !== key) key = leaders.get(key);
    return key;
  };
  for (const { node } of nodes) {
    const first = leader(node.spans[0] ?? "");
    leaders.set(first, first);
    for (const span of node.spans.slice(1)) leaders.set(leader(span), first);
  }
  return (node) => leader(node.spans[0] ?? "");
}

/** Changes of a pass: [{name, fn, title, before: nodes, after: nodes}], in the order of the model. */
export function changesOf(pass) {
  const [before, after] = pass.modules.map(functionsOf);
  const found = [];
  for (const name of new Set([...before.keys(), ...after.keys()])) {
    const [old, made] = [before.get(name), after.get(name)];
    const gone = unmatched(old, made).map((node) => ({ side: "before", node }));
    const come = unmatched(made, old).map((node) => ({ side: "after", node }));
    const key = joinedBySpans([...gone, ...come]);
    const hunks = new Map();
    for (const { side, node } of [...gone, ...come]) {
      const at = key(node);
      if (!hunks.has(at)) hunks.set(at, { name, before: [], after: [] });
      hunks.get(at)[side].push(node);
    }
    found.push(...[...hunks.values()].map((hunk) => ({ ...hunk, title: titleOf(hunk) })), ...grouped(name, old, made));
  }
  return found;
}

const titleOf = ({ before, after }) => [...new Set([...before, ...after].flatMap((node) => node.spans))];

/** Groups that were made of calls that stay as they are. */
function grouped(name, old, made) {
  if (!made || made.groups.length === 0 || (old && old.groups.length === made.groups.length)) return [];
  return made.groups.map((group, number) => {
    const inside = made.nodes.flatMap((node, i) => (node[2] === number ? [nodeOf(made, i)] : []));
    return { name, title: doc.spans[group.span].length ? doc.spans[group.span] : [group.name], before: inside.map((n) => ({ ...n, group: -1 })), after: inside, group, fn: made, number };
  });
}

/** Numbers of nodes are no difference: they change wherever anything before them does. */
const alike = (one, other) => one === other || (/^%\d+$/.test(one) && /^%\d+$/.test(other));

/** The words of two lines that differ, as [text, changed] pieces. */
export function wordsApart(one, other) {
  const words = [one, other].map((line) => line.split(/([\s,()[\]]+)/).filter(Boolean));
  const parts = vendor.diffArrays(...words, { comparator: alike });
  return ["removed", "added"].map((mine, side) => {
    const own = words[side][Symbol.iterator](); // what is alike is not the same: each line keeps its own
    const theirs = mine === "added" ? "removed" : "added";
    return parts.filter((part) => !part[theirs]).flatMap((part) => part.value.map(() => [own.next().value, Boolean(part[mine])]));
  });
}
