"""The step that a plan predicts, on real tensors, with as many processes on this machine."""

import gc
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn
from torch.profiler import ProfilerActivity, profile

from heddle.config.train import TrainConfig
from heddle.data.batch import Batch
from heddle.display import displayed
from heddle.model.build import build
from heddle.model.lora import adapt
from heddle.native.cores import cores
from heddle.native.measured import measured_once
from heddle.parallel.mesh import count_readers
from heddle.parallel.pipeline import Stages
from heddle.scale.meter import Meter
from heddle.scale.rehearsal import Step, Trainable
from heddle.scale.schedules import StageAlone, fake_processes
from heddle.train.step import train_step

STEPS = 5  # that are timed, after two whose bytes are counted
MESSAGE = 2**18  # numbers of a message, 1 MiB: those of a small layer
SENT = 16 * 4 * MESSAGE  # bytes that a process sends with each collective, to see gloo's rate


@displayed()
@dataclass(frozen=True)
class Measured:
    """A measured step.

    Attributes:
        peak: most bytes of tensors at a time, of the process that holds most.
        seconds: of a step; the median.
        tokens_per_second: of all processes.
    """

    peak: int
    seconds: float
    tokens_per_second: float


def measure(step: Step) -> Measured:
    """Take a step a few times in as many processes as it has, and report what they held and how long they took.

    One process counts every allocation, by torch's profiler. Of several, gloo's threads free what a profiler does not see, so the
    storages are counted that are alive after each operation.
    """
    peak, seconds = _together(_process, step.processes, step)
    tokens = count_readers(step.sizes) * step.rows * step.train.accumulate * step.length
    return Measured(int(peak), seconds, tokens / seconds)


