"""Compiles decoding steps only where that is faster on this machine: compiled and eager steps are timed in turns.

Compiled steps make fewer calls, but their products are not always the fastest: those of oneDNN with prepacked weights can outweigh
the gain. So each kind of step, with one row and with several, is compiled only where that is faster.
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch

from heddle.errors import HeddleError
from heddle.model.compiling import LIBRARIES, OWN_KERNELS, CompiledSteps, compile_steps, warm_up
from heddle.model.evaluating import evaluating
from heddle.model.linear import use_few_rows
from heddle.model.transformer import Transformer
from heddle.native.cores import share_cores
from heddle.native.measured import measured_once

OWN = "not compiled"
KERNELS = {"compiled": OWN_KERNELS, "compiled, products by libraries": LIBRARIES}
GAIN = 1.1  # speedup of a compiled step from which no other mode is tried
SEVERAL = 8  # rows that represent several
ROUNDS, SECONDS, STEPS = 5, 0.2, 64  # timings of each mode, seconds per timing, and maximum steps per timing


@dataclass(frozen=True)
class StepRates:
    """The speed of decoding steps with one row or with several.

    Attributes:
        several: whether the steps have several rows.
        rates: tokens per second by mode.
    """

    several: bool
    rates: dict[str, float]

    @property
    def best(self) -> str:
        """The fastest mode."""
        return max(self.rates, key=self.rates.__getitem__)


def compile_faster_steps(model: Transformer, rows: Sequence[int]) -> list[StepRates]:
    """Compile a model's decoding steps for these numbers of rows where that is faster on this machine; returns their rates.

    Rates are measured once for a machine and a model's shapes.

    Args:
        model: in its precision for inference.
        rows: numbers of rows: one, several, or both.

    Raises:
        HeddleError: see `CompiledSteps`.
    """
    if model.device.type == "cuda":  # in one graph, compiled steps are never slower
        warm_up(compile_steps(model), rows)
        return []
    steps, reports = CompiledSteps(model), []
    model.steps = steps
    with evaluating(model):
        for count in sorted({1 if number == 1 else SEVERAL for number in rows}):
            about = {"tensors": _tensors(model), "rows": count}
            rates = measured_once("decoding-steps", about, partial(_measure, steps, count), model.device.type)
            report = StepRates(count > 1, rates)
            kernels = KERNELS.get(report.best, ())
            if steps.kernels[report.several] != kernels:
                steps.use(report.several, kernels)
            reports.append(report)
        warm_up(model, rows)
    if not any(steps.kernels[report.several] for report in reports):
        model.steps = None
    return reports


def _measure(steps: CompiledSteps, rows: int) -> dict[str, float]:
    """Tokens per second: not compiled, and compiled in each mode until one is clearly faster."""
    model, several = steps.model, rows > 1
    modes = dict(KERNELS) if steps.kernels[several] == OWN_KERNELS else {"compiled": LIBRARIES}
    rates: dict[str, float] = {}
    use_few_rows(model)
    for mode, kernels in modes.items():
        if steps.kernels[several] != kernels:
            steps.use(several, kernels)
        try:
            warm_up(model, (rows,))
        except HeddleError:
            if rates:  # another mode has been compiled
                break
            model.steps = None
            raise
        seconds: dict[str, list[float]] = {OWN: [], mode: []}
        longest = max(1, _longest(model) - 1)
        count = max(1, min(STEPS, round(SECONDS / _seconds(model, rows, min(2, longest))), longest))
        for _ in range(ROUNDS):
            seconds[mode].append(_seconds(model, rows, count))
            model.steps = None
            seconds[OWN].append(_seconds(model, rows, count))
            model.steps = steps
        rates |= {name: rows / median(times) for name, times in seconds.items()}
        if rates[mode] > GAIN * rates[OWN]:
            break
    return rates


@torch.inference_mode()
def _seconds(model: Transformer, rows: int, count: int) -> float:
    """Seconds per step, as the mean of `count` steps."""
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
    """The maximum number of tokens in a row, for the timings."""
    longest = model.new_cache(1).longest
    return STEPS + 2 if longest is None else longest


def _tensors(model: Transformer) -> list[list[object]]:
    """The shapes and dtypes of a model's weights, with their counts."""
    tensors = (*model.parameters(), *model.buffers())
    counts = Counter((tuple(tensor.shape), str(tensor.dtype)) for tensor in tensors)
    return [[list(shape), dtype, count] for (shape, dtype), count in sorted(counts.items())]
