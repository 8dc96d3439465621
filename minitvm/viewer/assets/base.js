// Elements, figures as text, and a place for what the views tell each other.

const SVG = "http://www.w3.org/2000/svg";

/** An element; children are elements or text, never markup. Attributes that are functions are listeners. */
export function el(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** Three significant digits and a unit; zero and what is no number have none. */
function withUnit(value, units, step) {
  if (!Number.isFinite(value)) return "-";
  let unit = 0;
  while (unit < units.length - 1 && Math.abs(value) >= step) {
    value /= step;
    unit += 1;
  }
  const digits = Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2;
  return `${value.toFixed(value === Math.round(value) && unit === 0 ? 0 : digits)} ${units[unit]}`;
}

export const time = (seconds) => withUnit(seconds * 1e9, ["ns", "us", "ms", "s"], 1000);
export const bytes = (count) => withUnit(count, ["B", "KB", "MB", "GB"], 1000);
export const flop = (count) => withUnit(count, ["FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP"], 1000);
export const rate = (perSecond) => withUnit(perSecond / 1e9, ["GFLOP/s", "TFLOP/s"], 1000);
export const share = (part) => (Number.isFinite(part) ? `${(100 * part).toFixed(part < 0.1 ? 1 : 0)} %` : "-");
export const clip = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
/** Names of scopes begin alike: the end says which it is. */
export const tail = (text, most) => (text.length > most ? `…${text.slice(1 - most)}` : text);

/** The model's nodes in few characters: the first one, and how many more. */
export function spansText(spans, most) {
  const more = spans.length > 1 ? ` +${spans.length - 1}` : "";
  const whole = spans.join(", ");
  return whole.length <= most ? whole : tail(spans[0], most - more.length) + more;
}

export const plural = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : /(s|ch)$/.test(word) ? "es" : "s"}`;

/** Listeners by event: "select" (a node or kernel), "view" (a tab), "theme". */
const listeners = new Map();

export function on(event, listener) {
  listeners.set(event, [...(listeners.get(event) ?? []), listener]);
}

export function tell(event, ...what) {
  for (const listener of listeners.get(event) ?? []) listener(...what);
}

/** A segmented switch; `choose` gets the value. */
export function segmented(name, choices, chosen, choose) {
  const buttons = choices.map(([value, label, hint]) =>
    el("button", {
      type: "button", role: "radio", "aria-checked": String(value === chosen), "data-value": value, title: hint ?? null,
      click: () => {
        for (const button of buttons) button.setAttribute("aria-checked", String(button.dataset.value === String(value)));
        choose(value);
      },
    }, label),
  );
  return el("div", { class: "segmented", role: "radiogroup", "aria-label": name }, buttons);
}

/** What is shown beside the pointer. */
const tip = el("div", { id: "tip", role: "tooltip", hidden: true });

export function tipped(node, text) {
  node.addEventListener("pointermove", (event) => {
    if (!tip.isConnected) document.body.append(tip);
    tip.textContent = typeof text === "function" ? text() : text;
    tip.hidden = false;
    const left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
    const below = event.clientY + 18 + tip.offsetHeight < innerHeight;
    tip.style.left = `${Math.max(4, left)}px`;
    tip.style.top = `${below ? event.clientY + 18 : event.clientY - tip.offsetHeight - 10}px`;
  });
  for (const event of ["pointerleave", "click"]) node.addEventListener(event, () => (tip.hidden = true));
  return node;
}

export const empty = (text) => el("p", { class: "empty" }, text);