def seconds_of_step(step: Step) -> float:
    """Seconds that one of the processes of a step computes, if they share this machine's cores.

    As many processes as there are cores take it, at once: they wait for the same memory and units. None waits for another, since
    torch's fake backend answers at once. The answer is kept for this machine.
    """
    world = step.processes
    at_once, threads = min(world, cores()), max(1, cores() // world)
    about = {
        "model": step.model.to_dict(),
        "train": step.train.to_dict(),
        "parallel": {**step.parallel.to_dict(), **step.sizes},
        "rows": [step.rows, step.length],
        "precision": step.precision,
        "threads": threads,
    }

    def measured() -> float:
        (seconds,) = _together(take_alone, at_once, step)
        return seconds

    return measured_once("planned-step", about, measured) * world / at_once


def gloo_rate() -> float:
    """Bytes/s that gloo sends from each of two processes of this machine; the answer is kept for this machine."""

    def measured() -> float:
        (seconds,) = _together(exchange, 2, None)
        return SENT / seconds

    return measured_once("gloo", {"bytes": SENT}, measured)


def exchange(rank: int, folder: str, nothing: None) -> None:
    """Send `SENT` bytes with each collective that engines use, in messages of a layer's size."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    try:
        part, parts = torch.zeros(MESSAGE), [torch.zeros(MESSAGE), torch.zeros(MESSAGE)]
        collectives: tuple[Callable[[], Any], ...] = (
            lambda: dist.all_gather(parts, part),
            lambda: dist.reduce_scatter(part, parts),
            lambda: dist.all_reduce(part),
        )
        times = []
        for send in collectives:
            for number in range(SENT // part.nbytes + 1):
                if number == 1:  # the first one connects
                    began = time.perf_counter()
                send()
            times.append(time.perf_counter() - began)
        Path(folder, f"measured-{rank}").write_text(str(mean(times)))
    finally:
        dist.destroy_process_group()


def _together(work: Callable[[int, str, Any], None], processes: int, step: Step | None) -> tuple[float, ...]:
    """Call `work` in so many processes; the largest of each number that they write."""
    with tempfile.TemporaryDirectory() as folder:
        if processes == 1:
            work(0, folder, step)
        else:
            spawn(work, (folder, step), nprocs=processes)
        measured = [[float(word) for word in path.read_text().split()] for path in Path(folder).glob("measured-*")]
    return tuple(max(numbers) for numbers in zip(*measured, strict=True))


def take_alone(number: int, folder: str, step: Step) -> None:
    """One process of a step, without the others; its place among them is far from that of the next number."""
    before, world = torch.get_num_threads(), step.processes
    torch.set_num_threads(max(1, cores() // world))
    try:
        with fake_processes(world, number * world // min(world, cores())):
            trainable = _trainable(step)
            if isinstance(trainable.parts, Stages):
                trainable.parts.kind = StageOfZeros
            Path(folder, f"measured-{number}").write_text(str(timed(trainable, step)))
    finally:
        torch.set_num_threads(before)


class StageOfZeros(StageAlone):
    """A stage that receives zeros, where the fake backend would leave what was in memory."""

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return _zeroed(super().get_fwd_recv_ops(fwd_chunk_id))

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return _zeroed(super().get_bwd_recv_ops(bwd_chunk_id))


def _zeroed(receives: list[dist.P2POp]) -> list[dist.P2POp]:
    for each in receives:
        each.tensor.detach().zero_()
    return receives


def _process(rank: int, folder: str, step: Step) -> None:
    """One process; the first with a stage of a pipeline writes what was measured."""
    before, world = torch.get_num_threads(), step.processes
    torch.set_num_threads(max(1, cores() // world))
    if world > 1:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    try:
        if world == 1:
            peak, trainable = _profiled(step)
        else:
            trainable = _trainable(step)
            peak = _metered(trainable, step)
        seconds = timed(trainable, step)
        if rank % (world // step.sizes["pipeline"]) == 0:
            Path(folder, f"measured-{rank}").write_text(f"{peak} {seconds}")
    finally:
        torch.set_num_threads(before)
        if world > 1:
            dist.destroy_process_group()


def _trainable(step: Step) -> Trainable:
    train = step.train
    model = adapt(build(step.model, "cpu", train.seed), train.lora, train.seed)
    return Trainable(model, step, train.accumulate)


def _batch(trainable: Trainable, step: Step) -> Batch:
    """The micro-batches of a step as one batch."""
    return trainable.batch(step.rows * step.train.accumulate, step.length)


def take(trainable: Trainable, train: TrainConfig, batch: Batch) -> tuple[float, float]:
    """Take the step; what `train_step` returns."""
    loss_and_norm = train_step(trainable.objective, trainable.optimizer, batch, train.accumulate, 1.0, train.clip)
    if trainable.average is not None:
        trainable.average.update(1)
    return loss_and_norm


def _profiled(step: Step) -> tuple[int, Trainable]:
    """The most bytes that are allocated at a time from the making of the model to the end of the second step."""
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        trainable = _trainable(step)
        batch = _batch(trainable, step)
        for number in range(2):
            with torch.profiler.record_function(f"step {number}"):
                take(trainable, step.train, batch)
    events = profiler.profiler.kineto_results.events()
    (began,) = (event.start_ns() for event in events if event.name() == "step 1")
    held = most = 0
    for event in sorted((e for e in events if e.name() == "[memory]"), key=lambda event: int(event.start_ns())):
        held += event.nbytes()
        most = max(most, held) if event.start_ns() >= began else most
    return most, trainable


def _metered(trainable: Trainable, step: Step) -> int:
    """The most bytes of storages that are alive in the second step."""
    batch = _batch(trainable, step)
    take(trainable, step.train, batch)
    with Meter() as meter:
        meter.see((list(trainable.optimizer.masters.values()), trainable.optimizer.state(), batch.parts()))
        meter.see(list(trainable.model.buffers()))
        if isinstance(trainable.parts, Stages):
            meter.see([each.received() for each in trainable.parts.on_mesh])
        meter.see({} if trainable.average is None else trainable.average.average)
        meter.enter("step")
        take(trainable, step.train, batch)
    return meter.peaks["step"]


def timed(trainable: Trainable, step: Step) -> float:
    """Seconds of a step; the median of `STEPS`, after one that is not timed."""
    batch = _batch(trainable, step)
    times = []
    for _ in range(STEPS + 1):
        began = time.perf_counter()
        take(trainable, step.train, batch)
        times.append(time.perf_counter() - began)
    return median(times[1:])
