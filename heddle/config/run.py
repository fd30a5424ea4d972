"""What a run is, as data: the text, the model, what it learns and how, and what was chosen by measurement on its machine.

The text under a field of `DataConfig`, `ModelChoice`, a task and `TrainConfig` is its help in `heddle train --help`.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, PositiveInt, field_validator, model_validator

from heddle.checks import at_least, checked
from heddle.config.base import Config, merge, set_path
from heddle.config.layers import Rate
from heddle.config.model import Depth, TransformerConfig
from heddle.config.presets import preset, preset_training, sized
from heddle.errors import HeddleError

NonNegativeInt = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(gt=0, le=2**40)]  # so that step x batch, in tokens, stays far inside int64


class DataConfig(Config):
    """Which text, cut how."""

    sources: tuple[str, ...] = ()
    """Files, folders and globs; none: the Python standard library's own sources."""
    tokenizer: str = "bpe"
    """bytes, characters, words, bpe, wordpiece or unigram, trained on the text; or the path of a tokenizer.json or a run."""
    tokenizer_size: Annotated[int, Field(gt=0, le=2**20)] = 4096
    """Most ids of a tokenizer trained here; bytes and characters have as many as they have."""
    # <|endoftext|> is there beside them, except among the characters of a single document, which has no other to be
    # told from.
    special_tokens: tuple[str, ...] = ()
    """Tokens that are one id each and never cut, such as <start_translation>."""
    validation: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Share of the text that is held out for evaluation."""

    @field_validator("sources", mode="before")
    @classmethod
    def _one_source(cls, sources: Any) -> Any:
        """`sources = "my.txt"` is a list of one."""
        return (sources,) if isinstance(sources, str) else sources


class ModelChoice(Config):
    """A model by its name or by one dial, and whatever differs from it."""

    preset: str | None = None
    """A named model, see `heddle presets`; none: a modern small GPT of `depth` blocks."""
    depth: Depth | None = None
    """Blocks; none: the deepest that sees enough text in the time there is."""
    dim: PositiveInt | None = None
    """Width of the hidden vectors; none: the preset's, or 64 for each block."""
    heads: PositiveInt | None = None
    """Attention heads; none: the preset's, or one for 64 channels."""
    kv_heads: PositiveInt | None = None
    """Heads of keys and values, where several queries share one; none: the preset's, or as many as heads."""
    context: PositiveInt | None = None
    """Tokens in a training window, the longest text the model sees; none: the preset's, or 256."""
    pad_vocab_to: PositiveInt | None = None  # (D-13)
    """The token table's rows are rounded up to a multiple of this; none: the preset's, or 64."""
    dropout: Rate | dict[str, Any] | None = None  # (D-03, D-54)
    """One rate for embeddings, branches and attention; or a table of rate, style and mask. None: the preset's, or 0."""
    decoder: dict[str, Any] = Field(default_factory=dict)
    """Anything deeper, as decoder.block.norm.kind=rms; `heddle presets NAME` shows what there is."""
    head: dict[str, Any] = Field(default_factory=dict)
    """The output layer, as head.tied=false."""
    initial: dict[str, Any] = Field(default_factory=dict)
    """Initial weights, as initial.std=0.01."""

    @checked(vocab_size=at_least(1), depth=at_least(1), context=at_least(1))
    def resolve(self, vocab_size: int, depth: int, context: int) -> TransformerConfig:
        """The whole model, for a tokenizer of `vocab_size` ids; `depth` and `context` are what to take where none is said.

        Raises:
            HeddleError: the sizes are impossible.
        """
        if self.preset is None:
            wanted = self.depth or depth
            base = sized(wanted, vocab_size=vocab_size, context=self.context or context, dim=self.dim)
        else:
            base = preset(self.preset)
        data = base.to_dict()
        tables = {"decoder": self.decoder, "head": self.head, "initial": self.initial}
        deep = {name: table for name, table in tables.items() if table}
        data = merge(data, deep)
        # Attention alone has weights to drop; `heads` for a mixer that has none are refused below, not left out.
        mixer = ("decoder.block.mixer.dropout",) if _pays_attention(data) else ()
        said: dict[str, Any] = {"vocab_size": vocab_size}
        places = {
            "dim": ("dim",),
            "context": ("context",),
            "depth": ("decoder.depth",),
            "heads": ("decoder.block.mixer.heads",),
            "kv_heads": ("decoder.block.mixer.kv_heads",),
            "pad_vocab_to": ("pad_vocab_to",),
            "rate": ("decoder.entry.dropout", "decoder.block.dropout", *mixer),
            "dropout": ("dropout",),
        }
        for key, value in {**dict(self), **self._dropout()}.items():
            for path in places.get(key, ()) if value is not None else ():
                if path.startswith("decoder.") and base.decoder is None:
                    raise HeddleError(f"preset = {self.preset!r} has no decoder, and {key} = {value!r} is of one")
                set_path(said, path, value)
        return TransformerConfig.of(merge(merge(data, said), deep), where="model")

    def _dropout(self) -> dict[str, Any]:
        """The rate, and how dropout is done, apart."""
        if not isinstance(self.dropout, dict):
            return {"rate": self.dropout, "dropout": None}
        how = dict(self.dropout)
        return {"rate": how.pop("rate", None), "dropout": how or None}


