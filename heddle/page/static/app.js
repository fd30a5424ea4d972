// The page: the text that the model reads, the panels, and the address that holds what is shown.

import { fitAll, h } from "./dom.js";
import { project } from "./projector.js";
import { visible } from "./numbers.js";
import { prediction } from "./prediction.js";
import { Refused, ask, offline, started } from "./source.js";
import { inWords } from "./names.js";
import { format, parse, several } from "./state.js";
import { attention } from "./panels/attention.js";
import { layers } from "./panels/layers.js";
import { model } from "./panels/model.js";
import { prefixes } from "./panels/prefixes.js";
import { lossWithout, switches } from "./panels/switches.js";
import { training } from "./panels/training.js";
import { walk } from "./panels/walk.js";
import { write } from "./panels/write.js";

/**
 * @typedef {import("./source.js").Document} Document
 * @typedef {{
 *   state: import("./state.js").State, about: Document, offline: boolean,
 *   set: (changes: Record<string, string>, render?: boolean) => void,
 *   reading: () => Document, ask: typeof ask, alive: () => boolean, onleave: (act: () => void) => void,
 * }} Context
 * @typedef {{name: string, title: string, caption: string | ((about: Document) => string), shown?: (about: Document) => boolean, render: (root: HTMLElement, context: Context) => Promise<void>}} Panel
 */

/** @type {Panel[]} */
const PANELS = [prefixes, write, attention, layers, switches, walk, model, training];
const PREDICTED = [attention, layers, walk]; // these show the next token above their own numbers

const byId = (/** @type {string} */ id) => /** @type {HTMLElement} */ (document.getElementById(id));
/** @type {import("./state.js").State} */
let state = {};
/** @type {Document} */
let about = {};
let turn = 0;
/** @type {(() => void)[]} */
let leaving = [];

/**
 * @param {Record<string, string>} changes
 * @param {boolean} render
 */
function set(changes, render = true) {
  state = { ...state, ...changes };
  if (changes.panel) history.pushState(null, "", format(state));
  else history.replaceState(null, "", format(state));
  if (render) void show();
}

/** The text with the tokens that were appended to it, as the questions name it: one text for all panels. @returns {Document} */
function reading() {
  const off = several(state.off), added = several(state.added).map(Number);
  const target = state.target || (added.length && about.translates ? "" : undefined); // tokens go on from a target, not from a translation
  return { text: state.text ?? "", ...(target === undefined ? {} : { target }), ...(added.length ? { added } : {}), ...(off.length ? { off } : {}) };
}

async function show() {
  const mine = ++turn;
  for (const act of leaving.splice(0)) act();
  const shown = PANELS.filter((panel) => panel.shown?.(about) ?? true);
  const panel = shown.find((each) => each.name === state.panel) ?? shown[0];
  navigation(shown, panel);
  project(shown, panel, { state, set });
  const old = byId("main").querySelector(".panel");
  const root = h("section", { class: "panel", "aria-label": panel.title, "data-panel": panel.name });
  const alive = () => mine === turn;
  const context = { state, about, offline, set, reading, ask, alive, onleave: (/** @type {() => void} */ act) => leaving.push(act) };
  const busy = setTimeout(() => alive() && byId("main").prepend(h("p", { class: "busy", role: "status" }, "The model is reading …")), 400);
  try {
    root.append(h("h2", {}, panel.title), h("p", { class: "caption" }, typeof panel.caption === "string" ? panel.caption : panel.caption(about)));
    await appended(alive);
    if (panel !== training && panel !== model && several(state.off).length)
      root.append(await switchedOff(context));
    if (PREDICTED.includes(panel)) root.append(await prediction(context));
    await panel.render(root, context);
  } catch (error) {
    if (!(error instanceof Refused)) console.error(error);
    root.append(h("p", { class: "error", role: "alert" }, error instanceof Error ? error.message : String(error)));
  } finally {
    clearTimeout(busy);
  }
  if (!alive()) return;
  const focused = document.activeElement?.closest(".panel") ? document.activeElement.getAttribute("data-keep") : null;
  if (old?.getAttribute("data-panel") === panel.name) keepOpen(old, root);
  byId("main").replaceChildren(root);
  fitAll(root);
  if (old && focused) /** @type {HTMLElement | null} */ (root.querySelector(`[data-keep="${CSS.escape(focused)}"]`))?.focus();
  root.dataset.ready = "yes";
}

/**
 * The tokens that were written after the text: below its field, and in the projector view's bar.
 * @param {() => boolean} alive
 */
async function appended(alive) {
  const { added } = reading(), place = byId("added");
  if (!added) return place.replaceChildren();
  const found = await ask("next", reading()).catch(() => ({ pieces: [] })); // the panel says what is wrong with the text
  if (!alive()) return;
  const pieces = found.pieces.slice(-added.length).map(visible);
  place.replaceChildren(h("span", { class: "soft" }, `and ${added.length} written:`), h("span", { class: "token", dir: "auto" }, pieces.join("")),
    h("button", { type: "button", onclick: () => set({ added: "", play: "", at: "" }) }, "Take back"));
  byId("bar").querySelector(".reading")?.append(pieces.join(""));
}

