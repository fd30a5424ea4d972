"""A user's settings for a run: data, model, task, training, and how processes divide it.

The text under a field of `DataConfig`, `ModelChoice`, `TrainConfig` and `ParallelConfig` is its help in `heddle train --help`.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, PositiveInt, field_validator, model_validator

from heddle.checks import at_least, checked
from heddle.config.base import Config, merge, set_path
from heddle.config.cut import cut
from heddle.config.data import DataConfig
from heddle.config.model import Depth, TransformerConfig
from heddle.config.parallel import ParallelConfig
from heddle.config.presets import preset, preset_training, sized
from heddle.config.sizes import Rate
from heddle.config.tasks import NextTokenConfig, TaskConfig, TaskSettings
from heddle.config.train import OPTIMIZERS_OF, TrainConfig
from heddle.errors import HeddleError

Share = Annotated[float, Field(ge=0, le=1)]


class ModelChoice(Config):
    """A model by name or by depth, and changes to it."""

    preset: str | None = None
    """A named model, see `heddle presets`; defaults to a modern small GPT with `depth` blocks."""
    start: str | None = None
    """A trained or imported run whose weights, tokenizer and special ids to start from, instead of a preset; also written from=."""
    family: Literal["encoder", "decoder", "encoder-decoder"] | None = None
    """The stacks of a model without a preset; defaults to the best ones for the task."""
    depth: Depth | None = None
    """Blocks of each stack; defaults to the deepest model that sees enough text in the time given. With from=, the first blocks of
    that run, by default all."""
    dim: PositiveInt | None = None
    """Width of the hidden vectors; defaults to the preset's, or 64 per block."""
    heads: PositiveInt | None = None
    """Attention heads; defaults to the preset's, or one per 64 channels."""
    kv_heads: PositiveInt | None = None
    """Key and value heads, each shared by several query heads; defaults to the preset's, or as many as heads."""
    context: PositiveInt | None = None
    """Tokens in a training window, the longest text the model sees; defaults to the preset's, or 256. With from=, defaults to that
    run's; learned positions can be cut, others also be extended."""
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
    def _single_base(self) -> Self:
        if self.preset is not None and self.start is not None:
            raise ValueError(f"preset = {self.preset!r} and from = {self.start!r} both name a model; leave one out")
        if self.family is not None and (self.preset, self.start) != (None, None):
            raise ValueError(
                f"family = {self.family!r} is for a model without a preset, which has its own; leave it out"
            )
        return self

    @checked(vocab_size=at_least(1), depth=at_least(1), context=at_least(1))
    def resolve(
        self,
        vocab_size: int,
        depth: int,
        context: int,
        task: TaskSettings | None = None,
        start: TransformerConfig | None = None,
        classes: tuple[str, ...] = (),
    ) -> TransformerConfig:
        """The model's config, for a tokenizer of `vocab_size` ids; `depth` and `context` are defaults.

        Args:
            vocab_size: V.
            depth: number of blocks, unless `self.depth` is set.
            context: tokens in a window, unless `self.context` is set.
            task: determines the head and, without a preset, the stacks; None: next-token prediction.
            start: the model of the run `start`, if there is one; its vocabulary size counts.
            classes: names of the classes in the data, for a task that has classes. Before the data is read, without names, the
                model has two, which is enough to refuse impossible sizes.

        Raises:
            HeddleError: the sizes are impossible.
        """
        task = NextTokenConfig() if task is None else task
        if start is not None:
            base, vocab_size = self.cut(start), start.vocab_size
        elif self.preset is None:
            blocks = self.depth or depth
            base = sized(
                blocks,
                vocab_size=vocab_size,
                context=self.context or context,
                dim=self.dim,
                stacks=self._stacks(task),
            )
        else:
            base = preset(self.preset)
        data = base.to_dict()
        data["head"] = task.head_table(data["head"], base.last()[0], classes)
        data["chat"] = None if (chat := task.chat(base.chat)) is None else chat.to_dict()
        if tuple(base.stacks()) == ("decoder",) and data["decoder"]["prefix"] not in task.prefix:
            data["decoder"]["prefix"] = task.prefix[0]
        tables = {"encoder": self.encoder, "decoder": self.decoder, "head": self.head, "initial": self.initial}
        tables_set = {name: table for name, table in tables.items() if table}
        for name in sorted({"encoder", "decoder"} & set(tables_set) - set(base.stacks())):
            raise HeddleError(f"this model has no {name}: leave out the settings of [model.{name}]")
        data = merge(data, tables_set)
        stacks = tuple(base.stacks())
        mixers = tuple(f"{stack}.block.mixer" for stack in stacks)
        crosses = tuple(f"{stack}.block.cross" for stack in stacks if _has_attention(data, f"{stack}.block.cross"))
        # Only attention has weights to drop; `heads` for a mixer without heads are refused below, not ignored.
        with_dropout = (*(path for path in mixers if _has_attention(data, path)), *crosses)
        chosen: dict[str, Any] = {"vocab_size": vocab_size}
        paths = {
            "dim": ("dim",),
            "context": ("context",),
            "depth": tuple(f"{stack}.depth" for stack in stacks),
            "heads": tuple(f"{path}.heads" for path in (*mixers, *crosses)),
            "kv_heads": tuple(f"{path}.kv_heads" for path in (*mixers, *crosses)),
            "pad_vocab_to": ("pad_vocab_to",),
            "rate": (
                *(f"{stack}.{part}.dropout" for stack in stacks for part in ("entry", "block")),
                *(f"{path}.dropout" for path in with_dropout),
            ),
            "dropout": ("dropout",),
        }
        for key, value in {**dict(self), **self._dropout()}.items():
            for path in paths.get(key, ()) if value is not None else ():
                set_path(chosen, path, value)
        config = TransformerConfig.of(merge(merge(data, chosen), tables_set), where="model")
        if tuple(config.stacks()) == ("decoder",) and config.last()[1].prefix not in task.prefix:
            raise HeddleError(_without_effect(config.last()[1].prefix, task))
        return config

    def cut(self, start: TransformerConfig) -> TransformerConfig:
        """The model to start from, cut to `depth` layers and `context` positions.

        Raises:
            HeddleError: the model has fewer.
        """
        depths = {name: getattr(self, name).get("depth", self.depth) for name in start.stacks()}
        return cut(start, depths, self.context, f"from = {self.start!r}")

    def _stacks(self, task: TaskSettings) -> tuple[str, ...]:
        """The stacks of a model without a preset: those of `family`, or of the task's first family with all stacks that are set."""
        configured = {name for name in ("encoder", "decoder") if getattr(self, name)}
        families = [family for family in task.families if self.family in (None, "-".join(family))]
        if not families:
            suitable = " or ".join("-".join(family) for family in task.families)
            raise HeddleError(f"family = {self.family!r} does not suit the task, which needs {suitable}")
        return next((family for family in families if configured <= set(family)), families[0])

    def _dropout(self) -> dict[str, Any]:
        """The rate and the convention, separately."""
        if not isinstance(self.dropout, dict):
            return {"rate": self.dropout, "dropout": None}
        convention = dict(self.dropout)
        return {"rate": convention.pop("rate", None), "dropout": convention or None}