def _pays_attention(data: Any) -> bool:
    """Whether the decoder's blocks in plain data have attention; what is malformed is refused elsewhere."""
    for key in ("decoder", "block", "mixer"):
        data = data.get(key) if isinstance(data, dict) else None
    return isinstance(data, dict) and data.get("kind") == "attention"


class NextTokenConfig(Config):
    """What is learned: to predict each token from those before it (L1-24)."""

    kind: Literal["next_token"] = "next_token"
    """What is learned: next_token, each token from those before it."""


TaskConfig = NextTokenConfig  # with a second task: the union of both, tagged by `kind`


class TrainConfig(Config):
    """How a model is trained. The defaults are those of `heddle train` without arguments."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Equal seeds, settings and texts give equal runs."""
    # It is here, beside the seed, since both say where the weights begin and neither what the model is.
    vectors: str | None = None
    """A file of word vectors, word2vec's or GloVe's, that the token table begins with."""
    steps: Count | None = None
    """Optimizer steps; none: as many as fit into `minutes` on this machine."""
    minutes: Annotated[float, Field(gt=0, le=1e7)] = 3.0
    """How long to train, where `steps` are not given."""
    batch: Annotated[int, Field(gt=0, le=2**20)] | None = None
    """Sequences in a step; none: by batch_tokens."""
    batch_tokens: Count | None = None  # (D-18)
    """Tokens in a step, to the nearest whole number of sequences; none: 4,096 on a CPU, 65,536 on CUDA."""
    accumulate: Annotated[int, Field(gt=0, le=2**20)] = 1
    """Cut a step into so many smaller batches, which need less memory; the gradient is the same."""
    optimizer: Literal["muon", "adamw"] = "muon"
    """muon updates the blocks' matrices and AdamW the rest; adamw updates everything."""
    learning_rate: Positive | None = None
    """The highest rate of AdamW's part; none: 6e-3 at width 256, with adamw 3e-3, falling with the width."""
    matrix_learning_rate: Positive = 0.02
    """The highest rate of Muon's part."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    """On matrices only."""
    betas: tuple[Rate, Rate] = (0.9, 0.99)
    """AdamW's averages of the gradient and of its square."""
    schedule: Literal["cosine", "linear", "constant"] = "linear"
    """How learning rates fall after the warmup."""
    warmup: NonNegativeInt | None = None
    """Steps in which learning rates rise; none: 2 % of all."""
    final: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The last learning rate, as a share of the highest."""
    clip: Annotated[float, Field(ge=0)] = 1.0
    """Largest norm of the whole gradient; 0: no clipping."""
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """What to compute in; auto: what trains faster on this machine."""
    products: Literal["auto", "torch", "onednn"] = "auto"
    """Who multiplies fp32 matrices on a CPU; auto: for each kind of product, what was measured to be faster."""
    compile: Literal["auto", "on", "off"] = "auto"
    """torch.compile; auto: where the run is long and it was measured to be faster."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to compute; auto: cuda or mps where there is one. The same as --device."""
    threads: PositiveInt | None = None
    """Threads to compute with; none: all cores."""
    evaluate_every: Count | None = None
    """Steps between two evaluations; none: twenty evaluations in a run."""
    save_every: Count | None = None
    """Steps between two checkpoints; none: one with every evaluation."""
    keep: PositiveInt = 2
    """How many checkpoints stay."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.batch is not None and self.batch_tokens is not None:
            raise ValueError(f"batch = {self.batch} and batch_tokens = {self.batch_tokens} say the same; leave one out")
        if self.batch is not None and self.batch % self.accumulate:
            raise ValueError(
                f"batch = {self.batch} cannot be cut into accumulate = {self.accumulate} equal micro-batches"
            )
        if self.compile == "on" and self.products == "onednn":
            raise ValueError("products = onednn has no effect with compile = on: leave one out")
        return self


class RunConfig(Config):
    """What a user says before a run."""

    data: DataConfig = DataConfig()
    model: ModelChoice = ModelChoice()
    task: TaskConfig = NextTokenConfig()
    train: TrainConfig = TrainConfig()

    @model_validator(mode="before")
    @classmethod
    def _in_their_sections(cls, data: Any) -> Any:
        """A key of a section must be written there: only the command line may leave the section out."""
        sections = {"data": DataConfig, "model": ModelChoice, "train": TrainConfig}
        for key in data if isinstance(data, dict) else ():
            section = next((name for name, kind in sections.items() if key in kind.model_fields), None)
            if key not in cls.model_fields and section is not None:
                raise ValueError(f"{key} belongs in [{section}]: write it under that heading, or as {section}.{key}")
        return data

    def with_preset_training(self) -> "RunConfig":
        """The same, with what its preset says of training wherever the user says nothing (L1-72, L1-73).

        Raises:
            HeddleError: there is no preset of that name.
        """
        train, said = self.train, {} if self.model.preset is None else preset_training(self.model.preset)
        if train.batch is not None:
            said.pop("batch_tokens", None)
        unsaid = (key for key in said if key not in train.model_fields_set or getattr(train, key) is None)
        return self.model_copy(update={"train": train.override({key: said[key] for key in unsaid})})


class TakenVectors(Config):
    """What the file of `train.vectors` gave when the run began; the rows themselves stand in the run's `vectors.safetensors`."""

    found: PositiveInt  # ids that got their vector from the file
    vocabulary: PositiveInt  # ids there are
    unused: NonNegativeInt  # words of the file that are no single token
    sha256: str  # of vectors.safetensors


