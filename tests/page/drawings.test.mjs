// node --test: what is drawn, as elements and pixels, on the little of a browser that drawing needs.

import assert from "node:assert/strict";
import { test } from "node:test";

class Element {
  constructor(tag) {
    Object.assign(this, { tag, given: {}, children: [], style: {}, dataset: {}, listeners: {} });
  }
  setAttribute(name, value) {
    this.given[name] = value;
  }
  addEventListener(name, act) {
    this.listeners[name] = act;
  }
  replaceChildren(...children) {
    this.children = children;
  }
  append(...children) {
    this.children.push(...children);
  }
  /** The elements below it with this tag, in order. */
  all(tag) {
    return this.children.flatMap((child) => child instanceof Element ? [...(child.tag === tag ? [child] : []), ...child.all(tag)] : []);
  }
  get text() {
    return this.children.map((child) => child instanceof Element ? child.text : child).join("");
  }
}

const COLOURS = { "--raised": "200, 200, 200", "--high": "0, 100, 50", "--less": "#ff8000", "--masked": "1, 2, 3" };
globalThis.Node = Element;
globalThis.document = { documentElement: {}, createElement: (tag) => new Element(tag), createElementNS: (_, tag) => new Element(tag) };
globalThis.ResizeObserver = class {
  observe() {}
};
globalThis.getComputedStyle = () => ({ fontSize: "16px", colorScheme: "light", getPropertyValue: (name) => COLOURS[name] });
globalThis.ImageData = class {
  constructor(width, height) {
    Object.assign(this, { width, height, data: new Uint8ClampedArray(4 * width * height) });
  }
};

const { bar, shade } = await import("../../heddle/page/static/dom.js");
const { arranged, pixels } = await import("../../heddle/page/static/heatmap.js");
const { chart, curveColour, lines } = await import("../../heddle/page/static/svg.js");

/** A drawing in a place of this width. */
const placed = (made, width = 720) => {
  made.clientWidth = width;
  made.listeners.fit();
  return made;
};
const near = (one, two, within = 0.06) => assert.ok(Math.abs(one - two) <= within, `${one} is not ${two}`);

test("pixels go from the ground to both ends, and what is masked has its own colour", () => {
  const map = { values: [0, 4, -4, 2, -2, 9], allowed: [1, 1, 1, 1, 1, 0], rows: ["a"], columns: [..."abcdef"], low: -4, high: 4, label: "" };
  const found = [...pixels(map, 1, 6).data];
  const colours = [0, 1, 2, 3, 4, 5].map((cell) => found.slice(4 * cell, 4 * cell + 4));
  assert.deepEqual(colours, [[200, 200, 200, 255], [0, 100, 50, 255], [255, 128, 0, 255], [100, 150, 125, 255], [228, 164, 100, 255], [1, 2, 3, 255]]);
});

test("a map has labels only where a row is as high as one, and is no wider than its place", () => {
  const pieces = (count) => Array.from({ length: count }, () => "token");
  for (const width of [240, 340, 700, 1200])
    for (const count of [1, 12, 13, 40, 64, 500])
      for (const [height, filling] of [[Infinity, false], [300, true]]) {
        const { left, top, across, down, labelled } = arranged({ rows: pieces(count), columns: pieces(count), filling }, width, height);
        assert.ok(left + across <= width && top + down <= height, `${count} in ${width}`);
        assert.ok(!labelled || down / count >= 11, `${count} in ${width}`);
      }
  assert.ok(arranged({ rows: pieces(13), columns: pieces(13) }, 340, Infinity).labelled);
});

test("lines go from who asks to who is asked, as thick as the weight, and weights below a fiftieth have none", () => {
  const found = placed(lines(["q", "r"], ["a", "b", "c"], [0.5, 0.03, 0.01, 0, 0.02, 1], "")).all("line").map((line) => line.given);
  assert.deepEqual(found.map((line) => [Number(line.y1), Number(line.y2), Number(line["stroke-width"])]), [[14, 14, 2], [14, 34, 0.12], [34, 34, 0.08], [34, 54, 4]]);
  assert.deepEqual(placed(lines(["q", "r"], ["a", "b", "c"], [0.5, 0.03, 0.01, 0, 0.02, 1], "", 1)).all("line").map((line) => line.given.y1), ["34", "34"]);
});

