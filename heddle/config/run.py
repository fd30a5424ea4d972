"""A user's settings for a run: the text, the model, the task, and how it is trained.

The text under a field of `DataConfig`, `ModelChoice` and `TrainConfig` is its help in `heddle train --help`.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, PositiveInt, field_validator, model_validator

from heddle.checks import at_least, checked
from heddle.config.base import Config, merge, set_path
from heddle.config.layers import Rate
from heddle.config.model import Depth, TransformerConfig
from heddle.config.presets import preset, preset_training, sized
from heddle.config.tasks import NextTokenConfig, TaskConfig, TaskSettings
from heddle.errors import HeddleError

NonNegativeInt = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(gt=0, le=2**40)]  # so that step x batch, in tokens, stays far inside int64

ProductKind = Literal["forward", "inputs", "weights", "update"]
"""A kind of matrix product: a linear layer's output, the gradient of its inputs or of its weight, or Muon's update."""


TextLayout = Literal["concatenate", "documents", "pack"]
"""How a plain text is put into rows of tokens (see `heddle.train.rows`)."""


class DataConfig(Config):
    """The text to train on, and its tokenizer."""

    sources: tuple[str, ...] = ()
    """Files, folders and globs; defaults to the Python standard library's sources."""
    tokenizer: str = "bpe"
    """bytes, characters, words, bpe, wordpiece or unigram, trained on the text; or the path of a tokenizer.json or a run."""
    tokenizer_size: Annotated[int, Field(gt=0, le=2**20)] = 4096
    """Largest vocabulary of a tokenizer trained here; not used for bytes and characters."""
    # <|endoftext|> is added to these, except for the characters of a single document, which needs no separator.
    special_tokens: tuple[str, ...] = ()
    """Tokens that are one id each and never split, such as <start_translation>."""
    validation: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Share of the text that is held out for evaluation."""
    layout: TextLayout = "concatenate"  # (D-32)
    """Rows of a plain text. concatenate: windows of the whole text, across documents; documents: one document per row, only its
    first tokens; pack: several whole documents per row, which do not see each other."""

    @field_validator("sources", mode="before")
    @classmethod
    def _one_source(cls, sources: Any) -> Any:
        """`sources = "my.txt"` is a list of one."""
        return (sources,) if isinstance(sources, str) else sources


class ModelChoice(Config):
    """A model by name or by depth, and changes to it."""

    preset: str | None = None
    """A named model, see `heddle presets`; defaults to a modern small GPT with `depth` blocks."""
    start: str | None = None
    """A trained or imported run whose weights, tokenizer and special ids to start from, instead of a preset; also written from=."""
    depth: Depth | None = None
    """Number of blocks; defaults to the deepest model that sees enough text in the time given."""
    dim: PositiveInt | None = None
    """Width of the hidden vectors; defaults to the preset's, or 64 per block."""
    heads: PositiveInt | None = None
    """Attention heads; defaults to the preset's, or one per 64 channels."""
    kv_heads: PositiveInt | None = None
    """Key and value heads, each shared by several query heads; defaults to the preset's, or as many as heads."""
    context: PositiveInt | None = None
    """Tokens in a training window, the longest text the model sees; defaults to the preset's, or 256."""
    pad_vocab_to: PositiveInt | None = None  # (D-13)
    """Round the rows of the token table up to a multiple of this; defaults to the preset's, or 64."""
    dropout: Rate | dict[str, Any] | None = None  # (D-03, D-54)
    """One rate for embeddings, branches and attention; or a table of rate, style and mask. Defaults to the preset's, or 0."""
    encoder: dict[str, Any] = Field(default_factory=dict)
    """Any setting inside the encoder, such as encoder.block.norm.kind=rms; `heddle presets NAME` lists them."""
    decoder: dict[str, Any] = Field(default_factory=dict)
    """Any setting inside the decoder, in the same way."""
    head: dict[str, Any] = Field(default_factory=dict)
    """The output layer, such as head.tied=false."""
    initial: dict[str, Any] = Field(default_factory=dict)
    """Initial weights, such as initial.std=0.01."""

    @model_validator(mode="after")
    def _one_base(self) -> Self:
        if self.preset is not None and self.start is not None:
            raise ValueError(f"preset = {self.preset!r} and from = {self.start!r} both name a model; leave one out")
        return self

    @checked(vocab_size=at_least(1), depth=at_least(1), context=at_least(1))
    def resolve(
        self,
        vocab_size: int,
        depth: int,
        context: int,
        task: TaskSettings | None = None,
        start: TransformerConfig | None = None,
    ) -> TransformerConfig:
        """The whole model, for a tokenizer of `vocab_size` ids; `depth` and `context` are the values to use by default.

        Args:
            vocab_size: V.
            depth: number of blocks, if the choice has none.
            context: tokens in a window, if the choice has none.
            task: what the model will learn, which decides its head and, without a preset, its stack; None: the next token.
            start: the model of the run `start`, if there is one; its vocabulary size counts.

        Raises:
            HeddleError: the sizes are impossible.
        """
        task = NextTokenConfig() if task is None else task
        if start is not None:
            base, vocab_size = start, start.vocab_size
        elif self.preset is None:
            wanted = self.depth or depth
            base = sized(
                wanted,
                vocab_size=vocab_size,
                context=self.context or context,
                dim=self.dim,
                stacks=self._stacks(task),
            )
        else:
            base = preset(self.preset)
        data = base.to_dict()
        if base.head.kind != task.head:
            data["head"] = {"kind": task.head}
        tables = {"encoder": self.encoder, "decoder": self.decoder, "head": self.head, "initial": self.initial}
        deep = {name: table for name, table in tables.items() if table}
        for name in sorted({"encoder", "decoder"} & set(deep) - set(base.stacks())):
            raise HeddleError(f"this model has no {name}: leave out the settings of [model.{name}]")
        data = merge(data, deep)
        stack = base.last()[0]
        # Only attention has weights to drop; `heads` for a mixer without heads are refused below, not ignored.
        mixer = (f"{stack}.block.mixer.dropout",) if _has_attention(data, stack) else ()
        said: dict[str, Any] = {"vocab_size": vocab_size}
        places = {
            "dim": ("dim",),
            "context": ("context",),
            "depth": (f"{stack}.depth",),
            "heads": (f"{stack}.block.mixer.heads",),
            "kv_heads": (f"{stack}.block.mixer.kv_heads",),
            "pad_vocab_to": ("pad_vocab_to",),
            "rate": (f"{stack}.entry.dropout", f"{stack}.block.dropout", *mixer),
            "dropout": ("dropout",),
        }
        for key, value in {**dict(self), **self._dropout()}.items():
            for path in places.get(key, ()) if value is not None else ():
                set_path(said, path, value)
        return TransformerConfig.of(merge(merge(data, said), deep), where="model")

    def _stacks(self, task: TaskSettings) -> tuple[str, ...]:
        """The stacks of a model without a preset: the task's first family, or the first that has the stacks with settings."""
        said = {name for name in ("encoder", "decoder") if getattr(self, name)}
        return next((family for family in task.families if said <= set(family)), task.families[0])

    def _dropout(self) -> dict[str, Any]:
        """The rate and the convention, separately."""
        if not isinstance(self.dropout, dict):
            return {"rate": self.dropout, "dropout": None}
        how = dict(self.dropout)
        return {"rate": how.pop("rate", None), "dropout": how or None}


