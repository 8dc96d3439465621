// Drawings saved as files: SVG that looks the same without the page's style, and PNG.

import { el } from "./base.js";
import { doc } from "./data.js";

const LOOKS = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "opacity", "font", "text-anchor", "paint-order", "display"];
const SCALE = 2; // pixels of a PNG for each of the drawing's
const MOST_PIXELS = 16_000; // a side of a canvas

/** A copy whose elements carry what the style sheet says about them. */
export function styledCopy(original) {
  const copy = original.cloneNode(true);
  const copies = [copy, ...copy.querySelectorAll("*")];
  [original, ...original.querySelectorAll("*")].forEach((node, i) => {
    const style = getComputedStyle(node);
    copies[i].setAttribute("style", LOOKS.map((name) => `${name}:${style.getPropertyValue(name)}`).join(";"));
    for (const name of ["class", "tabindex", "role"]) copies[i].removeAttribute(name);
  });
  return copy;
}

/** A picture by itself, on the ground of the page. */
function asText(picture) {
  picture.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  picture.style.background = getComputedStyle(document.body).backgroundColor;
  return new XMLSerializer().serializeToString(picture);
}

function save(address, ending) {
  const link = el("a", { href: address, download: `${doc.title.replace(/[^\w.-]+/g, "_")}.${ending}` });
  link.click();
}

async function asPng(picture) {
  const [width, height] = ["width", "height"].map((name) => Number(picture.getAttribute(name)));
  const scale = Math.min(SCALE, MOST_PIXELS / Math.max(width, height));
  const image = new Image();
  image.src = `data:image/svg+xml,${encodeURIComponent(asText(picture))}`;
  await image.decode();
  const canvas = el("canvas", { width: Math.round(width * scale), height: Math.round(height * scale) });
  const context = canvas.getContext("2d");
  context.fillStyle = getComputedStyle(document.body).backgroundColor;
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/png");
}

/** Buttons that save what `picture()` makes: an SVG element with a width and a height. */
export function pictureButtons(picture) {
  const button = (text, act) => el("button", { type: "button", class: "icon saves", title: `save as ${text}`, "aria-label": `save as ${text}`, click: act }, text);
  return [
    button("SVG", () => save(`data:image/svg+xml,${encodeURIComponent(asText(picture()))}`, "svg")),
    button("PNG", async () => save(await asPng(picture()), "png")),
  ];
}

/** A chart's picture: as large as it is shown. */
export function chartPicture(chart) {
  const copy = styledCopy(chart);
  const { width, height } = chart.getBoundingClientRect();
  copy.setAttribute("width", width);
  copy.setAttribute("height", height);
  return copy;
}
