// node --test: the page's pure functions.

import assert from "node:assert/strict";
import { test } from "node:test";

import { inside } from "../../heddle/page/static/isometric.js";
import * as numbers from "../../heddle/page/static/numbers.js";
import { format, key, parse, several } from "../../heddle/page/static/state.js";

const near = (one, two, within = 1e-6) => assert.ok(Math.abs(one - two) < within, `${one} is not ${two}`);

test("bytes become numbers and truth values", () => {
  const floats = new Float32Array([1.5, -2, 0.25]);
  const data = Buffer.from(floats.buffer).toString("base64");
  assert.deepEqual([...numbers.unpack({ shape: [3], kind: "f32", data })], [1.5, -2, 0.25]);
  const bits = Buffer.from([0b10100000, 0b10000000, 0b01000000, 0]).toString("base64");
  assert.deepEqual([...numbers.unpackBits({ shape: [2, 9], kind: "bits", data: bits })], [1, 0, 1, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
});

test("weights are a softmax over what is allowed; 0 where nothing is", () => {
  const found = numbers.weights([0, Math.log(3), 9, 1, 1, 1], [1, 1, 0, 0, 0, 0], 2, 3);
  near(found[0], 0.25);
  near(found[1], 0.75);
  assert.deepEqual([...found.slice(2)], [0, 0, 0, 0]);
  near(numbers.weights([1000, 1001], null, 1, 2)[1], 1 / (1 + Math.exp(-1)));
  const beside = numbers.weights([0, Math.log(3), 1, 1], [1, 1, 0, 0], 2, 2, Math.log(4));
  [1 / 8, 3 / 8, 0, 0].forEach((wanted, place) => near(beside[place], wanted));
  near(numbers.weights([0], null, 1, 1, 1000)[0], 0);
});

test("a temperature sharpens, and 0 takes the first of the largest", () => {
  const logits = [0, Math.log(2), Math.log(2)];
  near(numbers.probabilities(logits, 1)[1], 0.4);
  near(numbers.probabilities(logits, 0.5)[1], 4 / 9);
  assert.deepEqual([...numbers.probabilities(logits, 0)], [0, 1, 0]);
});

test("top-k and top-p keep the fewest, of equals the lowest ids, and the rest sums to 1", () => {
  const shares = Float64Array.from([0.1, 0.4, 0.2, 0.2, 0.1]);
  assert.deepEqual([...numbers.truncated(shares, 2, 1)].map((each) => each > 0), [false, true, true, false, false]);
  const nucleus = numbers.truncated(shares, 0, 0.55);
  assert.deepEqual([...nucleus].map((each) => each > 0), [false, true, true, false, false]);
  near(nucleus.reduce((sum, each) => sum + each), 1);
  assert.equal(numbers.truncated(shares, 0, 0.01)[1], 1);
  [...numbers.truncated(shares, 0, 1)].forEach((share, id) => near(share, shares[id]));
});

test("draws repeat with a seed and follow the shares", () => {
  const one = numbers.randoms(3), two = numbers.randoms(3);
  const values = Array.from({ length: 1000 }, () => one());
  assert.deepEqual(values, Array.from({ length: 1000 }, () => two()));
  assert.ok(values.every((each) => each >= 0 && each < 1));
  near(values.reduce((sum, each) => sum + each) / 1000, 0.5, 0.05);
  assert.equal(numbers.drawn([0, 0.5, 0, 0.5], 0), 1);
  assert.equal(numbers.drawn([0, 0.5, 0, 0.5], 0.75), 3);
  assert.equal(numbers.drawn([0, 0.5, 0, 0.5], 0.9999999), 3);
  const counts = [0, 0, 0];
  for (let time = 0; time < 3000; time++) counts[numbers.drawn([0.2, 0.5, 0.3], one())]++;
  near(counts[1] / 3000, 0.5, 0.05);
});

test("numbers are said in few digits", () => {
  assert.equal(numbers.said(0.123456), "0.1235");
  assert.equal(numbers.said(123456.7), "123500");
  assert.equal(numbers.said(0.00001234), "1.23e-5");
  assert.equal(numbers.said(0), "0");
  assert.equal(numbers.said(null), "-");
  assert.equal(numbers.said(NaN), "-");
  assert.equal(numbers.said(-Infinity), "-∞");
});

test("large counts have four digits and a letter", () => {
  assert.deepEqual([552960, 33_900_000, 271_234_567, 1.25e12, 12, 0].map(numbers.short), ["553K", "33.9M", "271.2M", "1.25T", "12", "0"]);
});

test("probabilities are percentages, losses have four digits, weights are decimal numbers", () => {
  assert.deepEqual([0, 1e-9, 0.12345, 1].map(numbers.percent), ["0\u00a0%", "< 0.1\u00a0%", "12.3\u00a0%", "100.0\u00a0%"]);
  assert.deepEqual([5.19684, 0.5, -0.04, 0, 0.00001, 123456.7, null, Infinity].map(numbers.nats), ["5.197", "0.5000", "-0.04000", "0", "1.00e-5", "123500", "-", "∞"]);
  assert.deepEqual([0, 0.0004, 0.0126, 1].map(numbers.weight), ["0", "< 0.001", "0.013", "1.000"]);
});

test("tokens are visible: blanks, line ends, controls, signs that turn the text around", () => {
  assert.equal(numbers.visible(" a\n"), "␣a⏎");
  assert.equal(numbers.visible(""), "∅");
  assert.equal(numbers.visible("\u0000\u202e"), "\\u0000\\u202e");
  assert.equal(numbers.visible("שלום😀"), "שלום😀");
});

test("CSV quotes, and runs no formulas", () => {
  assert.equal(numbers.csv([["a,b", 'say "x"', -1.5], ["=1+1", "\n", "-c"]]), '"a,b","say ""x""",-1.5\r\n\'=1+1,"\n",\'-c\r\n');
});

test("a matrix is printed as in the lectures: three columns, …, the last", () => {
  const values = Float32Array.from({ length: 10 * 64 }, (_, place) => place / 100);
  const cells = numbers.leadingCells(values, 10, 64);
  assert.equal(cells.length, 10);
  assert.deepEqual(cells[0], ["0.00", "0.01", "0.02", "…", "0.63"]);
  assert.deepEqual(numbers.leadingCells([1, 2, 3, 4], 1, 4), [["1.00", "2.00", "3.00", "4.00"]]);
});

test("continuations that begin alike share branches", () => {
  const beam = (ids, score) => ({ tokens: ids.map((id) => [id, String(id), 0.5]), score, finish: "end" });
  const found = numbers.tree([beam([1, 2, 3], -1), beam([1, 4], -2), beam([1, 2], -3)]);
  assert.equal(found.length, 1);
  assert.deepEqual(found[0].next.map((each) => each.id), [2, 4]);
  assert.equal(found[0].next[0].ends[0].place, 2);
  assert.equal(found[0].next[0].next[0].ends[0].place, 0);
});

test("a map with more numbers than pixels shows the largest of each", () => {
  const values = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
  assert.deepEqual([...numbers.shrunk(values, null, 4, 4, 2, 2)], [5, 7, 13, 15]);
  assert.deepEqual([...numbers.shrunk(values, values.map((each) => (each < 8 ? 1 : 0)), 4, 4, 2, 2)], [5, 7, -Infinity, -Infinity]);
  assert.deepEqual([...numbers.shrunk([-3, -2, -5, -4], null, 1, 4, 1, 2)], [-3, -5]);
  assert.deepEqual([...numbers.shrunk([-3, 2, 1, -0.5], null, 1, 4, 1, 2)], [-3, 1]);
});

test("axes have round numbers", () => {
  assert.deepEqual(numbers.ticks(0, 10), [0, 2, 4, 6, 8, 10]);
  assert.deepEqual(numbers.ticks(0.12, 0.4), [0.2, 0.3, 0.4]);
  assert.deepEqual(numbers.ticks(3, 3), [3]);
});

test("plates are drawn at thirty degrees", () => {
  assert.deepEqual(numbers.iso(0, 0), [0, 0]);
  const [across, down] = numbers.iso(4, 0);
  near(down / across, Math.tan(Math.PI / 6));
  assert.deepEqual(numbers.iso(3, 3).map((each) => Math.round(1e6 * each) / 1e6), [0, 3]);
  const found = numbers.corners(4, 2);
  near(found[0][0], 2 * Math.cos(Math.PI / 6)); // the back corner is right of the left one by the rows
  near(found[0][1], 0);
  assert.ok(found.every(([x, y]) => x >= -1e-9 && y >= 0));
  near(found[3][0], 0);
  near(found[1][0], 6 * Math.cos(Math.PI / 6));
  near(found[2][1], 3);
});

test("the address holds the state", () => {
  const state = { text: "a&b=c #é", layer: "decoder.0.mixer", off: "x,y" };
  assert.deepEqual(parse(format(state)), state);
  assert.equal(format({ text: "", panel: "write" }), "#panel=write");
  assert.deepEqual(several("a,b"), ["a", "b"]);
  assert.deepEqual(several(""), []);
  assert.equal(key("map", { text: "a", head: 1 }), 'map{"head":1,"text":"a"}');
});

test("a scale that goes below zero has two sides, and its ground is zero", () => {
  assert.deepEqual([-4, -2, 0, 2].map((value) => numbers.onScale(value, -4, 2)), [-1, -0.5, 0, 0.5]);
  assert.deepEqual([-1, 0, 4, 9].map((value) => numbers.onScale(value, -1, 4)), [-0.25, 0, 1, 1]);
  assert.deepEqual([1, 2, 3].map((value) => numbers.onScale(value, 1, 3)), [0, 0.5, 1]);
  assert.equal(numbers.onScale(0.3, 0, 0), 0.3);
});

test("the share p is of what k has left", () => {
  const shares = Float64Array.from([0.4, 0.3, 0.2, 0.1]);
  // Of all four, 0.4 + 0.3 reach 0.6; of the first two, 0.4 is 4/7 of them and does not reach it, but 0.5 it does.
  assert.deepEqual([...numbers.truncated(shares, 2, 0.5)], [1, 0, 0, 0]);
  assert.deepEqual([...numbers.truncated(shares, 3, 0.75)].map((each) => each > 0), [true, true, false, false]);
  const both = numbers.truncated(shares, 2, 0.6);
  assert.ok(Math.abs(both[0] - 4 / 7) < 1e-12 && Math.abs(both[1] - 3 / 7) < 1e-12 && both[2] === 0);
});

test("a seed has its own numbers, those of mulberry32", () => {
  const drawn = (seed) => [0, 0, 0].map(numbers.randoms(seed));
  // As a 32-bit implementation in another language gives them.
  [[0, [0.26642920868471265, 0.0003297457005828619, 0.2232720274478197]], [1, [0.6270739405881613, 0.002735721180215478, 0.5274470399599522]]]
    .forEach(([seed, wanted]) => drawn(seed).forEach((each, place) => near(each, wanted[place], 1e-15)));
});

test("what rounding leaves over goes to the last token with a share", () => {
  assert.equal(numbers.drawn([0.25, 0.5, 0], 0.9), 1);
});

test("where numbers change how they are said", () => {
  assert.deepEqual([999999, 1e6, 1234567].map((value) => numbers.said(value)), ["999999", "1.00e+6", "1.23e+6"]);
  assert.deepEqual([0.0001, 0.00025, 0.0000999].map((value) => numbers.said(value)), ["0.0001", "0.00025", "9.99e-5"]);
  assert.deepEqual([0.001, 0.0049, 0.0009].map(numbers.percent), ["0.1\u00a0%", "0.5\u00a0%", "< 0.1\u00a0%"]);
  assert.equal(numbers.visible("a\tb\r"), "a⇥b␍");
});

test("every beginning that a spreadsheet runs is a text", () => {
  const signs = ["=", "+", "-", "@", "\t", "\r"];
  assert.deepEqual(signs.map((sign) => numbers.csv([[sign + "a"]]).includes("'" + sign)), signs.map(() => true));
  assert.equal(numbers.csv([["a=b", -2]]), "a=b,-2\r\n");
});

test("a point is inside an outline, whichever way round its corners come", () => {
  const square = [[0, 0], [4, 0], [4, 2], [0, 2]];
  for (const points of [square, [...square].reverse()]) {
    assert.deepEqual([[1, 1], [4, 2], [5, 1], [1, -1]].map(([x, y]) => inside(points, x, y)), [true, true, false, false]);
  }
});
