// Parts switched off with a click: masks, positions, skips, norms, W_O, heads, experts, whole branches; and the loss without them.

import { h, table } from "../dom.js";
import { branchWord, inWords, layerWord } from "../names.js";
import { nats, percent, probabilities, unpack, visible } from "../numbers.js";
import { several } from "../state.js";

/** @typedef {import("../app.js").Context} Context */
/** @typedef {import("../app.js").Document} Document */

const FEW = 4; // layers that are unfolded

/** @type {import("../app.js").Panel} */
export const switches = {
  name: "switches",
  title: "Switch off",
  caption: "A part that is switched off is left out here and in all other panels, until it is switched on again.",
  shown: (about) => about.predicts === "next" || about.predicts === "translation" || about.predicts === "masked",
  async render(root, context) {
    const off = several(context.state.off);
    if (!off.length) root.append(await lossWithout(context));
    if (context.offline) root.append(h("p", { class: "soft" }, "This needs the model: heddle look RUN."));
    root.append(h("div", { class: "two" }, h("div", { class: "ablation" }, everywhere(context), layers(context)), h("div", {}, ...(await nextToken(context)))));
    if (off.length) root.append(h("details", {}, h("summary", {}, "The same in Python"), h("pre", {}, inPython(off))));
  },
};

/**
 * The loss on the text, and what it is with the parts that are off.
 * @param {Context} context
 */
export async function lossWithout(context) {
  const { off, ...whole } = context.reading();
  const ask = async (/** @type {Document} */ reading) => {
    try {
      return (await context.ask("prefixes", reading)).loss;
    } catch {
      return null; // a model without a loss, or a file without these numbers
    }
  };
  const before = await ask(whole), after = off ? await ask({ ...whole, off }) : before;
  if (before === null || after === null) return h("span", {});
  const change = after - before;
  const figure = (/** @type {string} */ text, /** @type {string} */ kind) => h("strong", { class: kind }, text);
  return h("p", { class: "figure", "data-before": before, "data-after": after }, "Loss on this text: ", figure(nats(before), off ? "" : "main"),
    off ? [" → ", figure(nats(after), "main"), ` nats per token, ${change < 0 ? "" : "+"}${nats(change)}`] : " nats per token");
}

/**
 * @param {Context} context
 * @param {string} name
 * @param {string} text
 * @param {string} [more] what the part does, for the pointer
 */
export function button(context, name, text, more) {
  const off = several(context.state.off), isOff = off.includes(name);
  const toggle = () => context.set({ off: (isOff ? off.filter((each) => each !== name) : [...off, name]).join(",") });
  return h("button", { type: "button", "data-keep": name, "aria-pressed": String(isOff), "aria-label": `${text}: switch off ${inWords(name, context.about)}`, title: more, disabled: context.offline, onclick: toggle }, text);
}

/**
 * @param {string} title
 * @param {HTMLElement[]} buttons
 */
const line = (title, buttons) => h("div", { class: "layer" }, h("span", { class: "name" }, title), h("span", { class: "heads" }, buttons));

/**
 * What is outside of layers, and a part of every layer at once.
 * @param {Context} context
 */
function everywhere(context) {
  const { about } = context;
  /** @type {Map<string, Map<string, HTMLElement>>} */
  const lines = new Map();
  const add = (/** @type {string} */ title, /** @type {string} */ name, /** @type {string} */ label, /** @type {string} */ more) => {
    const buttons = lines.get(title) ?? new Map();
    lines.set(title, buttons.set(name, buttons.get(name) ?? button(context, name, label, more)));
  };
  for (const [name, label, more] of about.switches) {
    const words = name.split("."), stack = about.family === "encoder-decoder" ? words[0] + " " : "";
    if (/^\d+$/.test(words[1])) {
      words[1] = "*";
      add(`${stack}${branchWord(words.slice(0, 3).join("."), about)}`, words.join("."), label, more);
    } else add(`${stack}outside the layers`, name, label, more);
  }
  const order = [...lines].sort((one, two) => Number(two[0].endsWith("layers")) - Number(one[0].endsWith("layers")));
  return h("div", {}, h("h3", {}, "In all layers"), order.map(([title, buttons]) => line(title, [...buttons.values()])));
}

/** @param {Context} context */
function layers(context) {
  const { about } = context, off = several(context.state.off);
  /** @type {Map<string, Document[]>} */
  const groups = new Map();
  for (const part of about.parts) {
    const layer = part.part.split(".").slice(0, 2).join(".");
    groups.set(layer, [...(groups.get(layer) ?? []), part]);
  }
  return h("div", {}, h("h3", {}, "In one layer"), [...groups].map(([layer, parts]) => {
    const [stack, number] = layer.split(".");
    return h("details", { open: groups.size <= FEW || off.some((name) => name.startsWith(layer + ".")) }, h("summary", {}, layerWord(stack, number, about)), parts.map((part) => {
      const ends = about.switches.filter((/** @type {string[]} */ [name]) => name.startsWith(part.part + "."));
      return line(part.label, [button(context, part.part, "whole part", "it adds nothing to the residual stream"), ...ends.map((/** @type {string[]} */ [name, label, more]) => button(context, name, label, more)),
        ...Array.from({ length: part.heads }, (_, head) => button(context, `${part.part}.heads.${head}`, "head " + head)),
        ...Array.from({ length: part.experts }, (_, expert) => button(context, `${part.part}.experts.${expert}`, "expert " + expert))]);
    }));
  }));
}

/** @param {Context} context */
async function nextToken(context) {
  if (context.offline) return [];
  const { off, ...whole } = context.reading();
  if (context.about.predicts === "masked") {
    const [one, two] = [await context.ask("prefixes", whole), await context.ask("prefixes", context.reading())];
    return [h("h3", {}, "Each hidden token"), table("With all parts and with those switched off", ["place", "token", "whole model", "with parts off"],
      one.rows.map((/** @type {Document} */ row, /** @type {number} */ place) => [row.place, visible(row.next), percent(row.probability), percent(two.rows[place].probability)]), ["number", "piece", "number", "number"])];
  }
  const before = await context.ask("next", whole), after = off ? await context.ask("next", context.reading()) : before;
  const [one, two] = [before, after].map((each) => probabilities(unpack(each.logits), 1)), names = new Map([...before.best, ...after.best]);
  const order = [...names.keys()].sort((first, second) => Math.max(one[second], two[second]) - Math.max(one[first], two[first])).slice(0, 10);
  const change = (/** @type {number} */ id) => (two[id] - one[id] > -0.0005 ? "+" : "") + (100 * (two[id] - one[id])).toFixed(1).replace("-0.0", "0.0");
  return [h("h3", {}, "The next token"), table("After the last one, with all parts and with those switched off", ["token", "whole model", "with parts off", "change, points"],
    order.map((id) => [visible(names.get(id)), percent(one[id]), percent(two[id]), change(id)]), ["piece", "number", "number", "number"])];
}

/** @param {string[]} off */
function inPython(off) {
  const edits = off.map((name) => {
    const [, branch, kind, number] = /^((?:encoder|decoder)\.\d+\.(?:mixer|cross|ffn))(?:\.(heads|experts)\.(\d+))?$/.exec(name) ?? [];
    if (!branch) return `switch_off("${name}")`;
    if (!kind) return `ablate("${branch}.added")`;
    return `ablate("${branch}.${kind === "heads" ? "heads" : "gates"}", ${kind}=[${number}])`;
  });
  return `from heddle.look import ablate, edited, switch_off\n\nwith edited(model, [${edits.join(", ")}]):\n    model(tokens)`;
}
