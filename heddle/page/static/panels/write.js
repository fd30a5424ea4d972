// Write and watch: the next token's probabilities with sliders, a click or a draw appends one; beams as a tree.

import { bar, h, table, tokens } from "../dom.js";
import { drawn, percent, probabilities, randoms, said, tree, truncated, unpack, visible } from "../numbers.js";
import { several } from "../state.js";

/** @typedef {import("../app.js").Context} Context */
/** @typedef {import("../app.js").Document} Document */

const BARS = 20;
const ENDS = [0.1, 0.25, 0.5, 1]; // what a full bar may be

/** @type {import("../app.js").Panel} */
export const write = {
  name: "write",
  title: "Write and watch",
  caption: "The bars are the model's probabilities for the next token, after temperature, top-k and top-p. Click a bar to append that token, or sample one.",
  shown: (about) => about.predicts === "next" || about.predicts === "translation" || about.predicts === "masked",
  async render(root, context) {
    const { state } = context, added = several(state.added).map(Number);
    const reading = context.reading();
    const at = state.at ? Number(state.at) : null;
    const found = await context.ask("next", at === null ? reading : { ...reading, at });
    const logits = unpack(found.logits), grows = context.about.predicts !== "masked";
    root.append(pieces(found, context, added), ...bars(found, logits, context, added, grows));
    if (grows) root.append(beams(context, reading));
  },
};

/**
 * @param {Document} found
 * @param {Context} context
 * @param {number[]} added
 */
function pieces(found, context, added) {
  return h("div", {}, found.source.length ? [h("p", { class: "soft" }, "Source"), tokens(found.source, { label: "Source" })] : null,
    h("p", { class: "soft" }, `${found.pieces.length} tokens, ${added.length} of them appended. Click one to see what the model expects after it.`),
    tokens(found.pieces, {
      label: "Tokens of the text", pressed: (place) => place === found.at,
      onclick: context.offline ? undefined : (place) => context.set({ at: place === found.pieces.length - 1 ? "" : String(place) }),
    }));
}

/**
 * @param {Document} found
 * @param {ArrayLike<number>} logits
 * @param {Context} context
 * @param {number[]} added
 * @param {boolean} grows
 */
