"""Planted faults: one line of heddle's own source is changed in a copy, and `heddle prove` or transformers has to notice.

    python benchmarks/mutations.py [--json FILE] [--only WORD ...]

Each fault must first be one: some output of a trained toy moves by more than rounding. Then it counts as caught by `prove`, when
a check of the toy says DIFFERENT or breaks off, or else by parity, when the logits leave those that transformers computed from
the toy's own weights. Before anything is planted, every toy has to be found sound by both.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PARITY = 1e-5


@dataclass(frozen=True)
class Fault:
    """One changed line."""

    name: str
    toy: str
    file: str
    old: str
    new: str


STATE, MASK, PLAIN, LOOP = "nn/state.py", "nn/mask.py", "nn/kernels/plain.py", "generate/stream.py"
ATTENTION, STACK, BLOCK = "nn/attention.py", "model/stack.py", "nn/block.py"
FAULTS = [
    Fault("mask off by one", "llama", MASK, "return key <= query", "return key < query + 2"),
    Fault("triangle off by one", "llama", PLAIN, "hidden = key > row\n", "hidden = key > row + 1\n"),
    Fault("mask inverted", "llama", PLAIN, "masked_fill(~seen, -torch.inf)", "masked_fill(seen, -torch.inf)"),
    Fault("multiply, then replace", "llama", "nn/kernels/base.py", "scores.masked_fill(~(allowed | dead), -torch.inf)",
          "(scores * (allowed | dead))"),
    Fault("window off by one", "window", MASK, "< self.size", "<= self.size"),
    Fault("window forgets one slot", "window", STATE, "at.position[0, -self.window :] % self.window",
          "(at.position[0, -self.window :] + 1) % self.window"),
    Fault("window forgets in ragged rows", "window", STATE, "real & (at.position > last - self.window)",
          "real & (at.position > last - self.window + 2)"),
    Fault("ring misread", "window", STATE, "held = newest - (newest - ", "held = newest + 1 - (newest - "),
    Fault("cache offset", "llama", STATE, "buffer.index_copy_(2, at.position[0], tensor)",
          "buffer.index_copy_(2, (at.position[0] - 1).clamp(min=0), tensor)"),
    Fault("rotary reset with each call", "llama", STATE, "position = start[:, None] + torch.arange(width, device=device)",
          "position = 0 * start[:, None] + torch.arange(width, device=device)"),
    Fault("ragged rows written as even ones", "llama", STATE, "buffer[row, :, at.position] = tensor.transpose(1, 2)",
          "buffer[row, :, at.position[:1]] = tensor.transpose(1, 2)"),
    Fault("padding of a step is real", "mixers", STATE, "segment = torch.where(real, 0, PADDING)",
          "segment = torch.zeros_like(position)"),
    Fault("keys as at position 0", "llama", ATTENTION, "return self._place(k, self.k_norm, view), split",
          "return k if self.k_norm is None else self.k_norm(k), split"),
    Fault("dropout left on", "gpt2", "nn/dropout.py",
          "        if not self.active:\n            return x\n        if not self.training:",
          "        if self.rate == 0.0:\n            return x\n        if False:"),
    Fault("padding leaks", "llama", MASK, "(segment == self.keys.segment[row, key]) & (segment >= 0)",
          "(segment >= 0) | (segment < 0)"),
    Fault("documents leak", "llama", MASK, "same = (segment == self.keys.segment[row, key]) & (segment >= 0)",
          "same = (self.keys.segment[row, key] >= 0) & (segment >= 0)"),
    Fault("padded source is seen", "both", STACK, "sight(queries, memory.layout)",
          "sight(queries, Layout.plain(queries.rows, memory.layout.width))"),
    Fault("cross-attention looks at its own tokens", "both", ATTENTION, "source = x if memory is None else memory",
          "source = x if memory is None or x.shape[1] == 1 else memory[:, : x.shape[1]]"),
    Fault("cross memory of other rows", "both", STATE, "            self.buffers = make()\n        return self.buffers",
          "            self.buffers = make()\n        return tuple(t.roll(1, 0) for t in self.buffers)"),
    Fault("bucket off by one", "both", "nn/position.py", "length = distance.abs() if", "length = distance.abs() + 1 if"),
    Fault("scale by the root of dim", "llama", BLOCK, '"head_dim": 1 / sqrt(head_dim)', '"head_dim": 1 / sqrt(dim)'),
    Fault("router has a capacity", "moe", "nn/moe.py", "        chosen = (choice[..., None]",
          "        choice = choice.masked_fill(torch.arange(x.shape[1])[:, None] > 9, experts)\n"
          "        chosen = (choice[..., None]"),
    Fault("experts see their neighbours", "moe", "nn/moe.py", "        gates, choice, logits = self.router(x)",
          "        gates, choice, logits = self.router(x - x.mean((0, 1)))"),
    Fault("gates not renormalised", "moe", "nn/moe.py", "        if self.renormalise:", "        if False:"),
    Fault("bias of one head dropped", "gpt2", ATTENTION, "        return self.o(self.kernel(q, k, v, view.lowered)",
          "        v = v.clone(); v[:, 0] = v[:, 0] - (0 if self.v.bias is None else self.v.bias[: v.shape[-1]])\n"
          "        return self.o(self.kernel(q, k, v, view.lowered)"),
    Fault("skip starts behind the norm",
          "gpt2", BLOCK, '"pre": Placement(before=True),', '"pre": Placement(before=True, skip="normed"),'),
    Fault("final norm forgotten", "llama", STACK, "return self.final_norm(x), tuple", "return x, tuple"),
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
    Fault("recurrence starts anew", "mixers", STATE, "step(self.buffers or None)", "step(None)"),
    Fault("recurrence crosses documents", "mixers", "nn/recurrent.py", "if steps_first is not None:", "if False:"),
    Fault("drawn from a padded place", "llama", LOOP, "ends = torch.tensor(counts, device=hidden.device) - 1",
          "ends = torch.tensor([max(counts)] * len(counts), device=hidden.device) - 1"),
    Fault("goes on from the token before", "llama", LOOP, "[row.text[-1:] for row in self.going]",
          "[row.text[-2:-1] for row in self.going]"),
    Fault("forked rows mixed up", "llama", STATE, "self.lengths[row] for row in rows", "self.lengths[0] for row in rows"),
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
        "kind": "moe", "experts": 4, "expert": {"kind": "gated", "hidden": 24}, "renormalise": True}}}},
    "both": {**BASE, "head": {"scale": 32**-0.5}, "encoder": {"depth": 2, "block": T5}, "decoder": {"depth": 2, "block": {
        **T5, "cross": {"kind": "attention", "heads": 4, "scale": 1.0, "bias": False}}}},
    "mixers": {**BASE, "decoder": {"depth": 2, "block": {"mixer": {"kind": "convolution", "taps": 3, "dilation": 2}},
        "overrides": [{"layers": "1", "block": {"mixer": {"kind": "recurrent"}}}]}},
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
        hidden = model(tokens[:, :-1], None, source)
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
    from heddle.prove.checks import with_kernel

    other = type(model)(with_kernel(model.config, "reference"))
    other.load_state_dict(model.state_dict())
    found["reference"] = subject.whole(tokens, None, source, model=other.eval())
    with torch.no_grad():
        cache = model.new_cache(3, subject.remembered(3, source))
        model.step(tokens[:, :9], cache, [9, 4, 6])
        forked = cache.select([2, 0, 2])
        found["forked"] = subject.traced(lambda: model.step(tokens[:, 9:10], forked))
        found["ragged"] = subject.traced(lambda: model.step(tokens[:, 9:12], cache, [3, 1, 2]))
        found["ragged"] = {"output": found["ragged"]["output"][:, :1]}
        found["ragged again"] = subject.traced(lambda: model.step(tokens[:, 12:13], cache))
    if source is None:
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


def prepare(folder: Path, name: str) -> None:
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


def ask(what: str, folder: Path, heddle: Path, name: str = "") -> dict[str, Any]:
    """Run a part of this file in a process of its own, with the heddle that stands in a directory."""
    environment = {**os.environ, "PYTHONPATH": str(heddle), "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    words = [sys.executable, __file__, "--part", what, "--folder", str(folder), "--toy", name]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, cwd=folder)
    if done.returncode:
        return {
            "moved": float("inf"),
            "where": done.stderr.strip().splitlines()[-1][:120],
            "prove": ["broke off"],
            "parity": None,
        }
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--part", choices=["prepare", "examine"])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--toy", default="")
    arguments = parser.parse_args()
    if arguments.part == "prepare":
        prepare(arguments.folder, arguments.toy)
        print("{}")
        return
    if arguments.part == "examine":
        print(json.dumps(examine(arguments.folder)))
        return
    wanted = [fault for fault in FAULTS if not arguments.only or any(word in fault.name for word in arguments.only)]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        for toy in dict.fromkeys(fault.toy for fault in wanted):
            (place / toy).mkdir()
            ask("prepare", place / toy, ROOT, toy)
            sound = ask("examine", place / toy, ROOT)
            fine = not sound["prove"] and (sound["parity"] is None or sound["parity"] <= PARITY)
            print(f"toy {toy}: {'sound' if fine else f'NOT SOUND: {sound}'}, parity {sound['parity']}", file=sys.stderr)
            if not fine:
                raise SystemExit(1)
        for fault in wanted:
            copy = place / "copy"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(ROOT / "heddle", copy / "heddle")
            file = copy / "heddle" / fault.file
            text = file.read_text()
            if text.count(fault.old) < 1:
                raise SystemExit(f"{fault.name}: {fault.file} no longer has the line {fault.old!r}")
            file.write_text(text.replace(fault.old, fault.new, 1))
            found = ask("examine", place / fault.toy, copy)
            rounding = 8 * json.loads((place / fault.toy / "rounding.json").read_text())
            parity = found["parity"] is not None and not found["parity"] <= PARITY
            # The check `export` of prove compares with transformers as well: what it alone finds is found by parity.
            own = [check for check in found["prove"] if check != "export"]
            caught = "prove" if own else "parity" if parity or found["prove"] else "NOTHING"
            moved = not found["moved"] <= rounding
            rows.append({"fault": fault.name, "toy": fault.toy, "is_a_fault": moved, "caught_by": caught, **found})
            print(f"| {fault.name} | {fault.toy} | {found['moved']:.1e} ({found['where']}) | {caught} | "
                  f"{', '.join(found['prove'])} |", flush=True)  # fmt: skip
    by = {word: sum(row["caught_by"] == word for row in rows) for word in ("prove", "parity", "NOTHING")}
    harmless = [row["fault"] for row in rows if not row["is_a_fault"]]
    print(f"\n{len(rows)} faults: {by['prove']} caught by prove's own laws, {by['parity']} by parity, {by['NOTHING']} by none"
          + (f"; no fault at all: {', '.join(harmless)}" if harmless else ""))  # fmt: skip
    if arguments.json:
        arguments.json.write_text(json.dumps({"caught": by, "harmless": harmless, "faults": rows}, indent=2) + "\n")
    if by["NOTHING"] or harmless:
        sys.exit(1)


if __name__ == "__main__":
    main()
