// Attention: all heads as thumbnails, one as a map that can be read, several tokens summed, lines, and one query step by step.

import { choice, h, labelled, save, table, tokens } from "../dom.js";
import { colour, heatmap, picture, rgb } from "../heatmap.js";
import { csv, said, unpack, unpackBits, visible, weight, weights } from "../numbers.js";
import { running } from "../running.js";
import { several } from "../state.js";
import { lines, mapSvg } from "../svg.js";
import { button as off } from "./switches.js";

/** @typedef {import("../app.js").Context} Context */
/** @typedef {import("../app.js").Document} Document */

const LINES = 80; // tokens up to which lines are drawn
const OFF = ["mask", "o"]; // what can be switched off beside the map; the rest has its own panel
const KEYS = 200; // keys of a query's table

/** @type {import("../app.js").Panel} */
export const attention = {
  name: "attention",
  title: "Attention",
  caption: "Each thumbnail is a head. Rows are queries, columns are keys. The stronger the colour, the higher the weight. Masked cells have their own colour.",
  shown: (about) => about.attention.length > 0,
  async render(root, context) {
    const { state } = context, found = await context.ask("heads", context.reading());
    const kinds = [...new Set(found.layers.map(kind))];
    const layer = found.layers.find((/** @type {Document} */ each) => each.layer === state.layer) ?? found.layers[found.layers.length - 1];
    const head = Math.min(Number(state.head ?? 0), layer.heads - 1);
    if (kinds.length > 1) root.append(choice("Which attention", kinds.map((each) => [each, NAMES[each]]), kind(layer),
      (name) => context.set({ layer: found.layers.find((/** @type {Document} */ each) => kind(each) === name).layer, head: "0", query: "", rows: "" })));
    const same = found.layers.filter((/** @type {Document} */ each) => kind(each) === kind(layer));
    const grid = h("div", { class: "heads-grid", role: "group", "aria-label": "Heads" }, same.map((/** @type {Document} */ each) => row(each, layer, head, context)));
    grid.style.setProperty("--heads", String(Math.max(...same.map((/** @type {Document} */ each) => each.heads))));
    grid.style.setProperty("--layers", String(same.length));
    const map = await context.ask("map", { ...context.reading(), layer: layer.layer, head });
    const raw = unpack(map.scores), allowed = unpackBits(map.allowed), shares = weights(raw, allowed, map.rows.length, map.columns.length, map.sink);
    const more = [scores(same), h("div", { class: "two" }, summed(map, shares, context), strongest(map)),
      h("div", { class: "query" }, h("h3", {}, "One query, step by step"), steps(map, layer, head, context), running(map, layer, head, context))];
    root.classList.add("screen");
    root.append(h("div", { class: "two stage" }, h("div", { class: "overview" }, grid, most(same)), single(map, { raw, allowed, shares }, layer, head, context)),
      h("div", {}, state.projector === "yes" ? h("details", { open: [state.steps, state.running].includes("yes") }, h("summary", {}, "Scores of all heads, selected tokens, one query step by step"), more) : more));
  },
};

/** @type {Record<string, string>} */
const NAMES = { encoder: "Encoder", decoder: "Decoder", cross: "Cross-attention" };

/** @param {Document} layer */
const kind = (layer) => (layer.layer.endsWith(".cross") ? "cross" : layer.layer.split(".")[0]);

/**
 * @param {Document} layer
 * @param {Document} chosen
 * @param {number} head
 * @param {Context} context
 */
function row(layer, chosen, head, context) {
  const bytes = unpack(layer.thumbnails), [, height, width] = layer.thumbnails.shape;
  return h("div", { class: "layer" }, h("span", { class: "name" }, "layer " + layer.layer.split(".")[1]),
    h("span", { class: "heads" }, Array.from({ length: layer.heads }, (_, number) => {
      const pressed = layer === chosen && number === head;
      const title = `layer ${layer.layer.split(".")[1]}, head ${number}` + (layer.names[number] ? ": " + layer.names[number] : "");
      const canvas = h("canvas", { width, height });
      thumbnail(canvas, bytes.subarray(number * height * width, (number + 1) * height * width), height, width);
      return h("button", { type: "button", class: "thumb", title, "aria-label": title, "aria-pressed": String(pressed), "data-keep": layer.layer + "." + number, onclick: () => context.set({ layer: layer.layer, head: String(number) }) }, canvas);
    })));
}

