// Answers: from the server that shows a run, or from the numbers that a file holds.

import { key } from "./state.js";

/** @typedef {Record<string, any>} Document */

const held = document.getElementById("stored");
/** @type {{start: Document, answers: Record<string, Document>} | null} */
const stored = held ? JSON.parse(held.textContent ?? "null") : null;

/** Whether this is a file: what needs the model is not there. */
export const offline = stored !== null;

export class Refused extends Error {}

/** @type {Map<string, Promise<Document>>} */
const answered = new Map();

/**
 * @param {string} panel
 * @param {Document} asked
 * @param {boolean} fresh whether an earlier answer may have become wrong
 * @returns {Promise<Document>}
 */
export function ask(panel, asked, fresh = false) {
  const name = key(panel, asked);
  const known = answered.get(name);
  if (known && !fresh) return known;
  const found = stored ? look(name) : fetched(panel, asked);
  answered.set(name, found);
  found.catch(() => answered.delete(name));
  for (const each of [...answered.keys()].slice(0, Math.max(0, answered.size - 24))) answered.delete(each);
  return found;
}

/** @returns {Promise<Document>} what the page shows first */
export async function started() {
  if (stored) return stored.start;
  return (await fetch("/start")).json();
}

/** @param {string} name */
async function look(name) {
  const found = stored?.answers[name];
  if (!found) throw new Refused("This file contains the numbers of one text. This view needs the model: open it with heddle look RUN.");
  if (found.error) throw new Refused(found.error);
  return found;
}

/**
 * @param {string} panel
 * @param {Document} asked
 */
async function fetched(panel, asked) {
  let answer;
  try {
    answer = await fetch("/look/" + panel, {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(asked),
    });
  } catch {
    throw new Refused("The server does not answer. Is heddle look still running?");
  }
  const found = await answer.json();
  if (!answer.ok) throw new Refused(found.error?.message ?? "The server answered " + answer.status + ".");
  return found;
}
