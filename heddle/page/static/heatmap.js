// A map of numbers on a canvas: rows ask, columns are asked; the pointer and the arrow keys read it.

import { h } from "./dom.js";
import { onScale, shrunk, visible } from "./numbers.js";

/**
 * @typedef {{
 *   values: ArrayLike<number>, allowed: ArrayLike<number> | null, rows: string[], columns: string[],
 *   low: number, high: number, label: string,
 *   onread?: (row: number, column: number) => void, onpick?: (row: number, column: number) => void,
 * }} Map
 */

const LABELLED = 64; // tokens up to which each has its label
const FONT = 11; // pixels at the page's usual type size

/** @param {string} name of a colour in style.css */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** @param {string} text such as "16, 62, 130" or "#f3d9c4" */
export function rgb(text) {
  if (text.startsWith("#")) return [1, 3, 5].map((place) => parseInt(text.slice(place, place + 2), 16));
  return text.split(",").map(Number);
}

/**
 * The pixels of a map: from the ground's colour to the high one and, below zero, to the low one; what is masked has its own.
 * @param {Map} map
 * @param {number} height
 * @param {number} width
 */
export function pixels(map, height, width) {
  const cells = shrunk(map.values, map.allowed, map.rows.length, map.columns.length, height, width);
  const [ground, high, low, masked] = ["--raised", "--high", "--less", "--masked"].map((name) => rgb(colour(name)));
  const image = new ImageData(width, height);
  for (let place = 0; place < cells.length; place++) {
    const empty = cells[place] === -Infinity, share = onScale(cells[place], map.low, map.high), end = share < 0 ? low : high;
    for (let part = 0; part < 3; part++)
      image.data[4 * place + part] = empty ? masked[part] : ground[part] + Math.abs(share) * (end[part] - ground[part]);
    image.data[4 * place + 3] = 255;
  }
  return image;
}

/**
 * @param {Map} map
 * @returns {{element: HTMLElement, canvas: HTMLCanvasElement, mark: (row: number, column: number) => void, redraw: () => void}}
 */
export function heatmap(map) {
  const rows = map.rows.length, columns = map.columns.length;
  const labelled = Math.max(rows, columns) <= LABELLED;
  const large = parseFloat(getComputedStyle(document.documentElement).fontSize) / 16; // more in the projector view
  const left = labelled ? 92 * large : 8, top = labelled ? 84 * large : 8;
  const room = Math.max(220, Math.min(820, (document.getElementById("main")?.clientWidth ?? 700) - left - 12));
  const side = labelled ? Math.max(9, Math.min((columns > 12 ? 30 : 42) * large, Math.floor(room / columns))) : room / columns;
  const across = Math.max(1, Math.round(side * columns)), down = Math.max(1, Math.round(labelled ? side * rows : room * Math.min(2, rows / columns)));
  const high = down / rows, wide = across / columns;
  const size = { width: left + across + 2, height: top + down + 2 };
  const canvas = h("canvas", { ...size, class: "under" });
  const over = h("canvas", { ...size, class: "over", tabindex: 0, role: "img", "aria-label": map.label + ". Arrow keys move, Enter holds." });
  let at = [0, 0];

  const redraw = () => {
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    context.clearRect(0, 0, size.width, size.height);
    const image = pixels(map, Math.min(rows, down), Math.min(columns, across));
    const small = new OffscreenCanvas(image.width, image.height);
    /** @type {OffscreenCanvasRenderingContext2D} */ (small.getContext("2d")).putImageData(image, 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(small, left, top, across, down);
    context.strokeStyle = colour("--soft");
    context.strokeRect(left - 0.5, top - 0.5, across + 1, down + 1);
    if (!labelled) return;
    context.font = `${FONT * large}px ui-monospace, monospace`;
    context.fillStyle = colour("--ink");
    context.textBaseline = "middle";
    const short = (/** @type {string} */ text) => (text.length > 12 ? text.slice(0, 11) + "…" : text);
    map.rows.forEach((piece, row) => {
      context.textAlign = "right";
      context.fillText(short(visible(piece)), left - 5, top + (row + 0.5) * high);
    });
    map.columns.forEach((piece, column) => {
      context.save();
      context.translate(left + (column + 0.5) * wide, top - 5);
      context.rotate(-Math.PI / 2);
      context.textAlign = "left";
      context.fillText(short(visible(piece)), 0, 0);
      context.restore();
    });
  };

  const mark = (/** @type {number} */ row, /** @type {number} */ column) => {
    at = [row, column];
    const context = /** @type {CanvasRenderingContext2D} */ (over.getContext("2d"));
    context.clearRect(0, 0, size.width, size.height);
    context.strokeStyle = colour("--accent");
    context.lineWidth = 1.5;
    context.strokeRect(left, top + row * high, across, Math.max(2, high));
    context.strokeRect(left + column * wide, top, Math.max(2, wide), down);
  };

  const place = (/** @type {PointerEvent | MouseEvent} */ event) => {
    const box = over.getBoundingClientRect();
    const x = ((event.clientX - box.left) * size.width) / box.width - left, y = ((event.clientY - box.top) * size.height) / box.height - top;
    if (x < 0 || y < 0 || x >= across || y >= down) return null;
    return [Math.min(rows - 1, Math.floor(y / high)), Math.min(columns - 1, Math.floor(x / wide))];
  };
  const read = (/** @type {number} */ row, /** @type {number} */ column) => {
    mark(row, column);
    map.onread?.(row, column);
  };
  over.addEventListener("pointermove", (event) => {
    const found = place(event);
    if (found) read(found[0], found[1]);
  });
  over.addEventListener("click", (event) => {
    const found = place(event);
    if (!found) return;
    read(found[0], found[1]);
    map.onpick?.(found[0], found[1]);
  });
  over.addEventListener("keydown", (event) => {
    const moves = /** @type {Record<string, number[]>} */ ({ ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] });
    const move = moves[event.key];
    if (move) read(Math.max(0, Math.min(rows - 1, at[0] + move[0])), Math.max(0, Math.min(columns - 1, at[1] + move[1])));
    else if (event.key === "Enter" || event.key === " ") map.onpick?.(at[0], at[1]);
    else return;
    event.preventDefault();
  });
  redraw();
  return { element: h("div", { class: "map" }, canvas, over), canvas, mark, redraw };
}
