// One pass, box by box: the boxes of the lectures' drawings with the tensors of this text, and a viewer of matrices.

import { choice, enlarged, fitAll, h, s, table } from "../dom.js";
import { described, isometric } from "../isometric.js";
import { branchWord, endWord, inWords, layerWord, shortName } from "../names.js";
import { leadingCells, said, unpack, visible } from "../numbers.js";
import { colour, rgb } from "../heatmap.js";

/** @typedef {import("../app.js").Context} Context */
/** @typedef {import("../app.js").Document} Document */

const STEPS = /** @type {[string, string[], string][]} */ ([
  ["1 Read", ["input"], "The input of the layer: one vector per token."],
  ["2 Project", ["q", "k", "v"], "Each head has its own queries, keys and values."],
  ["3 Compare", ["scores", "weights"], "Queries times keys, scaled and masked, then the softmax."],
  ["4 Sum", ["heads"], "Each head's Z: the sum of the values by the weights."],
  ["5 Join", ["output"], "The concatenated heads times the output matrix."],
]);

/** @type {import("../app.js").Panel} */
export const walk = {
  name: "pass",
  title: "One pass",
  caption: "All tensors of the pass over this text, in order. Select a box to see its numbers.",
  async render(root, context) {
    const found = await context.ask("walk", context.reading());
    const name = found.boxes.some((/** @type {Document} */ box) => box.name === context.state.name) ? context.state.name : found.stack + ".entry";
    const box = found.boxes.find((/** @type {Document} */ each) => each.name === name) ?? found.boxes[0];
    root.append(await vectors(found, context));
    root.append(h("div", { class: "two" }, h("div", {}, boxes(found, box, context), five(found, box, context)), await viewer(box, context)), await solid(context));
  },
};

/**
 * S vectors in, S vectors out (L1-06).
 * @param {Document} found
 * @param {Context} context
 */
async function vectors(found, context) {
  const [into, out] = await Promise.all([".entry", ".output"].map((end) => context.ask("tensor", { ...context.reading(), name: found.stack + end })));
  const large = enlarged(), count = Math.min(24, into.matrix.shape[0]), width = 12 * large, gap = 42 * large, high = 3 * large, shown = 32;
  const strip = (/** @type {Document} */ of, /** @type {number} */ top) => {
    const values = unpack(of.matrix), [, columns] = of.matrix.shape, deep = Math.min(shown, columns), made = s("g", {});
    let most = 1e-9;
    for (const value of values) most = Math.max(most, Math.abs(value));
    const [positive, negative] = ["--high", "--less"].map((name) => `rgb(${rgb(colour(name)).join(",")})`);
    for (let row = 0; row < count; row++)
      for (let column = 0; column < deep; column++) {
        const value = values[row * columns + column] / most;
        made.append(s("rect", { x: (row + 0.5) * gap - width / 2, y: top + column * high, width, height: high, fill: value < 0 ? negative : positive, "fill-opacity": Math.min(1, 0.08 + 1.8 * Math.abs(value)) }));
      }
    return made;
  };
  const tall = high * Math.min(shown, into.matrix.shape[1]), label = `${into.rows.length} vectors in, ${out.rows.length} vectors out`;
  const made = s("svg", { class: "vectors", role: "img", width: count * gap, height: 2 * tall + 76 * large, "aria-label": label });
  into.rows.slice(0, count).forEach((/** @type {string} */ piece, /** @type {number} */ row) => made.append(s("text", { x: (row + 0.5) * gap, y: 16 * large, "text-anchor": "middle" }, visible(piece).slice(0, 4))));
  made.append(strip(into, 26 * large), s("text", { x: 10, y: tall + 50 * large }, `↓ the model: ${label} ↓`), strip(out, tall + 66 * large));
  return h("details", { open: true }, h("summary", {}, "A set of vectors in, a set of vectors out"), h("div", { class: "wide", tabindex: 0, role: "region", "aria-label": label }, made),
    h("p", { class: "caption" }, `Each column is a token's vector of ${into.shape[into.shape.length - 1]} numbers, of which the first ${Math.min(shown, into.matrix.shape[1])} are drawn: above with its position, below after the last layer. Blue is positive, orange negative.`));
}

/**
 * The tensors of one layer at a time, a line for each branch.
 * @param {Document} found
 * @param {Document} current
 * @param {Context} context
 */