/**
 * What is switched off, and what it costs.
 * @param {Context} context
 */
async function switchedOff(context) {
  const off = several(state.off);
  return h("div", { class: "off", role: "status", "data-off": off.join(",") }, h("p", {}, h("strong", {}, "Switched off: "), off.map((name) => inWords(name, about)).join("; "), " ",
    h("button", { type: "button", onclick: () => set({ off: "" }) }, "Switch all on")), await lossWithout(context));
}

/**
 * What was unfolded stays so when its panel is drawn anew.
 * @param {Element} old
 * @param {Element} root
 */
function keepOpen(old, root) {
  const title = (/** @type {Element} */ each) => each.querySelector("summary")?.textContent;
  const open = new Set([...old.querySelectorAll("details[open]")].map(title));
  for (const each of root.querySelectorAll("details")) if (open.has(title(each))) each.open = true;
}

/**
 * @param {Panel[]} shown
 * @param {Panel} current
 */
function navigation(shown, current) {
  const made = shown.map((panel) => h("button", {
    type: "button", "aria-current": panel === current ? "page" : undefined, "data-keep": panel.name, onclick: () => set({ panel: panel.name }),
  }, panel.title));
  const kept = document.activeElement?.closest("#panels") ? current.name : null;
  byId("panels").replaceChildren(...made);
  const nav = byId("panels"), tab = made[shown.indexOf(current)];
  nav.scrollLeft = tab.offsetLeft - nav.offsetLeft - (nav.clientWidth - tab.offsetWidth) / 2; // scrollIntoView would move where Tab starts, too
  if (kept) tab.focus();
}

function header() {
  const theme = h("button", { type: "button", "aria-label": "Light or dark", title: "Light or dark", onclick: () => set({ theme: dark() ? "light" : "dark" }, paint()) }, "◐");
  const projector = h("button", { type: "button", id: "project", onclick: () => { set({ projector: "yes" }); byId("main").focus(); } }, "Projector");
  byId("head").replaceChildren(h("h1", {}, h("span", { class: "soft" }, "heddle look: "), about.run),
    h("span", { class: "soft" }, `${about.family}, ${about.parameters.toLocaleString("en-US")} parameters, ${about.depth} layers, width ${about.dim}, vocabulary of ${about.vocabulary.toLocaleString("en-US")}`), h("span", { class: "row" }, theme, projector));
  byId("foot").replaceChildren(h("p", {}, offline ? "This file contains the numbers of one text and loads nothing. heddle look RUN opens the page with the model."
    : "Nothing leaves this machine. The address describes the current view: copy it to open the view again."));
  document.title = about.run + " - heddle";
}

const dark = () => (state.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";

function paint() {
  setTimeout(() => {
    if (state.theme) document.documentElement.dataset.theme = state.theme;
    void show();
  });
  return false;
}

function form() {
  let waiting = 0;
  const later = (/** @type {Record<string, string>} */ changes) => {
    clearTimeout(waiting);
    waiting = setTimeout(() => set({ ...changes, added: "", query: "", at: "" }), 350);
  };
  const paired = about.translates;
  const text = h("textarea", { id: "prompt", spellcheck: "false", dir: "auto", disabled: offline, rows: 1, oninput: () => later({ text: text.value }) });
  text.value = state.text ?? "";
  const target = h("input", { id: "target", type: "text", dir: "auto", disabled: offline, placeholder: "empty: the model's own translation", oninput: () => later({ target: target.value }) });
  target.value = state.target ?? "";
  const demos = about.text && !offline ? about.demo : [];
  byId("text").replaceChildren(h("label", { for: "prompt" }, paired ? "Source text" : about.text ? "Text" : "Text, as ids"), text,
    ...(paired ? [h("label", { for: "target" }, "Target text"), target] : []),
    h("div", { class: "row examples" }, demos.length ? h("span", { class: "soft" }, "Examples:") : null, demos.map((/** @type {string} */ demo) => h("button", {
      type: "button", onclick: () => { text.value = demo; set({ text: demo, target: "", added: "", query: "", at: "" }); target.value = ""; },
    }, demo))), h("div", { class: "row", id: "added", role: "status" }));
  byId("text").onsubmit = (event) => event.preventDefault();
}

async function begin() {
  try {
    const first = await started();
    about = await ask("about", {});
    state = { ...Object.fromEntries(Object.entries(first).map(([name, value]) => [name, String(value)])), ...parse(location.hash) };
    if (offline) state = { ...state, text: first.text ?? "", target: first.target ?? "", added: "" };
    if (state.text === undefined) state.text = about.text ? about.demo[0] : "0 1 2";
    if (state.theme) document.documentElement.dataset.theme = state.theme;
    header();
    form();
    await show();
  } catch (error) {
    byId("main").replaceChildren(h("p", { class: "error", role: "alert" }, error instanceof Error ? error.message : String(error)));
  }
}

addEventListener("hashchange", () => {
  state = { ...parse(location.hash) };
  form();
  void show();
});
void begin();
