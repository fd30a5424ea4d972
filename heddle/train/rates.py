"""How fast this machine trains a model, and what follows from it: the precision, and the library that multiplies.

Each measurement is kept for the machine (`heddle.native.measured`), so that two plans of one command agree.
"""

import gc
import time
from contextlib import nullcontext
from dataclasses import replace
from statistics import median

import torch

from heddle.account.machine import card_has_bf16, finish, has_bf16, release_cached, slowdown
from heddle.config.model import TransformerConfig
from heddle.config.run import RunConfig
from heddle.config.train import ProductKind, TrainConfig
from heddle.data.batch import Batch
from heddle.errors import HeddleError, pluralize
from heddle.model.build import build
from heddle.model.checkpointing import checkpoint_activations
from heddle.model.groups import skeleton
from heddle.model.linear import faster_products, use_products
from heddle.model.lora import adapt
from heddle.model.precision import DTYPES, tf32_products
from heddle.model.products import PRODUCT_KINDS, has_onednn
from heddle.native.cores import cores, share_cores
from heddle.native.measured import measured_once, one_thread
from heddle.tasks.table import make_task
from heddle.tasks.task import DataSpec, Task, tokens_read
from heddle.train.compiling import compile_objective
from heddle.train.optimizer import Optimizer
from heddle.train.runtime import deterministic, give_back
from heddle.train.sizes import has_rows
from heddle.train.step import train_step

STEPS = 10  # most steps to measure
PATIENCE = 1.0  # seconds after which to stop measuring a model's steps
GAIN = 1.05  # least speedup for choosing bf16: below it, rounding is not worth it
# Settings that change how long a step takes.
OF_A_STEP = (
    "optimizer",
    "groups",
    "lora",
    "label_smoothing",
    "z_loss",
    "checkpoint_activations",
    "clip",
    "nesterov",
    "loss",
    "tf32",
    "deterministic",
)


def pick_threads(threads: int | None) -> int:
    """How many threads to compute with. More threads than cores are refused, since they would only wait for each other."""
    there = cores()
    if threads is not None and threads > there:
        raise HeddleError(
            f"threads = {threads}: this machine has {pluralize(there, 'core')}, and more threads only slow it down"
        )
    return threads or min(torch.get_num_threads(), there)


def cards(device: str, ranks: int) -> int:
    """How many devices compute: each rank has a card of its own, but processes on a CPU share its cores."""
    return ranks if torch.device(device).type == "cuda" else 1


def measure(
    spec: DataSpec,
    device: str,
    precision: str,
    config: RunConfig,
    by_onednn: tuple[ProductKind, ...] = (),
    compiled: bool = False,
    steady: bool = False,
    accumulate: int = 1,
) -> float:
    """Training rate in tokens read per second, those of sources included: that of real steps after a warmup step.

    Args:
        spec: the texts, the model, and the rows of the steps to measure.
        device: device type.
        precision: `fp32` or `bf16`.
        config: the task and the optimizer; see `measurable`.
        by_onednn: see `heddle.model.products`.
        compiled: whether to compile the objective.
        steady: on a CPU, the rate of one thread per second of its processor time, which other programs do not change.
        accumulate: micro-batches of a step.

    Ten steps are timed, or fewer if they take over `PATIENCE` seconds together. It is kept for this machine.
    """
    if not has_rows(config):
        spec = replace(spec, batch_tokens=spec.rows * spec.length)
    train = config.train
    task = make_task(config.task, spec)
    batch = task.batch(task.examples(0))
    steady = steady and device == "cpu"
    settings = train.to_dict()
    about = {
        "model": spec.model.to_dict(),
        "task": config.task.to_dict(),
        "train": {name: settings.get(name) for name in OF_A_STEP},
        "shapes": [list(each.shape) for each in (batch.tokens, batch.source) if each is not None],
        "form": batch.layout.form,
        "precision": precision,
        "onednn": list(by_onednn),
        "compiled": compiled,
        "accumulate": accumulate,
    }

    def seconds() -> float:
        with one_thread() if steady else nullcontext(), tf32_products(train.tf32):
            taken = _seconds(task, train, batch, device, precision, by_onednn, compiled, steady, accumulate)
        # Else the training's tensors come on top of these: a model and its optimizer refer to each other until they are collected.
        gc.collect()
        give_back()
        release_cached(torch.device(device))
        return taken

    return tokens_read(batch) / measured_once("training-step", about, seconds, device, steady)