def _without_effect(prefix: bool, task: TaskSettings) -> str:
    """The error for a `prefix` setting that has no effect on the task."""
    kind = type(task).model_fields["kind"].default
    if prefix:
        return f"decoder.prefix = true: the task {kind!r} reads no prefix; leave it out, or set task=prefix_lm"
    return f"decoder.prefix = false: the task {kind!r} trains a decoder that reads a prefix; leave it out"


def _has_attention(data: Any, path: str) -> bool:
    """Whether the part of a table at a dotted path is attention; malformed tables raise elsewhere."""
    for key in path.split("."):
        data = data.get(key) if isinstance(data, dict) else None
    return isinstance(data, dict) and data.get("kind") == "attention"


class RunConfig(Config):
    """A user's settings for a run."""

    data: DataConfig = DataConfig()
    model: ModelChoice = ModelChoice()
    task: TaskConfig = NextTokenConfig()
    train: TrainConfig = TrainConfig()
    parallel: ParallelConfig = ParallelConfig()

    @field_validator("task", mode="before")
    @classmethod
    def _by_kind(cls, task: Any) -> Any:
        """`task = "masked"` is that kind with its defaults; settings without a kind belong to the default task."""
        if isinstance(task, str):
            return {"kind": task}
        return {"kind": "next_token", **task} if isinstance(task, dict) else task

    @model_validator(mode="after")
    def _with_effect(self) -> Self:
        """Refuse settings that the task ignores."""
        for name in self.task.without:
            if getattr(self.train, name) != TrainConfig.model_fields[name].default:
                value = getattr(self.train, name)
                raise ValueError(f"{name} = {value} has no effect with task.kind = {self.task.kind!r}: leave it out")
        return self

    @model_validator(mode="before")
    @classmethod
    def _in_their_sections(cls, data: Any) -> Any:
        """Refuse a section's key at the top level, which only the command line allows."""
        sections = {"data": DataConfig, "model": ModelChoice, "train": TrainConfig, "parallel": ParallelConfig}
        for key in data if isinstance(data, dict) else ():
            section = next((name for name, kind in sections.items() if key in kind.model_fields), None)
            if key not in cls.model_fields and section is not None:
                raise ValueError(f"{key} belongs in [{section}]: write it under that heading, or as {section}.{key}")
        return data

    @model_validator(mode="after")
    def _has_rows_of_text(self) -> Self:
        stacks = () if self.model.family is None else self.model.family.split("-")
        if (problem := self.task.refuses_layout(self.data.layout, stacks)) is not None:
            raise ValueError(problem)
        return self

    @model_validator(mode="after")
    def _columns_are_read(self) -> Self:
        for field, column in self.data.columns().items():
            if field not in (*self.task.fields, *self.task.optional):
                reads = " and ".join(self.task.fields)
                raise ValueError(
                    f"{field} = {column!r} names a column that task.kind = {self.task.kind!r} does not read; it reads {reads}"
                )
        if self.data.unlabelled and "label" not in self.task.fields:
            raise ValueError(
                f"unlabelled = {self.data.unlabelled[0]} has no effect with task.kind = {self.task.kind!r}, which reads no "
                "labels: leave it out"
            )
        if self.data.separator != DataConfig.model_fields["separator"].default and self.task.labels != "several":
            raise ValueError(
                f"separator = {self.data.separator!r} has no effect with task.kind = {self.task.kind!r}, whose records have one "
                "label: leave it out"
            )
        return self

    def with_preset_training(self) -> "RunConfig":
        """The config with the preset's training settings where the user set none (L1-72, L1-73).

        Raises:
            HeddleError: the preset does not exist.
        """
        train, settings = self.train, {} if self.model.preset is None else preset_training(self.model.preset)
        if train.batch is not None:
            settings.pop("batch_tokens", None)
        settings = {
            key: settings[key] for key in settings if train.optimizer in OPTIMIZERS_OF.get(key, (train.optimizer,))
        }
        missing = (key for key in settings if key not in train.model_fields_set or getattr(train, key) is None)
        return self.model_copy(update={"train": train.override({key: settings[key] for key in missing})})

    def with_tuning(self) -> "RunConfig":
        """The config with defaults for fine-tuning if it starts from a run.

        The default optimizer is AdamW: Muon's updates have a fixed size, however small the gradient, and would undo the training.
        """
        if self.model.start is None or "optimizer" in self.train.model_fields_set:
            return self
        return self.model_copy(update={"train": self.train.override({"optimizer": "adamw"})})