Way = Literal["forward", "inputs", "weights", "update"]
"""A product: of a linear layer for its output, for the gradient of its inputs or of its weight; or of Muon for the update."""


class Chosen(Config):
    """What was decided by measurement when the run began; a resumed run reads it and never measures again."""

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
    peak: Positive  # measured matmul rate in `precision`, FLOP/s
    tokens_per_second: Positive  # measured before the run
    onednn: tuple[Way, ...] = ()  # fp32 products that oneDNN computes; torch computes the others
    vectors: TakenVectors | None = None  # what was found in the file of train.vectors


VERSION = 2  # of run directories


class SavedConfig(Config):
    """The `config.json` of a run directory. An imported model has the model and its origin."""

    version: Literal[2] = 2
    model: TransformerConfig
    data: DataConfig | None = None
    task: TaskConfig | None = None
    train: TrainConfig | None = None
    chosen: Chosen | None = None
    origin: str | None = None  # where imported weights came from

    @model_validator(mode="before")
    @classmethod
    def _this_version(cls, data: Any) -> Any:
        """A directory that another heddle wrote is refused as such, not for some key that it lacks."""
        if isinstance(data, dict) and data.get("version", VERSION) != VERSION:
            raise ValueError(
                f"version = {data['version']!r} of run directories, and this heddle reads {VERSION}: "
                "train it again, or export it with the version of heddle that made it"
            )
        return data
