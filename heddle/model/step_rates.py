"""Which decoding steps are worth compiling on this machine: compiled ones and the model's own are timed in turns.

Compiled steps make fewer calls, but their products are not always the fastest: oneDNN's, of packed weights, can outweigh all that
they save. So each kind of step, of one row and of several, is compiled only where that is faster.
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch

from heddle.errors import HeddleError
from heddle.model.compiling import LIBRARIES, OWN_KERNELS, CompiledSteps, warm_up
from heddle.model.cores import share_cores
from heddle.model.evaluating import evaluating
from heddle.model.measured import measured_once
from heddle.model.packing import pack, unpack
from heddle.model.transformer import Transformer

OWN = "not compiled"
KERNELS = {"compiled": OWN_KERNELS, "compiled, products by libraries": LIBRARIES}
GAIN = 1.1  # of a compiled step, from which no other way is tried
SEVERAL = 8  # rows that stand for several
ROUNDS, SECONDS, STEPS = 5, 0.2, 64  # timings of each way, how long each may take, and how many steps suffice


@dataclass(frozen=True)
class StepRates:
    """How fast the steps of one row or of several are.

    Attributes:
        several: whether they are of several rows.
        rates: tokens per second by how steps are computed.
    """

    several: bool
    rates: dict[str, float]

    @property
    def best(self) -> str:
        """The fastest way."""
        return max(self.rates, key=self.rates.__getitem__)


def compile_faster_steps(model: Transformer, rows: Sequence[int], room: int | None = None) -> list[StepRates]:
    """Compile a model's decoding steps of so many rows where that makes them faster on this machine; returns their rates.

    They are measured once for a machine and a model's shapes.

    Args:
        model: in the precision it predicts in.
        rows: one row, several, or both.
        room: bytes that a packed copy of the weights may use, as the model's own steps would; None: no limit.

    Raises:
        HeddleError: see `CompiledSteps`.
    """
    steps, reports = CompiledSteps(model), []
    model.steps = steps
    with evaluating(model):
        for count in sorted({1 if each == 1 else SEVERAL for each in rows}):
            about = {"tensors": _tensors(model), "rows": count}
            rates = measured_once("decoding-steps", about, partial(_measure, steps, count, room), model.device.type)
            report = StepRates(count > 1, rates)
            kernels = KERNELS.get(report.best, ())
            if steps.kernels[report.several] != kernels:
                steps.use(report.several, kernels)
            reports.append(report)
        warm_up(model, rows)
    compiled = [bool(steps.kernels[report.several]) for report in reports]
    if not any(compiled):
        model.steps = None
    elif not all(compiled):
        pack(model, room)  # for the model's own steps
    return reports


def _measure(steps: CompiledSteps, rows: int, room: int | None) -> dict[str, float]:
    """Tokens per second of so many rows: not compiled, and compiled in each way until one is clearly faster."""
    model, several = steps.model, rows > 1
    ways = dict(KERNELS) if steps.kernels[several] == OWN_KERNELS else {"compiled": LIBRARIES}
    rates: dict[str, float] = {}
    pack(model, room)
    for way, kernels in ways.items():
        if steps.kernels[several] != kernels:
            steps.use(several, kernels)
        try:
            warm_up(model, (rows,))
        except HeddleError:
            if rates:  # another way can be compiled
                break
            unpack(model)
            model.steps = None
            raise
        seconds: dict[str, list[float]] = {OWN: [], way: []}
        most = max(1, _longest(model) - 1)
        count = max(1, min(STEPS, round(SECONDS / _seconds(model, rows, min(2, most))), most))
        for _ in range(ROUNDS):
            seconds[way].append(_seconds(model, rows, count))
            model.steps = None
            seconds[OWN].append(_seconds(model, rows, count))
            model.steps = steps
        rates |= {name: rows / median(each) for name, each in seconds.items()}
        if rates[way] > GAIN * rates[OWN]:
            break
    unpack(model)
    return rates


@torch.inference_mode()
def _seconds(model: Transformer, rows: int, count: int) -> float:
    """Seconds of one step, as the mean of `count` in succession."""
    share_cores()
    cache, ids = model.new_cache(rows), torch.zeros(rows, 1, dtype=torch.long, device=model.device)
    source = None if model.encoder is None else ids.expand(rows, 2)
    model(ids, source=source, cache=cache)
    begin = time.perf_counter()
    for _ in range(count):
        if model.steps is not None:
            logits = model.steps(ids, cache)
        else:
            layout = cache.advance([1] * rows, model.device)
            logits = model.logits(model(ids, layout, cache=cache).hidden[:, -1])
        logits.argmax(-1).tolist()  # waits for an accelerator
    return max(time.perf_counter() - begin, 1e-9) / count


def _longest(model: Transformer) -> int:
    """How many tokens a row may have, for the timings."""
    longest = model.new_cache(1).longest
    return STEPS + 2 if longest is None else longest


def _tensors(model: Transformer) -> list[list[object]]:
    """The shapes and dtypes of a model's weights, with how many there are of each."""
    tensors = (*model.parameters(), *model.buffers())
    counts = Counter((tuple(tensor.shape), str(tensor.dtype)) for tensor in tensors)
    return [[list(shape), dtype, count] for (shape, dtype), count in sorted(counts.items())]
