// Training: the curves of one run or several, live while it runs, and the texts that it wrote.

import { choice, fitAll, h, table } from "../dom.js";
import { inWords } from "../names.js";
import { nats, said } from "../numbers.js";
import { chart } from "../svg.js";

/** @typedef {import("../app.js").Context} Context */
/** @typedef {import("../app.js").Document} Document */

const EVERY = 2000; // milliseconds between questions about a running run
const PAIRS = { loss: "validation_loss", accuracy: "validation_accuracy" };
/** @type {Record<string, string>} */
const NAMES = { validation_error: "standard error of the validation loss" };
const UNDRAWN = ["bytes"]; // how much text an evaluation reads: a flat line

/** @type {import("../app.js").Panel} */
export const training = {
  name: "training",
  title: "Training",
  caption: "The curves of the run, updated while it trains. Several runs share the same charts.",
  shown: (about) => about.curves,
  async render(root, context) {
    const found = await context.ask("training", {}, !context.offline), view = h("div", { "aria-live": "off" });
    draw(view, found, context);
    root.append(view);
    if (context.offline || !found.runs.some((/** @type {Document} */ run) => run.state === "training")) return;
    const timer = setInterval(async () => {
      const newer = await context.ask("training", {}, true).catch(() => null);
      if (newer && context.alive()) draw(view, newer, context);
      if (newer && !newer.runs.some((/** @type {Document} */ run) => run.state === "training")) clearInterval(timer);
    }, EVERY);
    context.onleave(() => clearInterval(timer));
  },
};

/**
 * @param {HTMLElement} view
 * @param {Document} found
 * @param {Context} context
 */
function draw(view, found, context) {
  const names = [...new Set(found.runs.flatMap((/** @type {Document} */ run) => Object.keys(run.curves)))];
  if (names.length === 0) {
    view.replaceChildren(h("p", {}, "There are no curves: this model was imported, or its training has just begun."));
    return;
  }
  const other = Object.values(PAIRS), shown = names.filter((name) => !UNDRAWN.includes(name) && (!other.includes(name) || !names.includes("loss")));
  const name = shown.includes(context.state.curve) ? context.state.curve : shown[0];
  /** @type {{name: string, points: number[][], dashed?: boolean, colour: number}[]} */
  const curves = [];
  found.runs.forEach((/** @type {Document} */ run, /** @type {number} */ number) => {
    curves.push({ name: `${run.name}: ${titled(name)}`, points: run.curves[name] ?? [], colour: number });
    const pair = /** @type {Record<string, string>} */ (PAIRS)[name];
    if (pair && run.curves[pair]) curves.push({ name: `${run.name}: ${titled(pair)}`, points: run.curves[pair], dashed: true, colour: number });
  });
  const several = found.runs.length > 1;
  const differing = [...new Set(found.runs.flatMap((/** @type {Document} */ run) => Object.keys(run.differs)))].slice(0, 12);
  const last = (/** @type {Document} */ run, /** @type {string} */ curve) => nats(run.curves[curve]?.at(-1)?.[1]);
  const at = (/** @type {Document} */ run, /** @type {string} */ curve) => run.curves[curve] ? `${last(run, curve)} at step ${run.curves[curve].at(-1)?.[0]}` : "-";
  view.replaceChildren(
    h("div", { class: "row" }, choice("Which curve", shown.map((each) => [each, titled(each)]), name, (each) => context.set({ curve: each })),
      h("button", { type: "button", "data-keep": "log", "aria-pressed": String(context.state.log === "yes"), onclick: () => context.set({ log: context.state.log === "yes" ? "" : "yes" }) }, "Logarithmic")),
    chart(curves, { label: `${titled(name)} by step`, across: "step", up: titled(name), log: context.state.log === "yes" }),
    table("The runs", ["run", "state", "step", "last loss", "last validation\u00a0loss", "best validation\u00a0loss", "loss\u00a0on\u00a0all held-out\u00a0text", "tokens per\u00a0second", ...(several ? differing : [])],
      found.runs.map((/** @type {Document} */ run) => [run.name, run.error ?? run.state, h("span", { class: "whole" }, `${said(run.step)} of ${said(run.steps)}`), last(run, "loss"), at(run, "validation_loss"), run.best_loss === null || run.best_loss === undefined ? "-" : `${nats(run.best_loss)} at step ${run.best_step}`, nats(run.validation_loss), said(run.tokens_per_second), ...(several ? differing.map((key) => run.differs[key] ?? "") : [])]), ["", "", "", "number", "number", "number", "number", "number"]),
    ...readings(found, context),
    ...found.runs.flatMap((/** @type {Document} */ run) => run.samples.length ? [h("h3", {}, `What ${run.name} wrote`), samples(run)] : []));
  fitAll(view);
}

