"""One layer and one row of many tokens, on one process and divided by tokens among several: peak memory, output and weights.

    python -m benchmarks.context [--tokens 131072] [--processes 4] [--json FILE]

Each process takes one training step of a decoder of one layer under torchrun (gloo, one thread), with `blockwise` attention, whose
memory is linear in the length. Its peak is the most memory that it held during the step, less what it held before. The peak of each
of several processes must be at most 0.35 of that of one, and output and weights must agree within 2e-5. Exit code 1: they do not.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file

from heddle.config import TransformerConfig
from heddle.config.parallel import ParallelConfig
from heddle.config.train import TrainConfig
from heddle.data.batch import Batch, next_token_batch
from heddle.model import build
from heddle.parallel.context import order
from heddle.parallel.join import join_ranks
from heddle.parallel.mesh import mesh_sizes
from heddle.parallel.sharding import Shards
from heddle.tasks import CrossEntropy
from heddle.train import Optimizer, train_step
from heddle.train.runtime import give_back
from tests.parallel.cases import launch

VOCABULARY, DIM, HEADS = 256, 128, 2
MOST, CLOSE = 0.35, 2e-5


def row(tokens: int) -> Batch:
    """A row of random tokens."""
    draw = torch.Generator().manual_seed(0)
    return next_token_batch(torch.randint(0, VOCABULARY, (1, tokens + 1), generator=draw).numpy())


def memory(name: str) -> int:
    """Bytes by a name of `/proc/self/status`, such as VmRSS or VmHWM."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"{name}:")[2].split()[0]) << 10


def step(tokens: int, folder: Path) -> None:
    """A process's step; it writes its peak and its part of the output, and the one that leads the loss and the weights."""
    torch.set_num_threads(1)
    ranks = join_ranks("cpu")
    mixer = {"heads": HEADS, "kernel": "blockwise", "relative": {"kind": "rotary"}}
    stack = {"depth": 1, "block": {"mixer": mixer}}
    sizes = {"vocab_size": VOCABULARY, "dim": DIM, "context": tokens}
    model, parts, batch = build(TransformerConfig.of({**sizes, "decoder": stack}), seed=1), None, row(tokens)
    if ranks.count > 1:
        config = ParallelConfig.of({"context": ranks.count})
        mesh = mesh_sizes(config, ranks.count)
        ranks = replace(ranks, of_rows=mesh["context"], of_tokens=mesh["tensor"])
        parts = Shards(model, config, mesh, "fp32")
        batch = parts.cut(batch)
    optimizer = Optimizer(model, TrainConfig.of({"optimizer": "sgd"}), 0.1, "fp32", parts=parts)
    objective: Any = CrossEntropy(model) if parts is None else parts.wrap(CrossEntropy(model))
    outputs = list[torch.Tensor]()
    model.last_stack().blocks[0].register_forward_hook(lambda block, inputs, out: outputs.append(out.hidden.detach()))
    give_back()
    before, began = memory("VmRSS"), time.monotonic()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts here
    loss, norm = train_step(objective, optimizer, batch, 1, 1.0, 0.0, ranks.sum)
    result = {"peak": memory("VmHWM") - before, "seconds": time.monotonic() - began, "loss": loss, "norm": norm}
    (folder / f"{ranks.rank}.json").write_text(json.dumps(result))
    save_file({"output": outputs[0].contiguous()}, folder / f"{ranks.rank}.safetensors")
    whole = partial(Shards.whole, parts) if isinstance(parts, Shards) else lambda name, tensor: tensor
    weights = {name: whole(name, master).detach() for name, master in optimizer.masters.items()}
    if ranks.leads:
        save_file(weights, folder / "weights.safetensors")
    if ranks.count > 1:
        dist.destroy_process_group()


def measure(tokens: int, processes: int) -> dict[str, Any]:
    """Peaks and differences of one process and of several."""
    with tempfile.TemporaryDirectory() as name:
        one, several = (Path(name) / str(count) for count in (1, processes))
        for count, folder in ((1, one), (processes, several)):
            folder.mkdir()
            launch(count, "benchmarks.context", "--tokens", str(tokens), "--step", str(folder))
            print(
                f"{count} process{'es' if count > 1 else ''}: {json.loads((folder / '0.json').read_text())}", flush=True
            )
        results = [json.loads((several / f"{rank}.json").read_text()) for rank in range(processes)]
        alone = json.loads((one / "0.json").read_text())
        output = torch.cat([load_file(several / f"{rank}.safetensors")["output"] for rank in range(processes)], 1)
        expected = load_file(one / "0.safetensors")["output"][:, torch.cat(order(tokens, processes))]
        weights, expected_weights = (load_file(folder / "weights.safetensors") for folder in (several, one))
        return {
            "tokens": tokens,
            "processes": processes,
            "peak": alone["peak"],
            "peaks": [result["peak"] for result in results],
            "share": max(result["peak"] for result in results) / alone["peak"],
            "output": (output - expected).abs().max().item() / max(1.0, expected.abs().max().item()),
            "loss": abs(results[0]["loss"] - alone["loss"]),
            "weights": max((weights[name] - each).abs().max().item() for name, each in expected_weights.items()),
            "seconds": [alone["seconds"], max(result["seconds"] for result in results)],
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tokens", type=int, default=131_072)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--step", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step is not None:
        step(arguments.tokens, arguments.step)
        return 0
    os.environ["MALLOC_MMAP_THRESHOLD_"] = str(
        1 << 20
    )  # what is free goes back to the system: the peak is of what is in use
    result = measure(arguments.tokens, arguments.processes)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result))
    right = all(result[name] <= CLOSE for name in ("output", "loss", "weights"))
    return 0 if right and result["share"] <= MOST else 1


if __name__ == "__main__":
    sys.exit(main())
