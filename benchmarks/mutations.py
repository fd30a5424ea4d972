"""Planted faults: one line of heddle's own source is changed in a copy, and somebody has to notice.

    python benchmarks/mutations.py [--json FILE] [--only WORD ...]

Two lists. Faults of what predicts must move some output of a trained toy by more than rounding. Such a one counts as caught by
`prove`, when a check of the toy says DIFFERENT or breaks off, or else by parity, when the logits leave those that transformers
computed from the toy's own weights. Before anything is planted, every toy has to be found sound by both.

Faults of what trains must end five steps of training at other weights. Then the one test that is named beside such a fault
has to fail; before anything is planted, all of these tests have to pass.

`--only` takes the faults in whose names a word occurs. Exit code 1: a fault was noticed by nothing, or was none.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PARITY = 1e-5
MOVED = 1e-6  # of a parameter's largest number: five steps that end nearer than this are the same five steps


@dataclass(frozen=True)
class Fault:
    """One changed line."""

    name: str
    toy: str
    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Slip:
    """One changed line of what trains, the five steps that it changes, and the test that has to fail."""

    name: str
    steps: str
    file: str
    old: str
    new: str
    test: str


STATE, MASK, PLAIN, LOOP = "nn/state.py", "nn/mask.py", "nn/kernels/plain.py", "generate/stream.py"
ATTENTION, STACK, BLOCK = "nn/attention.py", "model/stack.py", "nn/block.py"
FAULTS = [
    Fault("mask off by one", "llama", MASK, "return key <= query", "return key < query + 2"),
    Fault("triangle off by one", "llama", PLAIN, "hidden = key > row\n", "hidden = key > row + 1\n"),
    Fault("mask inverted", "llama", PLAIN, "masked_fill(~seen, -torch.inf)", "masked_fill(seen, -torch.inf)"),
    Fault("multiply, then replace", "llama", "nn/kernels/base.py", "scores.masked_fill(~(allowed | dead), -torch.inf)",
          "(scores * (allowed | dead))"),
    Fault("window off by one", "window", MASK, "< self.size", "<= self.size"),
    Fault("window forgets one slot", "window", STATE, "queries.position[0, -self.window :] % self.window",
          "(queries.position[0, -self.window :] + 1) % self.window"),
    Fault("window forgets in ragged rows", "window", STATE, "real & (queries.position > last - self.window)",
          "real & (queries.position > last - self.window + 2)"),
    Fault("ring misread", "window", STATE, "held = newest - (newest - ", "held = newest + 1 - (newest - "),
    Fault("cache offset", "llama", STATE, "buffer.index_copy_(2, queries.position[0], tensor)",
          "buffer.index_copy_(2, (queries.position[0] - 1).clamp(min=0), tensor)"),
    Fault("rotary reset with each call", "llama", STATE, "position = start[:, None] + torch.arange(width, device=device)",
          "position = 0 * start[:, None] + torch.arange(width, device=device)"),
    Fault("ragged rows written as even ones", "llama", STATE, "buffer[row, :, queries.position] = tensor.transpose(1, 2)",
          "buffer[row, :, queries.position[:1]] = tensor.transpose(1, 2)"),
    Fault("padding of a step is real", "mixers", STATE, "segment = torch.where(real, 0, PADDING)",
          "segment = torch.zeros_like(position)"),
    Fault("keys as at position 0", "llama", ATTENTION,
          "k = rotate(self.k_norm(split_heads(self.k(source), self.head_dim)), scope.rotation)",
          "k = self.k_norm(split_heads(self.k(source), self.head_dim))"),
    Fault("dropout left on", "gpt2", "nn/dropout.py",
          "        if not self.active:\n            return x\n        if not self.training:",
          "        if self.rate == 0.0:\n            return x\n        if False:"),
    Fault("padding leaks", "llama", MASK, "(segment == self.keys.segment[row, key]) & (segment >= 0)",
          "(segment >= 0) | (segment < 0)"),
    Fault("documents leak", "llama", MASK, "same = (segment == self.keys.segment[row, key]) & (segment >= 0)",
          "same = (self.keys.segment[row, key] >= 0) & (segment >= 0)"),
    Fault("padded source is seen", "both", STACK, "pattern.scope(queries, encoded.layout,",
          "pattern.scope(queries, Layout.plain(queries.rows, encoded.layout.width),"),
    Fault("cross-attention looks at its own tokens", "both", ATTENTION, "source = x if scope.source is None else scope.source",
          "source = x if scope.source is None or x.shape[1] == 1 else scope.source[:, : x.shape[1]]"),
    Fault("cross memory of other rows", "both", STATE,
          "computed, for all later ones: the keys and values of cross-attention.\"\"\"\n\n    def read("
          "self) -> tuple[Tensor, ...] | None:\n        return self.buffers or None",
          "computed, for all later ones: the keys and values of cross-attention.\"\"\"\n\n    def read("
          "self) -> tuple[Tensor, ...] | None:\n        return tuple(t.roll(1, 0) for t in self.buffers) or None"),
    Fault("bucket off by one", "both", "nn/position.py", "length = distance.abs() if", "length = distance.abs() + 1 if"),
    Fault("scale by the root of dim", "llama", ATTENTION, 'return 1 / sqrt(config.width(dim)) if', 'return 1 / sqrt(dim) if'),
    Fault("router has a capacity", "moe", "nn/moe.py", "        chosen = (choice[..., None]",
          "        choice = choice.masked_fill(torch.arange(x.shape[1])[:, None] > 9, experts)\n"
          "        chosen = (choice[..., None]"),
    Fault("experts see their neighbours", "moe", "nn/moe.py", "        gates, choice, logits = self.router(x)",
          "        gates, choice, logits = self.router(x - x.mean((0, 1)))"),
    Fault("gates not renormalised", "moe", "nn/moe.py", "        if self.renormalise:", "        if False:"),
    Fault("bias of one head dropped", "gpt2", ATTENTION, "        return self.o(merge_heads(",
          "        v = v.clone(); v[:, 0] = v[:, 0] - (0 if self.v.bias is None else self.v.bias[: v.shape[-1]])\n"
          "        return self.o(merge_heads("),
    Fault("skip starts behind the norm",
          "gpt2", BLOCK, '"pre": Placement(before=True),', '"pre": Placement(before=True, skip="normed"),'),
    Fault("final norm forgotten", "llama", STACK, "Output(self.final_norm(x), ", "Output(x, "),
    Fault("gate and value swapped", "llama", "nn/feedforward.py", "self.activation(self.gate(x)) * self.up(x)",
          "self.activation(self.up(x)) * self.gate(x)"),
    Fault("the other GELU", "gpt2", "nn/activations.py", 'approximate="tanh"', 'approximate="none"'),
    Fault("variance over dim - 1", "gpt2", "nn/norm.py", "return F.layer_norm(x, self.weight.shape,",
          "return ((x.shape[-1] - 1) / x.shape[-1]) ** 0.5 * F.layer_norm(x, self.weight.shape,"),
    Fault("positions start at one", "gpt2", STACK, "layout.position + self.offset", "(layout.position + 1).clamp(max=63)"),
    Fault("heads share the wrong keys", "llama", "nn/kernels/reference.py", "keys = k.repeat_interleave(group, dim=1)",
          "keys = k.repeat(1, group, 1, 1)"),
    Fault("convolution remembers too little", "mixers", "nn/convolution.py", "self.reach + wanted - start",
          "self.reach + wanted - start - (wanted > start).long()"),
    Fault("recurrence starts anew", "mixers", "nn/recurrent.py", "scope.queries, state.read())", "scope.queries, None)"),
    Fault("recurrence crosses documents", "mixers", "nn/recurrent.py", "if steps_first is not None:", "if False:"),
    Fault("drawn from a padded place", "llama", LOOP, "ends = torch.tensor(counts, device=hidden.device) - 1",
          "ends = torch.tensor([max(counts)] * len(counts), device=hidden.device) - 1"),
    Fault("goes on from the token before", "llama", LOOP, "[row.text[-1:] for row in self.active]",
          "[row.text[-2:-1] for row in self.active]"),
    Fault("forked rows mixed up", "llama", STATE, "self.lengths[row] for row in rows", "self.lengths[0] for row in rows"),
    Fault("the last bucket stays empty", "both", "nn/position.py", ".clamp(max=buckets - 1)", ".clamp(max=buckets - 2)"),
    Fault("loss without the head's features",
          "capped", "train/objective.py", "self.model.head.features(hidden, batch.layout), routings", "hidden, routings"),
    Fault("loss without the head's cap", "capped", "train/loss.py", "shape = (scores.vocab_size, scores.cap, by_onednn)",
          "shape = (scores.vocab_size, None, by_onednn)"),
    Fault("a token is its own target", "capped", "data/batch.py", "ids[:, 1:].contiguous()", "ids[:, :-1].contiguous()"),
    Fault("gradient of a cap", "capped", PLAIN, "if scoring.cap is not None:  # the scores again", "if False:  # the scores again"),
    Fault("gradient of dropped weights", "capped", PLAIN, "above = above * keeps[index] if ctx.drops else above", "pass"),
    Fault("balance over the batch", "moe", "nn/moe.py", "document = torch.arange(layout.documents,",
          "document = torch.arange(1,"),
]  # fmt: skip

STEP, OPTIMIZER, OBJECTIVE, LOSS = "train/step.py", "train/optimizer.py", "train/objective.py", "train/loss.py"
POSITION, SCHEDULE = "nn/position.py", "train/schedule.py"
SLIPS = [
    Slip("loads of the last micro-batch alone", "moe", STEP,
         "[a + b for a, b in zip(loads, loss.loads, strict=True)] if loads else list(loss.loads)", "list(loss.loads)",
         "train/test_step.py::test_experts_are_balanced_by_the_load_of_the_whole_batch"),
    Slip("dropout repeats at every step", "gpt", "train/runtime.py", "seed * 0x9E3779B1 + step", "seed * 0x9E3779B1",
         "train/test_runtime.py::test_every_step_draws_other_numbers"),
    Slip("loss without the head's features", "gpt", OBJECTIVE,
         "self.model.head.features(hidden, batch.layout), routings", "hidden, routings",
         "train/test_objective.py::test_the_loss_is_that_of_the_heads_formula"),
    Slip("Muon is given the router", "moe", "model/roles.py",
         r'ffn\.router\.weight$", "router", "table"', r'ffn\.router\.weight$", "router", "matrix"',
         "train/test_optimizer.py::test_a_router_belongs_to_adamw"),
    Slip("YaRN slows nothing", "moe", POSITION, "frequency / self.factor * ramp + frequency", "frequency * ramp + frequency",
         "nn/test_position.py::test_yarn_by_hand"),
    Slip("YaRN's vectors are no longer", "moe", POSITION, "0.1 * log(self.factor) + 1.0 if", "1.0 if",
         "nn/test_position.py::test_yarn_by_hand"),
    Slip("T5's last bucket stays empty", "t5", POSITION, ".clamp(max=buckets - 1)", ".clamp(max=buckets - 2)",
         "nn/test_position.py::test_buckets_by_hand"),
    Slip("ALiBi's slopes begin at another power", "alibi", POSITION, "(8 / power)", "(4 / power)",
         "nn/test_position.py::test_slopes_by_hand"),
    Slip("gradient of a cap", "gpt", PLAIN, "if scoring.cap is not None:  # the scores again", "if False:  # the scores again",
         "nn/test_kernels.py::test_gradients_of_plain_are_autograds_of_the_formula"),
    Slip("gradient of dropped weights", "gpt", PLAIN, "above = above * keeps[index] if ctx.drops else above", "pass",
         "nn/test_kernels.py::test_gradients_of_plain_are_autograds_of_the_formula"),
    Slip("each micro-batch by its own count", "gpt", STEP, "/ share).backward()", "/ part.weights.sum().clamp(min=1)).backward()",
         "train/test_step.py::test_micro_batches_change_nothing"),
    Slip("routers add nothing", "moe", STEP, "((loss.total + loss.extra) / share)", "(loss.total / share)",
         "train/test_step.py::test_what_routers_add_is_minimised_and_not_reported"),
    Slip("warm-up starts at nothing", "gpt", SCHEDULE, "return (step + 1) / warmup", "return step / warmup",
         "train/test_schedule.py::test_it_warms_up_in_a_straight_line"),
    Slip("the decay counts the warm-up", "gpt", SCHEDULE, "(step - warmup) / max(1, steps - warmup)", "step / steps",
         "train/test_schedule.py::test_shapes"),
    Slip("norms and biases decay", "gpt", OPTIMIZER, 'DECAYED = ("table", "matrix")', 'DECAYED = ("table", "matrix", "vector")',
         "train/test_optimizer.py::test_weight_decay_alone_pulls_tables_and_matrices"),
    Slip("gradient of the last micro-batch alone", "bf16", OPTIMIZER,
         "master.grad = gradient if master.grad is None else master.grad.add_(gradient)", "master.grad = gradient",
         "train/test_step.py::test_micro_batches_are_added_up_in_fp32"),
    Slip("the working copy stays behind", "bf16", OPTIMIZER, "working.copy_(master)", "working.copy_(working)",
         "train/test_step.py::test_masters_move_by_less_than_bf16_can_say"),
    Slip("nothing is clipped", "gpt", OPTIMIZER, "if clip and length > clip:", "if clip and length < 0:",
         "train/test_step.py::test_clipping"),
    Slip("betas swapped", "gpt", OPTIMIZER, "betas=config.betas", "betas=config.betas[::-1]",
         "train/test_optimizer.py::test_adamw_is_torchs"),
    Slip("one learning rate for all", "gpt", OPTIMIZER, '[[group["lr"] for group', "[[learning_rate for group",
         "train/test_optimizer.py::test_the_factor_scales_every_rate"),
    Slip("the factor multiplies the last rate", "gpt", OPTIMIZER, 'group["lr"] = rate * factor', 'group["lr"] *= factor',
         "train/test_optimizer.py::test_the_factor_scales_every_rate"),
    Slip("crowded experts are preferred", "moe", "nn/moe.py", "(load.mean() - load).sign()", "(load - load.mean()).sign()",
         "nn/test_moe.py::test_the_bias_steps_towards_an_even_load"),
    Slip("z of the sum itself", "moe", "nn/moe.py", "logits.logsumexp(-1).square()", "logits.logsumexp(-1)",
         "nn/test_moe.py::test_the_terms_are_the_written_formulas"),
    Slip("what dropout keeps is not scaled", "gpt", "nn/dropout.py", "return x * keep / (1.0 - rate)", "return x * keep",
         "nn/test_dropout.py::test_dropout_is_torchs"),
    Slip("a tied table learns from below alone", "gpt", "model/head.py", "            table if self.weight is None",
         "            table.detach() if self.weight is None", "train/test_objective.py::test_a_tied_table_learns_from_both_ends"),
    Slip("below the head every target counts one", "gpt", LOSS, "(of_inputs(gradient, scores.table, by_onednn) * weight)",
         "(of_inputs(gradient, scores.table, by_onednn))", "train/test_loss.py::test_it_is_cross_entropy"),
    Slip("slope of the head's cap", "gpt", LOSS, "gradient *= 1 - (logits.to(wide).clamp(min=-cap) / cap) ** 2",
         "pass",
         "train/test_loss.py::test_a_bias_and_a_cap_are_part_of_it"),
    Slip("padding takes part in the softmax", "gpt", LOSS,
         "return scores.finish(product(features, scores.table, scores.bias, scores.by_onednn))",
         "return product(features, scores.table, scores.bias, scores.by_onednn)",
         "train/test_loss.py::test_padded_entries_have_no_gradient"),
    Slip("the head's bias does not learn", "gpt", LOSS, 
         "of_bias = None if bias_gradient is None else", "of_bias = None if True else",
         "train/test_objective.py::test_its_gradient_is_that_of_torchs_loss_on_the_predicted_scores"),
    Slip("a token is its own target", "gpt", "data/batch.py", "ids[:, 1:].contiguous()", "ids[:, :-1].contiguous()",
         "data/test_batch.py::test_targets_are_inputs_shifted_by_one"),
    Slip("every epoch is the first", "gpt", "data/order.py", "np.array([epoch], dtype=_U64)", "np.array([0], dtype=_U64)",
         "data/test_order.py::test_seeds_and_epochs_differ"),
]  # fmt: skip

LLAMA: dict[str, Any] = {
    "mixer": {"kind": "attention", "heads": 4, "kv_heads": 2, "bias": False, "relative": {"kind": "rotary"}},
    "ffn": {"kind": "gated", "hidden": 48},
    "norm": {"kind": "rms"},
}
T5: dict[str, Any] = {
    "mixer": {"kind": "attention", "heads": 4, "scale": 1.0, "bias": False, "relative": {"kind": "buckets", "buckets": 8,
          "furthest": 20}},
    "ffn": {"kind": "mlp", "activation": "relu", "hidden": 48, "bias": False},
    "norm": {"kind": "rms"},
}  # fmt: skip
BASE: dict[str, Any] = {"vocab_size": 61, "dim": 32, "context": 64, "initial": {"std": 0.08}}
TOYS: dict[str, dict[str, Any]] = {
    "llama": {**BASE, "decoder": {"depth": 2, "block": LLAMA}},
    "gpt2": {**BASE, "decoder": {"depth": 2, "entry": {"positions": "learned"}, "block": {
        "mixer": {"kind": "attention", "heads": 4}, "ffn": {"kind": "mlp", "activation": "gelu_tanh"}, "dropout": 0.2}}},
    "window": {**BASE, "decoder": {"depth": 2, "block": {**LLAMA, "mixer": {**LLAMA["mixer"], "window": 6}}}},
    "moe": {**BASE, "decoder": {"depth": 2, "block": {**LLAMA, "ffn": {
        "kind": "moe", "experts": 4, "expert": {"kind": "gated", "hidden": 24}, "renormalise": True, "balance": 0.1}}}},
    "both": {**BASE, "head": {"scale": 32**-0.5}, "encoder": {"depth": 2, "block": T5}, "decoder": {"depth": 2, "block": {
        **T5, "cross": {"kind": "attention", "heads": 4, "scale": 1.0, "bias": False}}}},
    "capped": {**BASE, "head": {"scale": 0.25, "cap": 5.0}, "decoder": {"depth": 2, "block": {
        "mixer": {**LLAMA["mixer"], "cap": 2.0, "dropout": 0.2}, "ffn": LLAMA["ffn"], "norm": LLAMA["norm"]}}},
    "mixers": {**BASE, "decoder": {"depth": 2, "block": {"mixer": {"kind": "convolution", "taps": 3, "dilation": 2}},
        "overrides": [{"layers": "1", "block": {"mixer": {"kind": "recurrent"}}}]}},
}  # fmt: skip

PIECE: dict[str, Any] = {"vocab_size": 61, "dim": 32, "context": 24, "initial": {"std": 0.2}}
YARN = {"kind": "yarn", "factor": 4.0, "original": 12}
ROUTED = {"kind": "moe", "experts": 4, "active": 1, "balance": 0.1, "z": 0.1, "bias_rate": 0.05,
          "expert": {"kind": "gated", "hidden": 24}}  # fmt: skip
STEPS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "gpt": ({**PIECE, "pad_vocab_to": 8, "head": {"scale": 0.5, "transform": True, "bias": True, "cap": 4.0}, "decoder": {
        "depth": 2, "entry": {"positions": "learned"}, "block": {"dropout": 0.1, "mixer": {
            "kind": "attention", "heads": 4, "cap": 1.5, "dropout": 0.2}}}}, {}, "fp32"),
    "moe": ({**PIECE, "decoder": {"depth": 2, "block": {**LLAMA, "ffn": ROUTED, "mixer": {
        **LLAMA["mixer"], "relative": {"kind": "rotary", "scaling": YARN}}}}}, {}, "fp32"),
    "t5": ({**PIECE, "decoder": {"depth": 2, "block": T5}}, {"optimizer": "adamw"}, "fp32"),
    "alibi": ({**PIECE, "decoder": {"depth": 2, "block": {"mixer": {"kind": "attention", "heads": 6, "head_dim": 8,
        "relative": {"kind": "alibi"}}}}}, {"optimizer": "adamw"}, "fp32"),
    "bf16": ({**PIECE, "decoder": {"depth": 2, "block": LLAMA}}, {"optimizer": "adamw"}, "bf16"),
}  # fmt: skip


def train(config: dict[str, Any], folder: Path) -> None:
    """A toy that has learned something, saved as a run, and if a family can express it as transformers' directory."""
    import torch
    from torch.nn import functional as F

    import heddle
    from heddle.config import TransformerConfig
    from heddle.errors import HeddleError
    from heddle.weights import export_model, save

    model = heddle.build(TransformerConfig.of(config), seed=1).train()
    for parameter in model.parameters():  # biases start at 0, where dropping one would go unnoticed
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, float(parameter.detach().mean()), 0.2)
    optimizer = torch.optim.AdamW(model.parameters(), 5e-3)
    draw = torch.Generator().manual_seed(0)
    for _ in range(120):
        start = torch.randint(61, (16, 1), generator=draw)
        stride = torch.randint(1, 5, (16, 1), generator=draw)
        tokens = (start + stride * torch.arange(25)) % 61
        source = tokens[:, :9] if model.encoder is not None else None
        hidden = model(tokens[:, :-1], None, source).hidden
        loss = F.cross_entropy(model.logits(hidden).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    save(model.eval(), folder / "run")
    try:
        export_model(folder / "run", folder / "published")
    except HeddleError as error:
        (folder / "unpublished").write_text(str(error))


def outputs(folder: Path) -> dict[str, Any]:
    """What the toy computes in every way it is used: at once, in steps, ragged, padded, packed, forked."""
    import torch

    from heddle.config import SamplingConfig
    from heddle.generate import generate
    from heddle.nn import Layout
    from heddle.prove.subject import Subject
    from heddle.weights import load

    subject = Subject(load(folder / "run", "cpu").model)
    model = subject.model
    draw = torch.Generator().manual_seed(5)
    tokens = torch.randint(61, (3, 24), generator=draw)
    source = torch.randint(61, (3, 9), generator=draw) if subject.both else None
    padded = Layout.padded([9, 5, 2], 9) if subject.both else None
    found = {"whole": subject.whole(tokens, None, source), "stepped": subject.stepped(tokens, range(1, 24), source)}
    found["source"] = subject.whole(tokens, None, source, padded)
    for side in ("left", "right"):
        layout = Layout.padded([24, 11, 3], 24, side)
        trace = subject.whole(tokens, layout, source)
        found[side] = {"output": trace["output"][layout.segment >= 0]}
    found["packed"] = subject.whole(tokens, Layout.packed([[9, 15]] * 3, 24), source)
    from heddle.config.model import with_kernel

    other = type(model)(with_kernel(model.config, "reference"))
    other.load_state_dict(model.state_dict())
    found["reference"] = subject.whole(tokens, None, source, model=other.eval())
    with torch.no_grad():
        cache = model.new_cache(3)
        subject.step(tokens[:, :9], cache, [9, 4, 6], source)
        forked = cache.select([2, 0, 2])
        found["forked"] = subject.traced(lambda: subject.step(tokens[:, 9:10], forked))
        found["ragged"] = subject.traced(lambda: subject.step(tokens[:, 9:12], cache, [3, 1, 2]))
        found["ragged"] = {"output": found["ragged"]["output"][:, :1]}
        found["ragged again"] = subject.traced(lambda: subject.step(tokens[:, 12:13], cache))
    if source is None:
        from heddle.data.batch import next_token_batch
        from heddle.train import NextToken

        torch.manual_seed(0)
        model.train()
        batch = replace(next_token_batch(tokens.numpy()), layout=Layout.packed([[9, 14]] * 3, 23))
        leaves = [parameter for parameter in model.parameters() if parameter.requires_grad]
        with torch.enable_grad():
            loss = NextToken(model)(batch)
            gradients = torch.autograd.grad(loss.total + loss.extra, leaves, materialize_grads=True)
        found["learned"] = {"output": torch.cat([loss.total.detach()[None], *[each.flatten() for each in gradients]])}
        model.eval()
        events = list(generate(model, [[5, 9], [7, 3, 1, 8]], SamplingConfig(temperature=0.0, max_tokens=6)))
        found["drawn"] = {"output": torch.tensor([event.logprob for event in events])}
    return {"rounding": subject.bounds["output"], "outputs": {name: trace["output"] for name, trace in found.items()}}


def examine(folder: Path) -> dict[str, Any]:
    """In this process's heddle: how far the outputs are from the sound ones, what `prove` says, and parity."""
    import torch
    from safetensors.torch import load_file

    from heddle.prove import prove
    from heddle.weights import load

    sound = load_file(folder / "sound.safetensors")
    result: dict[str, Any] = {"moved": 0.0, "where": "", "prove": [], "parity": None}
    try:
        found = outputs(folder)["outputs"]
        for name, wanted in sound.items():
            if name in found:
                error = float((found[name] - wanted).abs().nan_to_num(nan=1e9).max() / wanted.abs().max())
                if error > result["moved"]:
                    result |= {"moved": error, "where": name}
        if "published" in sound:
            whole = outputs(folder)["outputs"]["whole"]
            result["parity"] = float((whole - sound["published"]).abs().max() / sound["published"].abs().max())
    except Exception as error:
        result |= {"moved": float("inf"), "where": f"{type(error).__name__}: {error}"[:120]}
    try:
        with torch.enable_grad():
            proof = prove(load(folder / "run", "cpu").model)
        result["prove"] = [verdict.check for verdict in proof.verdicts if not verdict.holds]
    except Exception as error:
        result["prove"] = [f"broke off: {type(error).__name__}: {error}"[:120]]
    return result


def prepare(folder: Path, name: str) -> dict[str, Any]:
    """A trained toy and its sound outputs; transformers' logits beside them where a family can express it."""
    import torch
    from safetensors.torch import save_file

    train(TOYS[name], folder)
    found = outputs(folder)
    sound = {key: value.contiguous() for key, value in found["outputs"].items()}
    if (folder / "published").is_dir():
        from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

        draw = torch.Generator().manual_seed(5)
        tokens = torch.randint(61, (3, 24), generator=draw)
        source = torch.randint(61, (3, 9), generator=draw)
        kind = AutoModelForSeq2SeqLM if "encoder" in TOYS[name] else AutoModelForCausalLM
        theirs = kind.from_pretrained(folder / "published", dtype=torch.float32).eval()
        given = {"input_ids": source, "decoder_input_ids": tokens} if "encoder" in TOYS[name] else {"input_ids": tokens}
        with torch.no_grad():
            sound["published"] = theirs(**given).logits[..., :61].contiguous()
    save_file(sound, folder / "sound.safetensors")
    (folder / "rounding.json").write_text(json.dumps(found["rounding"]))
    return {}


def five_steps(name: str) -> dict[str, Any]:
    """Five steps as a run makes them: uneven targets, two micro-batches, a rise and a fall of the rate, several epochs."""
    import numpy as np
    import torch

    import heddle
    from heddle.config import TransformerConfig
    from heddle.config.run import TrainConfig
    from heddle.data.batch import next_token_batch
    from heddle.data.order import windows
    from heddle.train import NextToken, Optimizer, train_step
    from heddle.train.runtime import seed_step
    from heddle.train.schedule import factor

    config, said, precision = STEPS[name]
    train = TrainConfig.of({"clip": 0.5, "weight_decay": 0.5, "betas": [0.8, 0.99], **said})
    model = heddle.build(TransformerConfig.of(config), seed=1)
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():  # biases start at 0, where half of all faults would go unnoticed
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=draw))
    optimizer, objective = Optimizer(model, train, 1e-2, precision), NextToken(model.train())
    ids = np.random.default_rng(0).integers(0, 61, 200)
    for step in range(5):
        seed_step(0, step)
        rows = np.stack([ids[start : start + 25] for start in windows(len(ids), 24, 0, step, 4)])
        weights = torch.rand(4, 24, generator=draw).masked_fill(
            torch.arange(24) > torch.tensor([[24], [9], [2], [17]]), 0.0
        )
        batch = replace(next_token_batch(rows), weights=weights)
        train_step(objective, optimizer, batch, 2, factor(step, 5, 2, "linear", 0.1), train.clip)
    return {key: master.detach().clone() for key, master in optimizer.masters.items()}


