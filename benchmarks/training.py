"""Training speed on a CPU compared with other libraries: one shape, equal work, one interleaved run.

    python benchmarks/training.py [--shape gpt2-small|baby|small|bert-base|vaswani-base] [--precision fp32|bf16] [--rounds 10]
                                  [--json FILE]

GPT-2's shapes learn the next token; bert-base learns masked tokens, compared with Hugging Face's BERT; vaswani-base learns to
translate, compared with Hugging Face's Marian. With `--padding 0.5`, rows have from half to all of their tokens.

Every contender is a separate process, so that its peak memory can be measured. All train on the same tokens, with the same threads,
allocator settings, AdamW (fused, fp32 state and fp32 weights), clipping, and no dropout. They take turns: a few steps each, round
after round, while the others wait; a round's ratio compares neighbours in time. heddle, Hugging Face transformers and the
plain loop (nanoGPT's shape and step in torch's modules) start from the same weights, and before the timing their
losses over the same 20 batches must agree to 1e-2. litgpt, if it can be imported, computes the same products with different
initial weights.

`heddle bench` measures causal models alone, on a GPU too.

`--own-allocator` leaves the other libraries the C library's allocator settings, which their users have. `--everywhere` adds
heddle computing scores at every place, as the others do, not only where there is a target.
"""

import argparse
import importlib.util
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

CONTENDERS: dict[str, dict[str, Any]] = {
    "plain loop fp32": {"library": "plain", "precision": "fp32", "compile": False},
    "litgpt fp32": {"library": "litgpt", "precision": "fp32", "compile": False},
    "transformers fp32": {"library": "transformers", "precision": "fp32", "compile": False},
    "transformers fp32 compiled": {"library": "transformers", "precision": "fp32", "compile": True},
    "transformers bf16 autocast": {"library": "transformers", "precision": "bf16", "compile": False},
    "transformers bf16 autocast compiled": {"library": "transformers", "precision": "bf16", "compile": True},
    "heddle fp32": {"library": "heddle", "precision": "fp32", "compile": False},
    "heddle bf16": {"library": "heddle", "precision": "bf16", "compile": False},
    "heddle bf16 compiled": {"library": "heddle", "precision": "bf16", "compile": True},
    "heddle fp32 everywhere": {"library": "heddle", "precision": "fp32", "compile": False, "everywhere": True},
    "heddle bf16 everywhere": {"library": "heddle", "precision": "bf16", "compile": False, "everywhere": True},
}


@dataclass(frozen=True)
class Shape:
    """A model, what it learns, and the sizes of a batch.

    Attributes:
        preset: the model's preset.
        changes: changes to it.
        batch: rows.
        context: tokens of a row; of the source and of the target each.
        task: `next_token`, `masked` or `translation`.
        auto: the class of Hugging Face transformers that loads it.
    """

    preset: str
    changes: dict[str, Any]
    batch: int
    context: int
    task: str = "next_token"
    auto: str = "AutoModelForCausalLM"

    def config(self) -> Any:
        """The model."""
        import heddle

        return heddle.preset(self.preset).override(self.changes)


def _without_dropout(*stacks: str) -> dict[str, float]:
    parts = ("entry.dropout", "block.dropout", "block.mixer.dropout")
    return {f"{stack}.{part}": 0.0 for stack in stacks for part in parts}


