// The next token above a panel: what all the numbers below lead to.

import { h } from "./dom.js";
import { percent, probabilities, unpack, visible } from "./numbers.js";

/** @typedef {import("./app.js").Context} Context */

const SHOWN = 5;

/**
 * The most probable next tokens; nothing for other models.
 * @param {Context} context
 */
export async function prediction(context) {
  if (context.about.predicts !== "next") return h("span", {});
  let answer;
  try {
    answer = await context.ask("next", context.reading());
  } catch {
    return h("span", {}); // the panel says what is wrong with the text
  }
  const shares = probabilities(unpack(answer.logits), 1), names = new Map(answer.best);
  const best = [...names.keys()].sort((one, two) => shares[two] - shares[one] || one - two).slice(0, SHOWN);
  return h("p", { class: "next" }, h("span", { class: "soft" }, "Next token: "),
    best.map((id, place) => h("span", { class: place ? "" : "main" }, h("span", { class: "token", dir: "auto" }, visible(names.get(id))), " ", percent(shares[id]))));
}