function boxes(found, current, context) {
  const { about } = context, show = (/** @type {string} */ name) => context.set({ name, head: "0" });
  const place = (/** @type {Document} */ box) => /^\w+\.\d+(?=\.)/.exec(box.name)?.[0] ?? box.name.split(".")[0];
  const places = [...new Set(found.boxes.map(place))], here = place(current);
  const all = found.boxes.filter((/** @type {Document} */ box) => place(box) === here);
  /** @type {Map<string, HTMLElement[]>} */
  const lines = new Map();
  for (const box of all) {
    const [, , branch, ...end] = box.name.split("."), title = end.length ? branchWord(`${here}.${branch}`, about) : here.includes(".") ? "stream" : here;
    const text = end.length ? endWord(end.join(".")) : shortName(box.name, about).replace(/^stream /, "");
    lines.set(title, [...(lines.get(title) ?? []), h("button", { type: "button", "data-keep": box.name, title: `${box.said}, ${shape(box)}`, "aria-pressed": String(box === current), onclick: () => show(box.name) }, text)]);
  }
  const words = (/** @type {string} */ each) => (each.includes(".") ? layerWord(each.split(".")[0], each.split(".")[1], about) : about.family === "encoder-decoder" ? `${each}, outside layers` : "outside the layers");
  const turn = (/** @type {string} */ to) => show((found.boxes.find((/** @type {Document} */ box) => box.name === current.name.replace(here, to)) ?? found.boxes.find((/** @type {Document} */ box) => place(box) === to)).name);
  return h("div", { class: "boxes" }, choice("Part of the model", places.map((each) => [each, words(each)]), here, turn),
    [...lines].map(([title, buttons]) => h("div", { class: "layer", role: "group", "aria-label": title }, h("span", { class: "name" }, title), h("span", { class: "heads" }, buttons))));
}

/** @param {Document} box the shape of one text's tensor */
const shape = (box) => box.shape.slice(1).join(" × ");

/**
 * The numbers of a tensor: leading columns, …, the last one, as the lectures print it (L3-40).
 * @param {Document} box
 * @param {Context} context
 */
async function viewer(box, context) {
  const view = h("div", { class: "viewer" }, h("h3", {}, inWords(box.name, context.about), " ", h("code", {}, box.name)), h("p", {}, `${box.said}; axes ${box.axes}, shape ${box.shape.join(" × ")}` + (box.mean === null ? "" : `, mean ${said(box.mean)}, spread ${said(box.spread)}`)));
  const heads = box.shape.length === 4 ? box.shape[1] : 1, head = Math.min(Number(context.state.head ?? 0), heads - 1);
  if (heads > 1) view.append(choice("Head", Array.from({ length: heads }, (_, number) => [String(number), "head " + number]), String(head), (number) => context.set({ head: number })));
  try {
    const got = await context.ask("tensor", { ...context.reading(), name: box.name, ...(head ? { head } : {}) });
    const values = unpack(got.matrix), [rows, columns] = got.matrix.shape, wide = context.state.columns === "all" ? 40 : 3;
    const cells = leadingCells(values, rows, columns, wide);
    const labels = got.rows.length >= rows ? got.rows : Array.from({ length: rows }, () => "");
    view.append(h("div", { class: "row" }, h("button", { type: "button", "data-keep": "columns", "aria-pressed": String(wide > 3), onclick: () => context.set({ columns: wide > 3 ? "" : "all" }) }, "More columns")),
      table(sized(got), ["row", "token", ...cells[0].map((cell, place) => (cell === "…" ? "…" : String(got.columns[place < wide ? place : columns - 1])))],
        cells.map((row, place) => ["T_" + place, visible(labels[place] ?? ""), ...row]), ["", "piece", ...cells[0].map(() => "number")]));
  } catch (error) {
    view.append(h("p", { class: "error" }, error instanceof Error ? error.message : String(error)));
  }
  return view;
}

/**
 * How many numbers a tensor has, and how many rows of them are here.
 * @param {Document} got
 */
function sized(got) {
  const deep = got.shape[got.shape.length - 1], tall = got.shape.length > 2 ? got.shape[got.shape.length - 2] : 1, [rows] = got.matrix.shape;
  return `${tall} × ${deep} numbers` + (tall > rows ? `, of which the first ${rows} rows are here` : "");
}

