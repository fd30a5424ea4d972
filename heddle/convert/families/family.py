"""A published family, and how near it is to a model."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from heddle.config.embedding import EmbeddingHeadConfig
from heddle.config.layers import AttentionConfig, GatedConfig, LayerNormConfig, MLPConfig, RMSNormConfig
from heddle.config.model import BlockConfig, LanguageHeadConfig, TransformerConfig
from heddle.convert.families import layers
from heddle.convert.families.difference import differences, distinct, resolved
from heddle.convert.fields import TRAINING, FieldTable, without
from heddle.convert.mapping import Names, TensorRow
from heddle.errors import HeddleError
from heddle.weights.start import is_head

# The ends of class names, which stand for their heads.
HEADED = re.compile(r"(LMHeadModel|For[A-Z]\w+|MTModel|Model)$")

# Settings that matter only in training; an export without them computes the same.
TRAINING_ONLY = re.compile(r"(.+\.)?dropout|dropout\.mask|.+\.ffn\.(balance|z)")

Tensors = Mapping[str, Tensor]


def unchanged(config: TransformerConfig, tensors: Tensors) -> tuple[TransformerConfig, Tensors]:
    """The identity."""
    return config, tensors


@dataclass(frozen=True)
class FamilyOptions:
    """The kinds of layers that a family's `from_config` can read, with the default first."""

    norm: LayerNormConfig | RMSNormConfig
    ffns: tuple[Any, ...]
    stacks: tuple[str, ...] = ("decoder",)
    relatives: tuple[Any, ...] = (None,)
    head: Any = field(default_factory=LanguageHeadConfig)
    mixer: Any = field(default_factory=lambda: AttentionConfig(heads=1))


@dataclass(frozen=True)
class Family:
    """A published family.

    Attributes:
        name: its `model_type`.
        architecture: the Hugging Face class for this family with this head.
        fields: the two-way table of its config.json.
        table: the two-way table of tensors.
        names: variants of names in its files.
        also: other classes whose files contain these weights and others.
        layers: the start of the names in layer `{i}`, for each stack.
        options: the kinds of layers in it.
        ids: the default special ids of the Hugging Face class.
        rewrite: rewrites a model into an equivalent one that this family can express, before export.
        start_from_zero: rewrites an encoder-decoder into an equivalent one whose decoder starts with a new last id, which has a
            zero vector and is never predicted, instead of this id. None: the family does not need this.
        attention: the attention implementation of the Hugging Face class for the check of an export.
        simplify: rewrites an imported model into an equivalent simpler one.
        bare: the class without a head, if its name does not end in `Model`.
        headless: whether its files contain no head, since sentence-transformers stores it (`body`).
        of_head: the fields of its config.json that only matter for training its head.
        own_head: the names of a head and of its table, if files with different values for both have an untied head even where the
            config ties them. None: such a file is refused.
    """

    name: str
    architecture: str
    fields: FieldTable
    table: tuple[TensorRow, ...]
    names: Names
    layers: Mapping[str, str]
    options: FamilyOptions
    also: tuple[str, ...] = ()
    ids: Mapping[str, int] = field(default_factory=dict)
    attention: str = "eager"  # it supports every family's options, such as caps
    rewrite: Callable[[TransformerConfig, Tensors], tuple[TransformerConfig, Tensors]] = unchanged
    simplify: Callable[[TransformerConfig, Tensors], tuple[TransformerConfig, Tensors]] = unchanged
    start_from_zero: Callable[[TransformerConfig, Tensors, int], tuple[TransformerConfig, Tensors]] | None = None
    own_head: tuple[str, str] | None = None
    bare: str = ""
    headless: bool = False
    of_head: tuple[str, ...] = ()

    def to_config(self, published: Mapping[str, Any]) -> TransformerConfig:
        """Its config.json as a heddle config.

        Raises:
            HeddleError: it has a setting that heddle does not support, or its sizes are impossible.
        """
        return self.fields.to_config(published, self.architecture, self.also)

    def from_config(self, config: TransformerConfig) -> dict[str, Any]:
        """The nearest config.json for a heddle config whose layers are of its kinds; `reasons` says whether it is exact.

        Raises:
            HeddleError: the family has no value for a setting.
        """
        return self.fields.from_config(config)

    @property
    def body_class(self) -> str:
        """The class of the bare model, without a head."""
        return self.bare or HEADED.sub("Model", self.architecture)

    def body(self) -> "Family":
        """The family without its head: the class of the bare model, which can read files with any head."""
        heads = {row.published: row for row in self.table if all(map(is_head, row.heddle))}
        copies = {name: others for name, others in (self.names.copies or {}).items() if name not in heads}
        return replace(
            self,
            architecture=self.body_class,
            table=tuple(row for row in self.table if row.published not in heads),
            names=replace(self.names, ignorable=(*self.names.ignorable, *heads), copies=copies),
            own_head=None,
            headless=True,
        )

    def holds_head(self, config: TransformerConfig) -> bool:
        """Whether the family can store the head of a model. If not, it is an embedding head, stored by sentence-transformers."""
        head, own = config.head, self.options.head
        if not isinstance(head, EmbeddingHeadConfig):
            return True
        return isinstance(own, EmbeddingHeadConfig) and own.computes(config.dim) == head.computes(config.dim)

    def with_own_head(self, config: TransformerConfig, weights: Tensors) -> TransformerConfig:
        """The config, with an untied head if the weights contain one that differs from its table (`own_head`)."""
        names = self.own_head if getattr(config.head, "tied", False) else None
        if names is None or not all(name in weights for name in names):
            return config
        head, table = (weights[name].float() for name in names)
        return config if torch.equal(head, table) else untied(config)

    def usual_head(self, config: TransformerConfig) -> Any:
        """The head that its class gives a model by default.

        Raises:
            HeddleError: the model differs too much from this family.
        """
        with_head = nearest(config.model_copy(update={"head": self.options.head}), self.options)
        return self.to_config(without(self.from_config(with_head), *self.of_head)).head

    def published_config(self, config: TransformerConfig) -> dict[str, Any]:
        """The family's nearest config.json, for a config with layers of any kind."""
        return self.from_config(nearest(config, self.options))

    def nearest_fields(self, config: TransformerConfig) -> tuple[dict[str, Any], list[str]]:
        """The nearest config.json of any config with its stacks, and the problems with settings for which it has no value."""
        return self.fields.nearest(nearest(config, self.options))

    def reasons(self, config: TransformerConfig) -> tuple[list[str], list[str]]:
        """Why the family cannot express `config` (empty if it can), and the lost settings that matter only in training.

        The reasons are the settings that a round trip through the family's config changes. The head of an embedding model is not
        compared, since sentence-transformers stores it.
        """
        has = set(config.stacks())
        if has != set(self.options.stacks):
            return [f"the model has {_named(has)}, but {self.architecture} has {_named(self.options.stacks)}"], []
        changed, problems = self.changed_settings(config)
        lines = {path: f"{path} is {value}, {self.architecture} has {published}" for path, value, published in changed}
        lost = [path for path in lines if TRAINING_ONLY.fullmatch(path)]
        against = [*problems, *(text for path, text in lines.items() if path not in lost)]
        return against, [lines[path] for path in lost]

    def changed_settings(self, config: TransformerConfig) -> tuple[list[tuple[str, str, str]], list[str]]:
        """(setting, value in `config`, value in the family) for each setting that the round trip of `config` changes.

        The second result has the problems with settings for which the family has no value. If the family cannot have these sizes,
        only kinds of layers are compared.
        """
        config, _ = self.rewrite(config, {})
        fields, problems = self.nearest_fields(config)
        try:
            back = self.to_config(fields)
        except HeddleError as error:
            back = nearest(config, self.options)
            problems = [*problems, *error.problems]
        if self.own_head is not None and not getattr(config.head, "tied", True):
            back = untied(back)
        changed = differences(resolved(config), resolved(back))
        if isinstance(config.head, EmbeddingHeadConfig):  # sentence-transformers stores any embedding head
            changed = [each for each in changed if not each[0].startswith("head.")]
        return changed, problems