def _seconds(
    task: Task,
    train: TrainConfig,
    batch: Batch,
    device: str,
    precision: str,
    by_onednn: tuple[ProductKind, ...],
    compiled: bool,
    steady: bool,
    accumulate: int,
) -> float:
    """Seconds of a training step, or, if `steady`, of this thread's processor time."""
    built = adapt(build(task.spec.model, device), train.lora)
    use_products(built, by_onednn)
    if train.checkpoint_activations:
        checkpoint_activations(built)
    optimizer = Optimizer(built, train, 1e-5, precision, by_onednn)
    objective = task.minimised(built, train)
    step = compile_objective(objective) if compiled else objective
    batch = batch.to(device)
    clock = time.thread_time if steady else time.perf_counter

    def taken(steps: int = 1) -> float:
        began = clock()
        with deterministic(train.deterministic):
            for _ in range(steps):
                share_cores()
                train_step(step, optimizer, batch, accumulate, 1.0, train.clip)
        finish(batch.tokens.device)
        return clock() - began

    # The first step warms up, and counts only if it is long enough for that not to matter.
    first = taken()
    if steady and first > PATIENCE:
        return first
    if torch.device(device).type != "cpu":  # it computes while the host goes on, so it is waited for once
        steps = min(STEPS, int(PATIENCE / taken()) + 1)
        return taken(steps) / steps
    times: list[float] = []
    while len(times) < STEPS and sum(times) <= PATIENCE:
        times.append(taken())
    return median(times)


def measurable(config: RunConfig, model: TransformerConfig) -> RunConfig:
    """The settings to measure a model with, which may be smaller than the run's: without groups or adapters that do not fit it."""
    train = config.train
    if not train.groups and train.lora is None:
        return config
    try:
        skeleton(model, train)
    except HeddleError:
        return config.model_copy(update={"train": train.model_copy(update={"groups": (), "lora": None})})
    return config


def faster_precision(spec: DataSpec, device: str, config: RunConfig) -> str:
    """The precision in which one block of the model, with its head, trains faster on this machine.

    On CUDA it is bf16 if the card has units for it; else fp32. A processor without units for bf16 multiplies more slowly in it, so
    there nothing is measured; nor is a precision tried whose matrix products are slower than those of fp32.
    """
    if torch.device(device).type == "cuda":
        return "bf16" if card_has_bf16(device) else "fp32"
    if (device == "cpu" and has_bf16() is False) or slowdown(DTYPES["bf16"], device) >= 1:
        return "fp32"
    one = spec.model.shallow()
    rows = max(1, min(spec.rows, 1024 // one.context))
    shallow = replace(spec, model=one, rows=rows)
    config = measurable(config, one)
    by_onednn = pick_products(config.train.products, one, rows * one.context, device, "fp32")
    fp32 = measure(shallow, device, "fp32", config, by_onednn, steady=True)
    bf16 = measure(shallow, device, "bf16", config, steady=True)
    return "bf16" if bf16 > GAIN * fp32 else "fp32"


def pick_products(
    library: str, model: TransformerConfig, tokens: int, device: str, precision: str
) -> tuple[ProductKind, ...]:
    """Which fp32 products on a CPU oneDNN should compute: the requested ones, or those measured to be faster.

    Raises:
        HeddleError: oneDNN is requested, but not available.
    """
    if library == "onednn" and not (device == "cpu" and has_onednn()):
        raise HeddleError("products = onednn: this build of torch has no oneDNN for this device; leave it out")
    # In bf16, torch already uses oneDNN.
    if device != "cpu" or precision != "fp32" or library == "torch":
        return ()
    return PRODUCT_KINDS if library == "onednn" else faster_products(build(model, "meta"), tokens)
