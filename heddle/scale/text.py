"""A prediction in words."""

from collections.abc import Iterator

from heddle.display import duration
from heddle.display import size as readable
from heddle.errors import pluralize
from heddle.parallel.mesh import count_processes
from heddle.scale.layout import Prediction, Request
from heddle.scale.measuring import Measured

OPEN = ("replicate", "shard")  # the axes that a plan chooses


def describe(request: Request, prediction: Prediction, label: str) -> str:
    """The layout, what each device holds and sends, and how long a step takes."""
    return "\n".join(_lines(request, prediction, label))


def _lines(request: Request, made: Prediction, label: str) -> Iterator[str]:
    train, device = request.train, request.device
    pipeline, schedule = request.parallel.pipeline, request.parallel.schedule
    world = count_processes(made.sizes)
    mesh = " x ".join(f"{name} {count}" for name, count in made.sizes.items() if count > 1 or name in OPEN)
    mesh += " (sequence)" if request.parallel.sequence else ""
    mesh += f" ({schedule})" if pipeline > 1 else ""
    yield f"{label}: {request.batch} rows of {request.length:,} tokens, {made.precision}, {train.optimizer}"
    yield f"{pluralize(world, 'device')} ({device.name}): {mesh}"
    yield f"accumulate={made.accumulate} checkpoint_activations={str(made.checkpointed).lower()}: " + (
        f"{pluralize(made.rows, 'row')} at a time on each"
    )
    yield (
        "each device holds"
        if pipeline == 1
        else f"each device of group {made.group + 1} of {pipeline} holds, which is the most"
    )
    rows = {
        "parameters": made.parameters,
        "working copies": made.copies,
        "gradients": made.gradients,
        f"{train.optimizer}'s state": made.state,
        "moving average": made.average,
        "gathered blocks": made.gathered,
        "activations": made.activations,
        "a chunk of logits": made.logits,
    }
    for name, count in rows.items():
        if count:
            each = f", about {_size(count / made.passes / made.layers)} a layer" if name == "activations" else ""
            times = f" of {made.passes} passes" if name == "activations" and made.passes > 1 else ""
            yield f"  {_size(count):>9}  {name}{times}{each}"
    yield f"  {_size(made.peak):>9}  at most at a time, of {_size(made.memory)}: it fits"
    if made.sent:
        yield "each device sends in a step" + (", at most" if pipeline > 1 else "")
        for name, count in sorted(made.sent.items(), key=lambda pair: -pair[1]):
            kind, where = name.split("/")[-2:]
            kind += " within layers" if name.startswith("layers/") else ""
            kind = "activations and their gradients" if name.startswith("stages/") else kind
            yield f"  {_size(count):>9}  {kind}, {'within its machine' if where == 'link' else 'between machines'}"
    hidden = "hidden by" if made.communication <= made.compute + made.idle else "longer than"
    yield (
        f"a step takes about {_seconds(made.seconds)}: {_seconds(made.compute)} of computing"
        + (f" ({made.kernels:,} small kernels)" if made.kernels else "")
        + (f", {_seconds(made.idle)} of waiting" if made.idle else "")
        + (f"; {_seconds(made.communication)} of sending are {hidden} it" if made.communication else "")
        + (f", {_seconds(made.exchange)} more of sending" if made.exchange else "")
        + (f", {_seconds(made.update)} more for the update" if made.update else "")
    )
    if made.idle:
        yield (
            f"it waits for {made.idle / made.compute:.0%} of the time that it computes: {schedule} hands "
            f"{made.accumulate} micro-batches through {pipeline} groups"
        )
    yield f"{made.tokens_per_second:,.0f} tokens/s, {made.tokens_per_second / world:,.0f} on each device"


def compare(prediction: Prediction, measured: Measured) -> str:
    """Predicted beside measured."""
    bytes_ratio = prediction.peak / measured.peak - 1
    rate_ratio = prediction.tokens_per_second / measured.tokens_per_second - 1
    return (
        f"{'':10}  {'predicted':>14}  {'measured':>14}  difference\n"
        f"{'bytes':10}  {prediction.peak:>14,}  {measured.peak:>14,}  {bytes_ratio:+.1%}\n"
        f"{'tokens/s':10}  {prediction.tokens_per_second:>14,.0f}  {measured.tokens_per_second:>14,.0f}  {rate_ratio:+.1%}"
    )


def _seconds(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.2f} s" if seconds < 10 else duration(seconds)


def _size(count: float) -> str:
    return readable(count) if count >= 2**20 else f"{count / 2**10:.0f} KiB"
