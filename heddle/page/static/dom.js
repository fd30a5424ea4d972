// Elements.

import { percent, visible, weight } from "./numbers.js";

/** @typedef {Node | string | number | null | undefined | false} Child */

const MANY = 6; // options that are buttons; more are a list

/**
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Record<string, any>} given attributes; on…: what happens; class; style as properties
 * @param {...(Child | Child[])} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function h(tag, given = {}, ...children) {
  const made = document.createElement(tag);
  furnish(made, given, children);
  return made;
}

/**
 * @param {string} tag of SVG
 * @param {Record<string, any>} given
 * @param {...(Child | Child[])} children
 * @returns {SVGElement}
 */
export function s(tag, given = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  furnish(made, given, children);
  return made;
}

/**
 * @param {HTMLElement | SVGElement} made
 * @param {Record<string, any>} given
 * @param {(Child | Child[])[]} children
 */
function furnish(made, given, children) {
  for (const [name, value] of Object.entries(given)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(made.style, value);
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat())
    if (child !== null && child !== undefined && child !== false) made.append(child instanceof Node ? child : String(child));
}

/**
 * A table whose columns of numbers are aligned.
 * @param {string} caption
 * @param {string[]} head
 * @param {Child[][]} rows
 * @param {string[]} kinds of the columns: "piece", "number" or ""
 */
export function table(caption, head, rows, kinds = []) {
  const cells = (/** @type {Child[]} */ row, /** @type {"td" | "th"} */ tag) =>
    row.map((cell, place) => cell instanceof HTMLTableCellElement ? cell
      : h(tag, { class: kinds[place] || undefined, scope: tag === "th" ? "col" : undefined, dir: kinds[place] === "piece" ? "auto" : undefined }, cell));
  return h("div", { class: "wide", tabindex: 0, role: "region", "aria-label": caption },
    h("table", {}, h("caption", {}, caption), h("thead", {}, h("tr", {}, cells(head, "th"))),
      h("tbody", {}, rows.map((row) => h("tr", {}, cells(row, "td"))))));
}

/**
 * A bar for a token and its share; a button if something happens on a click.
 * @param {string} piece
 * @param {number} share
 * @param {{onclick?: () => void, said?: string, most?: number, words?: boolean}} more words: it names a part, so its spaces are spaces
 */
export function bar(piece, share, more = {}) {
  const fill = h("div", { class: share < 0 ? "fill less" : "fill", style: { width: Math.min(100, (100 * Math.abs(share)) / (more.most || 1)) + "%" } });
  const inner = [h("span", { class: more.words ? "what words" : "what", dir: "auto" }, more.words ? piece : visible(piece)), h("span", { class: "many" }, more.said ?? percent(share)),
    h("span", { class: "track" }, fill)];
  return more.onclick ? h("button", { type: "button", class: "bar", onclick: more.onclick }, inner)
    : h("div", { class: "bar" }, inner);
}

/**
 * Tokens beside each other; buttons if something happens on a click.
 * @param {string[]} pieces
 * @param {{shade?: ArrayLike<number>, pressed?: (place: number) => boolean, onclick?: (place: number) => void, label: string}} more
 */
export function tokens(pieces, more) {
  return h("div", { class: "tokens", role: "group", "aria-label": more.label }, pieces.map((piece, place) => {
    const style = more.shade ? { background: shade(more.shade[place]), color: more.shade[place] > 0.5 ? "var(--ground)" : "var(--ink)" } : {};
    const about = { class: "token", title: more.shade ? place + ": " + weight(more.shade[place]) : String(place), style, dir: "auto" };
    if (!more.onclick) return h("span", about, visible(piece));
    return h("button", { ...about, type: "button", "aria-pressed": String(more.pressed?.(place) ?? false), onclick: () => more.onclick?.(place) }, visible(piece));
  }));
}

/** @param {number} share the colour of a share: from the ground to the high colour */
export function shade(share) {
  return `rgba(var(--high), ${Math.max(0, Math.min(1, share)).toFixed(4)})`;
}

/**
 * @param {string} name
 * @param {string | Blob} content
 * @param {string} kind
 */
export function save(name, content, kind) {
  const address = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type: kind }));
  const link = h("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

/**
 * A choice of one: buttons, or a list if there are many.
 * @param {string} label
 * @param {[string, string][]} options name and text
 * @param {string} chosen
 * @param {(name: string) => void} act
 */
export function choice(label, options, chosen, act) {
  if (options.length > MANY) {
    const list = h("select", { "aria-label": label, "data-keep": label, onchange: () => act(list.value) }, options.map(([name, text]) => h("option", { value: name, selected: name === chosen }, text)));
    return list;
  }
  return h("div", { class: "choice", role: "group", "aria-label": label },
    options.map(([name, text]) => h("button", { type: "button", "data-keep": `${label} ${name}`, "aria-pressed": String(name === chosen), onclick: () => act(name) }, text)));
}

/**
 * Controls beside the word for what they do.
 * @param {string} label
 * @param {...(Child | Child[])} controls
 */
export function labelled(label, ...controls) {
  return h("div", { class: "labelled" }, h("span", { class: "soft" }, label), ...controls);
}

/** How much larger type is than usual: in the projector view it is. */
export function enlarged() {
  return parseFloat(getComputedStyle(document.documentElement).fontSize) / 16;
}

/**
 * Draw at the size that an element has as soon as it is in the page, and again whenever that changes: what is drawn is never scaled,
 * so its text stays readable.
 * @param {HTMLElement} element
 * @param {(width: number, height: number) => void} draw the height is infinite unless the element has one of its own
 * @param {boolean} filling whether it has: then the drawing must not be higher
 */
export function fit(element, draw, filling = false) {
  let [width, height] = [0, 0];
  const measure = () => {
    const now = [element.clientWidth, filling ? element.clientHeight : Infinity];
    if (now[0] === 0 || now[1] === 0 || (now[0] === width && now[1] === height)) return;
    [width, height] = now;
    draw(width, height);
  };
  element.dataset.fit = "";
  element.addEventListener("fit", measure);
  new ResizeObserver(() => requestAnimationFrame(measure)).observe(element);
}

/** @param {Element} root what has just been put into the page: its drawings get their sizes at once */
export function fitAll(root) {
  for (const each of root.querySelectorAll("[data-fit]")) each.dispatchEvent(new Event("fit"));
}
