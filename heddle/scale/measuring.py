"""The step that a plan predicts, on real tensors, with as many processes on this machine."""

import gc
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn
from torch.profiler import ProfilerActivity, profile

from heddle.config.model import TransformerConfig
from heddle.config.parallel import ParallelConfig
from heddle.config.train import TrainConfig
from heddle.data.batch import Batch
from heddle.display import displayed
from heddle.model.build import build
from heddle.model.cores import cores
from heddle.model.lora import adapt
from heddle.model.measured import measured_once
from heddle.parallel.mesh import count_processes, mesh_sizes
from heddle.scale.meter import Meter
from heddle.scale.rehearsal import Trainable
from heddle.train.step import train_step

STEPS = 5  # that are timed, after two whose bytes are counted


@displayed()
@dataclass(frozen=True)
class Measured:
    """A measured step.

    Attributes:
        peak: most bytes of tensors at a time, of the first process.
        seconds: of a step; the median.
        tokens_per_second: of all processes.
    """

    peak: int
    seconds: float
    tokens_per_second: float


def measure(
    config: TransformerConfig,
    train: TrainConfig,
    parallel: ParallelConfig,
    sizes: dict[str, int],
    rows: int,
    length: int,
    precision: str,
) -> Measured:
    """Take a few steps in as many processes as a mesh has, and report what they held and how long they took.

    One process counts every allocation, by torch's profiler. Of several, gloo's threads free what a profiler does not see, so the
    storages are counted that are alive after each operation.
    """
    world = count_processes(sizes)
    settings = (config.to_dict(), train.to_dict(), parallel.to_dict(), sizes, rows, length, precision)
    with tempfile.TemporaryDirectory() as folder:
        if world == 1:
            _process(0, 1, folder, *settings)
        else:
            spawn(_process, (world, folder, *settings), nprocs=world)
        peak, seconds = (float(word) for word in Path(folder, "measured").read_text().split())
    several = world // (sizes["context"] * sizes["tensor"])
    return Measured(int(peak), seconds, several * rows * train.accumulate * length / seconds)


def seconds_of_step(
    config: TransformerConfig, train: TrainConfig, rows: int, length: int, precision: str, world: int
) -> float:
    """Seconds of a step of one of `world` processes that share this machine's cores, without their communication.

    One process takes the step alone, on its share of the cores; the answer is kept for this machine.
    """
    threads = max(1, cores() // world)
    about = {
        "model": config.to_dict(),
        "train": train.to_dict(),
        "rows": [rows, length],
        "precision": precision,
        "threads": threads,
    }

    def alone() -> float:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            one = mesh_sizes(ParallelConfig(), 1)
            return _timed(_trainable(config, train, ParallelConfig(), one, precision), train, rows, length)
        finally:
            torch.set_num_threads(before)

    return measured_once("planned-step", about, alone) * max(1.0, world * threads / cores())


def _process(
    rank: int,
    world: int,
    folder: str,
    model: dict[str, Any],
    settings: dict[str, Any],
    layout: dict[str, Any],
    sizes: dict[str, int],
    rows: int,
    length: int,
    precision: str,
) -> None:
    """One process; the first writes what was measured."""
    config, train, parallel = TransformerConfig.of(model), TrainConfig.of(settings), ParallelConfig.of(layout)
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, cores() // world))
    if world > 1:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    try:
        if world == 1:
            peak, trainable = _profiled(config, train, parallel, sizes, rows, length, precision)
        else:
            trainable = _trainable(config, train, parallel, sizes, precision)
            peak = _metered(trainable, train, rows, length)
        seconds = _timed(trainable, train, rows, length)
        if rank == 0:
            Path(folder, "measured").write_text(f"{peak} {seconds}")
    finally:
        torch.set_num_threads(before)
        if world > 1:
            dist.destroy_process_group()


def _trainable(
    config: TransformerConfig, train: TrainConfig, parallel: ParallelConfig, sizes: dict[str, int], precision: str
) -> Trainable:
    model = adapt(build(config, "cpu", train.seed), train.lora, train.seed)
    return Trainable(model, train, precision, parallel, sizes, train.accumulate)


def _step(trainable: Trainable, train: TrainConfig, batch: Batch) -> None:
    train_step(trainable.objective, trainable.optimizer, batch, train.accumulate, 1.0, train.clip)
    if trainable.average is not None:
        trainable.average.update(1)


def _profiled(
    config: TransformerConfig,
    train: TrainConfig,
    parallel: ParallelConfig,
    sizes: dict[str, int],
    rows: int,
    length: int,
    precision: str,
) -> tuple[int, Trainable]:
    """The most bytes that are allocated at a time from the making of the model to the end of the second step."""
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        trainable = _trainable(config, train, parallel, sizes, precision)
        batch = trainable.batch(rows * train.accumulate, length)
        for number in range(2):
            with torch.profiler.record_function(f"step {number}"):
                _step(trainable, train, batch)
    events = profiler.profiler.kineto_results.events()
    (began,) = (event.start_ns() for event in events if event.name() == "step 1")
    held = most = 0
    for event in sorted((e for e in events if e.name() == "[memory]"), key=lambda event: int(event.start_ns())):
        held += event.nbytes()
        most = max(most, held) if event.start_ns() >= began else most
    return most, trainable


def _metered(trainable: Trainable, train: TrainConfig, rows: int, length: int) -> int:
    """The most bytes of storages that are alive in the second step."""
    batch = trainable.batch(rows * train.accumulate, length)
    _step(trainable, train, batch)
    with Meter() as meter:
        meter.see((list(trainable.optimizer.masters.values()), trainable.optimizer.state(), batch.parts()))
        meter.see(list(trainable.model.buffers()))
        meter.see({} if trainable.average is None else trainable.average.average)
        meter.enter("step")
        _step(trainable, train, batch)
    return meter.peaks["step"]


def _timed(trainable: Trainable, train: TrainConfig, rows: int, length: int) -> float:
    batch = trainable.batch(rows * train.accumulate, length)
    times = []
    for _ in range(STEPS + 1):
        began = time.perf_counter()
        _step(trainable, train, batch)
        times.append(time.perf_counter() - began)
    return median(times[1:])
