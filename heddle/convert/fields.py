"""Two-way tables of the fields of a config.json: one row per field, and both directions follow from it.

Reading is strict: a field is understood or refused.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from heddle.config.base import set_path
from heddle.config.entry import EntryConfig
from heddle.config.layers import AttentionConfig, GatedConfig, LatentConfig, MLPConfig
from heddle.config.model import StackConfig, TransformerConfig
from heddle.errors import HeddleError

Fields = Mapping[str, Any]
Data = dict[str, Any]

# Hugging Face's names of activations and heddle's. Export writes the first name of each heddle activation.
ACTIVATIONS = {
    "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh", "gelu_accurate": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh", "gelu": "gelu", "gelu_python": "gelu", "relu": "relu", "relu2": "relu_squared",
    "silu": "silu", "swish": "silu", "quick_gelu": "quick_gelu", "relu6": "relu6", "leaky_relu": "leaky_relu",
    "mish": "mish", "sigmoid": "sigmoid", "tanh": "tanh", "linear": "linear",
}  # fmt: skip

# Fields that do not change what the model computes: bookkeeping, outputs to return, defaults for generation.
HARMLESS = {
    "model_type", "architectures", "transformers_version", "_name_or_path", "_commit_hash", "dtype", "torch_dtype",
    "use_cache", "use_bfloat16", "torchscript", "tf_legacy_loss", "return_dict", "output_hidden_states",
    "output_attentions", "output_past", "output_scores", "return_dict_in_generate", "gradient_checkpointing",
    "chunk_size_feed_forward", "pretraining_tp", "attn_implementation", "_attn_implementation",
    "_attn_implementation_autoset", "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id",
    "decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id", "tokenizer_class", "prefix",
    "task_specific_params", "finetuning_task", "problem_type", "id2label", "label2id", "num_labels", "is_decoder",
    "tie_encoder_decoder", "max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups",
    "diversity_penalty", "temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty",
    "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "num_return_sequences", "remove_invalid_values", "n_ctx",
    "reorder_and_upcast_attn", "summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels",
    "summary_first_dropout", "classifier_dropout", "output_router_logits", "router_aux_loss_coef",
}  # fmt: skip

# Fields that matter only in training and that heddle does not support. Import notes that they are left out.
TRAINING = ("router_jitter_noise", "encoder_layerdrop", "decoder_layerdrop", "layerdrop")

# Fields that change what the model computes, with the only value that heddle supports.
FIXED: dict[str, Any] = {"is_encoder_decoder": False, "add_cross_attention": False, "pruned_heads": {}}


def heddle_activation(name: Any, field: str) -> str:
    """heddle's name for a Hugging Face activation."""
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise HeddleError(f"{field} = {name!r} in config.json: heddle supports {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def published_activation(name: str) -> str:
    """Hugging Face's name for a heddle activation."""
    for published, activation in ACTIVATIONS.items():
        if activation == name:
            return published
    raise HeddleError(f"Hugging Face transformers has no activation {name!r}")


def one_block(config: TransformerConfig, stack: str = "decoder") -> Any:
    """The first block of a stack, for families whose layers are all equal."""
    return config.stacks()[stack].blocks[0]


def without(fields: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """The fields without `names`."""
    return {name: value for name, value in fields.items() if name not in names}


@dataclass(frozen=True)
class Change:
    """How a field's value becomes a setting's (given its name, for errors), and the way back. By default, both are equal."""

    to_heddle: Callable[[Any, str], Any] = lambda value, name: value
    to_published: Callable[[Any], Any] = lambda value: value


SAME = Change()
ACTIVATION = Change(heddle_activation, published_activation)
BIAS = Change(to_published=bool)  # of an attention, in all projections or none
QKV = Change(lambda biased, name: ["q", "k", "v"] if biased else False, bool)  # the same without the output's


def switch(on: str, off: str) -> Change:
    """A field that is true for `on` and false for `off`."""
    return Change(lambda value, name: on if value else off, lambda value: value != off)


@dataclass(frozen=True)
class FieldRow:
    """One field of config.json, the settings of heddle's config with its value, and the change between them.

    Attributes:
        published: the name of the field.
        default: its value in the Hugging Face class if config.json leaves it out.
        heddle: dotted paths of settings, or one path. Export reads the first one, in the first layer.
        change: how the values differ.
    """

    published: str
    default: Any
    heddle: str | tuple[str, ...]
    change: Change = SAME

    @property
    def defaults(self) -> Fields:
        """The field with its default."""
        return {self.published: self.default}

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the settings."""
        return (self.heddle,) if isinstance(self.heddle, str) else self.heddle

    def read(self, f: Fields, data: Data) -> None:
        """Put the settings into the data of a heddle config."""
        value = self.change.to_heddle(f[self.published], self.published)
        for path in self.paths:
            set_path(data, path, value)

    def write(self, config: TransformerConfig) -> Data:
        """The field for a config."""
        return {self.published: self.change.to_published(setting(config, self.paths[0]))}


@dataclass(frozen=True)
class Part:
    """Fields that are read and written together, such as windows and the layers that have one.

    Attributes:
        defaults: the fields, with the values that the Hugging Face class takes if config.json leaves them out.
        read: puts their settings into the data of a heddle config, which has those of all rows.
        write: the fields for a config.
    """

    defaults: Fields
    read: Callable[[Fields, Data], None] = lambda f, data: None
    write: Callable[[TransformerConfig], Data] = lambda config: {}


def written(**fields: Any) -> Part:
    """Fields that are always written, with these values."""
    return Part({}, write=lambda config: fields)


def derived(rows: tuple[FieldRow, ...], lacking: tuple[str, ...] = (), **changes: Any) -> tuple[FieldRow, ...]:
    """The rows of a related family.

    Args:
        rows: the rows of the other family.
        lacking: the fields that this one does not have.
        changes: by name of a field, another default or another row.
    """
    unknown = {*lacking, *changes} - {row.published for row in rows}
    assert not unknown, unknown

    def changed(row: FieldRow) -> FieldRow:
        change = changes.get(row.published, row.default)
        return change if isinstance(change, FieldRow) else replace(row, default=change)

    return tuple(changed(row) for row in rows if row.published not in lacking)


def both(*paths: str) -> tuple[str, ...]:
    """The paths in the encoder, then those in the decoder."""
    return tuple(f"{stack}.{path}" for stack in ("encoder", "decoder") for path in paths)


def scale_of(mixer: Any, dim: int) -> float:
    """The factor on an attention's scores, as a number."""
    scale: float = {"head_dim": mixer.width(dim) ** -0.5, "dim": dim**-0.5}.get(mixer.scale, mixer.scale)
    return scale


# Settings whose values follow from others if they are left open.
OPEN: dict[tuple[type, str], Callable[[Any, int], Any]] = {
    (AttentionConfig, "kv_heads"): lambda mixer, dim: mixer.key_heads(),
    (AttentionConfig, "head_dim"): lambda mixer, dim: mixer.width(dim),
    (AttentionConfig, "bias"): lambda mixer, dim: mixer.biased(),
    (AttentionConfig, "scale"): scale_of,
    (LatentConfig, "value_dim"): lambda mixer, dim: mixer.value_dim or mixer.head_dim,
    (MLPConfig, "hidden"): lambda ffn, dim: ffn.width(dim),
    (GatedConfig, "hidden"): lambda ffn, dim: ffn.width(dim),
    (EntryConfig, "token_dim"): lambda entry, dim: entry.tokens_dim(dim),
}


def setting(config: TransformerConfig, path: str) -> Any:
    """The value of a setting by its dotted path, in which `block` is the first layer.

    Open settings have their final values. A kind of layer that lacks the setting gives None.
    """
    *parents, name = path.split(".")
    owner: Any = config
    for parent in parents:
        owner = owner.blocks[0] if isinstance(owner, StackConfig) and parent == "block" else getattr(owner, parent)
    value = OPEN.get((type(owner), name))
    return getattr(owner, name, None) if value is None else value(owner, config.dim)


def no_more(published: Fields) -> tuple[str, ...]:
    """No further idle fields."""
    return ()


@dataclass(frozen=True)
class FieldTable:
    """The two-way table of a family's config.json.

    Attributes:
        title: the file's name in errors.
        constants: settings of every model, by dotted path, unless a field changes them.
        rows: its fields.
        fixed: fields with the only value that heddle supports.
        idle: fields that do not change what this family computes.
        more_idle: the same, for a given config.json.
    """

    title: str
    constants: Fields
    rows: tuple[FieldRow | Part, ...]
    fixed: Fields = field(default_factory=dict)
    idle: tuple[str, ...] = ()
    more_idle: Callable[[Fields], tuple[str, ...]] = no_more

    def to_config(self, published: Fields, architecture: str, also: tuple[str, ...]) -> TransformerConfig:
        """A config.json as a heddle config.

        Args:
            published: the config.json. Its class may be `architecture`, the same without a head, or one of `also`.
            architecture: the Hugging Face class.
            also: other classes.

        Raises:
            HeddleError: it has a setting that heddle does not support, or its sizes are impossible.
        """
        check_architecture(published, architecture, also)
        f = self.read(published)
        data: Data = {}
        for path, value in self.constants.items():
            set_path(data, path, value)
        # A part needs the settings of all rows, and may change them.
        for row in sorted(self.rows, key=lambda row: isinstance(row, Part)):
            row.read(f, data)
        return TransformerConfig.of(data, where=f"{self.title} in heddle's terms")

    def from_config(self, config: TransformerConfig) -> Data:
        """The nearest config.json.

        Raises:
            HeddleError: the family has no value for some settings.
        """
        fields, problems = self.nearest(config)
        if problems:
            raise HeddleError(*problems)
        return fields

    def nearest(self, config: TransformerConfig) -> tuple[Data, list[str]]:
        """The nearest config.json, and the problems with settings for which the family has no value: it has their defaults."""
        fields: Data = {}
        problems: list[str] = []
        for row in self.rows:
            try:
                fields |= row.write(config)
            except HeddleError as error:
                fields |= row.defaults
                problems += error.problems
        return fields, problems

    def read(self, published: Fields) -> Data:
        """The fields of the table, from a config.json or by default.

        Raises:
            HeddleError: a field is unknown, or has a value for which heddle would compute something else.
        """
        defaults = {name: default for row in self.rows for name, default in row.defaults.items()}
        only = {**FIXED, **self.fixed}
        known = {*defaults, *only, *HARMLESS, *TRAINING, *self.idle, *self.more_idle(published)}
        for name, value in published.items():
            if name in only and value is not None and value != only[name]:
                raise HeddleError(f"{name} = {value!r} in config.json: heddle supports only {only[name]!r}")
            if name not in known and value not in (None, [], {}):
                raise HeddleError(f"{name} = {value!r} in config.json: heddle does not know what this field changes")
        return {name: published.get(name, default) for name, default in defaults.items()}


def check_architecture(published: Fields, architecture: str, also: tuple[str, ...]) -> None:
    """Refuse a config.json of another class than `architecture`, the same without a head, or one of `also`."""
    ends = ("LMHeadModel", "ForCausalLM", "ForConditionalGeneration", "MTModel", "Model")
    end = next((end for end in ends if architecture.endswith(end)), "")
    bases = {architecture, architecture.removesuffix(end) + "Model", *also} if end else {architecture, *also}
    architectures = published.get("architectures") or []
    if not isinstance(architectures, list) or any(name not in bases for name in architectures):
        raise HeddleError(f"architectures = {architectures} in config.json: heddle reads {architecture}")


def own_code(prefix: str) -> Callable[[Fields], tuple[str, ...]]:
    """`auto_map` as an idle field of a config.json, if it names only classes that Hugging Face transformers now includes.

    Some models are older than their class in transformers, so their files name code of their own.

    Args:
        prefix: the start of the names of the classes.
    """

    def idle(published: Fields) -> tuple[str, ...]:
        classes = published.get("auto_map")
        if not isinstance(classes, Mapping):
            return ()
        names = [each for name, each in classes.items() if name != "AutoTokenizer"]  # heddle reads tokenizer.json
        own = all(isinstance(each, str) and each.rsplit(".", 1)[-1].startswith(prefix) for each in names)
        return ("auto_map",) if own else ()

    return idle