/**
 * @param {HTMLCanvasElement} canvas
 * @param {ArrayLike<number>} bytes
 * @param {number} height
 * @param {number} width
 */
function thumbnail(canvas, bytes, height, width) {
  const [ground, high, masked] = ["--raised", "--high", "--masked"].map((name) => rgb(colour(name))), image = new ImageData(width, height);
  for (let place = 0; place < bytes.length; place++) {
    for (let part = 0; part < 3; part++)
      image.data[4 * place + part] = bytes[place] === 255 ? masked[part] : ground[part] + (bytes[place] / 254) * (high[part] - ground[part]);
    image.data[4 * place + 3] = 255;
  }
  /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d")).putImageData(image, 0, 0);
}

/**
 * The heads with the highest scores, in a sentence.
 * @param {Document[]} layers
 */
function most(layers) {
  const found = Object.entries({ previous: "the token before", diagonal: "the token itself", first: "the first token", induction: "what followed the same token last time" }).map(([field, words]) => {
    const heads = layers.flatMap((layer) => layer.scores[field].map((/** @type {number} */ share, /** @type {number} */ head) => ({ head: `layer ${layer.layer.split(".")[1]}, head ${head}`, share })));
    const best = heads.reduce((one, two) => (two.share > one.share ? two : one));
    return best.share > 0 ? `${words}: ${best.head} (${weight(best.share)})` : null;
  }).filter((each) => each !== null);
  return h("p", { class: "soft", style: { maxWidth: "none" } }, `Which head looks most at what, on this text: ${found.join("; ")}. Layers and heads count from 0.`);
}

/** @param {Document[]} layers */
function scores(layers) {
  const fields = ["previous", "diagonal", "first", "induction", "duplicate", "stripe", "entropy"];
  const rows = layers.flatMap((layer) => Array.from({ length: layer.heads }, (_, head) => [`${layer.layer.split(".")[1]}.${head}`, layer.names[head], ...fields.map((field) => weight(layer.scores[field][head]))]));
  return h("details", {}, h("summary", {}, "What each head looks at, as numbers"),
    h("p", { class: "caption" }, "Shares of attention on this text: to the token before (previous), to itself (diagonal), to the first token, to what came after the same token last time (induction), to the same token last time (duplicate), to the token that receives most (stripe). A head is named after its largest share. Entropy: 0 is one token, 1 is all tokens equally. Where no token repeats, induction and duplicate are 0. Head 3.2 is head 2 of layer 3."),
    table("Scores of all heads", ["head", "looks at", ...fields], rows, ["", "", ...fields.map(() => "number")]));
}

/**
 * @param {Document} found
 * @param {{raw: ArrayLike<number>, allowed: Uint8Array, shares: Float32Array}} numbers
 * @param {Document} layer
 * @param {number} head
 * @param {Context} context
 */