/** The labels of an axis, and where each stands; the upper end of the picture is 0. */
const axis = (made, anchor, place) => made.all("text").filter((each) => each.given["text-anchor"] === anchor && each.given[place] !== undefined && each.text !== "").map((each) => [each.text, Number(each.given[place])]);

test("a curve goes up where its values do, over an axis that says them", () => {
  const points = [[0, 1], [5, 3], [10, 2], [11, NaN]];
  const made = placed(chart([{ name: "loss", points, colour: 0 }, { name: "nothing", points: [], colour: 1 }], { label: "", across: "step", up: "" }));
  const [path] = made.all("path");
  const places = path.given.d.slice(1).split("L").map((each) => each.split(" ").map(Number));
  assert.equal(places.length, 3);
  const ups = axis(made, "end", "y").map(([text, y]) => [Number(text), y - 4]);
  const [one, two] = [ups[0], ups.at(-1)];
  const said = (y) => one[0] + ((y - one[1]) / (two[1] - one[1])) * (two[0] - one[0]);
  places.forEach(([, y], number) => near(said(y), points[number][1], 0.02));
  const [left, right] = [places[0][0], places[2][0]];
  near(places[1][0], (left + right) / 2);
  assert.deepEqual([left, right, made.all("span").length], [58, 700, 2]);
});

test("a drawing is made anew at the width of its place, and is never scaled", () => {
  const points = [[0, 1], [300, 3]];
  for (const [made, marks] of [[chart([{ name: "loss", points, colour: 0 }], { label: "", across: "step", up: "" }), "path"], [lines(["q"], ["a"], [1], ""), "line"]]) {
    const before = placed(made).all(marks)[0].given;
    for (const width of [320, 500]) {
      const [svg] = placed(made, width).all("svg");
      assert.equal(svg.given.viewBox.split(" ")[2], String(width));
      assert.ok(svg.all("text").every((each) => !(Number(each.given.x) > width)));
      assert.equal(svg.all(marks).length, 1);
    }
    assert.equal(placed(made, 0).all("svg")[0].given.viewBox.split(" ")[2], "500"); // folded away: what was drawn stays
    assert.notDeepEqual(made.all(marks)[0].given, before);
  }
});

test("a logarithmic axis says the values themselves", () => {
  const made = placed(chart([{ name: "loss", points: [[0, 1], [1, 10], [2, 100]], colour: 0 }], { label: "", across: "step", up: "", log: true }));
  assert.deepEqual(axis(made, "end", "y").map(([text]) => Number(text)), [1, 3.16, 10, 31.6, 100]);
  const ys = made.all("path")[0].given.d.slice(1).split("L").map((each) => Number(each.split(" ")[1]));
  near(ys[0] - ys[1], ys[1] - ys[2]);
});

test("one point is a dot, a dashed curve is dashed, and colours come again after six, dotted", () => {
  const made = placed(chart([{ name: "a", points: [[3, 1]], colour: 7 }, { name: "b", points: [[3, 1], [4, 2]], colour: 1, dashed: true }, { name: "c", points: [[3, 1], [4, 2]], colour: 7, dashed: true }], { label: "", across: "", up: "" }));
  assert.equal(made.all("circle").length, 1);
  assert.deepEqual(made.all("path").map((path) => path.given["stroke-dasharray"]), ["2 3", "5 4", "9 3 2 3"]);
  assert.equal(curveColour(7), curveColour(1));
  assert.notEqual(curveColour(0), curveColour(5));
});

test("bars and shades are as long and as strong as shares", () => {
  const fill = (share, more) => bar("a", share, more).all("div").find((each) => each.given.class?.startsWith("fill"));
  assert.equal(fill(0.25).style.width, "25%");
  assert.equal(fill(-0.1, { most: 0.4 }).style.width, "25%");
  assert.deepEqual([fill(0.25), fill(-0.1)].map((each) => each.given.class), ["fill", "fill less"]);
  assert.equal(fill(3).style.width, "100%");
  assert.deepEqual([shade(0.5), shade(2), shade(-1)], ["rgba(var(--high), 0.5000)", "rgba(var(--high), 1.0000)", "rgba(var(--high), 0.0000)"]);
});
