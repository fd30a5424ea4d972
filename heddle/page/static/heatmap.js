// A map of numbers on a canvas: rows ask, columns are asked; the pointer and the arrow keys read it.

import { enlarged, fit, h } from "./dom.js";
import { onScale, shrunk, visible } from "./numbers.js";

/**
 * @typedef {{
 *   values: ArrayLike<number>, allowed: ArrayLike<number> | null, rows: string[], columns: string[],
 *   low: number, high: number, label: string, filling?: boolean,
 *   onread?: (row: number, column: number) => void, onpick?: (row: number, column: number) => void,
 * }} Map
 */

const FONT = 11, LETTER = 6.7, LONGEST = 12; // pixels of labels at the page's usual type size, and letters of the longest
const SIDE = 42, SMALLER = 30, FEW = 12; // pixels of a cell at most, also if there are more than a few columns
const ROOM = 820; // pixels of a map whose cells have no labels

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
 * Where the cells of a map are in a place: labels if a row is as high as one, cells as large as there is room.
 * @param {Map} map
 * @param {number} width
 * @param {number} height
 */
export function arranged(map, width, height) {
  const rows = map.rows.length, columns = map.columns.length, large = enlarged();
  const label = (/** @type {string[]} */ pieces) => Math.ceil((14 + LETTER * Math.min(LONGEST, pieces.reduce((most, piece) => Math.max(most, visible(piece).length), 0))) * large);
  let [left, top] = [label(map.rows), label(map.columns)];
  const most = map.filling ? Infinity : (columns > FEW ? SMALLER : SIDE) * large;
  const side = Math.floor(Math.min(most, (width - left - 2) / columns, (height - top - 2) / rows));
  if (side >= FONT * large) return { left, top, large, labelled: true, across: side * columns, down: side * rows };
  left = top = 1;
  const room = map.filling ? width - 2 : Math.min(ROOM, width - 2), ratio = Math.min(2, rows / columns);
  const across = Math.max(1, Math.floor(Math.min(room, (height - 2) / ratio)));
  return { left, top, large, labelled: false, across, down: Math.max(1, Math.floor(across * ratio)) };
}

/**
 * @param {Map} map
 * @returns {HTMLElement}
 */
export function heatmap(map) {
  const rows = map.rows.length, columns = map.columns.length;
  const canvas = h("canvas", { class: "under" });
  const over = h("canvas", { class: "over", tabindex: 0, role: "img", "aria-label": map.label + ". Arrow keys move, Enter holds." });
  const element = h("div", { class: "map" }, canvas, over);
  let at = [0, 0], marked = false;
  /** @type {ReturnType<typeof arranged>} */
  let grid;

  const cleared = (/** @type {HTMLCanvasElement} */ each) => {
    const size = [grid.left + grid.across + 2, grid.top + grid.down + 2];
    [each.width, each.height] = size.map((side) => side * devicePixelRatio);
    Object.assign(each.style, { width: size[0] + "px", height: size[1] + "px" });
    const context = /** @type {CanvasRenderingContext2D} */ (each.getContext("2d"));
    context.scale(devicePixelRatio, devicePixelRatio);
    return context;
  };
  const mark = () => {
    const context = cleared(over), high = grid.down / rows, wide = grid.across / columns;
    if (!marked) return;
    context.strokeStyle = colour("--accent");
    context.lineWidth = 1.5;
    context.strokeRect(grid.left, grid.top + at[0] * high, grid.across, Math.max(2, high));
    context.strokeRect(grid.left + at[1] * wide, grid.top, Math.max(2, wide), grid.down);
  };
  fit(element, (width, height) => {
    grid = arranged(map, width, height);
    over.dataset.grid = [grid.left, grid.top, grid.across, grid.down].join(" ");
    paint(cleared(canvas), map, grid);
    mark();
  }, map.filling);

  const place = (/** @type {PointerEvent | MouseEvent} */ event) => {
    const box = over.getBoundingClientRect(), x = event.clientX - box.left - grid.left, y = event.clientY - box.top - grid.top;
    if (x < 0 || y < 0 || x >= grid.across || y >= grid.down) return null;
    return [Math.floor((y * rows) / grid.down), Math.floor((x * columns) / grid.across)];
  };
  const read = (/** @type {number} */ row, /** @type {number} */ column) => {
    [at, marked] = [[row, column], true];
    mark();
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
  return element;
}

/** @param {Map} map @returns {Promise<Blob>} */
export function picture(map) {
  const grid = arranged({ ...map, filling: false }, ROOM, Infinity), whole = new OffscreenCanvas(grid.left + grid.across + 2, grid.top + grid.down + 2);
  const context = /** @type {OffscreenCanvasRenderingContext2D} */ (whole.getContext("2d"));
  context.fillStyle = colour("--raised");
  context.fillRect(0, 0, whole.width, whole.height);
  paint(context, map, grid);
  return whole.convertToBlob({ type: "image/png" });
}

/**
 * The cells of a map, and its labels.
 * @param {CanvasRenderingContext2D | OffscreenCanvasRenderingContext2D} context
 * @param {Map} map
 * @param {ReturnType<typeof arranged>} grid
 */
function paint(context, map, { left, top, across, down, large, labelled }) {
  const rows = map.rows.length, columns = map.columns.length, image = pixels(map, Math.min(rows, down), Math.min(columns, across));
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
  const label = (/** @type {string} */ piece, /** @type {number} */ x, /** @type {number} */ y, /** @type {number} */ turn, /** @type {CanvasTextAlign} */ align) => {
    const text = visible(piece);
    context.save();
    context.translate(x, y);
    context.rotate(turn);
    context.textAlign = align;
    context.fillText(text.length > LONGEST ? text.slice(0, LONGEST - 1) + "…" : text, 0, 0);
    context.restore();
  };
  map.rows.forEach((piece, row) => label(piece, left - 5, top + ((row + 0.5) * down) / rows, 0, "right"));
  map.columns.forEach((piece, column) => label(piece, left + ((column + 0.5) * across) / columns, top - 5, -Math.PI / 2, "left"));
}