function single(found, { raw, allowed, shares }, layer, head, context) {
  const { state } = context, rows = found.rows.length, columns = found.columns.length;
  const stage = state.stage ?? "weights", name = `layer ${layer.layer.split(".")[1]}, head ${head}`;
  const map = { ...staged(stage, { raw, allowed, shares, found, name }), filling: state.projector === "yes" && matchMedia("(min-width: 62rem)").matches };
  const readout = h("p", { class: "readout", "aria-live": "polite" }, "Point at the map, or use the arrow keys.");
  let locked = false;
  const say = (/** @type {number} */ row, /** @type {number} */ column) => {
    if (locked) return;
    const place = row * columns + column;
    readout.textContent = `${visible(found.rows[row])} (${row}) → ${visible(found.columns[column])} (${column}): weight ${weight(shares[place])}, score ${said(raw[place])}` + (allowed[place] ? "" : ", blocked by the mask");
    readout.dataset.weight = String(shares[place]);
  };
  const pick = (/** @type {number} */ row, /** @type {number} */ column) => {
    locked = !locked;
    say(row, column);
    if (locked) readout.append(" - held; click again to go on");
  };
  const lined = state.view === "lines" && Math.max(rows, columns) <= LINES;
  const drawing = lined ? lines(found.rows, found.columns, shares, `Attention of ${name} as lines`, state.query ? Number(state.query) : -1)
    : heatmap({ ...map, onread: say, onpick: pick });
  const cell = (/** @type {number} */ place) => (allowed[place] || stage === "weights" ? map.values[place] : "");
  const exported = {
    SVG: async () => save(file + ".svg", await mapSvg(map, `${context.about.run}: ${layer.layer}, head ${head}`), "image/svg+xml"),
    PNG: async () => save(file + ".png", await picture(map), "image/png"),
    CSV: async () => save(file + ".csv", csv([["", ...found.columns.map(visible)], ...found.rows.map((/** @type {string} */ piece, /** @type {number} */ row) =>
      [visible(piece), ...Array.from({ length: columns }, (_, column) => cell(row * columns + column))])]), "text/csv"),
  };
  const file = `${layer.layer}.head${head}`.replaceAll(".", "-");
  return h("div", { class: "single" }, h("div", { class: "titled" }, h("h3", {}, `${name[0].toUpperCase()}${name.slice(1)}`), lined ? null : readout),
    h("div", { class: "row" },
      labelled("Step", choice("Step", [["scores", "1 Scores"], ["mask", "2 Mask"], ["weights", "3 Softmax"]], stage, (each) => context.set({ stage: each }))),
      labelled("Draw", choice("Drawing", [["map", "Map"], ["lines", "Lines"]], state.view ?? "map", (each) => context.set({ view: each }))),
      switchable(layer, head, context),
      h("span", {}, Object.entries(exported).map(([kind, act]) => h("button", { type: "button", "data-export": kind, onclick: act }, kind)))),
    state.view === "lines" && !lined ? h("p", { class: "soft" }, `Lines are drawn for up to ${LINES} tokens; this is the map.`) : null,
    drawing);
}

/**
 * What of this layer's attention can be left out with a click, here and in all other panels.
 * @param {Document} layer
 * @param {number} head
 * @param {Context} context
 */
function switchable(layer, head, context) {
  const names = [...OFF.map((end) => `${layer.layer}.${end}`), layer.layer.split(".")[0] + ".positions"];
  const offered = context.about.switches.filter((/** @type {string[]} */ [name]) => names.includes(name));
  return h("div", { class: "ablation" }, labelled("Switch off", offered.map((/** @type {string[]} */ [name, label, more]) => off(context, name, label, more)),
    off(context, `${layer.layer}.heads.${head}`, "head " + head)));
}

/**
 * What a stage shows: scores, the mask, or weights.
 * @param {string} stage
 * @param {Document} of
 * @returns {import("../heatmap.js").Map}
 */
function staged(stage, { raw, allowed, shares, found, name }) {
  const of = { rows: found.rows, columns: found.columns };
  if (stage === "mask") return { ...of, values: allowed, allowed, low: 0, high: 1, label: `The mask of ${name}` };
  if (stage !== "scores") return { ...of, values: shares, allowed, low: 0, high: 1, label: `Attention weights of ${name}` };
  let low = Infinity, high = -Infinity;
  for (const value of raw) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return { ...of, values: raw, allowed: new Uint8Array(raw.length).fill(1), low, high, label: `Scores of ${name} before the mask` };
}

/**
 * Several tokens summed: what they attend to together, or who attends to them.
 * @param {Document} found
 * @param {Float32Array} shares
 * @param {Context} context
 */