def trained(name: str, file: Path) -> dict[str, Any]:
    """Write down the weights that sound steps end at."""
    from safetensors.torch import save_file

    save_file(five_steps(name), file)
    return {}


def slipped(name: str, file: Path, test: str) -> dict[str, Any]:
    """In this process's heddle: how far five steps end from the sound ones, and what comes of the test."""
    from safetensors.torch import load_file

    steps, moved, where = five_steps(name), 0.0, "nowhere"
    for key, wanted in load_file(file).items():
        error = float((steps[key] - wanted).abs().nan_to_num(nan=1e9).max() / wanted.abs().max())
        if error > moved:
            moved, where = error, key
    return {"moved": moved, "where": where, **tested([test])}


def tested(tests: list[str]) -> dict[str, Any]:
    """The exit code of pytest, and which tests failed."""
    import pytest

    class Failures:
        names: list[str] = []  # noqa: RUF012

        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.failed:
                self.names.append(report.nodeid)

    words = [
        "-q",
        "-p",
        "no:cacheprovider",
        "-W",
        "ignore::pytest.PytestAssertRewriteWarning",
        *[f"tests/{test}" for test in tests],
    ]
    with contextlib.redirect_stdout(sys.stderr):
        code = int(pytest.main(words, plugins=[Failures()]))
    return {"code": code, "failed": Failures.names}


