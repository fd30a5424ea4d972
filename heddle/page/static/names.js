// The names of parts and tensors in words: "decoder.1.mixer.heads.0" is "head 0 of layer 1's attention".

/** @typedef {Record<string, any>} Document */

/** What a tensor or a part of a branch is called; others keep their names. @type {Record<string, string>} */
const ENDS = {
  o: "W_O", before: "norm before", after: "norm after", outside: "norm outside", qk_norm: "norm of q and k", residual_before: "stream before",
  residual_middle: "stream between", residual_before_cross: "stream before cross-attention", residual_after: "stream after", final_norm: "final norm",
  router_logits: "router logits",
};

/**
 * What computes in a branch: attention, convolution, MLP, experts, …
 * @param {string} branch such as "decoder.1.mixer" or, for all layers, "decoder.*.mixer"
 * @param {Document} about
 * @returns {string}
 */
export function branchWord(branch, about) {
  const pattern = branch.split(".");
  const part = about.parts?.find((/** @type {Document} */ each) => each.part.split(".").every((/** @type {string} */ word, /** @type {number} */ place) => pattern[place] === "*" || pattern[place] === word));
  return part?.label ?? { mixer: "mixer", cross: "cross-attention", ffn: "feed-forward" }[pattern[2]] ?? pattern[2];
}

/**
 * @param {string} stack
 * @param {string} layer its number, or "*" for all
 * @param {Document} about
 */
export function layerWord(stack, layer, about) {
  const whose = about.family === "encoder-decoder" ? stack + " " : "";
  return layer === "*" ? `all ${whose}layers` : `${whose}layer ${layer}`;
}

/**
 * A name in words.
 * @param {string} name
 * @param {Document} about
 */
export function inWords(name, about) {
  const [stack, layer, branch, end, number] = name.split("."), whose = about.family === "encoder-decoder" ? stack + " " : "";
  if (!/^(\d+|\*)$/.test(layer ?? "")) return whose + (name.split(".").slice(1).map(endWord).join(" ") || stack);
  const place = layerWord(stack, layer, about);
  if (branch === undefined) return place;
  if (end === undefined && ENDS[branch]) return `${ENDS[branch]} ${place}`;
  const word = `${branchWord(`${stack}.${layer}.${branch}`, about)} of ${place}`;
  if (end === undefined) return word;
  return `${number === undefined ? endWord(end) : `${end.replace(/s$/, "")} ${number}`}, ${word}`;
}

/** @param {string} end of a name: "o", "heads" */
export const endWord = (end) => ENDS[end] ?? end;

/**
 * The same without its layer: "attention q", "stream after".
 * @param {string} name
 * @param {Document} about
 */
export function shortName(name, about) {
  const words = name.split(".");
  if (!/^\d+$/.test(words[1] ?? "")) return words.slice(1).map(endWord).join(" ");
  if (words.length === 3) return ENDS[words[2]] ?? words[2];
  return [branchWord(words.slice(0, 3).join("."), about), ...words.slice(3).map(endWord)].join(" ");
}
