"""The config of a run directory, with the settings chosen by measurement on its machine."""

from typing import Any, Literal

from pydantic import PositiveInt, model_validator

from heddle.checks import short_repr
from heddle.config.base import Config
from heddle.config.data import DataConfig
from heddle.config.model import TransformerConfig
from heddle.config.parallel import ParallelConfig
from heddle.config.tasks import TaskConfig
from heddle.config.train import NonNegativeInt, Positive, ProductKind, TrainConfig


class StartedFrom(Config):
    """The run that a run started from; its weights are in the new run's `start.safetensors`."""

    run: str
    sha256: str  # of start.safetensors


class TakenVectors(Config):
    """Statistics of the file `train.vectors` when the run started; the vectors are in the run's `vectors.safetensors`."""

    matched: PositiveInt  # ids with a vector in the file
    vocabulary: PositiveInt  # ids in all
    unused: NonNegativeInt  # words in the file that are not a single token
    sha256: str  # of vectors.safetensors


class Chosen(Config):
    """Settings chosen by measurement when the run started; a resumed run reuses them."""

    device: Literal["cpu", "cuda", "mps"]
    precision: Literal["bf16", "fp32"]
    compile: bool
    threads: PositiveInt
    steps: PositiveInt
    batch: PositiveInt
    learning_rate: Positive
    warmup: NonNegativeInt
    evaluate_every: PositiveInt
    save_every: PositiveInt
    batch_tokens: PositiveInt | None = None  # for records: padded tokens per step, if a step is not `batch` records
    peak: Positive  # measured matmul rate in `precision`, FLOP/s
    tokens_per_second: Positive  # measured before the run
    onednn: tuple[ProductKind, ...] = ()  # fp32 products that oneDNN computes; torch computes the others
    vectors: TakenVectors | None = None  # from the file train.vectors
    start: StartedFrom | None = None  # the run whose weights it started from


VERSION = 2  # of run directories


class SavedConfig(Config):
    """The `config.json` of a run directory. An imported model has only the model and its origin."""

    version: Literal[2] = 2
    model: TransformerConfig
    data: DataConfig | None = None
    task: TaskConfig | None = None
    train: TrainConfig | None = None
    parallel: ParallelConfig = ParallelConfig()
    chosen: Chosen | None = None
    origin: str | None = None  # where imported weights came from

    @model_validator(mode="before")
    @classmethod
    def _this_version(cls, data: Any) -> Any:
        """Check the version first, so that the error is not about a missing key."""
        version = data.get("version", VERSION) if isinstance(data, dict) else VERSION
        if not isinstance(version, int) or version != VERSION:
            raise ValueError(
                f"run directory version {short_repr(version)}, but this heddle reads version {VERSION}: "
                "train it again, or export it with the version of heddle that wrote it"
            )
        return data
