// A pass as plates in an isometric view: a step down is a step of the computation; the camera follows the chosen one.

import { colour, rgb } from "./heatmap.js";
import { enlarged, fit, h } from "./dom.js";
import { corners, iso, said, unpack } from "./numbers.js";

/** @typedef {import("./app.js").Document} Document */

const MOST = 520, THICK = 5, GAP = 2, FAR = 3; // pixels, cells between heads, levels to each side that are drawn

/**
 * @param {Document} found levels of plates
 * @param {number} chosen level
 * @param {(level: number) => void} pick
 * @returns {{element: HTMLElement, canvas: HTMLCanvasElement}}
 */
export function isometric(found, chosen, pick) {
  const names = found.levels[chosen].plates.map((/** @type {Document} */ plate) => plate.name).join(", ");
  const canvas = h("canvas", { class: "isometric", tabindex: 0, role: "img", "aria-label": `Step ${chosen + 1} of ${found.levels.length}: ${names}. Arrow keys up and down move to other steps.` });
  const element = h("div", {}, canvas);
  /** @type {{level: number, points: number[][]}[]} */
  let drawn = [];
  fit(element, (available) => {
    const width = Math.min(900, available), height = Math.min(MOST, Math.round(200 + 0.4 * width)), context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    Object.assign(canvas, { width: width * devicePixelRatio, height: height * devicePixelRatio });
    Object.assign(canvas.style, { width: width + "px", height: height + "px" });
    context.scale(devicePixelRatio, devicePixelRatio);
    drawn = scene(context, found, chosen, width, height);
  });
  canvas.addEventListener("click", (event) => {
    const box = canvas.getBoundingClientRect();
    const hit = [...drawn].reverse().find((each) => inside(each.points, event.clientX - box.left, event.clientY - box.top));
    if (hit) pick(hit.level);
  });
  canvas.addEventListener("keydown", (event) => {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    pick(Math.max(0, Math.min(found.levels.length - 1, chosen + by)));
  });
  return { element, canvas };
}

/**
 * The plates around the chosen level, from the furthest below; returns their outlines.
 * @param {CanvasRenderingContext2D} context
 * @param {Document} found
 * @param {number} chosen
 * @param {number} width
 * @param {number} height
 */
function scene(context, found, chosen, width, height) {
  /** @type {{level: number, points: number[][]}[]} */
  const drawn = [];
  /** @type {(() => void)[]} */
  const labels = [];
  const side = Math.max(2.2, Math.min(7.4, width / 112)), apart = 0.35 * height, middle = Math.min(height / 2, 0.3 * height + chosen * apart);
  const order = Array.from({ length: 2 * FAR + 1 }, (_, place) => chosen + FAR - place).filter((at) => at >= 0 && at < found.levels.length);
  for (const at of order) {
    const away = Math.abs(at - chosen), y = middle + (at - chosen) * apart;
    context.globalAlpha = away === 0 ? 1 : Math.max(0.15, 0.6 - 0.2 * away);
    if (at + 1 < found.levels.length) arrow(context, width / 2, y + 20, y + apart - 20);
    found.levels[at].plates.forEach((/** @type {Document} */ plate, /** @type {number} */ number, /** @type {Document[]} */ all) => {
      const room = width / Math.max(2.6, all.length), x = width / 2 + (number - (all.length - 1) / 2) * room;
      const points = draw(context, plate, x, y, all.length > 1 ? side * 0.46 : side, away === 0);
      drawn.push({ level: at, points });
      if (away <= 1) labels.push(() => label(context, plate, points[0], x, (all.length > 1 ? room : width) - 8, away === 0));
    });
  }
  context.globalAlpha = 1;
  for (const each of labels) each(); // above all plates
  return drawn;
}

/**
 * The name of a plate and its shape above its back corner, in as many lines as its room needs.
 * @param {CanvasRenderingContext2D} context
 * @param {Document} plate
 * @param {number[]} corner
 * @param {number} middle of its room
 * @param {number} room
 * @param {boolean} chosen
 */
function label(context, plate, corner, middle, room, chosen) {
  const size = 12 * enlarged(), lines = [""];
  context.strokeStyle = colour("--ground");
  context.lineWidth = 4;
  context.fillStyle = colour(chosen ? "--ink" : "--soft");
  context.font = `${chosen ? "bold " : ""}${size}px system-ui, sans-serif`;
  context.textAlign = "center";
  for (const word of [...(plate.words ?? plate.name).split(" "), "· " + plate.shape.slice(1).join(" × ")]) {
    const longer = `${lines[lines.length - 1]} ${word}`.trim();
    if (context.measureText(longer).width > room) lines.push(word.replace("· ", ""));
    else lines[lines.length - 1] = longer;
  }
  const x = Math.max(corner[0], middle - room / 2 + Math.max(...lines.map((line) => context.measureText(line).width)) / 2);
  lines.forEach((line, number) => {
    const y = corner[1] - 6 - (lines.length - 1 - number) * 1.15 * size;
    context.strokeText(line, x, y);
    context.fillText(line, x, y);
  });
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Document} plate
 * @param {number} x of its middle
 * @param {number} y
 * @param {number} side of a cell
 * @param {boolean} chosen
 */
