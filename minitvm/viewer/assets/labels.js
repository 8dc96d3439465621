// Labels that are cut so that they still differ.

import { clip } from "./base.js";

const NARROW = 20; // in so few characters, no beginning stays

/** Texts in at most so many characters, as [text, most] each: those that would be cut alike lose what they have in common
 *  instead of what tells them apart. `short` cuts the others. */
export function cutApart(items, short = clip) {
  const cut = items.map(([text, most]) => short(text, most));
  const alike = new Map();
  cut.forEach((text, i) => alike.set(text, [...(alike.get(text) ?? []), i]));
  for (const places of alike.values()) {
    const texts = [...new Set(places.map((i) => items[i][0]))];
    if (texts.length < 2) continue;
    const shared = commonStart(texts);
    for (const i of places) cut[i] = withoutMiddle(...items[i], shared);
  }
  return numbered(items, cut);
}

function commonStart(texts) {
  const [first, ...rest] = texts;
  let length = 0;
  while (length < first.length && rest.every((text) => text[length] === first[length])) length += 1;
  return length;
}

/** The beginning, and what begins shortly before the difference; the end stays where there is room for it. */
function withoutMiddle(text, most, shared) {
  if (text.length <= most) return text;
  const head = most < NARROW ? 0 : Math.floor(most / 3);
  const from = Math.max(head, Math.min(shared - 2, text.length - (most - head - 1)));
  return `${text.slice(0, head)}…${clip(text.slice(from), most - head - 1)}`;
}

/** Where different texts are alike even so, which of them it is. */
function numbered(items, cut) {
  const seen = new Map();
  return cut.map((text, i) => {
    if (!seen.has(text)) seen.set(text, []);
    const texts = seen.get(text);
    if (!texts.includes(items[i][0])) texts.push(items[i][0]);
    const number = texts.indexOf(items[i][0]);
    return number === 0 ? text : `${text.slice(0, Math.max(1, items[i][1] - 2 - String(number + 1).length))}…#${number + 1}`;
  });
}
