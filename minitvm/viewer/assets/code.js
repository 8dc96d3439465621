// Texts of a kernel side by side, lines linked: loops, LLVM IR and assembly, or loops and CUDA C.

import { el, empty, segmented } from "./base.js";
import { codeOf } from "./data.js";

const LINE = 18; // pixels
const AROUND = 12; // lines beyond what is seen
const NAMES = { loops: "Loops", llvm: "LLVM IR", asm: "Assembly", cuda: "CUDA C", text: "Call" };
const KINDS = { llvm: "CPU", cuda: "CUDA", interp: "Interpreter" };

vendor.hljs.registerLanguage("loops", () => ({
  keywords: {
    keyword: "kernel for parallel vectorized unrolled alloc if else let in barrier pass local shared global copy commit wait mma block_x block_y block_z thread_x thread_y thread_z",
    type: "float32 float16 float64 bfloat16 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool",
    built_in: "max min exp log sqrt tanh erf select fma dot4 dot2 floor ceil abs pow",
  },
  contains: [{ scope: "number", begin: /\b\d[\d.]*(e[+-]?\d+)?f?\b/ }, { scope: "symbol", begin: /->/ }],
}));

/** A text of which only the lines in view are elements. */
class CodePane {
  constructor(listing, number, owner) {
    Object.assign(this, { listing, number, owner });
    this.content = el("div", { class: "lines", style: `height:${listing.lines.length * LINE + 6}px` });
    this.scroller = el("div", { class: "scroller", tabindex: "0", role: "region", "aria-label": NAMES[listing.language], scroll: () => this.draw(), keydown: (event) => this.key(event) }, this.content);
    this.element = el("div", { class: "pane", "data-language": listing.language },
      el("header", {}, NAMES[listing.language] ?? listing.language, el("small", {}, `${listing.lines.length.toLocaleString("en")} lines`)), this.scroller);
    this.marked = new Set();
    this.content.addEventListener("pointermove", (event) => {
      const line = this.at(event);
      if (line !== null) owner.hover(this.number, line);
    });
    this.content.addEventListener("pointerleave", () => owner.hover(null));
    this.content.addEventListener("click", (event) => {
      const line = this.at(event);
      if (line !== null && !String(getSelection())) owner.pin(this.number, line);
    });
  }

  /** Enter pins the first line that is seen, arrows the next one and the one before. */
  key(event) {
    const [pane, pinned] = this.owner.pinned ?? [];
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.key === "Enter") this.owner.pin(this.number, pane === this.number ? pinned : Math.ceil(this.scroller.scrollTop / LINE));
    else if (step && pane === this.number) this.owner.pin(this.number, Math.min(this.listing.lines.length - 1, Math.max(0, pinned + step)));
    else return;
    event.preventDefault();
    event.stopPropagation();
    this.seeLine(this.owner.pinned?.[1]);
  }

  seeLine(line) {
    if (line === undefined) return;
    const [top, last] = [line * LINE, (line + 2) * LINE - this.scroller.clientHeight];
    this.scroller.scrollTop = Math.max(Math.min(this.scroller.scrollTop, top), last);
  }

  at(event) {
    const line = event.target.closest?.("[data-line]");
    return line ? Number(line.dataset.line) : null;
  }

  draw() {
    const first = Math.max(0, Math.floor(this.scroller.scrollTop / LINE) - AROUND);
    const last = Math.min(this.listing.lines.length, Math.ceil((this.scroller.scrollTop + this.scroller.clientHeight) / LINE) + AROUND);
    const shown = [];
    for (let n = first; n < last; n += 1) shown.push(this.line(n));
    this.content.replaceChildren(...shown);
  }

  line(number) {
    const text = el("code");
    const language = this.listing.language;
    // highlight.js escapes the text
    if (vendor.hljs.getLanguage(language)) text.innerHTML = vendor.hljs.highlight(this.listing.lines[number], { language, ignoreIllegals: true }).value;
    else text.textContent = this.listing.lines[number];
    const isLinked = this.owner.hasLinks(this.number, number);
    return el("div", { class: `line ${this.marked.has(number) ? "linked" : ""} ${isLinked ? "has-link" : ""}`, style: `top:${number * LINE}px`, "data-line": number }, el("i", {}, String(number + 1)), text);
  }

  mark(lines, follow) {
    this.marked = lines;
    if (follow && lines.size) {
      const first = Math.min(...lines) * LINE;
      const { scrollTop, clientHeight } = this.scroller;
      if (first < scrollTop || first > scrollTop + clientHeight - 2 * LINE) this.scroller.scrollTop = first - clientHeight / 3;
      this.scroller.scrollLeft = 0;
    }
    this.draw();
  }
}

