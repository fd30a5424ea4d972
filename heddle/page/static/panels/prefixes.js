// Every prefix with its next token; for masked models every token hidden in its turn; for translations, teacher-forced and free.

import { bar, h, shade, table, tokens } from "../dom.js";
import { inWords } from "../names.js";
import { nats, percent, said, visible, weight } from "../numbers.js";

/** @typedef {import("../app.js").Context} Context */
/** @typedef {import("../app.js").Document} Document */

const SHOWN = 400; // rows of the table
/** What a row is, by what the model predicts; a model that is not named here gives vectors, numbers or classes of words. */
const CAPTIONS = /** @type {Record<string, string>} */ ({
  next: "Each row is a prefix of the text and the token that follows, with the probability that the model gives it. The mean surprise of the rows is the loss.",
  translation: "Each row is a prefix of the target and the token that follows, with the probability that the model gives it. The mean surprise of the rows is the loss.",
  masked: "Each row is a masked token of the text, with the probability that the model gives it. The mean surprise of the rows is the loss.",
  classes: "Each row is a prefix of the text, word by word, with the classes that the model predicts for it.",
});

/** @type {import("../app.js").Panel} */
export const prefixes = {
  name: "prefixes",
  title: "Every prefix",
  caption: (about) => CAPTIONS[about.predicts] ?? CAPTIONS.next,
  shown: (about) => about.predicts in CAPTIONS,
  async render(root, context) {
    const found = await context.ask("prefixes", context.reading());
    if (found.kind === "classes") root.append(classes(found));
    else if (found.kind === "masked") root.append(...masked(found));
    else root.append(...following(found, context));
  },
};

/** @param {Document} found */
function summary(found) {
  if (found.loss === null) return h("p", {}, "One token has no prefix before it: write more for a loss.");
  return h("p", { class: "figure", "data-loss": found.loss }, "Loss on this text: ", h("strong", { class: "main" }, nats(found.loss)),
    ` nats per token, the mean surprise of ${found.known} tokens; perplexity ${said(Math.exp(found.loss))}, ${nats(found.loss / Math.LN2)} bits per token.`);
}

/** @param {[string, number][]} top */
const best = (top) => h("span", { class: "best" }, top.map(([piece, share]) => h("span", {}, visible(piece), " ", h("span", { class: "soft" }, percent(share)), " ")));

/** @param {number} share */
const shaded = (share) => h("td", { class: "number shaded", style: { background: shade(0.55 * share) } }, percent(share));

/**
 * @param {Document} found
 * @param {Context} context
 */
function following(found, context) {
  const rows = found.rows.slice(0, SHOWN);
  const prefix = (/** @type {number} */ place) => (place > 24 ? "…" : "") + found.pieces.slice(Math.max(0, place - 24), place + 1).map(visible).join("");
  const made = [summary(found), shift(found), h("h3", {}, "Prefixes"),
    table(`${rows.length} prefixes of ${found.pieces.length} tokens: what follows, and what the model expected`, ["#", "prefix", "next token", "probability", "rank", "surprise, nats", "most probable"],
      rows.map((/** @type {Document} */ row, /** @type {number} */ place) => [place + 1, h("span", { class: "tail" }, h("span", {}, prefix(place))),
        row.next === undefined ? h("em", {}, "not yet written") : h("span", { class: "whole" }, visible(row.next)), row.next === undefined ? "" : shaded(row.probability), row.rank ?? "", row.next === undefined ? "" : nats(row.surprise), best(row.top)]),
      ["number", "piece", "piece", "number", "number", "number", "piece"])];
  if (found.rows.length > SHOWN) made.push(h("p", { class: "soft" }, `The first ${SHOWN} of ${found.rows.length} prefixes; the loss counts all.`));
  if (found.free) made.push(...translation(found, context));
  if (found.unwritten) made.push(h("p", { class: "soft" }, found.unwritten));
  return made;
}

/** @param {Document} found */
function shift(found) {
  const shown = found.pieces.slice(0, 24).map(visible);
  const cut = found.pieces.length > 24 ? "…" : "";
  return h("details", {}, h("summary", {}, "The shift: what goes in, and what should come out"),
    table(`${found.pieces.length} tokens go in; each should predict the one on its right`, ["", ...shown.map((/** @type {string} */ _, /** @type {number} */ place) => String(place)), cut],
      [["in", ...shown, cut], ["out", ...shown.slice(1), cut || "?", ""]], ["", ...shown.map(() => "piece")]));
}

/**
 * Teacher-forced beside free-running, and where each step looks (L1-80).
 * @param {Document} found
 * @param {Context} context
 */
function translation(found, context) {
  const steps = found.free, layers = Object.keys(steps[0]?.looks ?? {});
  const rows = Array.from({ length: Math.max(found.rows.length, steps.length) }, (_, place) => {
    const given = found.rows[place];
    return [place + 1, given?.next === undefined ? "" : visible(given.next), given ? best(given.top.slice(0, 1)) : "", steps[place] ? visible(steps[place].token) : ""];
  });
  const made = [h("h3", {}, "Translation, step by step"),
    table("Teacher-forced: each step reads the true target. Free: each step reads what the model wrote before.", ["step", "true token", "best, teacher-forced", "free"], rows, ["number", "piece", "piece", "piece"])];
  if (layers.length === 0 || steps.length === 0) return made;
  const view = h("div", {});
  const layer = h("select", { id: "step-layer", onchange: () => draw() }, layers.map((name) => h("option", { value: name, selected: name === (context.state.layer ?? layers[layers.length - 1]) }, inWords(name, context.about))));
  const slider = h("input", { type: "range", id: "step", min: 1, max: steps.length, value: Math.min(steps.length, Number(context.state.step ?? 1)), oninput: () => { context.set({ step: slider.value }, false); draw(); } });
  const draw = () => {
    const step = Number(slider.value) - 1, row = steps[step].looks[layer.value];
    view.replaceChildren(h("p", { class: "readout", "aria-live": "polite" }, `Step ${step + 1} of ${steps.length} writes ${visible(steps[step].token)} after `,
      [...found.start, ...steps.slice(0, step).map((/** @type {Document} */ each) => each.token)].map(visible).join(" ")),
      tokens(found.source, { label: "The source, shaded by the attention of this step", shade: row }),
      h("p", { class: "soft" }, `The row sums to ${weight(row.reduce((/** @type {number} */ sum, /** @type {number} */ each) => sum + each, 0))}; it is the mean of the layer's heads.`));
  };
  made.push(h("div", { class: "sliders" }, h("label", {}, "Step", slider), h("label", {}, "Cross-attention of ", layer)), view);
  draw();
  return made;
}

/** @param {Document} found */
function masked(found) {
  return [summary(found), table("Each token is hidden in its turn, and predicted from both sides", ["place", "hidden token", "probability", "rank", "surprise, nats", "most probable"],
    found.rows.map((/** @type {Document} */ row) => [row.place, visible(row.next), shaded(row.probability), row.rank, nats(row.surprise), best(row.top)]),
    ["number", "piece", "number", "number", "number", "piece"])];
}

/** @param {Document} found */
function classes(found) {
  const last = found.rows[found.rows.length - 1];
  return h("div", {}, h("h3", {}, "The whole text"), last.top.map((/** @type {[string, number]} */ [label, share]) => bar(label, share)),
    table("The class of each prefix of the text, by words", ["prefix", "class", "probability", "others"],
      found.rows.map((/** @type {Document} */ row) => [row.prefix, row.top[0][0], shaded(row.top[0][1]), best(row.top.slice(1))]), ["piece", "", "number", "piece"]));
}
