// Pictures as SVG: maps and lines for export, and charts of curves.

import { enlarged, fit, h, s } from "./dom.js";
import { colour, pixels } from "./heatmap.js";
import { said, ticks, visible, weight } from "./numbers.js";

const COLOURS = ["#1a5fb4", "#c64600", "#26794a", "#813d9c", "#a51d2d", "#63452c"];
const LIGHTER = ["#8ab8f5", "#ffb27a", "#86d9a3", "#d6a6ee", "#ff9c94", "#d3b594"];
const DASHES = [undefined, "5 4", "2 3", "9 3 2 3"], SIGNS = ["━━ ", "╍╍ ", "┅┅ ", "╍┅ "];

/** @param {number} number the colour of a curve, one that can be told apart on this ground */
export function curveColour(number) {
  const dark = getComputedStyle(document.documentElement).colorScheme === "dark";
  return (dark ? LIGHTER : COLOURS)[number % COLOURS.length];
}

/** @param {Curve} curve which dashes it has: those after the last colour differ from those that have it too */
const dashing = (curve) => Number(curve.dashed ?? false) + (curve.colour < COLOURS.length ? 0 : 2);

/**
 * A map as an SVG text with labels; the cells are a picture inside it.
 * @param {import("./heatmap.js").Map} map
 * @param {string} title
 */
export async function mapSvg(map, title) {
  const rows = map.rows.length, columns = map.columns.length, side = Math.max(1, Math.min(18, Math.floor(1200 / Math.max(rows, columns))));
  const left = 110, top = 110, width = columns * side, height = rows * side;
  const image = pixels(map, Math.min(rows, 4096), Math.min(columns, 4096));
  const small = new OffscreenCanvas(image.width, image.height);
  /** @type {OffscreenCanvasRenderingContext2D} */ (small.getContext("2d")).putImageData(image, 0, 0);
  const bytes = new Uint8Array(await (await small.convertToBlob({ type: "image/png" })).arrayBuffer());
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  const whole = s("svg", { xmlns: "http://www.w3.org/2000/svg", viewBox: `0 0 ${left + width + 10} ${top + height + 10}`, "font-family": "monospace", "font-size": 10 },
    s("title", {}, title), s("rect", { width: "100%", height: "100%", fill: colour("--raised") }),
    s("image", { x: left, y: top, width, height, href: "data:image/png;base64," + btoa(text), "image-rendering": "pixelated", preserveAspectRatio: "none" }));
  if (Math.max(rows, columns) <= 128) {
    map.rows.forEach((piece, row) => whole.append(s("text", { x: left - 4, y: top + (row + 0.75) * side, "text-anchor": "end", fill: colour("--ink") }, visible(piece))));
    map.columns.forEach((piece, column) => whole.append(s("text", { transform: `translate(${left + (column + 0.75) * side} ${top - 4}) rotate(-90)`, fill: colour("--ink") }, visible(piece))));
  }
  return new XMLSerializer().serializeToString(whole);
}

/**
 * Lines from tokens that ask to tokens that are asked, as thick as the weight.
 * @param {string[]} rows
 * @param {string[]} columns
 * @param {ArrayLike<number>} values
 * @param {string} label
 * @param {number} only the one row whose lines are drawn; -1: all
 */
export function lines(rows, columns, values, label, only = -1) {
  const made = s("svg", { role: "img", "aria-label": label, class: "chart" }), place = h("div", {}, made);
  fit(place, (available) => {
    const large = enlarged(), step = 20 * large, width = Math.min(available, 560 * large), left = width * 0.3, right = width * 0.7;
    made.setAttribute("viewBox", `0 0 ${width} ${Math.max(rows.length, columns.length) * step + 10}`);
    made.style.maxWidth = width + "px";
    made.replaceChildren();
    rows.forEach((_, row) => {
      if (only >= 0 && row !== only) return;
      columns.forEach((_, column) => {
        const value = values[row * columns.length + column];
        if (value < 0.02) return;
        made.append(s("line", { x1: left + 6, y1: (row + 0.7) * step, x2: right - 6, y2: (column + 0.7) * step, stroke: curveColour(0), "stroke-width": 4 * value, "stroke-opacity": 0.25 + 0.75 * value },
          s("title", {}, `${visible(rows[row])} → ${visible(columns[column])}: ${weight(value)}`)));
      });
    });
    rows.forEach((piece, row) => made.append(s("text", { x: left, y: (row + 0.9) * step, "text-anchor": "end" }, visible(piece))));
    columns.forEach((piece, column) => made.append(s("text", { x: right, y: (column + 0.9) * step }, visible(piece))));
  });
  return place;
}

/**
 * @typedef {{name: string, points: number[][], dashed?: boolean, colour: number}} Curve
 * @typedef {{label: string, across: string, up: string, log?: boolean, form?: (value: number) => string}} About
 */

/**
 * Curves over one axis, with a legend.
 * @param {Curve[]} curves
 * @param {About} about
 */
export function chart(curves, about) {
  const drawn = curves.filter((curve) => curve.points.some((point) => Number.isFinite(point[1])));
  const made = s("svg", { role: "img", "aria-label": about.label, class: "chart" });
  if (drawn.length === 0) return h("figure", {}, made);
  const reader = pointed(made, drawn, about);
  const figure = h("figure", {}, made, reader.readout, h("figcaption", { class: "row" }, drawn.map((curve) => h("span", {},
    h("span", { style: { color: curveColour(curve.colour) }, "aria-hidden": true }, SIGNS[dashing(curve)]), curve.name))));
  fit(figure, (width) => reader.place(axes(made, drawn, about, width)));
  return figure;
}

