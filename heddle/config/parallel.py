"""How several processes divide a training among them: `[parallel]`."""

from typing import Literal, Self

from pydantic import PositiveInt, model_validator

from heddle.config.base import Config

Schedule = Literal["1f1b", "interleaved", "zero-bubble"]


class ParallelConfig(Config):
    """The axes of the mesh of processes that torchrun starts; their product is the number of processes.

    A layout changes where numbers are computed and kept, not what is computed: the order of the data and the batch of a step are
    the same for every layout.
    """

    pipeline: PositiveInt = 1
    """Groups of processes that each have some of the layers, and hand micro-batches on from one to the next (pipeline parallel)."""
    schedule: Schedule = "1f1b"
    """In which order the groups of `pipeline` compute micro-batches: one forward, one backward; with two stages of layers in each
    group, interleaved; or with the gradients of weights computed where a group would wait. On the command line, write
    parallel.schedule."""
    replicate: PositiveInt = 1
    """Groups of processes that each hold a whole model between them, and that average their gradients."""
    shard: PositiveInt | Literal["auto"] = "auto"
    """Processes that divide each parameter, its gradient and its optimizer state among them (FSDP); auto: all that are left."""
    context: PositiveInt = 1
    """Processes that divide the tokens of each row among them, and gather each other's keys and values (context parallel)."""
    tensor: PositiveInt = 1
    """Processes that divide the heads of attention, the hidden units of feed-forwards and the vocabulary (tensor parallel)."""
    expert: PositiveInt = 1
    """Processes among those of `shard` and `context` that divide the experts of mixtures among them (expert parallel)."""
    sequence: bool = False
    """Whether the processes of `tensor` also divide the tokens between these layers (sequence parallel)."""

    @model_validator(mode="after")
    def _with_effect(self) -> Self:
        if self.sequence and self.tensor == 1:
            raise ValueError(
                "sequence = true divides tokens among the processes of tensor: set tensor above 1, or leave it out"
            )
        if self.schedule != "1f1b" and self.pipeline == 1:
            raise ValueError(
                f"schedule = {self.schedule!r} orders the stages of a pipeline: set pipeline above 1, or leave it out"
            )
        for name in ("context", "expert"):
            if self.pipeline > 1 and (size := getattr(self, name)) > 1:
                raise ValueError(
                    f"pipeline = {self.pipeline} cannot be combined with {name} = {size}: use it with replicate, shard and tensor"
                )
        return self
