"""What adapters save: parameters that are trained, memory and time of a step, beside training the whole model.

    python -m benchmarks.lora [PRESET] [--batch 4] [--context 256] [--precision fp32] [--steps 5]

Each way of training is a process of its own, one after another, on one thread; memory is the process's peak above what it held
before the model was built, time the processor's, which other programs change less, as the median of the steps after the first. The
text is random.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from statistics import median
from typing import Any

import numpy as np
import torch

from heddle.config import preset
from heddle.config.train import TrainConfig
from heddle.data.batch import next_token_batch
from heddle.model import build
from heddle.model.lora import adapt
from heddle.tasks import CrossEntropy
from heddle.train import Optimizer, train_step
from heddle.train.runtime import keep_memory

WAYS: dict[str, dict[str, Any]] = {
    "all weights": {"optimizer": "adamw"},
    "lora, q and v": {"lora": {"rank": 8}},
    "lora, every layer": {"lora": {"rank": 8, "layers": ["*"]}},
}


def peak() -> float:
    """The most memory that this process has held, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(way: str, options: argparse.Namespace) -> dict[str, float]:
    """Steps of one way of training."""
    torch.set_num_threads(1)
    keep_memory()
    config = preset(options.preset).override({"context": options.context})
    train = TrainConfig.of(WAYS[way])
    tokens = np.random.default_rng(0).integers(0, config.vocab_size, (options.batch, options.context + 1))
    before = peak()
    model = adapt(build(config), train.lora)
    optimizer = Optimizer(model, train, 1e-4, options.precision)
    objective, batch, times = CrossEntropy(model), next_token_batch(tokens), []
    for _ in range(options.steps + 1):
        began = time.process_time()
        train_step(objective, optimizer, batch, 1, 1.0, 1.0)
        times.append(time.process_time() - began)
    trained = sum(each.numel() for each in model.parameters() if each.requires_grad)
    state = sum(each.numel() * each.element_size() for each in optimizer.state().values())
    return {"trained": trained, "state": state / 2**20, "memory": peak() - before, "seconds": median(times[1:])}


def main() -> None:
    """Measure every way, or the one that is named."""
    parser = argparse.ArgumentParser()
    parser.add_argument("preset", nargs="?", default="gpt2-small")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--way")
    options = parser.parse_args()
    if options.way is not None:
        print(json.dumps(measure(options.way, options)))
        return
    print("| trained | parameters | optimizer's state | memory | processor seconds per step |")
    print("|---|---:|---:|---:|---:|")
    for way in WAYS:
        call = [sys.executable, "-m", "benchmarks.lora", *sys.argv[1:], "--way", way]
        data = json.loads(subprocess.run(call, check=True, capture_output=True, text=True).stdout)
        print(
            f"| {way} | {data['trained']:,.0f} | {data['state']:,.0f} MiB | {data['memory']:,.0f} MiB "
            f"| {data['seconds']:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