/**
 * The five steps of multi-head attention with this model's shapes (L3-25).
 * @param {Document} found
 * @param {Document} current
 * @param {Context} context
 */
function five(found, current, context) {
  const heads = found.boxes.filter((/** @type {Document} */ box) => box.name.endsWith(".heads"));
  const near = heads.find((/** @type {Document} */ box) => box.name.startsWith(current.name.split(".").slice(0, 2).join(".") + "."));
  const layer = /^(.*\.(?:mixer|cross))\./.exec(current.name)?.[1] ?? (near ?? heads[0])?.name.replace(/\.heads$/, "");
  const of = (/** @type {string} */ end) => found.boxes.find((/** @type {Document} */ box) => box.name === `${layer}.${end}`);
  if (!layer || !of("heads")) return h("span", {});
  const [, count, , width] = of("heads").shape;
  return h("div", { class: "five" }, h("h3", {}, `Multi-head attention in five steps: ${inWords(layer, context.about)}`),
    h("p", { class: "caption" }, `${count} heads of ${width} numbers: ${count} matrices Z, which are joined to ${count * width} columns.`),
    h("ol", {}, STEPS.map(([title, ends, said]) => h("li", {}, h("strong", {}, title + ". "), said + " ", ends.map((end) => of(end) && h("button", { type: "button", "data-keep": `five ${layer}.${end}`, "aria-pressed": String(of(end) === current), onclick: () => context.set({ name: `${layer}.${end}`, head: "0" }) }, `${end} `, h("span", { class: "shape" }, shape(of(end)))))))));
}

/**
 * The pass as plates above each other, one step at a time (L3-39).
 * @param {Context} context
 */
async function solid(context) {
  const found = await context.ask("plates", context.reading()), last = found.levels.length - 1;
  const view = h("div", {}), label = h("output", {});
  for (const level of found.levels) for (const plate of level.plates) plate.words = inWords(plate.name, context.about);
  let at = Math.max(0, Math.min(last, Number(context.state.step ?? 0) || 0));
  /** @type {ReturnType<typeof setInterval> | undefined} */
  let timer;
  const slider = h("input", { id: "step", type: "range", min: 0, max: last, value: at, "aria-label": "Step of the pass", oninput: () => go(Number(slider.value)) });
  const play = h("button", { type: "button", id: "walk", onclick: () => (timer ? halt() : start()) }, "Play");
  const draw = () => {
    const level = found.levels[at], held = view.contains(document.activeElement);
    const { element, canvas } = isometric(found, at, go);
    const words = level.plates.map((/** @type {Document} */ plate) => plate.words).join(" · ");
    view.replaceChildren(h("p", { class: "figure" }, h("strong", {}, words)), h("ul", {}, level.plates.map((/** @type {Document} */ plate) => h("li", {}, described(plate), " ",
      plate.name === "probabilities" ? null : h("button", { type: "button", onclick: () => context.set({ name: plate.name, head: "0" }) }, "Numbers")))), element);
    fitAll(view);
    if (held) canvas.focus();
    label.textContent = `step ${at + 1} of ${last + 1}`;
    slider.value = String(at);
  };
  const go = (/** @type {number} */ level) => {
    at = level;
    context.set({ step: at ? String(at) : "" }, false);
    draw();
  };
  const halt = () => {
    clearInterval(timer);
    timer = undefined;
    play.textContent = "Play";
  };
  const start = () => {
    play.textContent = "Pause";
    if (at === last) go(0);
    timer = setInterval(() => (at < last && context.alive() ? go(at + 1) : halt()), 900);
  };
  const move = (/** @type {number} */ by, /** @type {string} */ text) => h("button", { type: "button", onclick: () => go(Math.max(0, Math.min(last, at + by))) }, text);
  context.onleave(halt);
  draw();
  return h("div", { class: "solid" }, h("h3", {}, "The pass in three dimensions"),
    h("p", { class: "caption" }, `What the model computes from these tokens, from top to bottom: each row of a plate is a token (${found.pieces.slice(0, 8).join(" ")}${found.pieces.length > 8 ? " …" : ""}), each cell a number. Blue is positive, orange negative. Click a plate, or use the slider.`),
    h("div", { class: "row" }, play, move(-1, "Previous step"), move(1, "Next step"), h("label", {}, label)), slider, view);
}