function summed(found, shares, context) {
  const { state } = context, back = state.side === "read";
  const asking = back ? found.columns : found.rows, other = back ? found.rows : found.columns;
  if (asking.length > 600) return h("p", { class: "soft" }, "Tokens can be selected in texts of up to 600 tokens.");
  const chosen = several(state.rows).map(Number).filter((place) => place < asking.length);
  const rows = chosen.length ? chosen : [asking.length - 1], columns = found.columns.length;
  const sums = other.map((/** @type {string} */ _, /** @type {number} */ place) => rows.reduce((sum, row) => sum + (back ? shares[place * columns + row] : shares[row * columns + place]), 0));
  const most = Math.max(...sums, 1e-9);
  return h("div", {}, h("h3", {}, back ? "Who attends to the selected tokens" : "What the selected tokens attend to"),
    choice("Rows or columns", [["ask", "they attend to (rows)"], ["read", "attend to them (columns)"]], back ? "read" : "ask", (name) => context.set({ side: name, rows: "" })),
    tokens(asking, { label: "Select tokens", pressed: (place) => rows.includes(place), onclick: (place) =>
      context.set({ rows: (chosen.includes(place) ? chosen.filter((each) => each !== place) : [...chosen, place]).join(","), ...(back ? {} : { query: String(place) }) }) }),
    h("p", { class: "soft" }, `Sum over ${rows.length} selected: strongest is `, h("span", { class: "token" }, visible(other[sums.indexOf(Math.max(...sums))])), ` with ${weight(Math.max(...sums))}.`),
    h("div", { "data-sums": JSON.stringify(sums.slice(0, 64)) }, tokens(other, { label: "Attention, summed", shade: sums.map((/** @type {number} */ each) => each / (rows.length > 1 ? most : 1)) })));
}

/** @param {Document} found */
function strongest(found) {
  return table("The strongest pairs off the diagonal", ["token", "attends to", "weight"],
    found.strongest.map((/** @type {[number, number, number]} */ [row, column, value]) => [`${visible(found.rows[row])} (${row})`, `${visible(found.columns[column])} (${column})`, weight(value)]), ["piece", "piece", "number"]);
}

/**
 * @param {Document} found
 * @param {Document} layer
 * @param {number} head
 * @param {Context} context
 */
function steps(found, layer, head, context) {
  const view = h("div", {}), { state } = context;
  const show = async () => {
    try {
      const query = state.query ? Number(state.query) : -1;
      const asked = { ...context.reading(), layer: layer.layer, head };
      const got = await context.ask("query", query < 0 ? asked : { ...asked, query });
      view.replaceChildren(...stepped(got));
    } catch (error) {
      view.replaceChildren(h("p", { class: "error" }, error instanceof Error ? error.message : String(error)));
    }
  };
  const open = h("details", { open: state.steps === "yes", ontoggle: () => { context.set({ steps: open.open ? "yes" : "" }, false); if (open.open) void show(); } },
    h("summary", {}, "q·k → scale → mask → softmax → weighted sum, for ", h("span", { class: "token" }, visible(found.rows[state.query ? Number(state.query) : found.rows.length - 1] ?? ""))), view);
  if (state.steps === "yes") void show();
  return open;
}

/** @param {Document} got */
function stepped(got) {
  const [q, products, scaled, changed, share, output] = ["q", "products", "scaled", "changed", "weights", "output"].map((name) => unpack(got[name]));
  const k = unpack(got.k), values = unpack(got.values), width = got.k.shape[1], deep = got.values.shape[1];
  const open = unpackBits(got.allowed), few = (/** @type {ArrayLike<number>} */ all, /** @type {number} */ from, /** @type {number} */ count) =>
    "[" + Array.from({ length: Math.min(3, count) }, (_, place) => said(all[from + place], 3)).join(", ") + (count > 3 ? ", …]" : "]");
  const count = Math.min(got.columns.length, KEYS, got.k.shape[0]);
  const bias = got.cap !== null || got.biased;
  const rows = Array.from({ length: count }, (_, key) => [visible(got.columns[key]), few(k, key * width, width), said(products[key]), said(scaled[key]), ...(bias ? [said(changed[key])] : []),
    open[key] ? "yes" : "no", weight(share[key]), few(values, key * deep, deep)]);
  return [h("p", {}, `The query of ${visible(got.rows[got.query])} is q = ${few(q, 0, width)}, ${width} numbers. Scale ${said(got.scale)}.`),
    table("One row for each key", ["key", "k", "q·k", "× scale", ...(bias ? ["+ bias, cap"] : []), "seen", "softmax", "v"], rows, ["piece", "number", "number", "number", ...(bias ? ["number"] : []), "", "number", "number"]),
    h("p", {}, `The sum of the values by these weights is z = ${few(output, 0, deep)}, ${deep} numbers.` + (got.columns.length > count ? ` The first ${count} of ${got.columns.length} keys are shown; the sum is over all.` : ""))];
}