/**
 * The curves and their axes at a width; returns where values are.
 * @param {SVGElement} made
 * @param {Curve[]} drawn
 * @param {About} about
 * @param {number} width
 */
function axes(made, drawn, about, width) {
  const form = about.form ?? ((/** @type {number} */ value) => said(value, 3));
  const large = enlarged(), height = Math.round(Math.min(300, 160 + width / 5) * large), right = 20 * large, top = 10, bottom = 40 * large;
  const scaled = (/** @type {number} */ value) => (about.log ? Math.log10(Math.max(value, 1e-12)) : value);
  const every = drawn.flatMap((curve) => curve.points).filter((point) => Number.isFinite(point[1]));
  const xs = every.map((point) => point[0]), ys = every.map((point) => scaled(point[1]));
  const [x0, x1] = [least(xs), most(xs)], [low, high] = [least(ys), most(ys)];
  const margin = (high - low || Math.abs(high) || 1) * 0.04, y0 = low - margin, y1 = high + margin;
  const steps = ticks(y0, y1).map((/** @type {number} */ value) => ({ value, text: form(about.log ? 10 ** value : value) }));
  const left = Math.max(58, ...steps.map(({ text }) => 28 + 7 * text.length)) * large;
  const x = (/** @type {number} */ value) => left + ((value - x0) / (x1 - x0 || 1)) * (width - left - right);
  const y = (/** @type {number} */ value) => height - bottom - ((scaled(value) - y0) / (y1 - y0)) * (height - top - bottom);
  made.setAttribute("viewBox", `0 0 ${width} ${height}`);
  made.replaceChildren();
  for (const { value, text } of steps) {
    const at = height - bottom - ((value - y0) / (y1 - y0)) * (height - top - bottom);
    made.append(s("line", { class: "grid", x1: left, x2: width - right, y1: at, y2: at }), s("text", { x: left - 6, y: at + 4, "text-anchor": "end" }, text));
  }
  for (const value of ticks(x0, x1, Math.max(2, Math.min(5, width / (80 * large))))) made.append(s("text", { x: x(value), y: height - bottom + 16 * large, "text-anchor": "middle" }, said(value)));
  made.append(s("line", { class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }),
    s("text", { x: width / 2, y: height - 6, "text-anchor": "middle" }, about.across), s("text", { transform: `translate(${14 * large} ${height / 2}) rotate(-90)`, "text-anchor": "middle" }, about.up));
  for (const curve of drawn) {
    const path = curve.points.filter((point) => Number.isFinite(point[1])).map((point, place) => (place ? "L" : "M") + x(point[0]).toFixed(1) + " " + y(point[1]).toFixed(1)).join("");
    made.append(s("path", { class: "curve", d: path, stroke: curveColour(curve.colour), "stroke-dasharray": DASHES[dashing(curve)] }, s("title", {}, curve.name)));
    const last = curve.points[curve.points.length - 1];
    if (curve.points.length === 1) made.append(s("circle", { cx: x(last[0]), cy: y(last[1]), r: 3, fill: curveColour(curve.colour) }));
  }
  return { x, y, top, bottom: height - bottom };
}

/**
 * Reads the curves at the pointer, or where the arrow keys have moved to.
 * @param {SVGElement} made
 * @param {Curve[]} curves
 * @param {About} about
 */
function pointed(made, curves, about) {
  const places = [...new Set(curves.flatMap((curve) => curve.points.map((point) => point[0])))].sort((one, two) => one - two);
  const readout = h("p", { class: "readout", "aria-live": "polite" }, "Point at the curves, or move with the arrow keys, to read them.");
  const cursor = s("g", { class: "cursor" });
  /** @type {ReturnType<typeof axes>} */
  let scale;
  let at = places.length - 1;
  const nearest = (/** @type {number[][]} */ points, /** @type {number} */ place) => points.reduce((one, two) => (Math.abs(two[0] - place) < Math.abs(one[0] - place) ? two : one));
  const read = (/** @type {number} */ place) => {
    at = Math.max(0, Math.min(places.length - 1, place));
    const values = curves.map((curve) => ({ curve, point: nearest(curve.points, places[at]) })).filter(({ point }) => Number.isFinite(point[1]));
    cursor.replaceChildren(s("line", { x1: scale.x(places[at]), x2: scale.x(places[at]), y1: scale.top, y2: scale.bottom }),
      ...values.map(({ curve, point }) => s("circle", { cx: scale.x(point[0]), cy: scale.y(point[1]), r: 4, fill: curveColour(curve.colour) })));
    readout.textContent = `${about.across} ${said(places[at])}: ` + values.map(({ curve, point }) => `${curve.name} ${(about.form ?? said)(point[1])}${point[0] === places[at] ? "" : ` (at ${said(point[0])})`}`).join("; ");
  };
  made.setAttribute("tabindex", "0");
  made.addEventListener("pointermove", (event) => {
    const x = /** @type {PointerEvent} */ (event).clientX - made.getBoundingClientRect().left;
    read(places.reduce((best, place, number) => (Math.abs(scale.x(place) - x) < Math.abs(scale.x(places[best]) - x) ? number : best), 0));
  });
  made.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1, Home: -places.length, End: places.length }[/** @type {KeyboardEvent} */ (event).key];
    if (by === undefined) return;
    event.preventDefault();
    read(at + by);
  });
  const place = (/** @type {ReturnType<typeof axes>} */ now) => {
    scale = now;
    cursor.replaceChildren();
    made.append(cursor);
  };
  return { readout, place };
}

/** @param {number[]} values */
function least(values) {
  return values.reduce((one, two) => Math.min(one, two), Infinity);
}

/** @param {number[]} values */
function most(values) {
  return values.reduce((one, two) => Math.max(one, two), -Infinity);
}
