// The model as a drawing: boxes that say what they are, parameters as areas, and cost by length.

import { enlarged, fit, h, s, table } from "../dom.js";
import { inWords } from "../names.js";
import { percent, said, short } from "../numbers.js";
import { chart, curveColour } from "../svg.js";

/** @typedef {import("../app.js").Context} Context */
/** @typedef {import("../app.js").Document} Document */

/** @type {import("../app.js").Panel} */
export const model = {
  name: "model",
  title: "The model as a drawing",
  caption: "Drawn from the model's config. Orange arrows are skip connections, added at ⊕. Select a box for its shape, parameters, formula and numbers.",
  async render(root, context) {
    const found = await context.ask("model", {});
    const chosen = found.boxes.find((/** @type {Document} */ box) => box.name === context.state.box) ?? found.boxes[0];
    root.append(h("div", { class: "two" }, drawing(found, chosen, context), h("div", {}, told(chosen, context), areas(found, context.about), cost(found))));
    root.append(h("details", {}, h("summary", {}, "All boxes as a table"), table(`${found.title}: ${said(found.parameters, 12)} parameters`, ["box", "what it is", "shape", "parameters", "times"],
      found.boxes.map((/** @type {Document} */ box) => [box.name, box.label, box.shape, box.parameters, box.times]), ["", "", "", "number", "number"])));
  },
};

/**
 * @param {Document} found
 * @param {Document} chosen
 * @param {Context} context
 */
function drawing(found, chosen, context) {
  // The page's policy forbids the style inside it; style.css has the same rules, for light and dark.
  const bare = found.svg.replace(/<style>.*?<\/style>/s, "");
  const parsed = new DOMParser().parseFromString(bare, "image/svg+xml").documentElement;
  parsed.setAttribute("class", "drawing");
  const width = Number((parsed.getAttribute("viewBox") ?? "").split(" ")[2]); // at this width, its type has 12 pixels
  Object.assign(parsed.style, { minWidth: 0.94 * width + "px", maxWidth: (1.4 / 16) * width + "rem" });
  parsed.setAttribute("role", "group");
  for (const box of parsed.querySelectorAll("[data-box]")) {
    const name = box.getAttribute("data-box") ?? "", pick = () => context.set({ box: name });
    box.setAttribute("role", "button");
    if (box.querySelector("text")) box.removeAttribute("aria-label"); // its text names it
    box.setAttribute("data-keep", "box " + name);
    box.setAttribute("aria-pressed", String(name === chosen.name));
    box.addEventListener("click", pick);
    box.addEventListener("keydown", (event) => {
      if (!["Enter", " "].includes(/** @type {KeyboardEvent} */ (event).key)) return;
      event.preventDefault();
      pick();
    });
  }
  return h("div", { class: "wide" }, document.adoptNode(parsed));
}

/**
 * @param {Document} box
 * @param {Context} context
 */
function told(box, context) {
  const rows = [["what it is", box.label], ["shape of its output", box.shape], ["parameters", box.parameters ? whole(box.parameters) + (box.times > 1 ? `, in each of ${box.times} layers` : "") : "none"], ...box.weights.map((/** @type {string[]} */ [name, shape]) => [`weights ${name}${lettered(name, box)}`, shape]), ["formula", box.formula], ["row of the lectures", box.row], ["the skip comes from", box.adds], ["it reads", box.reads]];
  return h("div", { "aria-live": "polite" }, h("h3", {}, box.label === "⊕" ? "addition" : box.label, " ", h("code", {}, box.name)), table("This box", ["", ""], rows.filter(([, value]) => value)),
    box.site ? h("button", { type: "button", onclick: () => context.set({ panel: "pass", name: box.site }) }, "Its numbers in this pass") : null);
}

/**
 * The letter of a matrix in the formulas of the lectures.
 * @param {string} name such as "gate.weight"
 * @param {Document} box
 */
function lettered(name, box) {
  const gated = box.weights.some((/** @type {string[]} */ [each]) => each === "gate.weight");
  const letters = /** @type {Record<string, string>} */ ({ q: "W_Q", k: "W_K", v: "W_V", o: "W_O", gate: "W₁", up: gated ? "W₃" : "W₁", down: "W₂" });
  const letter = name.endsWith(".weight") ? letters[name.slice(0, -".weight".length)] : undefined;
  return letter ? ` (${letter})` : "";
}

/**
 * The words of an area: "decoder MLP" for "decoder ffn".
 * @param {string} name
 * @param {Document} about
 */
function areaName(name, about) {
  const [stack, branch] = name.split(" "), words = inWords(`${stack}.*.${branch}`, about);
  return ["mixer", "ffn", "cross"].includes(branch) ? words.replace(/ of all .*$/, "") + (about.family === "encoder-decoder" ? ` of the ${stack}` : "") : about.family === "encoder-decoder" ? name : branch ?? name;
}

/** @param {number} count */
const whole = (count) => count.toLocaleString("en-US");

/**
 * @param {Document} found
 * @param {Document} about
 */
function areas(found, about) {
  const made = s("svg", { class: "chart", role: "img", "aria-label": "Parameters as areas" }), place = h("div", {}, made);
  fit(place, (width) => {
    const large = enlarged(), height = Math.round(Math.min(360, 0.65 * width));
    made.setAttribute("viewBox", `0 0 ${width} ${height}`);
    made.replaceChildren(...found.areas.flatMap((/** @type {Document} */ area) => {
      const [x, y, wide, high] = [width * area.x, height * area.y, width * area.width, height * area.height];
      const ratio = area.parameters / found.parameters, share = percent(ratio), name = areaName(area.name, about);
      const text = (/** @type {string} */ words, /** @type {number} */ line) => wide > 7.5 * large * words.length && high > (16 * line + 4) * large ? [s("text", { x: x + 5, y: y + 16 * line * large }, words)] : [];
      return [s("rect", { x, y, width: wide, height: high, fill: curveColour(0), "fill-opacity": 0.08 + 0.42 * ratio, stroke: curveColour(0) }, s("title", {}, `${name}: ${whole(area.parameters)}, ${share}`)), ...text(name, 1), ...text(share, 2)];
    }));
  });
  return h("div", {}, h("h3", {}, "Where the parameters are"), h("p", { class: "caption" }, "Areas are proportional to the number of parameters. A part of every layer is summed over the layers of its stack."), place,
    table("Parameters by part", ["part", "parameters", "share"], found.areas.map((/** @type {Document} */ area) => [areaName(area.name, about), whole(area.parameters), percent(area.parameters / found.parameters)]), ["", "number", "number"]));
}

/** @param {Document} found */
function cost(found) {
  const once = found.costs[0]?.once ?? 0;
  const points = (/** @type {string} */ name) => found.costs.map((/** @type {Document} */ each) => [each.length, each[name]]);
  return h("div", {}, h("h3", {}, "What a longer text costs"), h("p", { class: "caption" }, "Operations of one pass: a part that grows with the length n, and the attention between tokens, which grows with n² for full attention." + (once ? ` The head runs once per text: ${short(once)} operations, however long it is.` : "")),
    chart([{ name: "grows with n", points: points("linear"), colour: 0 }, { name: "the rest, n²", points: points("quadratic"), colour: 1 }], { label: "Operations by length", across: "tokens", up: "operations", form: short }),
    table("Operations of one pass", ["tokens", "grow with n", "the rest", "share of the rest"], found.costs.map((/** @type {Document} */ each) => [each.length, short(each.linear), short(each.quadratic), percent(each.quadratic / (each.once + each.linear + each.quadratic))]), ["number", "number", "number", "number"]));
}
