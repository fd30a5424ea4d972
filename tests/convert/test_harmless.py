"""Fields of config.json that import ignores: each is given another value in transformers, and the scores must stay the same."""

from typing import Any

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedModel

from heddle.convert.families import FAMILIES, Family
from heddle.convert.families.difference import resolved
from heddle.convert.fields import HARMLESS, TRAINING
from heddle.errors import HeddleError
from tests.convert.conftest import KINDS, VARIANTS, make

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


def other(name: str, value: Any) -> list[Any]:
    """Other values of a field: those of the table, or others of its type."""
    if name in OTHER:
        return [OTHER[name]]
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
    fields = {
        name: value for name, value in {**dict.fromkeys(OTHER), **config}.items() if name not in OF_THE_FILE | LABELS
    }
    ignored_fields = {}
    for name, value in fields.items():
        values = (
            each
            for each in other(name, value)
            if each != value and read_alike(family, {**config, name: each}, expected)
        )
        if (first := next(values, None)) is not None:
            ignored_fields[name] = first
    return ignored_fields


def test_every_harmless_field_is_tried() -> None:
    assert OTHER.keys() | OF_THE_FILE | LABELS | KERNELS >= HARMLESS | set(TRAINING)
    assert not OTHER.keys() & (OF_THE_FILE | LABELS | KERNELS)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_no_field_that_import_ignores_changes_a_score(kind: str) -> None:
    """Every field of the class's config and of the table: read, refused, or without effect. All at once; if that changes a score,
    or cannot be, each alone.
    """
    model = make(next(variant for variant in VARIANTS if variant.split("-")[0] == kind))
    family = FAMILIES[type(model).__name__]
    config = {**model.config.to_dict(), "architectures": [type(model).__name__]}
    fields, expected = ignored(family, config), scores(model)
    assert {"use_cache", "bos_token_id", "num_beams"} <= fields.keys()
    if not apart(model, fields, expected):
        return
    assert {name for name, value in fields.items() if apart(model, {name: value}, expected)} == set()


def apart(model: PreTrainedModel, fields: dict[str, Any], expected: torch.Tensor) -> bool:
    """Whether fields change the scores of a model by more than rounding. What transformers refuses does not."""
    try:
        return float((changed(model, fields) - expected).abs().max()) > 1e-5
    except (TypeError, ValueError, RuntimeError, AttributeError, StrictDataclassError):
        return len(fields) > 1  # try each alone


def test_a_field_that_changes_scores_would_be_found() -> None:
    """A planted one: if the width of windows or the norm's epsilon were harmless, the walk would say so."""
    model = make("mistral-window")
    for name, value in (("sliding_window", 3), ("rms_norm_eps", 0.5)):
        assert apart(model, {name: value}, scores(model))