/** Panes beside each other; a line that is pointed at marks those that it came from and that were made of it. */
class LinkedPanes {
  constructor(listings) {
    this.listings = listings;
    this.made = listings.map((_, number) => this.madeFrom(number));
    this.panes = listings.map((listing, number) => new CodePane(listing, number, this));
    this.pinned = null;
    this.element = el("div", { class: "panes", style: `--panes:${listings.length}` }, this.panes.map((pane) => pane.element));
  }

  /** By line of a text, the lines of the next one. */
  madeFrom(number) {
    const found = new Map();
    (this.listings[number + 1]?.origins ?? []).forEach((origin, line) => {
      if (origin >= 0) found.set(origin, [...(found.get(origin) ?? []), line]);
    });
    return found;
  }

  hasLinks(pane, line) {
    return (pane > 0 && this.listings[pane].origins[line] >= 0) || (this.made[pane].get(line)?.length ?? 0) > 0;
  }

  linesOf(pane, line) {
    const found = this.listings.map(() => new Set());
    found[pane].add(line);
    for (let up = pane; up > 0; up -= 1) {
      for (const one of found[up]) if (this.listings[up].origins[one] >= 0) found[up - 1].add(this.listings[up].origins[one]);
    }
    for (let down = pane; down + 1 < this.listings.length; down += 1) {
      for (const one of found[down]) for (const made of this.made[down].get(one) ?? []) found[down + 1].add(made);
    }
    return found;
  }

  show(where, follow) {
    const found = where ? this.linesOf(...where) : this.listings.map(() => new Set());
    this.panes.forEach((pane, number) => pane.mark(found[number], follow && number !== where?.[0]));
  }

  hover(pane, line) {
    const where = pane === null ? this.pinned : [pane, line];
    if (String(where) === this.shown) return;
    this.shown = String(where);
    this.show(where, false);
  }

  pin(pane, line) {
    const same = this.pinned && this.pinned[0] === pane && this.pinned[1] === line;
    this.pinned = same ? null : [pane, line];
    this.shown = null;
    this.show(this.pinned, true);
  }

  draw() {
    for (const pane of this.panes) pane.draw();
  }
}

let preferred = null;

/** The code of a kernel, with a switch between back ends. */
export async function codeView(symbol) {
  const code = await codeOf(symbol);
  const kinds = Object.keys(code);
  const body = el("div", { class: "code-body" });
  const show = (kind) => {
    preferred = kind;
    if (typeof code[kind] === "string") return body.replaceChildren(empty(`No code: ${code[kind]}`));
    const panes = new LinkedPanes(code[kind]);
    body.replaceChildren(panes.element);
    requestAnimationFrame(() => panes.draw());
    return undefined;
  };
  const kind = kinds.includes(preferred) ? preferred : kinds[0];
  const choice = kinds.length > 1 ? segmented("target", kinds.map((k) => [k, KINDS[k] ?? k]), kind, show) : null;
  show(kind);
  const hint = el("span", { class: "note" }, "point at a line to see what it became; click (or Enter) pins it");
  return el("div", { class: "code" }, el("div", { class: "bar" }, choice, hint), body);
}