SHAPES = {
    "gpt2-small": Shape("gpt2-small", {}, 2, 512),
    "baby": Shape(
        "gpt2-small",
        {"vocab_size": 65, "dim": 384, "context": 256, "decoder.depth": 6, "decoder.block.mixer.heads": 6},
        16,
        256,
    ),
    "small": Shape(
        "gpt2-small",
        {"vocab_size": 4096, "dim": 128, "context": 256, "decoder.depth": 2, "decoder.block.mixer.heads": 4},
        16,
        256,
    ),
    "bert-base": Shape(
        "bert-base-like",
        {
            "head": {"kind": "language", "bias": True, "transform": True},
            **_without_dropout("encoder"),
        },
        8,
        128,
        "masked",
        "AutoModelForMaskedLM",
    ),
    # With Marian's sinusoids, whose sines all come before the cosines.
    "vaswani-base": Shape(
        "vaswani-base",
        {
            "encoder.entry.positions": "sinusoidal_halves",
            "decoder.entry.positions": "sinusoidal_halves",
            **_without_dropout("encoder", "decoder"),
        },
        16,
        64,
        "translation",
        "AutoModelForSeq2SeqLM",
    ),
}
AGREE = 1e-2
CHECK_STEPS = 20
RATE, DECAY, BETAS, EPS, CLIP = 3e-4, 0.1, (0.9, 0.95), 1e-10, 1.0


Arrays = dict[str, Any]


def batches(arguments: argparse.Namespace, seed: int) -> Arrays:
    """The same tokens for everyone: a text-like stream (frequent ids are frequent), one batch per seed."""
    import numpy as np

    draw = np.random.default_rng(seed)
    rows, length = arguments.batch, arguments.context

    def ids(width: int) -> Any:
        return (draw.zipf(1.3, (rows, width)) - 1) % arguments.vocabulary

    def real(width: int) -> Any:
        """Bool[B width], which tokens are not padding; the first row is full."""
        lengths = draw.integers(max(1, round(width * (1 - arguments.padding))), width + 1, rows)
        lengths[0] = width
        return np.arange(width) < lengths[:, None]

    task = SHAPES[arguments.shape].task
    if task == "next_token":
        return {"ids": ids(length + 1)}
    if task == "masked":
        tokens, there = ids(length), real(length)
        hidden = there & (draw.random(tokens.shape) < 0.15)
        return {"tokens": np.where(hidden, MASK, tokens), "targets": np.where(hidden, tokens, IGNORED), "real": there}
    target, there = ids(length), real(length)
    shifted = np.concatenate([np.full((rows, 1), START), target[:, :-1]], axis=1)
    targets = np.where(there, target, IGNORED)
    return {"source": ids(length), "source_real": real(length), "tokens": shifted, "targets": targets, "real": there}


MASK, START, IGNORED = 103, 0, -100


def heddle_batch(arrays: Arrays, everywhere: bool) -> Any:
    """The batch as heddle's tasks make it; with `everywhere`, places without a target have one that weighs next to nothing."""
    import torch

    from heddle.data import Batch, next_token_batch
    from heddle.nn import Layout

    if "ids" in arrays:
        return next_token_batch(arrays["ids"])
    there = {name: torch.from_numpy(array) for name, array in arrays.items()}

    def layout(real: Any) -> Layout:
        whole = bool(real.all())
        return Layout.whole(*real.shape) if whole else Layout.padded(real.sum(1).tolist(), real.shape[1])

    source: dict[str, Any] = (
        {"source": there["source"], "source_layout": layout(there["source_real"])} if "source" in there else {}
    )
    targets = there["targets"].clamp(min=0) if everywhere else there["targets"]
    weights = (there["targets"] != IGNORED).float().clamp(min=1e-20 if everywhere else 0.0)
    return Batch(there["tokens"], layout(there["real"]), targets, weights, **source)


def heddle_step(arguments: argparse.Namespace, weights: Path) -> Callable[[Arrays], float]:
    """One training step of heddle, as `heddle train` runs it."""
    import torch

    from heddle.config import TrainConfig
    from heddle.model.linear import use_products
    from heddle.tasks import CrossEntropy
    from heddle.train import Optimizer, train_step
    from heddle.train.rates import pick_products
    from heddle.weights import load

    model, _ = load(weights, "cpu")
    tokens = arguments.batch * arguments.context
    by_onednn = pick_products("auto", model.config, tokens, "cpu", arguments.precision)
    use_products(model, by_onednn)
    print(f"oneDNN computes: {', '.join(by_onednn) or 'nothing of it'}", file=sys.stderr)
    config = TrainConfig(optimizer="adamw", weight_decay=DECAY, betas=BETAS)
    optimizer = Optimizer(model.train(), config, RATE, arguments.precision)
    objective = torch.compile(CrossEntropy(model)) if arguments.compile else CrossEntropy(model)

    def step(arrays: Arrays) -> float:
        batch = heddle_batch(arrays, arguments.everywhere)
        return train_step(objective, optimizer, batch, 1, 1.0, CLIP)[0]

    return step


