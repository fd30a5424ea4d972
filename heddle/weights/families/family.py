"""What a published family is to heddle, and how its config.json is read: each field is understood or refused."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from heddle.config.model import TransformerConfig
from heddle.errors import HeddleError
from heddle.weights.mapping import Names, Row

# Their names of activations, for each of ours the one to write first.
ACTIVATIONS = {
    "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh",
    "gelu": "gelu", "gelu_python": "gelu", "relu": "relu", "relu2": "relu_squared", "silu": "silu", "swish": "silu",
}  # fmt: skip

# Fields without a say in what the model computes: bookkeeping, outputs to return, defaults of generation.
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
    "summary_first_dropout",
}  # fmt: skip

# Fields that change what is computed, and the one value under which heddle computes the same.
FIXED: dict[str, Any] = {"is_encoder_decoder": False, "add_cross_attention": False, "pruned_heads": {}}

# What acts in training only; an export without it computes the same.
TRAINING_ONLY = {"decoder.entry.dropout", "decoder.block.dropout", "decoder.block.mixer.dropout"}


@dataclass(frozen=True)
class Family:
    """A published family.

    Attributes:
        name: its `model_type`.
        architecture: the class of transformers that is a language model of this family.
        to_config: their config.json as a heddle config; refuses what heddle cannot express.
        from_config: the nearest config.json of theirs; `reasons` says whether it is near enough.
        table: the tensors, both ways.
        names: what their files may call things.
        layer: what the names of layer `{i}` begin with.
    """

    name: str
    architecture: str
    to_config: Callable[[Mapping[str, Any]], TransformerConfig]
    from_config: Callable[[TransformerConfig], dict[str, Any]]
    table: tuple[Row, ...]
    names: Names
    layer: str

    def reasons(self, config: TransformerConfig) -> tuple[list[str], list[str]]:
        """Why the family cannot express `config` (nothing, if it can), and what is lost that acts in training only.

        Found by going there and back: whatever returns as something else cannot be said in their config.
        """
        try:
            back = self.to_config(self.from_config(config))
        except HeddleError as error:
            return [str(error)], []
        found = differences(resolved(config), resolved(back))
        told = {path: f"{path} = {ours}, but {self.architecture} has {theirs}" for path, ours, theirs in found}
        lost = [text for path, text in told.items() if path in TRAINING_ONLY]
        return [text for path, text in told.items() if path not in TRAINING_ONLY], lost


def read_fields(
    found: Mapping[str, Any], architecture: str, defaults: Mapping[str, Any], fixed: Mapping[str, Any]
) -> dict[str, Any]:
    """The fields named in `defaults`, from a published config.json or by default.

    Raises:
        HeddleError: a field has a value under which heddle would compute something else, or is not known at all.
    """
    bases = {architecture, architecture.replace("LMHeadModel", "Model").replace("ForCausalLM", "Model")}
    said = found.get("architectures") or []
    if not isinstance(said, list) or any(name not in bases for name in said):
        raise HeddleError(f"architectures = {said} in config.json: heddle reads {architecture}")
    only = {**FIXED, **fixed}
    for name, value in found.items():
        if name in only and value is not None and value != only[name]:
            raise HeddleError(f"{name} = {value!r} in config.json: heddle has only {only[name]!r}")
        if name not in {*defaults, *only, *HARMLESS} and value not in (None, [], {}):
            raise HeddleError(f"{name} = {value!r} in config.json: heddle does not know what this field changes")
    return {name: found.get(name, default) for name, default in defaults.items()}


def our_activation(name: Any, field: str) -> str:
    """Heddle's name of an activation of theirs."""
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise HeddleError(f"{field} = {name!r} in config.json: heddle knows {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def their_activation(name: str) -> str:
    """The usual name in transformers of an activation of heddle's."""
    return next(theirs for theirs, ours in ACTIVATIONS.items() if ours == name)


def resolved(config: TransformerConfig) -> dict[str, Any]:
    """The config as plain data with open sizes filled in, without what does not change the function."""
    data = config.to_dict()
    stack, mixer, width = config.decoder, config.decoder.block.mixer, config.decoder.block.mixer.width(config.dim)
    data["decoder"]["final_norm"] = stack.ends_in_norm()
    block = data["decoder"]["block"]
    block["mixer"] |= {"kv_heads": mixer.key_heads(), "head_dim": width, "value_dim": mixer.value_dim or width}
    block["ffn"]["hidden"] = stack.block.ffn.width(config.dim)
    del data["pad_vocab_to"], data["initial"], block["mixer"]["kernel"]
    return data


def differences(ours: Any, theirs: Any, path: str = "") -> list[tuple[str, str, str]]:
    """(path, ours, theirs) wherever two plain configs differ; tables of different kinds differ as a whole."""
    if ours == theirs:
        return []
    if not (isinstance(ours, dict) and isinstance(theirs, dict)) or ours.get("kind") != theirs.get("kind"):
        return [(path, _brief(ours), _brief(theirs))]
    found = []
    for key in ours.keys() | theirs.keys():
        found += differences(ours.get(key), theirs.get(key), f"{path}.{key}" if path else key)
    return sorted(found)


def _brief(value: Any) -> str:
    return repr(value["kind"]) if isinstance(value, dict) and "kind" in value else repr(value)
