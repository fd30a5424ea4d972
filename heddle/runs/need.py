"""How much memory a training needs, and whether it is there."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from heddle.account.machine import available_memory, total_memory
from heddle.account.memory import PROCESS, training_bytes, training_state
from heddle.config.model import TransformerConfig
from heddle.config.parallel import ParallelConfig
from heddle.config.train import TrainConfig
from heddle.data.record_store import Store
from heddle.errors import HeddleError
from heddle.model.precision import DTYPES
from heddle.parallel.mesh import count_readers, mesh_sizes
from heddle.tasks.task import Task
from heddle.train.length import step_size
from heddle.train.runtime import resident

LARGE = 1 << 20  # tokens; reading a larger micro-batch takes longer than estimating its memory


@dataclass(frozen=True)
class Share:
    """How devices share a step.

    Attributes:
        devices: how many there are.
        readers: groups of them that read rows of their own.
        parts: how many divide the weights, the gradients and the optimizer's state.
    """

    devices: int = 1
    readers: int = 1
    parts: int = 1

    @classmethod
    def of(cls, config: ParallelConfig, devices: int) -> "Share":
        """That of a mesh.

        Raises:
            HeddleError: the axes do not fit the number of devices.
        """
        sizes = mesh_sizes(config, devices)
        return cls(devices, count_readers(sizes), devices // sizes["replicate"])


ALONE = Share()


@dataclass(frozen=True)
class Need:
    """What the largest micro-batches of a task look like: they decide how much memory any model needs for it.

    Attributes:
        shapes: their rows and tokens of a row.
        targets: share of a step's tokens that are scored.
        share: how devices share a step.
    """

    shapes: tuple[tuple[int, int], ...]
    targets: float
    share: Share = ALONE

    @classmethod
    def of(cls, task: Task, train: TrainConfig, share: Share = ALONE) -> "Need":
        """Those of a task whose steps are divided among devices, and split as the settings say."""
        shapes = _shapes(task, train, share)
        size = step_size(task)
        decoded = size.tokens / len(task.spec.model.stacks())  # of an encoder-decoder, as many are read as a source
        return cls(shapes, min(1.0, 1.1 * size.targets / decoded), share)

    def bytes(self, model: TransformerConfig, precision: str, train: TrainConfig, device: str) -> int:
        """What a training holds for its tensors, at most."""
        kind = "cuda" if torch.device(device).type == "cuda" else "cpu"
        return max(
            training_bytes(model, rows, precision, train, length, self.targets, kind, self.share.parts)
            for rows, length in self.shapes
        )


def _shapes(task: Task, train: TrainConfig, share: Share) -> tuple[tuple[int, int], ...]:
    return tuple((-(-rows // (train.accumulate * share.readers)), length) for rows, length in task.shapes())


def check_rows(task: Task, train: TrainConfig, device: str, share: Share = ALONE) -> None:
    """Refuse rows that do not fit even without targets, before a step is read: reading a step of that size may fill the memory."""
    rows = Need(_shapes(task, train, share), targets=0.0, share=share)
    if max(count * length for count, length in rows.shapes) >= LARGE:
        precisions = DTYPES if train.precision == "auto" else (train.precision,)
        check_memory(
            (rows.bytes(task.spec.model, name, train, device) for name in precisions),
            states(task.spec.model, precisions, train, share),
            device,
        )


def held_by_process(device: str, store: Store, tokens: int) -> int:
    """What a process holds beside the tensors of its training: on an accelerator nothing, since these are apart.

    Args:
        device: device type.
        store: the tokens; what was read of them stays mapped.
        tokens: how many are read.
    """
    return 0 if device != "cpu" else PROCESS + 2 * min(tokens, store.tokens("train"))


def states(
    model: TransformerConfig, precisions: Iterable[str], train: TrainConfig, share: Share = ALONE
) -> Iterator[int]:
    """For each precision, the bytes of weights, gradients and optimizer state on one device, whatever the rows are."""
    return (training_state(model, name, train)["total"] // share.parts for name in precisions)


def check_memory(needs: Iterable[int], states: Iterable[int], device: str, split: bool = False) -> None:
    """Refuse a run of which every variant needs more memory than is free. `needs` are computed up to the first that fits.

    Args:
        needs: bytes of each variant.
        states: bytes of weights, gradients and optimizer state of each; computed for a refusal alone.
        device: device type.
        split: whether the variants have the smallest micro-batches and checkpointed activations.
    """
    there, tried = available_memory(device), list[int]()
    for needed in needs:
        if needed <= there:
            return
        tried.append(needed)
    total, least, free = total_memory(device), min(tried), there / 2**30
    reason = f"training needs about {least / 2**30:.1f} GiB, but only {free:.1f} GiB are free"
    advice = "use a larger accumulate, checkpoint_activations=true, a smaller batch, context or model"
    if split:
        advice = "micro-batches are as small as they can be, so use a smaller context or model, another optimizer, or adapters"
    if (state := min(states)) > there:
        least, alone = state, state / 2**30
        reason = (
            f"the weights, gradients and optimizer state alone need {alone:.1f} GiB, but only {free:.1f} GiB are free"
        )
        advice = "use a smaller model, adapters, or another optimizer"
    if least + (resident() if device == "cpu" else 0) < 0.9 * total:
        advice = f"other programs hold the rest of {total / 2**30:.1f} GiB: end them, or {advice}"
    raise HeddleError(f"{reason}: {advice}")
