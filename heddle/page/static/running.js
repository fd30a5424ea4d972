// The running softmax of one query, as FlashAttention computes it: keys come in tiles, sums are rescaled to the new maximum.

import { choice, h, table } from "./dom.js";
import { said, visible } from "./numbers.js";

/** @typedef {import("./app.js").Context} Context */
/** @typedef {import("./app.js").Document} Document */

const TILES = ["1", "2", "4", "8"];

/**
 * @param {Document} found the map of the head, with the texts of its tokens
 * @param {Document} layer
 * @param {number} head
 * @param {Context} context
 */
export function running(found, layer, head, context) {
  const { state } = context, view = h("div", {}), query = state.query ? Number(state.query) : -1;
  const show = async () => {
    try {
      const tile = Number(state.tile ?? 2);
      const answer = await context.ask("running", { ...context.reading(), layer: layer.layer, head, ...(query < 0 ? {} : { query }), ...(tile === 2 ? {} : { tile }) });
      view.replaceChildren(...steps(answer, context));
    } catch (error) {
      view.replaceChildren(h("p", { class: "error" }, error instanceof Error ? error.message : String(error)));
    }
  };
  const open = h("details", { open: state.running === "yes", ontoggle: () => { context.set({ running: open.open ? "yes" : "" }, false); if (open.open) void show(); } },
    h("summary", {}, "Running softmax: the same tile by tile, as FlashAttention computes it, for ", h("span", { class: "token" }, visible(found.rows[query < 0 ? found.rows.length - 1 : query] ?? ""))), view);
  if (state.running === "yes") void show();
  return open;
}

/**
 * @param {Document} answer
 * @param {Context} context
 */
function steps(answer, context) {
  const { state } = context, last = answer.tiles.length - 1;
  let at = Math.max(0, Math.min(last, Number(state.tileStep ?? 0) || 0));
  const view = h("div", { "aria-live": "polite" }), label = h("output", {});
  const slider = h("input", { type: "range", min: 0, max: last, value: at, "aria-label": "Tile of keys", "data-keep": "tileStep", oninput: () => go(Number(slider.value)) });
  const draw = () => {
    label.textContent = `tile ${at + 1} of ${last + 1}`;
    view.replaceChildren(keys(answer, at), sums(answer, at));
    for (const [place, row] of rows.entries()) row.toggleAttribute("data-current", place === at);
  };
  const go = (/** @type {number} */ step) => {
    at = step;
    slider.value = String(at);
    context.set({ tileStep: at ? String(at) : "" }, false);
    draw();
  };
  const all = table("After each tile", ["keys", "largest score m", "rescale by", "sum ℓ", "output so far"],
    answer.tiles.map((/** @type {Document} */ tile) => [`${tile.first} to ${tile.last - 1}`, tile.maximum === null ? "-∞" : said(tile.maximum), said(tile.rescale), said(tile.total), vector(tile.output, answer.width)]), ["", "number", "number", "number", "number"]);
  const rows = [...all.querySelectorAll("tbody tr")];
  draw();
  const step = (/** @type {number} */ by) => h("button", { type: "button", "data-tile": by > 0 ? "next" : "previous", onclick: () => go(Math.max(0, Math.min(last, at + by))) }, by > 0 ? "Next tile" : "Previous");
  return [h("p", { class: "caption" }, "The keys come in tiles, so that no row of weights is ever whole. After each tile three things are known: the largest score m so far, the sum ℓ of e^(score − m), and the output. If m grows, what was summed before is rescaled by e^(old m − new m)."),
    choice("Keys in a tile", TILES.map((each) => [each, each === "1" ? "1 key a tile" : each]), String(answer.tile), (each) => context.set({ tile: each, tileStep: "" })),
    h("div", { class: "row" }, step(-1), step(1), h("label", {}, label, " ", slider)), view, all,
    h("p", { "data-difference": answer.difference }, `The last output is that of the whole row: the largest difference is ${said(answer.difference)}.`)];
}

/**
 * The keys: those of the tile, those before and those to come.
 * @param {Document} answer
 * @param {number} at
 */
function keys(answer, at) {
  const tile = answer.tiles[at], from = Math.max(0, tile.first - 24), to = Math.min(answer.columns.length, tile.last + 24);
  return h("div", { class: "tokens", role: "group", "aria-label": "Keys" }, answer.columns.slice(from, to).map((/** @type {string} */ piece, /** @type {number} */ place) => {
    const key = from + place, when = key < tile.first ? "past" : key < tile.last ? "present" : "future";
    const score = when === "present" ? tile.scores[key - tile.first] : undefined;
    return h("span", { class: "token " + when, dir: "auto" }, visible(piece), when === "present" ? h("small", {}, score === null ? "masked" : said(score, 3)) : null);
  }));
}

/**
 * @param {Document} answer
 * @param {number} at
 */
function sums(answer, at) {
  const tile = answer.tiles[at], before = answer.tiles[at - 1];
  const entry = (/** @type {string} */ name, /** @type {string} */ value, /** @type {string} */ more) => h("div", {}, h("dt", {}, name), h("dd", {}, h("strong", {}, value), " ", h("span", { class: "soft" }, more)));
  const maximum = (/** @type {Document | undefined} */ of) => (of && of.maximum !== null ? said(of.maximum) : "-∞");
  return h("dl", { class: "figures" },
    entry("largest score m", maximum(tile), tile.seen === 0 ? "the mask blocks this tile, so a kernel skips it" : `before: ${maximum(before)}`),
    entry("earlier sums times", said(tile.rescale), "e^(old m − new m)"),
    entry("sum ℓ", said(tile.total), before ? `before: ${said(before.total)}` : "before: 0"),
    entry("output so far", vector(tile.output, answer.width), `${answer.width} numbers`));
}

/**
 * @param {number[]} numbers
 * @param {number} width
 */
function vector(numbers, width) {
  return "[" + numbers.map((each) => said(each, 3)).join(", ") + (width > numbers.length ? ", …]" : "]");
}
