"""Fields of config.json that import ignores: each is given another value in transformers, and the scores must stay the same."""

from collections.abc import Callable
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedModel

from heddle.convert.families import FAMILIES, Family
from heddle.convert.families.difference import resolved
from heddle.convert.fields import HARMLESS, TRAINING
from heddle.errors import HeddleError
from tests.convert.conftest import make
from tests.convert.toys import Toy

# Another value for each field, as far from the usual one as the class allows.
OTHER: dict[str, Any] = {
    "_name_or_path": "elsewhere", "_commit_hash": "0" * 40, "transformers_version": "4.0.0", "use_cache": False,
    "use_bfloat16": True, "torchscript": True, "tf_legacy_loss": True, "output_hidden_states": True,
    "output_attentions": True, "output_past": False, "output_scores": True, "return_dict_in_generate": True,
    "gradient_checkpointing": True, "chunk_size_feed_forward": 3, "pretraining_tp": 2, "bos_token_id": 7,
    "eos_token_id": 8, "pad_token_id": 9, "sep_token_id": 10, "decoder_start_token_id": 11, "forced_bos_token_id": 12,
    "forced_eos_token_id": 13, "tokenizer_class": "GPT2Tokenizer", "prefix": "translate: ",
    "task_specific_params": {"summarization": {"num_beams": 4}}, "finetuning_task": "sst2",
    "problem_type": "multi_label_classification", "tie_encoder_decoder": True, "max_length": 3, "min_length": 2,
    "do_sample": True, "early_stopping": True, "num_beams": 7, "num_beam_groups": 7, "diversity_penalty": 0.5,
    "temperature": 0.1, "top_k": 3, "top_p": 0.1, "typical_p": 0.1, "repetition_penalty": 9.0, "length_penalty": 3.0,
    "no_repeat_ngram_size": 1, "encoder_no_repeat_ngram_size": 1, "num_return_sequences": 2,
    "remove_invalid_values": True, "n_ctx": 3, "reorder_and_upcast_attn": True, "summary_type": "mean",
    "summary_use_proj": False, "summary_activation": "tanh", "summary_proj_to_labels": False,
    "summary_first_dropout": 0.9, "classifier_dropout": 0.9, "output_router_logits": True, "router_aux_loss_coef": 9.0,
    "router_jitter_noise": 0.5, "is_decoder": True, "encoder_layerdrop": 0.9, "decoder_layerdrop": 0.9, "layerdrop": 0.9,
}  # fmt: skip
KERNELS = {"attn_implementation", "_attn_implementation", "_attn_implementation_autoset"}
# How the file is read, not what is computed; the tests of import hold these. Labels set the shape of a classifier's head.
OF_THE_FILE = {"model_type", "architectures", "dtype", "torch_dtype", "return_dict", *KERNELS}
LABELS = {"id2label", "label2id", "num_labels"}


@torch.inference_mode()
def scores(model: PreTrainedModel) -> torch.Tensor:
    tokens = torch.randint(14, 61, (2, 12), generator=torch.Generator().manual_seed(0))
    extra = {"decoder_input_ids": tokens.flip(1)} if model.config.is_encoder_decoder else {}
    output: Any = model.eval()(input_ids=tokens, return_dict=True, **extra)
    value: torch.Tensor = next(
        getattr(output, name) for name in ("logits", "pooler_output", "last_hidden_state") if hasattr(output, name)
    )
    return value


def changed(model: PreTrainedModel, fields: dict[str, Any]) -> torch.Tensor:
    """The scores of a model with the same weights and other fields."""
    made: Any = type(model)
    config: Any = type(model.config)(**{**model.config.to_dict(), **fields})
    config._attn_implementation = "eager"
    other = made(config)
    other.load_state_dict(model.state_dict())
    return scores(other)


def singled_out(fields: dict[str, Any], tells: Callable[[dict[str, Any]], bool]) -> set[str]:
    """The fields that something tells, all at once or, if it tells something, in halves, down to each alone."""
    if not fields or not tells(fields):
        return set()
    names = list(fields)
    if len(names) == 1:
        return set(names)
    middle = len(names) // 2
    halves = ({name: fields[name] for name in part} for part in (names[:middle], names[middle:]))
    return {name for half in halves for name in singled_out(half, tells)}


def other(value: Any) -> list[Any]:
    """Other values of a field, of its type."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        return [value + 1, value * 2, value / 2 if isinstance(value, float) else 1]
    return [True, 1, 0.5] if value is None else []


def read_alike(family: Family, config: dict[str, Any], expected: Any) -> bool:
    """Whether import makes the same of a config, so that a field that was changed in it is ignored."""
    try:
        return bool(resolved(family.to_config(config)) == expected)
    except HeddleError:
        return False


def ignored(family: Family, config: dict[str, Any]) -> dict[str, Any]:
    """The fields that import reads nothing from, each with another value that it accepts."""
    expected = resolved(family.to_config(config))
    fields = {name: value for name, value in OTHER.items() if value != config.get(name)}
    read = singled_out(fields, lambda some: not read_alike(family, {**config, **some}, expected))
    ignored_fields = {name: value for name, value in fields.items() if name not in read}
    for name, value in config.items():
        if name in OF_THE_FILE | LABELS | OTHER.keys():
            continue
        values = (
            each for each in other(value) if each != value and read_alike(family, {**config, name: each}, expected)
        )
        if (first := next(values, None)) is not None:
            ignored_fields[name] = first
    return ignored_fields


def test_every_harmless_field_is_tried() -> None:
    assert OTHER.keys() | OF_THE_FILE | LABELS | KERNELS >= HARMLESS | set(TRAINING)
    assert not OTHER.keys() & (OF_THE_FILE | LABELS | KERNELS)


def test_no_field_that_import_ignores_changes_a_score(one_of_each: Toy) -> None:
    """Every field of the class's config and of the table: read, refused, or without effect."""
    model = one_of_each.published
    family = FAMILIES[type(model).__name__]
    config = {**model.config.to_dict(), "architectures": [family.architecture]}
    fields, expected = ignored(family, config), scores(model)
    assert {"use_cache", "bos_token_id", "num_beams"} <= fields.keys()
    assert effective(model, fields, expected) == set()


def effective(model: PreTrainedModel, fields: dict[str, Any], expected: torch.Tensor) -> set[str]:
    """The fields that change the scores of a model."""
    return singled_out(fields, lambda some: apart(model, some, expected))


def apart(model: PreTrainedModel, fields: dict[str, Any], expected: torch.Tensor) -> bool:
    """Whether fields change the scores of a model by more than rounding. What transformers refuses does not."""
    try:
        return float((changed(model, fields) - expected).abs().max()) > 1e-5
    except (TypeError, ValueError, RuntimeError, AttributeError, StrictDataclassError):
        return len(fields) > 1  # try the halves


def test_a_field_that_changes_scores_would_be_found() -> None:
    """Planted ones: if the width of windows and the norm's epsilon were harmless, the walk would name both, and no other."""
    model = make("mistral-window")
    harmless = {"use_cache": False, "num_beams": 7, "bos_token_id": 7, "temperature": 0.1}
    fields = {"sliding_window": 3, **harmless, "rms_norm_eps": 0.5, "head_dim": "a word, which transformers refuses"}
    assert effective(model, fields, scores(model)) == {"sliding_window", "rms_norm_eps"}
