// A layout as a picture: which channel and which pixel lies where in memory.

import { el, svg } from "./base.js";

const CELLS = 32; // of memory, from its beginning
const [SIZE, HIGH, LEFT] = [22, 26, 110];

/** The axes of a layout, outermost first, as [letter, factor]: a factor is what a small letter splits off. */
const axesOf = (layout) => [...layout.matchAll(/(\d*)([A-Za-z])/g)].map(([, factor, letter]) => [letter, factor ? Number(factor) : 0]);

/** The places of the first cells in memory, by axis of the model: {C: 3, W: 1}. `sizes` are of the axes that are not split off. */
function cellsOf(layout, sizes) {
  const axes = axesOf(layout);
  const factors = Object.fromEntries(axes.filter(([, factor]) => factor).map(([letter, factor]) => [letter.toUpperCase(), factor]));
  const extents = axes.map(([letter, factor]) => factor || Math.max(1, Math.ceil((sizes[letter] ?? 1) / (factors[letter] ?? 1))));
  return Array.from({ length: Math.min(CELLS, extents.reduce((product, extent) => product * extent, 1)) }, (_, at) => {
    const found = {};
    let rest = at;
    for (let i = axes.length - 1; i >= 0; i -= 1) {
      const [letter, factor] = axes[i];
      const index = rest % extents[i];
      rest = Math.floor(rest / extents[i]);
      found[letter.toUpperCase()] = (found[letter.toUpperCase()] ?? 0) + index * (factor ? 1 : factors[letter] ?? 1);
    }
    return found;
  });
}

const isBlocked = (layout) => /\d+[a-z]/.test(layout);

/** The layouts that a call's attributes name, with blocks; of weights last. */
export const blockedIn = (attributes) => [...attributes.matchAll(/(?:data|out|dst|src|kernel|weight)_layout="([A-Za-z0-9]+)"/g)].map(([, layout]) => layout).filter(isBlocked);

/** Sizes by letter, of a tensor that is laid out so: blocks are multiplied out. */
export function sizesOf(layout, type) {
  const shape = (type.match(/\(([^)]*)\)/)?.[1] ?? "").split(",").filter((size) => size.trim()).map((size) => Number(size) || 1);
  const found = {};
  axesOf(layout).forEach(([letter], i) => (found[letter.toUpperCase()] = (found[letter.toUpperCase()] ?? 1) * (shape[i] ?? 1)));
  return found;
}

/** Two rows of cells: as the model has it, and in blocks. A colour is an index of the axis that is split first. */
export function layoutPicture(layout, sizes) {
  const plain = layout.replace(/\d+[a-z]/g, "");
  const split = axesOf(layout).filter(([, factor]) => factor).at(-1)[0].toUpperCase();
  const others = [...plain].filter((letter) => letter !== split && letter !== "N" && (sizes[letter] ?? 1) > 1);
  const named = { C: "channel", O: "result's channel", I: "operand's channel", N: "row", K: "depth" }[split] ?? split;
  const row = (name, y) => [
    svg("text", { class: "tick", x: 0, y: y + 17 }, name),
    cellsOf(name, sizes).map((cell, i) => svg("g", { class: `cell part-${(cell[split] ?? 0) % 8}` },
      svg("rect", { x: LEFT + i * SIZE, y, width: SIZE - 1, height: HIGH, rx: 2 }, svg("title", {}, Object.entries(cell).map(([letter, index]) => `${letter} ${index}`).join(", "))),
      svg("text", { x: LEFT + i * SIZE + SIZE / 2 - 0.5, y: y + 17, "text-anchor": "middle" }, String(cell[split] ?? 0)))),
  ];
  const inner = others.length ? `; each place of ${others.join(", ")} has the whole block beside each other, which fills vectors` : "";
  const blocks = axesOf(layout).filter(([, factor]) => factor).map(([letter, factor]) => `${factor} of ${letter.toUpperCase()}`).join(" by ");
  return el("figure", { class: "layout" },
    svg("svg", { viewBox: `0 0 ${LEFT + CELLS * SIZE} ${2 * HIGH + 12}`, role: "img", "aria-label": `${layout} beside ${plain}` }, row(plain, 0), row(layout, HIGH + 10)),
    el("p", { class: "note" }, `Memory from its beginning; a number and its colour are the ${named}. ${layout} keeps blocks of ${blocks}${inner}.`));
}