def transformers_step(arguments: argparse.Namespace, weights: Path) -> Callable[[Arrays], float]:
    """One training step of Hugging Face's class of the shape, with its fastest attention, in a plain torch loop."""
    import torch
    import transformers
    from torch.nn import functional as F

    auto = getattr(transformers, SHAPES[arguments.shape].auto)
    model = auto.from_pretrained(weights, dtype=torch.float32, attn_implementation="sdpa")
    model.train()
    model.config.use_cache = False
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    other = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": DECAY}, {"params": other, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=BETAS, eps=EPS, fused=True)
    forward = torch.compile(model) if arguments.compile else model

    def inputs(arrays: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        """What the model reads, and the targets."""
        if "ids" in arrays:
            return {"input_ids": arrays["ids"][:, :-1], "use_cache": False}, arrays["ids"][:, 1:]
        # A mask that hides nothing is left out, so that attention may take its fastest path.
        masks = {name: None if mask.all() else mask.long() for name, mask in arrays.items() if name.endswith("real")}
        if "source" not in arrays:
            return {"input_ids": arrays["tokens"], "attention_mask": masks["real"]}, arrays["targets"]
        read = {"input_ids": arrays["source"], "attention_mask": masks["source_real"]}
        return {**read, "decoder_input_ids": arrays["tokens"], "use_cache": False}, arrays["targets"]

    def step(arrays: Arrays) -> float:
        read, targets = inputs({name: torch.from_numpy(a) for name, a in arrays.items()})
        with torch.autocast("cpu", torch.bfloat16, enabled=arguments.precision == "bf16"):
            logits = forward(**read).logits
        loss = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step


def plain_step(arguments: argparse.Namespace, weights: Path) -> Callable[[Arrays], float]:
    """One training step of a plain loop: nanoGPT's modules and order of work, written with torch's modules."""
    import torch
    from safetensors.torch import load_file
    from torch import Tensor, nn
    from torch.nn import functional as F

    config = json.loads((weights / "config.json").read_text())
    dim, heads = config["n_embd"], config["n_head"]

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.c_attn, self.c_proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

        def forward(self, x: Tensor) -> Tensor:
            rows, length, _ = x.shape
            q, k, v = (y.view(rows, length, heads, -1).transpose(1, 2) for y in self.c_attn(x).split(dim, dim=2))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.c_proj(y.transpose(1, 2).contiguous().view(rows, length, dim))

    class MLP(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.c_fc, self.c_proj = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

        def forward(self, x: Tensor) -> Tensor:
            return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ln_1, self.attn, self.ln_2, self.mlp = nn.LayerNorm(dim), Attention(), nn.LayerNorm(dim), MLP()

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.attn(self.ln_1(x))
            return x + self.mlp(self.ln_2(x))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wte = nn.Embedding(config["vocab_size"], dim)
            self.wpe = nn.Embedding(config["n_positions"], dim)
            self.h = nn.ModuleList([Block() for _ in range(config["n_layer"])])
            self.ln_f = nn.LayerNorm(dim)

        def forward(self, tokens: Tensor) -> Tensor:
            x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
            for block in self.h:
                x = block(x)
            return F.linear(self.ln_f(x), self.wte.weight)

    model = Model()
    inputs = {
        name.removeprefix("transformer."): value for name, value in load_file(weights / "model.safetensors").items()
    }
    turned = {
        name: value.T if name.split(".")[-2].startswith("c_") and value.dim() == 2 else value
        for name, value in inputs.items()
    }
    model.load_state_dict({name: turned[name] for name in model.state_dict()})
    return torch_step(model)


def litgpt_step(arguments: argparse.Namespace, weights: Path) -> Callable[[Arrays], float]:
    """One training step of litgpt's model of the same shape, in a plain torch loop; it has no learned positions."""
    from litgpt.config import Config
    from litgpt.model import GPT

    config = json.loads((weights / "config.json").read_text())
    shape = Config(
        block_size=config["n_positions"], n_layer=config["n_layer"], n_embd=config["n_embd"], n_head=config["n_head"],
        vocab_size=config["vocab_size"], padded_vocab_size=config["vocab_size"], rotary_percentage=0.0,
        parallel_residual=False, bias=True, lm_head_bias=False, norm_class_name="LayerNorm", mlp_class_name="GptNeoxMLP",
        gelu_approximate="tanh", intermediate_size=4 * config["n_embd"],
    )  # fmt: skip
    return torch_step(GPT(shape))


def torch_step(model: Any) -> Callable[[Arrays], float]:
    """The usual loop: logits, cross-entropy, backward, clip, fused AdamW."""
    import torch
    from torch.nn import functional as F

    decayed = [p for p in model.parameters() if p.dim() >= 2]
    other = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": DECAY}, {"params": other, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=BETAS, eps=EPS, fused=True)

    def step(arrays: Arrays) -> float:
        ids = torch.from_numpy(arrays["ids"])
        logits = model(ids[:, :-1].contiguous())
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step


STEPS = {"heddle": heddle_step, "transformers": transformers_step, "plain": plain_step, "litgpt": litgpt_step}


def contender(arguments: argparse.Namespace) -> None:
    """A process that trains on request: lines of JSON in, lines of JSON out."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "TQDM_DISABLE": "1"}
    import torch

    from heddle.account import matmul_rate, slowdown
    from heddle.train.runtime import keep_memory

    torch.set_num_threads(arguments.threads)
    if arguments.library == "heddle" or not arguments.own_allocator:
        keep_memory()
    if arguments.library == "peak":
        slow = slowdown(torch.bfloat16)  # a CPU without bf16 units would take minutes for one product
        step = None
    else:
        step = STEPS[arguments.library](arguments, Path(arguments.weights))
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if step is None:
            fp32 = matmul_rate(torch.float32)
            bf16 = fp32 / slow if slow > 2 else matmul_rate(torch.bfloat16)
            answer: dict[str, Any] = {"bf16": bf16, "fp32": fp32}
        else:
            losses, seconds = [], []
            for seed in request["seeds"]:
                inputs = batches(arguments, seed)
                began = time.perf_counter()
                losses.append(step(inputs))
                seconds.append(time.perf_counter() - began)
            answer = {"losses": losses, "seconds": seconds, "memory": peak_memory()}
            give_back()
        print(json.dumps(answer), flush=True)


def peak_memory() -> int:
    """This process's peak memory, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def give_back() -> None:
    """Return freed memory while others have their turn; six models would not fit otherwise."""
    import ctypes

    ctypes.CDLL(None).malloc_trim(0)


class Process:
    """A contender, from the parent process."""

    def __init__(
        self,
        arguments: argparse.Namespace,
        weights: Path,
        library: str,
        precision: str,
        compile: bool = False,
        everywhere: bool = False,
    ) -> None:
        words = [sys.executable, __file__, "--contender", "--library", library, "--precision", precision]
        words += ["--weights", str(weights), "--threads", str(arguments.threads)]
        words += ["--batch", str(arguments.batch), "--context", str(arguments.context)]
        words += ["--shape", arguments.shape, "--padding", str(arguments.padding)]
        words += ["--vocabulary", str(arguments.vocabulary)]
        flags = {"--compile": compile, "--everywhere": everywhere, "--own-allocator": arguments.own_allocator}
        words += [flag for flag, is_set in flags.items() if is_set]
        # Waiting threads must not spin while another contender has the cores.
        environment = {**os.environ, "OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "10000"}
        self.words = words
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.answer()

    def answer(self) -> dict[str, Any]:
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a contender died: {' '.join(self.words[2:8])}")
        return json.loads(line)

    def ask(self, **request: Any) -> dict[str, Any]:
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def prepare_weights(arguments: argparse.Namespace, folder: Path) -> dict[str, Path]:
    """One set of initial weights, as a run and as a Hugging Face directory."""
    import heddle
    from heddle.convert import export_model
    from heddle.weights import save

    model = heddle.build(SHAPES[arguments.shape].config(), seed=1)
    arguments.vocabulary = model.vocab_size
    save(model, folder / "heddle")
    export_model(folder / "heddle", folder / "transformers")
    folders = dict.fromkeys(("transformers", "plain", "litgpt"), folder / "transformers")
    return {"heddle": folder / "heddle", **folders}


def race(arguments: argparse.Namespace) -> dict[str, Any]:
    """Check that all compute the same thing, then time them in turns."""
    with tempfile.TemporaryDirectory() as folder:
        weights = prepare_weights(arguments, Path(folder))
        chosen = {
            name: how
            for name, how in CONTENDERS.items()
            if (name in arguments.only if arguments.only else arguments.precision in (None, how["precision"]))
            and (how["library"] in ("heddle", "transformers") or SHAPES[arguments.shape].task == "next_token")
            and (arguments.everywhere or not how.get("everywhere"))
        }
        if importlib.util.find_spec("litgpt") is None and chosen.pop("litgpt fp32", None):
            print("litgpt cannot be imported and is skipped", file=sys.stderr)
        running, losses = {}, {}
        for name, how in chosen.items():
            print(f"{name}: {arguments.check} steps to compare losses", file=sys.stderr)
            running[name] = Process(arguments, weights[how["library"]], **how)
            result = running[name].ask(seeds=list(range(arguments.check)))["losses"]
            if how["library"] != "litgpt":
                losses[name] = result
        ceiling = Process(arguments, Path(folder), "peak", "fp32")
        seconds: dict[str, list[list[float]]] = {name: [] for name in running}
        memory, peaks = {}, []
        for number in range(arguments.rounds):
            peaks.append(ceiling.ask())
            for name, process in running.items():
                seeds = [1000 + number * arguments.steps + i for i in range(arguments.steps)]
                answer = process.ask(seeds=seeds)
                seconds[name].append(answer["seconds"])
                memory[name] = answer["memory"]
                print(f"round {number + 1}: {name} {median(answer['seconds']):.3f} s", file=sys.stderr)
        for process in [*running.values(), ceiling]:
            process.close()
    return report(arguments, losses, seconds, memory, peaks)


def report(
    arguments: argparse.Namespace,
    losses: dict[str, list[float]],
    seconds: dict[str, list[list[float]]],
    memory: dict[str, int],
    peaks: list[dict[str, float]],
) -> dict[str, Any]:
    """The results, with the requested verdicts."""
    import torch

    from heddle.account import flops

    peak = {name: median(each[name] for each in peaks) for name in peaks[0]}
    work = flops(SHAPES[arguments.shape].config(), arguments.batch, arguments.context).training
    tokens = arguments.batch * arguments.context
    # Two precisions diverge within 20 steps in any library, so only contenders with the same rounding are compared.
    references = {precision: _reference(losses, precision) for precision in ("fp32", "bf16")}
    rows = []
    ours = [name for name in seconds if name.startswith("heddle") and not CONTENDERS[name].get("everywhere")]
    fastest = min(ours, key=lambda name: median(map(median, seconds[name])), default=None)
    for name, rounds in seconds.items():
        reference = references[CONTENDERS[name]["precision"]]
        times = [time for each in rounds for time in each]
        middle = median(times)
        # Compare neighbours in time, so that a slow minute slows both.
        ratios = [median(a) / median(b) for a, b in zip(rounds, seconds[fastest], strict=True)] if fastest else []
        rows.append(
            {
                "contender": name,
                "seconds": middle,
                "fastest": min(times),
                "slowest": max(times),
                "tokens_per_second": tokens / middle,
                "share_of_peak": work / middle / peak[CONTENDERS[name]["precision"]],
                "peak_memory": memory[name],
                "loss_difference": max(
                    (abs(a - b) for a, b in zip(losses.get(name, []), reference, strict=False)), default=None
                ),
                "heddle_is_faster_by": median(ratios) if ratios else None,
                "ratios": ratios,
            }
        )
    return {
        "shape": arguments.shape,
        "heddle": fastest,
        "batch": arguments.batch,
        "context": arguments.context,
        "threads": arguments.threads,
        "steps": arguments.rounds * arguments.steps,
        "machine": platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "peak": peak,
        "contenders": rows,
        "checked": arguments.check,
        "losses_agree": all((row["loss_difference"] or 0.0) <= AGREE for row in rows),
    }


def _reference(losses: dict[str, list[float]], precision: str) -> list[float]:
    """The losses of Hugging Face transformers in a precision, not compiled; without it, those of the first contender."""
    plain = {"fp32": "transformers fp32", "bf16": "transformers bf16 autocast"}[precision]
    alike = [values for name, values in losses.items() if CONTENDERS[name]["precision"] == precision]
    return losses.get(plain) or next(iter(alike), [])


def show(result: dict[str, Any]) -> None:
    """The results as a table."""
    peak = {name: f"{rate / 1e9:,.0f} GFLOP/s" for name, rate in result["peak"].items()}
    print(
        f"{result['shape']}, {result['batch']} x {result['context']} tokens, {result['threads']} threads, "
        f"torch {result['torch']}; measured matmul peak {peak['bf16']} bf16, {peak['fp32']} fp32\n"
    )
    print(
        "| contender | s/step, median (min to max) | tokens/s | share of peak | peak memory | loss off by | × heddle's time |"
    )
    print("|---|---|---|---|---|---|---|")
    for row in result["contenders"]:
        spread = f"{row['seconds']:.3f} ({row['fastest']:.3f} to {row['slowest']:.3f})"
        speed = f"{row['tokens_per_second']:,.0f} | {row['share_of_peak']:.0%}"
        memory = f"{row['peak_memory'] / 2**20:,.0f} MiB"
        off = "-" if row["loss_difference"] is None else f"{row['loss_difference']:.1e}"
        ratios = sorted(row["ratios"])
        times = f"{row['heddle_is_faster_by']:.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})" if ratios else "-"
        print(f"| {row['contender']} | {spread} | {speed} | {memory} | {off} | {times} |")
    print(f"\nLosses agree to {AGREE:g} over {result['checked']} steps: {'yes' if result['losses_agree'] else 'NO'}.")
    print(f"Ratios are medians of {len(result['contenders'][0]['ratios'])} rounds against {result['heddle']}.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default="gpt2-small", choices=SHAPES)
    parser.add_argument("--batch", type=int, help="rows; defaults to the shape's")
    parser.add_argument("--context", type=int, help="tokens of a row; defaults to the shape's")
    parser.add_argument("--padding", type=float, default=0.0, help="largest share of a row that is padding")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=3, help="steps of each contender in a round")
    parser.add_argument("--check", type=int, default=CHECK_STEPS, help="steps whose losses are compared first")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--only", nargs="*", help="names of contenders")
    parser.add_argument("--own-allocator", action="store_true", help="only heddle changes its allocator's settings")
    parser.add_argument("--everywhere", action="store_true", help="add heddle with scores at every place")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--precision", choices=["fp32", "bf16"], help="only contenders in this precision")
    for name in ("--library", "--weights"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--vocabulary", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--compile", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--contender", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    shape = SHAPES[arguments.shape]
    arguments.batch, arguments.context = arguments.batch or shape.batch, arguments.context or shape.context
    if arguments.contender:
        contender(arguments)
        return
    result = race(arguments)
    show(result)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
