// What is shown, as the part of the address after #: a link to it shows the same again.

/** @typedef {Record<string, string>} State */

/**
 * @param {string} hash such as "#panel=attention&layer=decoder.0.mixer"
 * @returns {State}
 */
export function parse(hash) {
  return Object.fromEntries(new URLSearchParams(hash.replace(/^#/, "")));
}

/**
 * @param {State} state
 * @returns {string} the same as an address, in the order of names; empty values are left out
 */
export function format(state) {
  const kept = Object.entries(state).filter(([, value]) => value !== "" && value !== undefined);
  kept.sort(([one], [two]) => (one < two ? -1 : 1));
  return "#" + new URLSearchParams(kept).toString();
}

/**
 * @param {string | undefined} list such as "1,2"
 * @returns {string[]}
 */
export function several(list) {
  return list ? list.split(",") : [];
}

/**
 * The key of a query, as `Query.key` in queries.py spells it.
 * @param {string} panel
 * @param {Record<string, unknown>} asked
 */
export function key(panel, asked) {
  const sorted = Object.keys(asked).sort().map((name) => JSON.stringify(name) + ":" + JSON.stringify(asked[name]));
  return panel + "{" + sorted.join(",") + "}";
}