function draw(context, plate, x, y, side, chosen) {
  const [heads, rows, columns] = plate.numbers.shape, values = unpack(plate.numbers);
  const wide = heads * columns + (heads - 1) * GAP, whole = corners(wide, rows);
  const left = x - (whole[1][0] * side) / 2, top = y - (whole[2][1] * side) / 2;
  const points = whole.map(([one, two]) => [left + one * side, top + two * side]);
  const ink = colour("--ink"), ground = colour("--raised");
  for (let head = 0; head < heads; head++) {
    const small = new OffscreenCanvas(columns, rows), [dx, dy] = iso(head * (columns + GAP), 0);
    /** @type {OffscreenCanvasRenderingContext2D} */ (small.getContext("2d")).putImageData(cells(values.subarray(head * rows * columns, (head + 1) * rows * columns), rows, columns), 0, 0);
    const edge = corners(columns, rows).map(([one, two]) => [left + (one + dx) * side, top + (two + dy) * side]);
    context.fillStyle = ground;
    context.strokeStyle = chosen ? colour("--accent") : ink;
    context.lineWidth = chosen ? 1.6 : 0.7;
    for (const [one, two] of [[3, 2], [2, 1]]) { // the two sides that face the viewer
      context.beginPath();
      context.moveTo(edge[one][0], edge[one][1]);
      context.lineTo(edge[two][0], edge[two][1]);
      context.lineTo(edge[two][0], edge[two][1] + THICK);
      context.lineTo(edge[one][0], edge[one][1] + THICK);
      context.closePath();
      context.fill();
      context.stroke();
    }
    context.save();
    context.imageSmoothingEnabled = false;
    const [right, down] = [iso(1, 0), iso(0, 1)];
    context.transform(right[0] * side, right[1] * side, down[0] * side, down[1] * side, edge[0][0], edge[0][1]);
    context.drawImage(small, 0, 0);
    context.restore();
    context.beginPath();
    edge.forEach(([one, two], place) => (place ? context.lineTo(one, two) : context.moveTo(one, two)));
    context.closePath();
    context.stroke();
  }
  return points;
}

/**
 * Blue is positive, orange negative, as everywhere on the page.
 * @param {ArrayLike<number>} values
 * @param {number} rows
 * @param {number} columns
 */
function cells(values, rows, columns) {
  const image = new ImageData(columns, rows), high = rgb(colour("--high")), ground = rgb(colour("--raised")), low = rgb(colour("--less"));
  for (let place = 0; place < rows * columns; place++) {
    const value = (values[place] - 128) / 127, share = Math.min(1, Math.abs(value) * 1.4), end = value < 0 ? low : high;
    for (let part = 0; part < 3; part++) image.data[4 * place + part] = ground[part] + share * (end[part] - ground[part]);
    image.data[4 * place + 3] = 255;
  }
  return image;
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {number} x
 * @param {number} from
 * @param {number} to
 */
function arrow(context, x, from, to) {
  context.strokeStyle = context.fillStyle = colour("--soft");
  context.lineWidth = 1;
  context.beginPath();
  context.moveTo(x, from);
  context.lineTo(x, to);
  context.stroke();
  context.beginPath();
  context.moveTo(x - 4, to - 7);
  context.lineTo(x + 4, to - 7);
  context.lineTo(x, to);
  context.fill();
}

/**
 * @param {number[][]} points of a convex outline
 * @param {number} x
 * @param {number} y
 */
export function inside(points, x, y) {
  const turns = points.map(([x0, y0], place) => {
    const [x1, y1] = points[(place + 1) % points.length];
    return (x1 - x0) * (y - y0) - (y1 - y0) * (x - x0);
  });
  return turns.every((turn) => turn >= 0) || turns.every((turn) => turn <= 0);
}

/** @param {Document} plate in words */
export function described(plate) {
  const [heads, rows, columns] = plate.numbers.shape;
  return `${plate.name}: ${plate.said}; shape ${plate.shape.join(" × ")}, drawn: ${heads > 1 ? heads + " heads, " : ""}the first ${rows} rows and ${columns} columns; largest ${said(plate.most)}`;
}
