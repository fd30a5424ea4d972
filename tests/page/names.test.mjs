// Names in words.

import assert from "node:assert/strict";
import test from "node:test";

import { inWords, shortName } from "../../heddle/page/static/names.js";

const about = { family: "decoder-only", parts: [{ part: "decoder.0.mixer", label: "attention" }, { part: "decoder.0.ffn", label: "gated MLP" }, { part: "decoder.1.mixer", label: "convolution" }] };

test("names of parts are words, with the layer", () => {
  assert.equal(inWords("decoder.0.mixer.heads.2", about), "head 2, attention of layer 0");
  assert.equal(inWords("decoder.1.mixer", about), "convolution of layer 1");
  assert.equal(inWords("decoder.*.mixer.mask", about), "mask, attention of all layers");
  assert.equal(inWords("decoder.0.ffn.before", about), "norm before, gated MLP of layer 0");
  assert.equal(inWords("decoder.positions", about), "positions");
  assert.equal(inWords("decoder.final_norm", about), "final norm");
  assert.equal(inWords("decoder.0.residual_after", about), "stream after layer 0");
  assert.equal(inWords("decoder.0.mixer.o", { ...about, family: "encoder-decoder" }), "W_O, attention of decoder layer 0");
  assert.equal(inWords("encoder.positions", { ...about, family: "encoder-decoder" }), "encoder positions");
});

test("names of tensors are short where their layer is known", () => {
  assert.equal(shortName("decoder.0.mixer.q", about), "attention q");
  assert.equal(shortName("decoder.0.ffn.hidden", about), "gated MLP hidden");
  assert.equal(shortName("decoder.0.residual_middle", about), "stream between");
  assert.equal(shortName("decoder.entry", about), "entry");
});