function bars(found, logits, context, added, grows) {
  const { state } = context, last = found.at === found.pieces.length - 1;
  const list = h("div", { "aria-live": "off", class: "bars" }), mass = h("p", { class: "readout", "aria-live": "polite" });
  const piece = new Map(found.best);
  const open = grows && last && !context.offline && (found.room === null || found.room > 0);
  const slider = (/** @type {string} */ name, /** @type {string} */ label, /** @type {number} */ least, /** @type {number} */ most, /** @type {number} */ step, /** @type {string} */ start) => {
    const shown = h("output", {}, state[name] ?? start);
    const range = h("input", { type: "range", id: name, "data-keep": name, min: least, max: most, step, value: state[name] ?? start, oninput: () => {
      shown.textContent = range.value;
      context.set({ [name]: range.value }, false);
      state[name] = range.value;
      draw();
    } });
    return h("label", {}, label + " ", shown, range);
  };
  const shares = () => truncated(probabilities(logits, Number(state.temperature ?? 1)), Number(state.topk ?? 0), Number(state.topp ?? 1));
  const append = (/** @type {number} */ id) => context.set({ added: [...added, id].join(",") });
  const behind = h("details", {}, h("summary", {}, "The same as a table")), draw = () => {
    const now = shares();
    const order = [...piece.keys()].filter((id) => now[id] > 0).sort((one, two) => now[two] - now[one] || one - two).slice(0, BARS);
    const shown = order.reduce((sum, id) => sum + now[id], 0);
    const most = ENDS.find((end) => end >= (now[order[0]] || 1)) ?? 1; // so that a lower temperature lengthens the first bar
    list.replaceChildren(...order.map((id) => bar(piece.get(id), now[id], open ? { onclick: () => append(id), most } : { most })));
    const rows = order.map((id, place) => [place + 1, visible(piece.get(id)), id, said(logits[id]), percent(now[id])]);
    behind.replaceChildren(behind.children[0], table("The most probable tokens", ["rank", "token", "id", "score", "probability"], rows, ["number", "piece", "number", "number", "number"]));
    mass.textContent = `${order.length} of ${now.reduce((count, each) => count + (each > 0 ? 1 : 0), 0)} possible tokens are shown; together they have ${percent(shown)}. A full bar is ${percent(most)}.`;
  };
  const choose = () => {
    const now = shares(), random = randoms(Number(state.seed ?? 0) + 1000003 * added.length);
    return drawn(now, random());
  };
  let playing = state.play === "yes";
  const step = h("button", { type: "button", "data-keep": "draw", disabled: !open, onclick: () => append(choose()) }, "Draw one");
  const play = h("button", { type: "button", "data-keep": "play", disabled: !open, "aria-pressed": String(playing), onclick: () => context.set({ play: playing ? "" : "yes" }) }, playing ? "Pause" : "Play");
  const undo = h("button", { type: "button", "data-keep": "undo", disabled: added.length === 0 || context.offline, onclick: () => context.set({ added: added.slice(0, -1).join(","), play: "", at: "" }) }, "Undo");
  const clear = h("button", { type: "button", disabled: added.length === 0 || context.offline, onclick: () => context.set({ added: "", play: "", at: "" }) }, "Undo all");
  if (playing && open) {
    const waiting = setTimeout(() => {
      const id = choose();
      if (found.ends.includes(id) || added.length >= 400) context.set({ play: "" });
      else append(id);
    }, 250);
    context.onleave(() => clearTimeout(waiting));
  }
  draw();
  return [h("h3", {}, last ? "The next token" : `After token ${found.at}`),
    h("div", { class: "sliders" }, slider("temperature", "Temperature", 0, 2, 0.05, "1"), slider("topk", "Top-k (0: all)", 0, 50, 1, "0"), slider("topp", "Top-p", 0.05, 1, 0.05, "1"), slider("seed", "Seed of the draws", 0, 99, 1, "0")),
    grows ? h("div", { class: "row" }, step, play, undo, clear) : null, mass, list, behind].filter((each) => each !== null);
}

/**
 * @param {Context} context
 * @param {Document} reading
 */
function beams(context, reading) {
  const { state } = context, view = h("div", {});
  const width = h("input", { type: "range", id: "beams", min: 1, max: 8, value: state.beams ?? "3", oninput: () => (shown.textContent = width.value) });
  const shown = h("output", {}, width.value);
  const search = async () => {
    context.set({ beams: width.value }, false);
    view.replaceChildren(h("p", { class: "busy", role: "status" }, "Searching …"));
    try {
      const found = await context.ask("beams", { ...reading, beams: Number(width.value), tokens: 12 });
      view.replaceChildren(h("p", { class: "caption" }, "Continuations with the same beginning share branches. Each token has its probability after the tokens before it. The best text has rank 1."),
        h("ul", { class: "tree" }, tree(found.beams).map(branch)));
    } catch (error) {
      view.replaceChildren(h("p", { class: "error", role: "alert" }, error instanceof Error ? error.message : String(error)));
    }
  };
  return h("details", {}, h("summary", {}, "Beams as a tree"), h("div", { class: "row" }, h("label", {}, "Beams ", shown, width),
    h("button", { type: "button", id: "search", disabled: context.offline, onclick: search }, "Search")), view);
}

/** @param {import("../numbers.js").Branch} node @returns {HTMLElement} */
function branch(node) {
  return h("li", {}, h("span", { class: "token" }, visible(node.piece)), " " + percent(node.share),
    node.ends.map((end) => h("strong", {}, ` rank ${end.place + 1}, score ${said(end.score)}, ${end.finish}`)), node.next.length ? h("ul", {}, node.next.map(branch)) : null);
}