/** @param {string} name of a curve */
const titled = (name) => NAMES[name] ?? name.replaceAll("_", " ");

/**
 * What layers and heads did at the steps where the runs saved it: a curve for each layer, or for each head of one layer.
 * @param {Document} found
 * @param {Context} context
 */
function readings(found, context) {
  const runs = found.runs.filter((/** @type {Document} */ run) => Object.keys(run.readings ?? {}).length > 0);
  if (runs.length === 0) return [];
  const measures = [...new Set(runs.flatMap((/** @type {Document} */ run) => Object.keys(run.readings)))];
  const measure = measures.includes(context.state.measure) ? context.state.measure : measures[0];
  const places = [...new Set(runs.flatMap((/** @type {Document} */ run) => Object.keys(run.readings[measure] ?? {})))];
  const layers = [...new Set(places.filter((place) => place.includes(".heads.")).map((place) => place.split(".heads.")[0]))];
  const layer = layers.includes(context.state.layer) ? context.state.layer : layers[0];
  const shown = layers.length ? places.filter((place) => place.startsWith(`${layer}.heads.`)) : places;
  const label = (/** @type {string} */ place) => inWords(place, context.about);
  const curves = runs.flatMap((/** @type {Document} */ run, /** @type {number} */ number) => shown.filter((place) => run.readings[measure]?.[place]).map((place, colour) =>
    ({ name: runs.length > 1 ? `${run.name}: ${label(place)}` : label(place), points: run.readings[measure][place], dashed: number % 2 === 1, colour })));
  const up = measure.replaceAll("_", " ");
  return [
    h("h3", {}, "What its layers and heads did"),
    h("p", {}, "Saved during training: norms of the residual stream, the loss if the model ended at that layer, and attention patterns of each head on repeated random tokens."),
    choice("Which measure", measures.map((each) => [each, each.replaceAll("_", " ")]), measure, (each) => context.set({ measure: each })),
    layers.length > 1 ? choice("Layer", layers.map((each) => [each, inWords(each, context.about)]), layer, (each) => context.set({ layer: each })) : null,
    chart(curves, { label: `${up} by step`, across: "step", up, log: false }),
    table(`${up}: first and last`, ["place", "first", "last", "at step"],
      curves.map((/** @type {{name: string, points: number[][]}} */ curve) => [curve.name, said(curve.points[0][1]), said(curve.points[curve.points.length - 1][1]), said(curve.points[curve.points.length - 1][0])]), ["", "number", "number", "number"]),
  ].filter((each) => each !== null);
}

/** @param {Document} run */
function samples(run) {
  const shown = h("pre", { dir: "auto", tabindex: 0 }), label = h("output", {});
  const pick = h("input", { type: "range", min: 0, max: run.samples.length - 1, value: run.samples.length - 1, "aria-label": "Sample", oninput: () => show() });
  const show = () => {
    const [step, text] = run.samples[Number(pick.value)];
    label.textContent = `after step ${step}, ${Number(pick.value) + 1} of ${run.samples.length}`;
    shown.textContent = text;
  };
  show();
  return h("div", {}, h("label", {}, label, pick), shown);
}
