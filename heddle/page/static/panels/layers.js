// The layers: the lens, norms, a score divided among parts, two prompts exchanged, experts' loads.

import { bar, choice, h, shade, table, tokens } from "../dom.js";
import { heatmap } from "../heatmap.js";
import { inWords } from "../names.js";
import { nats, percent, said, visible } from "../numbers.js";
import { several } from "../state.js";
import { chart } from "../svg.js";

/** @typedef {import("../app.js").Context} Context */
/** @typedef {import("../app.js").Document} Document */

const ROWS = 200; // of the lens
const PARTS = 16;
const BESIDE = 6; // columns of the lens that leave room beside it

/** @type {import("../app.js").Panel} */
export const layers = {
  name: "layers",
  title: "Layers",
  caption: "The prediction after each layer, the contribution of each part, and what activations of another text restore.",
  shown: (about) => about.predicts === "next" || about.predicts === "translation" || about.predicts === "masked",
  async render(root, context) {
    const found = await context.ask("layers", context.reading());
    const left = h("div", {}, ...lens(found), norms(found)), right = h("div", {}, ...(await division(context)), loads(found, context));
    root.append(h("div", { class: found.places.length <= BESIDE ? "two" : "" }, left, right));
    if (context.about.predicts === "next") root.append(patching(context));
  },
};

/** @param {Document} found */
function lens(found) {
  const places = found.places.map((/** @type {string} */ place) => (place === "entry" ? "entry" : "layer " + place));
  const rows = found.pieces.slice(0, ROWS).map((/** @type {string} */ piece, /** @type {number} */ at) => [`${visible(piece)} (${at})`, ...found.places.map((/** @type {string} */ _, /** @type {number} */ layer) => {
    const share = found.probabilities[layer][at][0], said = found.top[layer][at].map((/** @type {string} */ token, /** @type {number} */ rank) => visible(token) + " " + percent(found.probabilities[layer][at][rank])).join(", ");
    return h("td", { class: "piece shaded", dir: "auto", title: said, style: { background: shade(0.55 * share) } }, visible(found.top[layer][at][0]) + " " + percent(share));
  })]);
  /** @type {HTMLElement[]} */
  const made = [h("h3", {}, "The logit lens"), h("p", { class: "caption" }, "Rows are the tokens read so far. Each cell is the most probable next token if the model ended at that layer, with its probability. The last column is the model's own prediction."),
    table(`The most probable token after each layer, for ${rows.length} of ${found.pieces.length} tokens`, ["read so far", ...places], rows, ["piece"])];
  if (found.losses) {
    const first = (/** @type {number} */ place) => found.target_probabilities[found.places.length - 1][place];
    const last = found.places.length - 1;
    const from = found.pieces.slice(0, -1).map((/** @type {string} */ _, /** @type {number} */ place) => {
      let layer = last + 1;
      while (layer > 0 && found.ranks[layer - 1][place] === 1) layer--;
      return layer;
    });
    made.push(table("The loss after each layer, in nats per token", places, [found.losses.map(nats)], places.map(() => "number")),
      h("details", {}, h("summary", {}, "From which layer on the true next token is the most probable"), table("The layer from which on the token that follows is always the most probable one", ["read so far", "next token", "from", "final probability"],
        from.slice(0, ROWS).map((/** @type {number} */ layer, /** @type {number} */ place) => [`${visible(found.pieces[place])} (${place})`, visible(found.pieces[place + 1]), layer > last ? "never" : places[layer], percent(first(place))]), ["piece", "piece", "", "number"])));
  }
  return made;
}

/** @param {Document} found */
function norms(found) {
  const mean = (/** @type {number[]} */ all) => all.reduce((sum, each) => sum + each, 0) / all.length;
  const points = found.norms.map((/** @type {number[]} */ row, /** @type {number} */ place) => [place, mean(row)]);
  return h("details", {}, h("summary", {}, "Length of the residual stream's vectors"), chart([{ name: "mean length", points, colour: 0 }], { label: "Mean length of the vectors after each layer", across: "0 is the entry, then the layers", up: "length" }),
    table("Mean length of the vectors, and entropy of what each layer would predict", ["after", "length", "entropy, nats"], found.places.map((/** @type {string} */ place, /** @type {number} */ row) => [place, said(points[row][1]), nats(mean(found.entropy[row]))]), ["", "number", "number"]));
}