class Copy:
    """A copy of heddle and its tests, in which one line at a time is changed.

    Every part runs in a process of its own, forked off one that has the large libraries, but nothing of heddle, in memory.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        junk = shutil.ignore_patterns("__pycache__")
        for folder in ("heddle", "tests"):
            shutil.copytree(ROOT / folder, place / folder, ignore=junk)
        shutil.copy(ROOT / "pyproject.toml", place)
        self.stamps = count(int(time.time()))

    @contextlib.contextmanager
    def changed(self, fault: Fault | Slip) -> Iterator[None]:
        """With the fault planted."""
        file = self.place / "heddle" / fault.file
        sound = file.read_text()
        try:
            self._write(file, sound.replace(fault.old, fault.new, 1))
            yield
        finally:
            self._write(file, sound)

    def _write(self, file: Path, text: str) -> None:
        file.write_text(text)
        stamp = next(self.stamps)  # Python tells a changed file by its size and its second
        os.utime(file, (stamp, stamp))

    def run(self, part: Callable[..., dict[str, Any]], *given: Any) -> dict[str, Any]:
        """A part's answer; of one that broke off, `broke` with the last line it said."""
        ours, theirs = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.get_context("fork").Process(target=self._part, args=(theirs, part, given))
        process.start()
        theirs.close()
        try:
            found: dict[str, Any] = ours.recv()
        except EOFError:
            found = {"broke": "the process ended"}
        process.join()
        return found

    def _part(self, answer: Any, part: Callable[..., dict[str, Any]], given: tuple[Any, ...]) -> None:
        os.chdir(self.place)
        sys.path.insert(0, str(self.place))
        log = os.open(self.place / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(log, stream)
        try:
            answer.send(part(*given))
        except BaseException as error:
            answer.send({"broke": f"{type(error).__name__}: {error}"[:200]})


def preload() -> None:
    """What every part needs and no fault changes, imported once: one thread, so that a fork takes nothing away."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1", "OMP_NUM_THREADS": "1", "HEDDLE_UNCHECKED": "1"}
    import pytest  # noqa: F401
    import torch
    from transformers import (  # noqa: F401
        AutoModelForCausalLM,
        AutoModelForSeq2SeqLM,
        GPT2LMHeadModel,
        LlamaForCausalLM,
        MistralForCausalLM,
        MixtralForCausalLM,
        T5ForConditionalGeneration,
    )

    torch.set_num_threads(1)
    loaded = [name for name in sys.modules if name.partition(".")[0] in ("heddle", "tests")]
    assert not loaded, f"the parent already has {loaded[:3]}"


def check_lines(faults: list[Fault] | list[Slip]) -> None:
    """Refuse a list whose lines the source no longer has, before any time is spent."""
    gone = [
        f"{fault.name}: heddle/{fault.file} no longer has {fault.old!r}"
        for fault in faults
        if fault.old not in (ROOT / "heddle" / fault.file).read_text()
    ]
    if gone:
        raise SystemExit("\n".join(["these faults cannot be planted; name the lines as they are now:", *gone]))


def predicting(copy: Copy, scratch: Path, faults: list[Fault]) -> list[dict[str, Any]]:
    """Plant the faults of what predicts, one after another."""
    rows = []
    for toy in dict.fromkeys(fault.toy for fault in faults):
        (scratch / toy).mkdir()
        made = copy.run(prepare, scratch / toy, toy)
        sound = made or copy.run(examine, scratch / toy)
        fine = sound.get("prove") == [] and (sound["parity"] is None or sound["parity"] <= PARITY)
        print(f"toy {toy}: {'sound' if fine else f'NOT SOUND: {sound}'}", file=sys.stderr, flush=True)
        if not fine:
            raise SystemExit(1)
    for fault in faults:
        with copy.changed(fault):
            found = copy.run(examine, scratch / fault.toy)
        if "broke" in found:
            found = {"moved": float("inf"), "where": found["broke"], "prove": ["broke off"], "parity": None}
        rounding = 8 * json.loads((scratch / fault.toy / "rounding.json").read_text())
        parity = found["parity"] is not None and not found["parity"] <= PARITY
        # The check `export` of prove compares with transformers as well: what it alone finds is found by parity.
        own = [check for check in found["prove"] if check != "export"]
        caught = "prove" if own else "parity" if parity or found["prove"] else "NOTHING"
        moved = not found["moved"] <= rounding
        rows.append({"fault": fault.name, "toy": fault.toy, "is_a_fault": moved, "caught_by": caught, **found})
        print(f"| {fault.name} | {fault.toy} | {found['moved']:.1e} ({found['where']}) | {caught} | "
              f"{', '.join(found['prove'])} |", flush=True)  # fmt: skip
    return rows


def training(copy: Copy, scratch: Path, faults: list[Slip]) -> list[dict[str, Any]]:
    """Plant the faults of what trains, one after another."""
    rows: list[dict[str, Any]] = []
    if not faults:
        return rows
    for steps in dict.fromkeys(fault.steps for fault in faults):
        if made := copy.run(trained, steps, scratch / f"{steps}.safetensors"):
            raise SystemExit(f"five steps of {steps}: {made}")
    sound = copy.run(tested, list(dict.fromkeys(fault.test for fault in faults)))
    print(
        f"tests of training: {'sound' if sound.get('code') == 0 else f'NOT SOUND: {sound}'}",
        file=sys.stderr,
        flush=True,
    )
    if sound.get("code") != 0:
        raise SystemExit(1)
    for fault in faults:
        with copy.changed(fault):
            found = copy.run(slipped, fault.steps, scratch / f"{fault.steps}.safetensors", fault.test)
        if "broke" in found or found["code"] not in (0, 1):
            raise SystemExit(f"{fault.name}: it does not even run: {found}")
        moved, caught = not found["moved"] <= MOVED, "its test" if found["failed"] else "NOTHING"
        rows.append({"fault": fault.name, "steps": fault.steps, "test": fault.test, "is_a_fault": moved, "caught_by": caught,
                     **found})  # fmt: skip
        print(
            f"| {fault.name} | {fault.steps} | {found['moved']:.1e} ({found['where']}) | {caught} | {fault.test} |",
            flush=True,
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", nargs="*", metavar="WORD")
    arguments = parser.parse_args()

    def wanted(name: str) -> bool:
        return not arguments.only or any(word in name for word in arguments.only)

    faults, slips = [each for each in FAULTS if wanted(each.name)], [each for each in SLIPS if wanted(each.name)]
    if not faults + slips:
        raise SystemExit(f"no fault has {' or '.join(map(repr, arguments.only))} in its name")
    check_lines(faults + slips)
    preload()
    with tempfile.TemporaryDirectory() as place:
        scratch, copy = Path(place), Copy(Path(place) / "copy")
        rows, more = predicting(copy, scratch, faults), training(copy, scratch, slips)
    by = {
        word: sum(row["caught_by"] == word for row in rows + more)
        for word in ("prove", "parity", "its test", "NOTHING")
    }
    harmless = [row["fault"] for row in rows + more if not row["is_a_fault"]]
    print(f"\n{len(rows)} faults of what predicts: {by['prove']} caught by prove's own laws, {by['parity']} by parity; "
          f"{len(more)} of what trains: {by['its test']} caught by the test named; {by['NOTHING']} of all by nothing"
          + (f"; no fault at all: {', '.join(harmless)}" if harmless else ""))  # fmt: skip
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"caught": by, "harmless": harmless, "faults": rows, "training": more}, indent=2) + "\n"
        )
    if by["NOTHING"] or harmless:
        sys.exit(1)


if __name__ == "__main__":
    main()
