"""What a training reports: one event type for any number of readers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from heddle.display import displayed


@displayed(".values, .speed")
@dataclass(frozen=True)
class Report:
    """The numbers of one step or of one evaluation.

    Attributes:
        step: optimizer steps done.
        steps: optimizer steps in all.
        values: written to `metrics.jsonl`: functions of config and data alone, so that two equal runs write equal files.
        speed: values that depend on the machine: tokens per second, seconds of the step and those that it waited for its batch,
            bytes of memory in use, share of the measured peak; of some steps of several processes, the seconds of collectives.
        sample: text that the model generated, or None.
        loads: for each layer with experts, how many tokens of the step chose each of them; written to `metrics.jsonl` too.
    """

    step: int
    steps: int
    values: Mapping[str, float]
    speed: Mapping[str, float]
    sample: str | None = None
    loads: Mapping[str, Sequence[int]] = field(default_factory=dict)
