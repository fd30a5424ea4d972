"""Predicts what a layout of a training takes, and proposes one that fits a device."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

from heddle.account.forward import kernels_by_device, prepared
from heddle.account.memory import saved_activations, states
from heddle.account.repeats import Numbers
from heddle.config.model import LanguageHeadConfig, TransformerConfig
from heddle.config.parallel import ParallelConfig
from heddle.config.train import TrainConfig
from heddle.display import displayed, size
from heddle.errors import HeddleError, pluralize
from heddle.parallel.mesh import check_layers, check_pipeline, count_readers, mesh_sizes
from heddle.runs.split import ROOM
from heddle.scale.devices import KERNEL, Device
from heddle.scale.measuring import gloo_rate, seconds_of_step
from heddle.scale.rehearsal import PHASES, Step, rehearse
from heddle.scale.schedules import most_at_once, order_of, waiting
from heddle.tasks.loss import chunk_rows

FILLED = 4  # micro-batches for each group of a pipeline, if the batch has as many: then it waits for a quarter of its computing
SHARE = 0.4  # of a device's peak that products reach in training: well-tuned programs publish 0.35 to 0.5


@dataclass(frozen=True)
class Request:
    """What is to be trained, and where.

    Attributes:
        model: the model.
        train: settings; `accumulate` above 1 and `checkpoint_activations` are kept, otherwise open.
        parallel: the mesh; what it leaves out is open.
        batch: rows of a step, of all devices.
        length: tokens of a row.
        precision: `fp32` or `bf16`.
        world: how many devices there are.
        device: which.
        share: of the device's peak that products reach.
    """

    model: TransformerConfig
    train: TrainConfig
    parallel: ParallelConfig
    batch: int
    length: int
    precision: str
    world: int
    device: Device
    share: float = SHARE


@displayed()
@dataclass(frozen=True)
class Prediction:
    """What one device holds, computes and sends in a step.

    Attributes:
        sizes: of the axes of the mesh.
        rows: rows of a micro-batch of one device.
        accumulate: micro-batches of a step.
        checkpointed: whether activations are checkpointed.
        precision: `fp32` or `bf16`.
        parameters: bytes of this device's part.
        copies: of working copies in another precision; 0 where the parts are gathered in it.
        gradients: of this part.
        state: of the optimizer for this part.
        average: of the moving average of this part.
        group: of the pipeline, from 0: the one whose devices hold most, which is the one described.
        gathered: most bytes of parameters gathered from others at a time.
        activations: saved for the backward pass by a micro-batch, or by all that are in flight in a pipeline.
        passes: how many forward passes these are.
        layers: blocks that save them in one pass.
        logits: of one chunk, in fp32.
        peak: most bytes at a time.
        memory: bytes of the device.
        flops: of a step; in a pipeline, of the group that computes most.
        sent: bytes that the device sends in a step, by kind of collective and by `link` or `network`; in a pipeline, one of the
            group that sends most.
        compute: seconds of the products, or of as many small kernels, if these take longer.
        kernels: how many these are; 0: products take longer.
        idle: seconds that the groups of a pipeline wait for micro-batches.
        communication: seconds of the collectives that computing can hide.
        exchange: seconds of those for which computing waits: within layers (tensor, context, expert) and between groups of a
            pipeline; on a CPU all, since the same cores compute and send.
        update: seconds of those of the update, which it cannot.
        tokens_per_second: of all devices.
    """

    sizes: Mapping[str, int]
    rows: int
    accumulate: int
    checkpointed: bool
    precision: str
    parameters: int
    copies: int
    gradients: int
    state: int
    average: int
    group: int
    gathered: int
    activations: int
    passes: int
    layers: int
    logits: int
    peak: int
    memory: int
    flops: int
    sent: Mapping[str, int]
    compute: float
    kernels: int
    idle: float
    communication: float
    exchange: float
    update: float
    tokens_per_second: float

    @property
    def seconds(self) -> float:
        """Of a step: what is computed hides what is sent meanwhile."""
        return max(self.compute + self.idle, self.communication) + self.exchange + self.update

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {**asdict(self), "seconds": self.seconds}


@dataclass(frozen=True)
class Rehearsed:
    """A step, and what it takes in the groups of a pipeline that differ: the first, the middle and the last."""

    step: Step
    groups: Mapping[int, Numbers]

    @property
    def most(self) -> int:
        """The group whose devices hold most."""
        return max(self.groups, key=lambda number: _peak(self.groups[number]))

    @property
    def peak(self) -> int:
        """Most bytes at a time of a device of that group."""
        return _peak(self.groups[self.most])

    def fits(self, device: Device) -> bool:
        """Whether it leaves room on the device."""
        return self.peak <= ROOM * device.memory


def try_layout(request: Request, train: TrainConfig, sizes: Mapping[str, int]) -> Rehearsed:
    """Rehearse a layout: a micro-batch has the rows that ranks and micro-batches leave.

    Raises:
        HeddleError: the groups or the adapters do not fit the model.
    """
    device, pipeline = request.device, sizes["pipeline"]
    rows = request.batch // (count_readers(sizes) * train.accumulate)
    step = Step(on_device(request), train, request.parallel, dict(sizes), rows, request.length, request.precision)
    ends_and_middle = sorted({0, pipeline // 2, pipeline - 1})
    return Rehearsed(
        step, {group: rehearse(step, device.node, device.name == "cpu", group) for group in ends_and_middle}
    )


def predict(request: Request, rehearsed: Rehearsed) -> Prediction:
    """What a layout takes, from its rehearsal."""
    device, length, precision = request.device, request.length, request.precision
    step, each, group = rehearsed.step, rehearsed.groups, rehearsed.most
    train, sizes, rows, numbers = step.train, step.sizes, step.rows, each[group]
    pipeline, schedule = sizes["pipeline"], request.parallel.schedule
    flops, kernels = (max(others[name] for others in each.values()) for name in ("flops", "kernels"))
    sent = max((_sent(others) for others in each.values()), key=lambda counts: sum(counts.values()))
    rates = _rates(device) if sent else {}
    seconds = dict.fromkeys(("", "layers", "stages", "update"), 0.0)
    for name, count in sent.items():
        *when, _, where = name.split("/")
        seconds[when[0] if when else ""] += count / rates[where]
    if device.bf16 is None or device.fp32 is None:
        compute = seconds_of_step(step)
        # The cores that compute also send: nothing is hidden.
        seconds["layers"] += seconds.pop("")
    else:
        products = flops / (request.share * (device.bf16 if precision == "bf16" else device.fp32))
        compute = max(products, KERNEL * kernels)
        kernels *= compute > products
    head = isinstance(request.model.head, LanguageHeadConfig)
    scores = -(-request.model.table_rows() // sizes["tensor"]) if head else 0
    chunk = chunk_rows(rows * length // sizes["context"], scores) if scores and group == pipeline - 1 else 0
    divided = sizes["tensor"] * sizes["context"] * pipeline > 1
    order = order_of(schedule, pipeline, train.accumulate) if pipeline > 1 else []
    passes = most_at_once(order[group]) if order else 1
    made = Prediction(
        sizes=dict(sizes),
        rows=rows,
        accumulate=train.accumulate,
        checkpointed=train.checkpoint_activations,
        precision=precision,
        group=group,
        activations=passes * numbers["saved"] if divided else activations(request, rows, train.checkpoint_activations),
        passes=passes,
        layers=sum(stack.depth for stack in request.model.stacks().values()) // step.stages,
        logits=4 * chunk * scores,
        peak=rehearsed.peak,
        memory=device.memory,
        flops=flops,
        sent=sent,
        compute=compute,
        kernels=kernels if device.bf16 is not None else 0,
        idle=compute * waiting(order, train.checkpoint_activations) if order else 0.0,
        communication=seconds.get("", 0.0),
        exchange=seconds["layers"] + seconds["stages"],
        update=seconds["update"],
        tokens_per_second=0.0,
        **{name: numbers[name] for name in ("parameters", "copies", "gradients", "state", "average", "gathered")},
    )
    return replace(made, tokens_per_second=request.batch * length / made.seconds)


def _peak(numbers: Mapping[str, int]) -> int:
    return max(numbers[f"peak/{phase}"] for phase in PHASES)


def _sent(numbers: Mapping[str, int]) -> dict[str, int]:
    return {name.removeprefix("sent/"): count for name, count in numbers.items() if name.startswith("sent/")}


def _rates(device: Device) -> dict[str, float]:
    """Bytes/s within a machine and between machines."""
    link = gloo_rate() if device.link is None else device.link
    return {"link": link, "network": link if device.network is None else device.network}


def on_device(request: Request) -> TransformerConfig:
    """The model with the attention kernel that the device takes."""
    if request.device.name == "cpu":
        return prepared(request.model, request.length, None)
    return prepared(request.model, request.length, kernels_by_device(request.model, request.length).get("cuda"))


def activations(request: Request, rows: int, checkpointed: bool) -> int:
    """Bytes that a micro-batch of so many rows saves for the backward pass."""
    kernel = (
        None if request.device.name == "cpu" else kernels_by_device(request.model, request.length).get("cuda", "none")
    )
    saved = saved_activations(request.model, rows, request.length, request.precision, kernel, checkpointed=checkpointed)
    return saved.bytes


def propose(request: Request) -> Prediction:
    """The first layout that fits: without checkpointing first, then on few shards first, then in few micro-batches first.

    Raises:
        HeddleError: none does, or the mesh or the batch does not divide among the devices.
    """
    meshes, pipeline = list(_meshes(request)), request.parallel.pipeline
    several = (
        request.train if request.train.accumulate > 1 else request.train.model_copy(update={"accumulate": pipeline})
    )
    check_pipeline(request.parallel, request.model, several, request.train.compile == "on")
    check_layers(request.parallel, request.model)
    check_batch(request)
    tried: Rehearsed | None = None
    for checkpointed in (False, True):
        if request.train.checkpoint_activations and not checkpointed:
            continue
        for sizes in meshes:
            if not _may_fit(request, sizes, checkpointed):
                continue
            best = _fewest(request, sizes, checkpointed)
            if best.fits(request.device):
                return predict(request, best)
            tried = best if tried is None or best.peak < tried.peak else tried
    raise HeddleError(_too_large(request, tried, meshes[-1]))


def check_batch(request: Request) -> None:
    """Refuse a batch that the devices do not divide.

    Raises:
        HeddleError: they do not.
    """
    readers, accumulate = count_readers(mesh_sizes(request.parallel, request.world)), request.train.accumulate
    pipeline = request.parallel.pipeline
    parts = readers * (accumulate if accumulate > 1 else pipeline)
    if request.batch % parts:
        near = max(1, round(request.batch / parts)) * parts
        several = f" of accumulate = {accumulate} micro-batches" if accumulate > 1 else ""
        several = several or (f" of {pipeline} micro-batches or more" if pipeline > 1 else "")
        raise HeddleError(
            f"batch = {request.batch} cannot be divided among {pluralize(readers, 'pipeline' if pipeline > 1 else 'device')}"
            f"{several}: choose a multiple of {parts}, such as {near}"
        )


def _meshes(request: Request) -> Iterator[dict[str, int]]:
    """The meshes to try: that of the settings, or every way to divide the devices, from few shards to many."""
    sizes = mesh_sizes(request.parallel, request.world)
    if {"replicate", "shard"} & request.parallel.model_fields_set:
        yield sizes
        return
    both = sizes["replicate"] * sizes["shard"]
    for shard in range(1, both + 1):
        if both % shard == 0 and shard * sizes["context"] % sizes["expert"] == 0:
            yield {**sizes, "replicate": both // shard, "shard": shard}


def _may_fit(request: Request, sizes: Mapping[str, int], checkpointed: bool) -> bool:
    """Whether the parts and the activations of one row could fit, which is known without a rehearsal."""
    one = _row_of(request.model, request.length, request.precision, request.device.name == "cpu", checkpointed)
    state = states(request.model, request.train.optimizer, "fp32").total
    several = sizes["tensor"] * sizes["context"] * sizes["pipeline"]
    return (state / sizes["shard"] + one) / several <= ROOM * request.device.memory


@cache
def _row_of(model: TransformerConfig, length: int, precision: str, on_cpu: bool, checkpointed: bool) -> int:
    kernel = None if on_cpu else kernels_by_device(model, length).get("cuda", "none")
    return saved_activations(model, 1, length, precision, kernel, checkpointed=checkpointed).bytes


def _fewest(request: Request, sizes: Mapping[str, int], checkpointed: bool) -> Rehearsed:
    """The rehearsal with the fewest micro-batches that fit, or, if none do, with the most."""
    rows = request.batch // count_readers(sizes)
    counts = [count for count in range(1, rows + 1) if rows % count == 0 and count % sizes["pipeline"] == 0]
    if sizes["pipeline"] > 1:
        counts = [count for count in counts if count >= FILLED * sizes["pipeline"]] or counts[-1:]
    if request.train.accumulate > 1:
        counts = [request.train.accumulate]

    @cache
    def of(count: int) -> Rehearsed:
        changes = {"accumulate": count, "checkpoint_activations": checkpointed}
        return try_layout(request, request.train.model_copy(update=changes), sizes)

    def fits(count: int) -> bool:
        return of(count).fits(request.device)

    few, many = of(counts[0]), of(counts[-1])
    if fits(counts[0]) or not fits(counts[-1]):
        return few if fits(counts[0]) else min((few, many), key=lambda each: each.peak)
    return of(counts[bisect_left(counts, True, key=fits)])


def _too_large(request: Request, tried: Rehearsed | None, sizes: Mapping[str, int]) -> str:
    """What does not fit, in a line."""
    there = f"{ROOM:.0%} of {size(request.device.memory)} of {request.device.name}"
    parts = sizes["shard"] * sizes["context"] * sizes["tensor"] * sizes["pipeline"]
    shards = pluralize(parts, "shard")
    state = states(request.model, request.train.optimizer, "fp32").total // parts
    if state > ROOM * request.device.memory:
        return (
            f"too large: weights, gradients and {request.train.optimizer}'s state take {size(state)} on each of {shards}, "
            f"more than {there}: use more devices, a smaller model, or adapters"
        )
    row = activations(request, 1, checkpointed=True)
    if tried is None:
        return (
            f"too large: one row of {request.length:,} tokens saves {size(row)}, checkpointed, beside {size(state)} of weights and "
            f"state on each of {shards}, more than {there}: use a smaller context or more devices"
        )
    needed = f"the smallest layout needs {size(tried.peak)}"
    return f"too large: {needed}, more than {there}: use more devices, a smaller batch or context"
