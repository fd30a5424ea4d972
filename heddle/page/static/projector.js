// The projector view: large type and one panel at a time; arrow keys go on, Escape leaves.

import { h } from "./dom.js";

/**
 * @typedef {import("./app.js").Panel} Panel
 * @typedef {{state: import("./state.js").State, set: (changes: Record<string, string>) => void}} Page
 */

/** What takes arrow keys for itself. */
const OWN_KEYS = "input, textarea, select, canvas, svg[tabindex], [contenteditable]";

/** What the keys do while the view is shown. @type {{go: (by: number) => void, leave: () => void} | null} */
let keys = null;

/**
 * Show or leave the view, as the address has it.
 * @param {Panel[]} shown
 * @param {Panel} current
 * @param {Page} page
 */
export function project(shown, current, { state, set }) {
  const bar = /** @type {HTMLElement} */ (document.getElementById("bar")), on = state.projector === "yes", at = shown.indexOf(current);
  document.documentElement.toggleAttribute("data-projector", on);
  bar.hidden = !on;
  if (!on) {
    keys = null;
    bar.replaceChildren();
    return;
  }
  const focused = bar.contains(document.activeElement) ? document.activeElement?.getAttribute("data-bar") : null;
  const go = (/** @type {number} */ by) => {
    const next = shown[at + by];
    if (!next) return;
    set({ panel: next.name });
    scrollTo(0, 0);
  };
  const leave = () => {
    set({ projector: "" });
    document.getElementById("project")?.focus();
  };
  keys = { go, leave };
  const button = (/** @type {string} */ name, /** @type {string} */ text, /** @type {string} */ label, /** @type {() => void} */ onclick, disabled = false) =>
    h("button", { type: "button", "data-bar": name, "aria-label": label, onclick, disabled }, text);
  bar.replaceChildren(button("back", "←", "Previous panel", () => go(-1), at === 0), button("on", "→", "Next panel", () => go(1), at === shown.length - 1),
    h("span", { class: "title", "aria-hidden": true }, current.title), h("span", {}, `${at + 1} of ${shown.length}`), h("span", { class: "soft reading" }, state.text ?? ""), button("leave", "Leave", "Leave the projector view", leave));
  if (focused) /** @type {HTMLElement | null} */ (bar.querySelector(`[data-bar="${focused}"]`))?.focus();
}

/** @param {Element | null} target whether arrow keys are its own */
function takesArrows(target) {
  if (!target) return false;
  const scrolled = target.closest(".wide");
  return target.matches(OWN_KEYS) || (scrolled !== null && scrolled.scrollWidth > scrolled.clientWidth);
}

document.addEventListener("keydown", (event) => {
  if (!keys || event.defaultPrevented || event.altKey || event.ctrlKey || event.metaKey) return;
  const page = document.documentElement, target = event.target instanceof Element ? event.target : null;
  const isTop = page.scrollTop <= 2, isEnd = page.scrollTop + innerHeight >= page.scrollHeight - 2;
  if (event.key === "Escape") keys.leave();
  else if (event.key === "ArrowRight" && !takesArrows(target)) keys.go(1);
  else if (event.key === "ArrowLeft" && !takesArrows(target)) keys.go(-1);
  else if (event.key === "PageDown" && isEnd) keys.go(1); // a presenter's remote sends these: first to the end of the panel
  else if (event.key === "PageUp" && isTop) keys.go(-1);
  else return;
  event.preventDefault();
});