def untied(config: TransformerConfig) -> TransformerConfig:
    """The config with an untied head."""
    return config.override({"head.tied": False})


def _named(stacks: Any) -> str:
    return " and ".join(f"{'an' if name == 'encoder' else 'a'} {name}" for name in sorted(stacks, reverse=True))


def nearest(config: TransformerConfig, options: FamilyOptions) -> TransformerConfig:
    """The config with every layer of an unsupported kind replaced by the default kind of `options`.

    A family can then read its fields from any config. The comparison of the round trip finds the replaced layers.
    """
    changes: dict[str, Any] = {}
    for name, stack in config.stacks().items():
        by_block = {id(block): _nearest_block(block, options) for block in distinct(stack.blocks)}
        blocks = tuple(by_block[id(block)] for block in stack.blocks)
        # `blocks` is cached next to the fields, and the copy would keep the old value.
        changes[name] = stack.model_copy(update={"block": blocks[0], "blocks": blocks})
    if not isinstance(config.head, type(options.head)):
        changes["head"] = options.head
    return config.model_copy(update=changes)


def _nearest_block(block: BlockConfig, options: FamilyOptions) -> BlockConfig:
    mixer = block.mixer if isinstance(block.mixer, type(options.mixer)) else options.mixer
    if not any(isinstance(mixer.relative, type(each)) for each in options.relatives):
        mixer = mixer.model_copy(update={"relative": options.relatives[0]})
    ffn: Any = block.ffn
    if not any(isinstance(ffn, type(each)) for each in options.ffns):
        shared = {key: getattr(ffn, key) for key in ("hidden", "activation", "bias", "dropout") if hasattr(ffn, key)}
        ffn = options.ffns[0].model_copy(update=shared) if isinstance(ffn, MLPConfig | GatedConfig) else options.ffns[0]
    norm = block.norm
    if not isinstance(norm, type(options.norm)):
        norm = options.norm.model_copy(update={"eps": getattr(norm, "eps", options.norm.eps)})
    return block.model_copy(update={"mixer": mixer, "ffn": ffn, "norm": norm})


def left_out(published: Mapping[str, Any]) -> list[str]:
    """Notes on the fields of a config.json that have no effect in heddle."""
    lines = [
        f"{name} = {published[name]!r} in config.json matters only in training: left out"
        for name in TRAINING
        if published.get(name)
    ]
    single = (
        "SequenceClassification" in str(published.get("architectures")) and len(published.get("id2label") or ()) == 1
    )
    if single and published.get("problem_type") is None:
        lines.append(
            "one label and no problem_type in config.json: read as regression, as Hugging Face transformers trains it; "
            "its pipeline shows sigmoid(score)"
        )
    if published.get("alibi"):
        lines.append("alibi: Hugging Face transformers rounds slope · position to bf16, and heddle does not")
    if published.get("use_sliding_window") is False and layers.LOCAL in (published.get("layer_types") or ()):
        lines.append(
            f"layer_types in config.json names {layers.LOCAL}, but use_sliding_window is false: no layer has a window"
        )
    return lines