/** @param {Context} context */
async function division(context) {
  const made = [h("h3", {}, "What adds to a prediction")];
  if (several(context.state.off).length) return [...made, h("p", { class: "soft" }, "Attribution needs the whole model, so all parts must be on.")];
  const { state } = context, asked = { ...context.reading(), ...(state.at ? { at: Number(state.at) } : {}), ...(state.token ? { token: Number(state.token) } : {}) };
  const found = await context.ask("divided", asked);
  const by = state.by ?? "depth", all = by === "depth" ? summed(found.layers) : /** @type {[string, number][]} */ (found[by]);
  const order = all.filter(([, value]) => value !== 0).sort((one, two) => Math.abs(two[1]) - Math.abs(one[1])).slice(0, PARTS), most = Math.abs(order[0]?.[1] ?? 1);
  return [...made, h("p", { class: "caption" }, `The score of ${visible(found.token)} after token ${found.at} is ${said(found.score)}: the sum of the direct contributions of all parts. Positive ones raise the score, negative ones lower it.`),
    context.offline ? null : tokens(found.pieces, { label: "After which token", pressed: (place) => place === found.at, onclick: (place) => context.set({ at: String(place), token: "" }) }),
    choice("Divide by", [["depth", "by layer"], ["layers", "by part of a layer"], ["parts", "by head"]], by, (name) => context.set({ by: name })),
    h("div", { class: "parts" }, order.map(([name, value]) => bar(inWords(name, context.about), value, { said: (value > 0 ? "+" : "") + said(value, 3), most, words: true }))),
    h("details", {}, h("summary", {}, "All parts, and the neurons that add most"), table(`All parts; they sum to ${said(found.parts.reduce((/** @type {number} */ sum, /** @type {[string, number]} */ each) => sum + each[1], 0))}`, ["part", "adds"], found.parts.map((/** @type {[string, number]} */ [name, value]) => [name, said(value)]), ["", "number"]),
      found.neurons.map((/** @type {Document} */ each) => table(`Neurons of ${each.part} that add most`, ["neuron", "adds"], each.best.map((/** @type {[number, number]} */ [unit, value]) => [unit, said(value)]), ["number", "number"])))].filter((each) => each !== null);
}

/**
 * What the parts of each layer add together; what is outside of layers stays as it is.
 * @param {[string, number][]} parts
 * @returns {[string, number][]}
 */
function summed(parts) {
  /** @type {Map<string, number>} */
  const sums = new Map();
  for (const [name, value] of parts) {
    const layer = /^(?:encoder|decoder)\.\d+(?=\.)/.exec(name), key = layer ? layer[0] : name;
    sums.set(key, (sums.get(key) ?? 0) + value);
  }
  return [...sums];
}

/**
 * @param {Document} found
 * @param {Context} context
 */
function loads(found, context) {
  if (found.loads.length === 0) return h("span", {});
  return h("div", {}, h("h3", {}, "Experts"), found.loads.map((/** @type {Document} */ each) => {
    const whole = each.tokens.reduce((/** @type {number} */ sum, /** @type {number} */ count) => sum + count, 0) || 1;
    return h("div", {}, h("p", { class: "caption" }, `${inWords(each.part, context.about)}: how many of the text's tokens went to each expert`), each.tokens.map((/** @type {number} */ count, /** @type {number} */ expert) => bar("expert " + expert, count / whole, { said: String(count), most: Math.max(...each.tokens) / whole, words: true })));
  }));
}

/** @param {Context} context */
function patching(context) {
  const view = h("div", {}), { state } = context, { added } = context.reading();
  const other = h("input", { type: "text", id: "other", dir: "auto", value: state.other ?? "", disabled: context.offline });
  const act = async () => {
    context.set({ other: other.value }, false);
    view.replaceChildren(h("p", { class: "busy", role: "status" }, "Exchanging activations …"));
    try {
      const found = await context.ask("exchanged", { text: context.state.text ?? "", ...(added ? { added } : {}), other: other.value, ...(by.value === "heads" ? { by: "heads" } : {}) });
      const values = Float32Array.from(found.restored.flat()), readout = h("p", { class: "readout", "aria-live": "polite" }, "Point at the map to read it.");
      const columns = found.by === "positions" ? found.other : found.parts.map((/** @type {string} */ each) => "head " + each);
      const rows = found.names.map((/** @type {string} */ name) => name.split(".").slice(0, 2).join(" "));
      const map = heatmap({ values, allowed: null, rows, columns, low: 0, high: 1, label: "What each exchange restores", onread: (row, column) =>
        (readout.textContent = `${found.names[row]}, ${found.by === "positions" ? "position" : "head"} ${column}: restores ${said(values[row * columns.length + column], 3)}`) });
      view.replaceChildren(h("p", { class: "caption" }, `The first text is continued by ${visible(found.first)}, the second by ${visible(found.second)}: scores differ by ${said(found.clean)} and ${said(found.corrupted)}. Each cell patches one activation of the first into the second. 1 restores all of the difference, 0 none.`),
        readout, map, table("The same as numbers", ["", ...columns.map(visible)], rows.map((/** @type {string} */ name, /** @type {number} */ row) => [name, ...found.restored[row].map((/** @type {number} */ each) => said(each, 3))]), ["", ...columns.map(() => "number")]));
    } catch (error) {
      view.replaceChildren(h("p", { class: "error", role: "alert" }, error instanceof Error ? error.message : String(error)));
    }
  };
  const by = h("select", { id: "by", disabled: context.offline }, h("option", { value: "positions" }, "layers and positions"), h("option", { value: "heads", selected: state.exchange === "heads" }, "heads"));
  return h("div", {}, h("h3", {}, "Exchange activations with another text"), h("p", { class: "caption" }, "Write a second text with the same number of tokens and another continuation. Its activations are replaced, one at a time, by those of the text above. Where the prediction comes back, the activation carries the difference."),
    h("label", { for: "other" }, "The second text"), other, h("div", { class: "row" }, h("label", {}, "Exchange ", by), h("button", { type: "button", id: "exchange", disabled: context.offline, onclick: act }, "Exchange")), view);
}