def _has_attention(data: Any, stack: str) -> bool:
    """Whether a stack's blocks in a table have attention; malformed tables are refused elsewhere."""
    for key in (stack, "block", "mixer"):
        data = data.get(key) if isinstance(data, dict) else None
    return isinstance(data, dict) and data.get("kind") == "attention"


class TrainConfig(Config):
    """How a model is trained. The defaults are those of `heddle train` without arguments."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Equal seeds, settings and texts give equal runs."""
    # Next to the seed: both say where the weights start, not what the model is.
    vectors: str | None = None
    """A file of word vectors, in word2vec's or GloVe's format, to start the token table from."""
    steps: Count | None = None
    """Optimizer steps; defaults to as many as fit into `minutes` on this machine."""
    minutes: Annotated[float, Field(gt=0, le=1e7)] = 3.0
    """How long to train, if `steps` is not given."""
    batch: Annotated[int, Field(gt=0, le=2**20)] | None = None
    """Sequences per step; defaults to batch_tokens divided by the context."""
    batch_tokens: Count | None = None  # (D-18)
    """Tokens per step, rounded to whole sequences; defaults to 4,096 on a CPU, 65,536 on CUDA."""
    accumulate: Annotated[int, Field(gt=0, le=2**20)] = 1
    """Split each step into this many smaller batches, which need less memory; the gradient is the same."""
    optimizer: Literal["muon", "adamw"] = "muon"
    """muon updates the blocks' matrices with Muon and the rest with AdamW; adamw updates everything with AdamW."""
    learning_rate: Positive | None = None
    """AdamW's highest learning rate; defaults to 6e-3 (3e-3 with optimizer=adamw) at width 256, less for wider models."""
    matrix_learning_rate: Positive = 0.02
    """Muon's highest learning rate."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    """Weight decay, of matrices and tables only."""
    betas: tuple[Rate, Rate] = (0.9, 0.99)
    """Decay rates of AdamW's averages of the gradient and its square."""
    schedule: Literal["cosine", "linear", "constant", "wsd", "inverse_sqrt"] = "linear"
    """How learning rates decay after the warmup; wsd: constant, then linear; inverse_sqrt: as one over the root of the step."""
    decay: Annotated[float, Field(gt=0, le=1)] = 0.2
    """Share of all steps over which schedule=wsd decays."""
    warmup: NonNegativeInt | None = None
    """Steps over which learning rates rise; defaults to 2 % of all steps."""
    final: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The final learning rate, as a share of the highest."""
    clip: Annotated[float, Field(ge=0)] = 1.0
    """Largest norm of the whole gradient; 0: no clipping."""
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """Precision to compute in; auto: the one that trains faster on this machine."""
    products: Literal["auto", "torch", "onednn"] = "auto"
    """Library that multiplies fp32 matrices on a CPU; auto: the one measured to be faster for each kind of product."""
    compile: Literal["auto", "on", "off"] = "auto"
    """torch.compile; auto: if the run is long and compiling was measured to be faster."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to compute; auto: cuda or mps if available, else cpu. The same as --device."""
    threads: PositiveInt | None = None
    """Number of threads; defaults to all cores."""
    evaluate_every: Count | None = None
    """Steps between evaluations; defaults to twenty evaluations per run."""
    save_every: Count | None = None
    """Steps between checkpoints; defaults to one with every evaluation."""
    keep: PositiveInt = 2
    """How many checkpoints to keep."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.batch is not None and self.batch_tokens is not None:
            both = f"batch = {self.batch} and batch_tokens = {self.batch_tokens}"
            raise ValueError(f"{both} both set the batch size; leave one out")
        if self.batch is not None and self.batch % self.accumulate:
            raise ValueError(
                f"batch = {self.batch} cannot be split into accumulate = {self.accumulate} equal micro-batches"
            )
        if self.compile == "on" and self.products == "onednn":
            raise ValueError("products = onednn has no effect with compile = on: leave one out")
        # Compared with the defaults, since a saved config states every field.
        if self.schedule != "wsd" and self.decay != TrainConfig.model_fields["decay"].default:
            raise ValueError(
                f"decay = {self.decay} has no effect with schedule = {self.schedule}: leave it out, or set wsd"
            )
        if self.schedule in ("constant", "inverse_sqrt") and self.final:
            raise ValueError(f"final = {self.final} has no effect with schedule = {self.schedule}: leave it out")
        return self


class RunConfig(Config):
    """A user's settings for a run."""

    data: DataConfig = DataConfig()
    model: ModelChoice = ModelChoice()
    task: TaskConfig = NextTokenConfig()
    train: TrainConfig = TrainConfig()

    @field_validator("task", mode="before")
    @classmethod
    def _by_kind(cls, task: Any) -> Any:
        """`task = "masked"` is that kind with its defaults; settings without a kind belong to the default task."""
        if isinstance(task, str):
            return {"kind": task}
        return {"kind": "next_token", **task} if isinstance(task, dict) else task

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

    @model_validator(mode="after")
    def _has_rows_of_text(self) -> Self:
        if self.data.layout != "concatenate" and self.task.fields != ("text",):
            raise ValueError(
                f"data.layout = {self.data.layout!r} is for tasks that read a plain text, and task.kind = {self.task.kind!r} "
                f"reads {' and '.join(self.task.fields)}: leave it out"
            )
        return self

    def with_preset_training(self) -> "RunConfig":
        """The same config, with the preset's training settings where the user gave none (L1-72, L1-73).

        Raises:
            HeddleError: there is no preset of that name.
        """
        train, said = self.train, {} if self.model.preset is None else preset_training(self.model.preset)
        if train.batch is not None:
            said.pop("batch_tokens", None)
        unsaid = (key for key in said if key not in train.model_fields_set or getattr(train, key) is None)
        return self.model_copy(update={"train": train.override({key: said[key] for key in unsaid})})

    def with_tuning(self) -> "RunConfig":
        """The same config; if it starts from a run, with training settings that keep what was learned where the user gave none.

        Muon's updates have a fixed size, however small the gradient is, so AdamW is the default.
        """
        if self.model.start is None or "optimizer" in self.train.model_fields_set:
            return self
        return self.model_copy(update={"train": self.train.override({"optimizer": "adamw"})})
