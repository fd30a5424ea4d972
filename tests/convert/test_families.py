"""Published configs: everything that changes the function is expressed or refused by name."""

import json
from math import log, sqrt
from typing import Any

import pytest
import transformers
from transformers import GPT2Config

from heddle.config import (
    AlibiConfig,
    DynamicScaling,
    GatedConfig,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    NTKScaling,
    RotaryConfig,
    TransformerConfig,
    YarnScaling,
    preset,
    preset_names,
    sized,
)
from heddle.convert.families import ALL, Family
from heddle.convert.families.bart import BART, MARIAN
from heddle.convert.families.bert import BERTS
from heddle.convert.families.difference import resolved
from heddle.convert.families.falcon import FALCON
from heddle.convert.families.family import left_out
from heddle.convert.families.gemma import GEMMA2, GEMMA3
from heddle.convert.families.gpt2 import GPT2
from heddle.convert.families.gpt_neox import GPT_NEOX
from heddle.convert.families.llama import LLAMA, MISTRAL, MIXTRAL
from heddle.convert.families.modernbert import MODERNBERT
from heddle.convert.families.opt import OPT
from heddle.convert.families.phi import PHI3
from heddle.convert.families.qwen import QWEN2, QWEN3
from heddle.convert.families.qwen_moe import QWEN2_MOE, QWEN3_MOE
from heddle.convert.families.t5 import T5, UMT5
from heddle.convert.fitting import choose
from heddle.errors import HeddleError
from tests import refusing

BERT, BERT_CLASSIFIER, BERT_TAGGED, BERT_POOLED = BERTS


def refusal(family: Family, **fields: Any) -> str:
    return refusing.refusal(lambda: family.to_config(fields))


def llama() -> TransformerConfig:
    return LLAMA.to_config({})


@pytest.mark.parametrize("size", ["small", "medium", "large", "xl"])
def test_gpt2_presets_are_the_published_configs(size: str) -> None:
    config = preset(f"gpt2-{size}")
    dropout = {"decoder.entry.dropout": 0.1, "decoder.block.dropout": 0.1, "decoder.block.mixer.dropout": 0.1}
    reference = GPT2Config(**GPT2.from_config(config.override(dropout)))
    assert GPT2.to_config(json.loads(reference.to_json_string())) == config.override(
        {**dropout, "decoder.block.ffn.hidden": 4 * config.dim}
    )


@pytest.mark.parametrize("family", ALL, ids=lambda family: family.architecture)
@pytest.mark.parametrize("whole", [True, False])
def test_the_defaults_are_those_of_transformers(family: Family, whole: bool) -> None:
    """A field that a config.json leaves out means what transformers takes; none that it writes is unknown."""
    reference = getattr(transformers, family.architecture).config_class()
    written = json.loads(reference.to_json_string(use_diff=not whole))
    assert resolved(family.to_config(written)) == resolved(family.to_config({}))


def test_fields_of_gpt2() -> None:
    config = GPT2.to_config(
        {
            "vocab_size": 11, "n_positions": 12, "n_embd": 24, "n_layer": 2, "n_head": 3, "n_inner": 13,
            "activation_function": "relu", "resid_pdrop": 0.2, "embd_pdrop": 0.3, "attn_pdrop": 0.4,
            "layer_norm_epsilon": 1e-3, "initializer_range": 0.5, "tie_word_embeddings": False,
        }
    )  # fmt: skip
    block = config.decoder.block
    assert (config.vocab_size, config.context, config.dim, config.decoder.depth) == (11, 12, 24, 2)
    assert (block.mixer.heads, block.mixer.dropout, block.dropout, config.decoder.entry.dropout) == (3, 0.4, 0.2, 0.3)
    assert (block.ffn.hidden, block.ffn.activation, block.norm.eps) == (13, "relu", 1e-3)
    assert (config.head.tied, config.initial.std, config.decoder.entry.positions) == (False, 0.5, "learned")


def test_fields_of_llama() -> None:
    config = LLAMA.to_config(
        {
            "vocab_size": 11, "hidden_size": 24, "intermediate_size": 13, "num_hidden_layers": 2, "head_dim": 10,
            "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_act": "gelu_pytorch_tanh",
            "max_position_embeddings": 12, "initializer_range": 0.5, "rms_norm_eps": 1e-3, "tie_word_embeddings": True,
            "attention_bias": True, "attention_dropout": 0.4, "mlp_bias": True, "rope_theta": 500000.0,
        }
    )  # fmt: skip
    block = config.decoder.block
    assert (config.vocab_size, config.context, config.dim, config.decoder.depth) == (11, 12, 24, 2)
    assert (block.mixer.heads, block.mixer.kv_heads, block.mixer.head_dim, block.mixer.dropout) == (4, 2, 10, 0.4)
    assert (block.mixer.bias, block.ffn.bias, block.mixer.relative) == (True, True, RotaryConfig(base=500000.0))
    assert (block.ffn.kind, block.ffn.hidden, block.ffn.activation, block.norm.eps) == ("gated", 13, "gelu_tanh", 1e-3)
    assert (config.head.tied, config.initial.std, config.decoder.entry.positions) == (True, 0.5, "none")


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_theta": 500.0},
        {"rope_parameters": {"rope_theta": 500.0, "rope_type": "default"}},
        {"rope_theta": 500.0, "rope_parameters": {"rope_theta": 500, "rope_type": "default"}},
        {"rope_theta": 500.0, "rope_scaling": None},
        {"rope_theta": 500.0, "rope_scaling": {"type": "default"}},
        {"rope_scaling": {"rope_type": "default", "rope_theta": 500.0}, "partial_rotary_factor": 1.0},
    ],
)
def test_the_rotary_base_is_found_wherever_it_is_written(fields: dict[str, Any]) -> None:
    assert LLAMA.to_config(fields).decoder.block.mixer.relative == RotaryConfig(base=500.0)


SHORT_64, LONG_64 = (1.0,) * 64, (2.0,) * 64
LONG = {"short_factor": list(SHORT_64), "long_factor": list(LONG_64)}
OLD = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


@pytest.mark.parametrize(
    ("rope", "scaling"),
    [
        ({"type": "linear", "factor": 2}, LinearScaling(factor=2)),
        ({"rope_type": "linear", "type": "linear", "factor": 2.0, "beta_fast": None}, LinearScaling(factor=2)),
        ({"rope_type": "llama3", **OLD}, Llama3Scaling(factor=8, original=8192, low=1, high=4)),
        ({"type": "yarn", "factor": 4.0}, YarnScaling(factor=4, original=2048)),
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512, "finetuned": True},
         YarnScaling(factor=4, original=512)),
        ({"type": "yarn", "factor": 4.0, "beta_fast": 16, "beta_slow": 0, "truncate": False},
         YarnScaling(factor=4, original=2048, fast=16, whole=False)),
        ({"type": "yarn", "factor": 4.0, "attention_factor": 1.25, "mscale": 2.0, "mscale_all_dim": 1.0},
         YarnScaling(factor=4, original=2048, magnitude=1.25)),
        ({"type": "yarn", "factor": 4.0, "mscale": 0.707, "mscale_all_dim": 0.707},
         YarnScaling(factor=4, original=2048, magnitude=1.0)),
        ({"type": "yarn", "factor": 4.0, "mscale": 2.0}, YarnScaling(factor=4, original=2048)),
        ({"type": "dynamic", "factor": 4.0}, DynamicScaling(factor=4, original=2048, length=2048)),
        ({"rope_type": "longrope", **LONG, "original_max_position_embeddings": 512, "attention_factor": 1.25},
         LongRopeScaling(short=SHORT_64, long=LONG_64, original=512, length=2048, magnitude=1.25)),
        ({"rope_type": "longrope", **LONG, "original_max_position_embeddings": 512},
         LongRopeScaling(short=SHORT_64, long=LONG_64, original=512, length=2048, magnitude=sqrt(1 + 2 / 9))),
        ({"rope_type": "longrope", **LONG, "factor": 4.0},
         LongRopeScaling(short=SHORT_64, long=LONG_64, original=2048, length=2048, magnitude=sqrt(1 + 2 / 11))),
    ],
)  # fmt: skip
def test_what_slows_the_angles_is_found_in_both_spellings(rope: dict[str, Any], scaling: Any) -> None:
    expected = RotaryConfig(base=500.0, scaling=scaling)
    for fields in (
        {"rope_theta": 500.0, "rope_scaling": rope},
        {"rope_parameters": {"rope_theta": 500.0, **rope}},
        {"rope_theta": 500.0, "rope_parameters": rope, "rope_scaling": rope},
    ):
        assert LLAMA.to_config(fields).decoder.block.mixer.relative == expected


def test_what_slows_the_angles_is_written_in_both_spellings() -> None:
    """vLLM and transformers from 5.0 on read `rope_parameters` with the base in it, older versions the two other fields."""
    scaling = {"kind": "yarn", "factor": 4.0, "original": 512, "magnitude": 1.25}
    config = llama().override({"decoder.block.mixer.relative": {"kind": "rotary", "base": 1e6, "scaling": scaling}})
    written = LLAMA.published_config(config)
    table = {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512, "beta_fast": 32.0, "beta_slow": 1.0,
        "truncate": True, "attention_factor": 1.25,
    }  # fmt: skip
    assert written["rope_parameters"] == {"rope_theta": 1e6, **table}
    assert (written["rope_scaling"], written["rope_theta"]) == (table, 1e6)
    assert LLAMA.published_config(llama())["rope_scaling"] is None


def test_the_ntk_rule_is_written_as_the_larger_base_that_it_is() -> None:
    relative = RotaryConfig(base=100.0, scaling=NTKScaling(factor=4.0))
    config = llama().override({"decoder.block.mixer.relative": relative.to_dict()})
    assert LLAMA.reasons(config) == ([], [])
    width = config.decoder.block.mixer.width(config.dim)
    assert LLAMA.published_config(config)["rope_theta"] == pytest.approx(100.0 * 4.0 ** (width / (width - 2)))
    assert LLAMA.published_config(config)["rope_parameters"]["rope_type"] == "default"


def test_rules_by_length_are_written_for_one_length() -> None:
    """So an export computes the same for every length: a larger base, or equal factors for short and long texts."""
    longer = {"kind": "dynamic", "factor": 2.0, "original": 2048, "length": 4096}
    config = llama().override({"decoder.block.mixer.relative": {"kind": "rotary", "base": 100.0, "scaling": longer}})
    assert LLAMA.reasons(config) == ([], [])
    assert LLAMA.published_config(config)["rope_theta"] == pytest.approx(100.0 * 3.0 ** (128 / 126))
    assert LLAMA.published_config(config)["rope_scaling"] is None
    fields = {"rope_type": "longrope", **LONG, "original_max_position_embeddings": 512, "attention_factor": 1.25}
    config = LLAMA.to_config({"rope_scaling": fields})
    assert LLAMA.reasons(config) == ([], [])
    assert LLAMA.published_config(config)["rope_scaling"] == {**fields, "short_factor": list(LONG_64)}


def test_a_usual_length_may_be_said_aloud() -> None:
    plain = {"kind": "yarn", "factor": 4.0, "original": 512}
    usual = 0.1 * log(4.0) + 1.0
    short, long = (
        resolved(llama().override({"decoder.block.mixer.relative": {"kind": "rotary", "scaling": scaling}}))
        for scaling in (plain, {**plain, "magnitude": usual})
    )
    assert short == long


@pytest.mark.parametrize(
    ("fields", "dense"),
    [
        ({}, ""), ({"mlp_only_layers": [0]}, "0"), ({"mlp_only_layers": [1, 4]}, "14"), ({"decoder_sparse_step": 2}, "024"),
        ({"decoder_sparse_step": 3, "mlp_only_layers": [2]}, "01234"), ({"decoder_sparse_step": 7}, "012345"),
        ({"num_experts": 0}, "012345"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("family", [QWEN3_MOE, QWEN2_MOE], ids=["qwen3", "qwen2"])
def test_layers_without_experts(family: Family, fields: dict[str, Any], dense: str) -> None:
    """Which ones they are, counted by hand from the condition in transformers: (i + 1) % step == 0 and not among the named."""
    config = family.to_config({"num_hidden_layers": 6, "intermediate_size": 40, "moe_intermediate_size": 16, **fields})
    blocks = config.decoder.blocks
    assert "".join(str(i) for i, block in enumerate(blocks) if block.ffn.kind == "gated") == dense
    assert {block.ffn.width(config.dim) for block in blocks} <= {40, 16}
    assert all(block.ffn.width(config.dim) == (40 if block.ffn.kind == "gated" else 16) for block in blocks)
    assert family.reasons(config) == ([], [])
    assert family.published_config(config)["mlp_only_layers"] == [int(number) for number in dense]


def test_windows_of_the_qwens() -> None:
    windows = {"use_sliding_window": True, "sliding_window": 7, "num_hidden_layers": 5, "max_window_layers": 3}
    for family, expected in (
        (QWEN3, [None, None, None, 7, 7]), (QWEN2, [None, None, None, 7, 7]),
        (QWEN2_MOE, [7, None, 7, None, None]), (QWEN3_MOE, [7] * 5),
    ):  # fmt: skip
        config = family.to_config(windows)
        assert [block.mixer.window for block in config.decoder.blocks] == expected
        assert family.reasons(config) == ([], [])
        named = {**windows, "layer_types": ["full_attention", *["sliding_attention"] * 4]}
        if family is not QWEN3_MOE:
            assert [block.mixer.window for block in family.to_config(named).decoder.blocks] == [None, 7, 7, 7, 7]
        assert all(block.mixer.window is None for block in family.to_config({"sliding_window": 7}).decoder.blocks)


@pytest.mark.parametrize("family", [QWEN2, QWEN3, QWEN2_MOE], ids=lambda family: family.name)
def test_layers_called_local_have_no_window_where_windows_are_off(family: Family) -> None:
    fields = {"num_hidden_layers": 3, "sliding_window": 7, "layer_types": ["sliding_attention"] * 3}
    assert resolved(family.to_config(fields)) == resolved(family.to_config({"num_hidden_layers": 3}))
    (note,) = left_out({**fields, "use_sliding_window": False})
    assert "use_sliding_window is false" in note


@pytest.mark.parametrize(
    ("family", "name"),
    [(MIXTRAL, "router_jitter_noise"), (BART, "encoder_layerdrop"), (MARIAN, "decoder_layerdrop")],
    ids=["mixtral", "bart", "marian"],
)
def test_what_acts_in_training_only_is_left_out_aloud(family: Family, name: str) -> None:
    assert family.to_config({name: 0.1}) == family.to_config({})
    assert left_out({name: 0.1}) == [f"{name} = 0.1 in config.json matters only in training: left out"]
    assert left_out({name: 0.0}) == []


def test_scales_of_gpt2() -> None:
    sizes = {"n_embd": 64, "n_head": 4, "n_layer": 3}
    for fields, expected in (
        ({"scale_attn_weights": False}, [1.0, 1.0, 1.0]),
        ({"scale_attn_by_inverse_layer_idx": True}, [1 / 4, 1 / 8, 1 / 12]),
        ({"scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True}, [1.0, 1 / 2, 1 / 3]),
    ):
        config = GPT2.to_config({**sizes, **fields})
        assert [block.mixer.scale for block in config.decoder.blocks] == pytest.approx(expected)
        assert GPT2.reasons(config) == ([], [])
        assert {name: GPT2.published_config(config)[name] for name in fields} == fields
    reasons, _ = GPT2.reasons(config.override({"decoder.overrides": [], "decoder.block.mixer.scale": 0.3}))
    assert any("scale is 0.3" in reason for reason in reasons)


def test_marians_two_vocabularies() -> None:
    fields = {"share_encoder_decoder_embeddings": False, "vocab_size": 70, "decoder_vocab_size": 50}
    config = MARIAN.to_config(fields)
    assert (config.source_vocab_size, config.vocab_size, config.head.tied) == (70, 50, True)
    assert MARIAN.reasons(config) == ([], [])
    assert fields.items() <= MARIAN.published_config(config).items()
    same = MARIAN.to_config({**fields, "decoder_vocab_size": None})
    assert (same.source_vocab_size, same.vocab_size) == (70, 70)
    reasons, _ = BART.reasons(config)
    assert any("source_vocab_size is 70" in reason for reason in reasons)


def test_classes_of_a_bert() -> None:
    two = BERT_CLASSIFIER.to_config({"hidden_dropout_prob": 0.2})
    assert (two.head.classes, two.head.dense, two.head.pooling, two.head.dropout) == (2, True, "first", 0.2)
    three = BERT_CLASSIFIER.to_config({"id2label": {"0": "a", "1": "b", "2": "c"}, "classifier_dropout": 0.1})
    assert (three.head.classes, three.head.dropout) == (3, 0.1)
    assert BERT_CLASSIFIER.reasons(three) == ([], [])
    assert choose(three)[0] is BERT_CLASSIFIER
    assert (two.head.names, three.head.names) == ((), ("a", "b", "c"))
    assert BERT_CLASSIFIER.published_config(three)["label2id"] == {"a": 0, "b": 1, "c": 2}
    assert BERT_CLASSIFIER.published_config(two)["id2label"] == {"0": "LABEL_0", "1": "LABEL_1"}
    assert "must number its classes from 0, not 1, 2" in refusal(BERT_CLASSIFIER, id2label={"1": "a", "2": "b"})
    tagged = three.override({"head.pooling": "none", "head.dense": False})
    assert choose(tagged)[0] is BERT_TAGGED
    assert BERT_TAGGED.reasons(tagged) == ([], [])
    assert BERT_TAGGED.reasons(three)[0] == [
        "head.dense is true, BertForTokenClassification has false",
        "head.pooling is first, BertForTokenClassification has none",
    ]
    assert "id2label = 3" in refusal(BERT_CLASSIFIER, id2label=3)
    assert "head" in BERT.reasons(three)[0][0]


@pytest.mark.parametrize(
    "family",
    [each for each in ALL if each.architecture.endswith("SequenceClassification")],
    ids=lambda each: each.architecture,
)
def test_every_classifier_of_texts_says_what_its_scores_mean(family: Family) -> None:
    """A family that does not read `problem_type` would answer several labels by a softmax."""
    for kind, several in (("multi_label_classification", True), ("single_label_classification", False)):
        config = family.to_config({"id2label": {"0": "a", "1": "b"}, "problem_type": kind})
        assert config.head.several == several
        assert family.published_config(config)["problem_type"] == kind


def test_what_the_scores_of_a_bert_mean() -> None:
    """`problem_type` says it: one of the classes, any of them, or a number; a threshold is kept in a field of heddle's own."""
    labels = {"id2label": {"0": "a", "1": "b"}}
    one = {"id2label": {"0": "LABEL_0"}}
    for fields, several, threshold in (
        (labels, False, 0.5),
        ({**labels, "problem_type": "single_label_classification"}, False, 0.5),
        ({**labels, "problem_type": "multi_label_classification"}, True, 0.5),
        ({**labels, "problem_type": "multi_label_classification", "threshold": 0.2}, True, 0.2),
        ({**one, "problem_type": "multi_label_classification"}, True, 0.5),
        ({**one, "problem_type": "regression"}, False, 0.5),
        (one, False, 0.5),
    ):
        config = BERT_CLASSIFIER.to_config(fields)
        assert (config.head.several, config.head.threshold) == (several, threshold)
        assert BERT_CLASSIFIER.reasons(config) == ([], [])
        written = BERT_CLASSIFIER.published_config(config)
        usual = "regression" if fields is one else "single_label_classification"
        assert written["problem_type"] == fields.get("problem_type", usual)
        assert written.get("threshold", 0.5) == threshold
    assert "problem_type" not in BERT_TAGGED.published_config(BERT_TAGGED.to_config(labels))
    for fields, expected in (
        ({**labels, "problem_type": "regression"}, "with 2 numbers for each text: heddle supports only one"),
        ({**one, "problem_type": "single_label_classification"}, "with a single class, which every text has"),
        (
            {**labels, "problem_type": "ranking"},
            "problem_type = 'ranking' in config.json: heddle supports single_label",
        ),
        ({"problem_type": "multi_label_classification", "threshold": 2}, "threshold"),
    ):
        assert expected in refusal(BERT_CLASSIFIER, **fields)


STRANGE = (
    True, 0, -1, 10**12, 0.5, float("nan"), "x", [], ["x"], {"a": 1}, {"rope_type": "yarn", "factor": "x"},
    {"type": "linear", "factor": 2, "rope_theta": [1]},
)  # fmt: skip


def said_of(family: Family, fields: dict[str, Any]) -> str:
    """The refusal of a published config, or nothing; any other error is the test's."""
    try:
        family.reasons(family.to_config(fields))
    except HeddleError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("family", ALL, ids=lambda family: family.architecture)
def test_whatever_stands_in_a_field_is_a_config_or_one_line(family: Family) -> None:
    beside = {"use_sliding_window": True} if "qwen" in family.name else {"rope_theta": 5.0}
    others: list[dict[str, Any]] = [{}] if said_of(family, beside) else [{}, beside]
    for field in family.published_config(family.to_config({})):
        for value in STRANGE:
            for more in others:
                assert "\n" not in said_of(family, {**more, field: value})


def test_an_untied_bart_has_a_table_on_each_side() -> None:
    config = BART.to_config({"tie_word_embeddings": False})
    assert (config.source_vocab_size, config.head.tied) == (config.vocab_size, False)
    one = config.override({"source_vocab_size": None})
    assert BART.reasons(config) == BART.reasons(one) == ([], [])


@pytest.mark.parametrize(
    ("family", "fields", "message"),
    [
        (GPT2, {"add_cross_attention": True}, "add_cross_attention = True"),
        (GPT2, {"is_encoder_decoder": True}, "is_encoder_decoder = True"),
        (GPT2, {"pruned_heads": {"0": [1]}}, "pruned_heads"),
        (GPT2, {"activation_function": "hardswish"}, "activation_function = 'hardswish'"),
        (GPT2, {"activation_function": None}, "activation_function = None"),
        (GPT2, {"quantization_config": {"bits": 4}}, "quantization_config"),
        (GPT2, {"auto_map": {"AutoModelForCausalLM": "own.Model"}}, "auto_map"),
        (GPT2, {"logit_scale": 2.0}, "logit_scale = 2.0"),
        (GPT2, {"architectures": ["GPT2ForSequenceClassification"]}, "GPT2ForSequenceClassification"),
        (GPT2, {"n_embd": 770}, "dim = 770 is not divisible by heads = 12"),
        (GPT2, {"n_embd": "wide"}, "dim"),
        (GPT2, {"n_layer": 0}, "depth"),
        (GPT2, {"n_positions": None}, "context"),
        (GPT2, {"layer_norm_epsilon": -1.0}, "eps"),
        (LLAMA, {"rope_scaling": {"rope_type": "dynamic", "alpha": 8.0}}, "rope_scaling.alpha = 8.0"),
        (LLAMA, {"rope_scaling": {"rope_type": "dynamic"}}, "has no factor, which dynamic requires"),
        (LLAMA, {"rope_parameters": {"rope_type": "longrope"}}, "has no short_factor, which longrope requires"),
        (
            LLAMA,
            {"rope_parameters": {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}},
            "1 and 1 numbers, but 64 pairs of channels are rotated",
        ),
        (
            LLAMA,
            {"rope_scaling": {"rope_type": "longrope", "short_factor": [1], "long_factor": [1], "factor": "x"}},
            "rope_scaling.factor = 'x'",
        ),
        (LLAMA, {"rope_scaling": {"type": "mrope", "factor": 2.0}}, "rope_scaling.type = 'mrope'"),
        (LLAMA, {"rope_scaling": {"type": ["yarn"], "factor": 2.0}}, "rope_scaling.type = ['yarn']"),
        (
            LLAMA,
            {"rope_scaling": {"type": "linear", "rope_type": "yarn"}},
            "both rope_type = 'yarn' and type = 'linear'",
        ),
        (LLAMA, {"rope_scaling": {"type": "linear"}}, "rope_scaling in config.json has no factor"),
        (LLAMA, {"rope_scaling": {"type": "linear", "factor": 0.5}}, "scaling.factor = 0.5"),
        (LLAMA, {"rope_scaling": {"type": "linear", "factor": 2.0, "beta_fast": 3}}, "rope_scaling.beta_fast = 3"),
        (LLAMA, {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "has no low_freq_factor"),
        (LLAMA, {"rope_scaling": {"type": "yarn", "factor": 2.0, "mscale": "x", "mscale_all_dim": 1}}, "mscale = 'x'"),
        (LLAMA, {"rope_scaling": {"type": "yarn", "factor": 2.0, "attention_factor": 0}}, "scaling.magnitude = 0"),
        (
            LLAMA,
            {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "default"}},
            "rope_scaling and rope_parameters in config.json disagree",
        ),
        (LLAMA, {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "partial_rotary_factor = 0.5"),
        (LLAMA, {"rope_parameters": {"full": {"rope_theta": 1e4}}}, "rope_parameters.full"),
        (LLAMA, {"rope_parameters": 5}, "rope_parameters = 5"),
        (LLAMA, {"rope_theta": 1e4, "rope_parameters": {"rope_theta": 5e5}}, "different rotary bases"),
        (LLAMA, {"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
        (LLAMA, {"sliding_window": 4096}, "sliding_window = 4096"),
        (LLAMA, {"hidden_act": "xielu"}, "hidden_act = 'xielu'"),
        (LLAMA, {"num_attention_heads": 6, "num_key_value_heads": 4}, "must be a multiple of kv_heads"),
        (LLAMA, {"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
        (LLAMA, {"architectures": 5}, "architectures = 5"),
        (LLAMA, {"rope_theta": [1.0]}, "base"),
        (LLAMA, {"rope_theta": 0.0}, "base"),
        (LLAMA, {"use_rope": False}, "use_rope = False"),
        (MISTRAL, {"attention_bias": True}, "attention_bias = True"),
        (MISTRAL, {"sliding_window": 0}, "window"),
        (MIXTRAL, {"num_experts_per_tok": 9}, "active = 9 must be at most experts = 8"),
        (QWEN2_MOE, {"shared_expert_intermediate_size": 0}, "shared_hidden"),
        (QWEN3, {"use_sliding_window": True, "layer_types": ["full_attention"]}, "for each of 32 layers"),
        (QWEN3, {"layer_types": ["sliding_attention"]}, "for each of 32 layers"),
        (QWEN3, {"use_sliding_window": True, "max_window_layers": "all"}, "max_window_layers = 'all'"),
        (QWEN2_MOE, {"use_sliding_window": True, "sliding_window": 0}, "window = 0"),
        (QWEN3_MOE, {"mlp_only_layers": [24]}, "mlp_only_layers = [24]"),
        (QWEN3_MOE, {"mlp_only_layers": 3}, "mlp_only_layers = 3"),
        (QWEN3_MOE, {"decoder_sparse_step": 0}, "decoder_sparse_step = 0"),
        (BERT, {"is_decoder": True}, "is_decoder = True"),
        (GPT_NEOX, {"rotary_pct": [0.5]}, "fraction"),
        (GEMMA3, {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping = 50.0"),
        (GEMMA3, {"sliding_window_pattern": 0}, "sliding_window_pattern = 0"),
        (GEMMA3, {"sliding_window": None}, "there is no window"),
        (GEMMA3, {"rope_parameters": {"rope_theta": 1e4}}, "must have a table for sliding_attention and one for"),
        (
            GEMMA3,
            {"rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 2.0, "truncate": False}}},
            "full_attention.truncate = False",
        ),
        (PHI3, {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling.type = 'linear'"),
        (PHI3, {"rope_scaling": {"type": "su", "long_factor": [1.0]}}, "has no short_factor, which longrope requires"),
        (PHI3, {"partial_rotary_factor": 0.01}, "fraction = 0 has no room"),
        (OPT, {"word_embed_proj_dim": 512}, "word_embed_proj_dim = 512"),
        (OPT, {"layer_norm_elementwise_affine": False}, "layer_norm_elementwise_affine = False"),
        (MODERNBERT, {"classifier_bias": True}, "classifier_bias and norm_bias differ"),
        (MODERNBERT, {"local_attention": "all"}, "local_attention = 'all'"),
        (MODERNBERT, {"attention_dropout": 0.1}, "attention_dropout = 0.1"),
        (UMT5, {"scale_decoder_outputs": False}, "scale_decoder_outputs = False"),
        (FALCON, {"alibi": True, "num_attention_heads": 0}, "num_attention_heads = 0"),
        (T5, {"feed_forward_proj": "gated-xielu"}, "feed_forward_proj = 'xielu'"),
        (T5, {"feed_forward_proj": "relu", "is_gated_act": True}, "is_gated_act = True"),
        (T5, {"d_model": "wide"}, "d_model = 'wide'"),
        (T5, {"is_encoder_decoder": False}, "is_encoder_decoder = False"),
        (T5, {"architectures": ["T5EncoderModel"]}, "T5EncoderModel"),
        (BERT, {"position_embedding_type": "relative_key"}, "position_embedding_type = 'relative_key'"),
        (BERT_POOLED, {"architectures": ["BertForMaskedLM"]}, "BertForMaskedLM"),
        (GEMMA2, {"layer_types": ["full_attention"]}, "layer_types"),
        (GEMMA2, {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar = 0"),
        (GEMMA2, {"use_bidirectional_attention": True}, "use_bidirectional_attention = True"),
        (
            GPT_NEOX,
            {"rotary_pct": 0.5, "rope_parameters": {"partial_rotary_factor": 0.25}},
            "different rotary fractions",
        ),
        (FALCON, {"num_ln_in_parallel_attn": 2}, "num_ln_in_parallel_attn = 2"),
        (FALCON, {"new_decoder_architecture": True, "num_ln_in_parallel_attn": 3}, "num_ln_in_parallel_attn = 3"),
        (FALCON, {"new_decoder_architecture": True, "parallel_attn": False}, "parallel_attn = False"),
        (BART, {"normalize_before": True}, "normalize_before = True"),
        (MARIAN, {"decoder_vocab_size": 5}, "decoder_vocab_size = 5"),
    ],
)
def test_what_heddle_does_not_compute_is_refused_by_name(family: Family, fields: dict[str, Any], message: str) -> None:
    assert message in refusal(family, **fields)


def test_bookkeeping_is_no_obstacle() -> None:
    fields = {"_name_or_path": "x", "transformers_version": "4.30", "torch_dtype": "bfloat16", "eos_token_id": [1, 2]}
    assert LLAMA.to_config({**fields, "task_specific_params": {"a": 1}, "unheard_of": None}) == llama()


def test_the_code_that_falcon_was_published_with_is_no_obstacle() -> None:
    code = {
        "AutoConfig": "configuration_falcon.FalconConfig",
        "AutoModelForCausalLM": "modeling_falcon.FalconForCausalLM",
    }
    assert FALCON.to_config({"auto_map": code}) == FALCON.to_config({})
    for other in ("modeling_mine.Mine", 3):
        assert "auto_map" in refusal(FALCON, auto_map={**code, "AutoModel": other})


PHI3_CODE = {
    "AutoConfig": "configuration_phi3.Phi3Config",
    "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM",
    "AutoTokenizer": "somebody/tokenizer",
}


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        (PHI3, {"auto_map": PHI3_CODE, "attention_bias": False, "mlp_bias": False, "lm_head_bias": False}),
        (PHI3, {"full_attn_mod": 1, "interpolate_factor": 1, "embd_pdrop": 0.0}),
        (GEMMA2, {"sliding_window": 4096, "sliding_window_size": 4096, "cache_implementation": "hybrid"}),
        (UMT5, {"scalable_attention": True}),
        (BART, {"force_bos_token_to_be_generated": True, "forced_bos_token_id": 0}),
    ],
)
def test_what_published_files_say_besides_is_no_obstacle(family: Family, fields: dict[str, Any]) -> None:
    assert family.to_config(fields) == family.to_config({})


def test_what_published_files_say_besides_is_refused_where_it_counts() -> None:
    assert "attention_bias" in refusal(PHI3, attention_bias=True)
    assert "auto_map" in refusal(PHI3, auto_map={"AutoModelForCausalLM": "modeling_mine.Mine"})
    assert "force_bos_token" in refusal(BART, force_bos_token_to_be_generated=True)


@pytest.mark.parametrize("family", ALL, ids=lambda family: family.architecture)
def test_every_family_expresses_what_it_reads(family: Family) -> None:
    assert family.reasons(family.to_config({})) == ([], [])


@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        ("gpt2-xl", "GPT2LMHeadModel"), ("llama-7b", "LlamaForCausalLM"), ("llama-3-8b", "LlamaForCausalLM"),
        ("qwen3-0.6b", "Qwen3ForCausalLM"), ("mistral-7b", "MistralForCausalLM"),
        ("mixtral-8x7b", "MixtralForCausalLM"), ("qwen3-30b-a3b", "Qwen3MoeForCausalLM"),
        ("t5-small", "T5ForConditionalGeneration"), ("bert-base-like", "BertModel"),
        ("bart-base", "BartForConditionalGeneration"),
    ],
)  # fmt: skip
def test_presets_find_the_class_they_are_named_after(name: str, architecture: str) -> None:
    family, _ = choose(preset(name))
    assert family.architecture == architecture


def test_layers_that_repeat_are_few_overrides() -> None:
    """Five local layers before each global one, with angles of their own."""
    config = GEMMA3.to_config({"num_hidden_layers": 26})
    assert [override.layers for override in config.decoder.overrides] == ["::6", "1::6", "2::6", "3::6", "4::6"]
    mixers = [block.mixer for block in config.decoder.blocks]
    assert [mixer.window for mixer in mixers] == ([4096] * 5 + [None]) * 4 + [4096] * 2
    assert {mixer.relative.base for mixer in mixers if mixer.window} == {10_000.0}
    assert {mixer.relative.base for mixer in mixers if not mixer.window} == {1_000_000.0}
    assert MODERNBERT.to_config({}).encoder.blocks[0].placement == "pre_ffn"


def test_a_llama_whose_heads_rotate_in_part_is_a_phi3() -> None:
    """In transformers, a Llama rotates whole heads, whatever its config says of a part of them."""
    config = llama().override({"decoder.block.mixer.relative.fraction": 0.5})
    assert "relative.fraction is 0.5" in LLAMA.reasons(config)[0][0]
    assert choose(config)[0] is PHI3


def test_slopes_that_transformers_would_round_are_not_written() -> None:
    """Their distances are counted in bf16, which has 8 bits; a Falcon's 71 heads have slopes with more."""
    config = FALCON.to_config({"alibi": True})
    assert config.decoder.block.mixer.relative == AlibiConfig(factor=0.125)
    assert "rounds ALiBi to bf16" in FALCON.reasons(config)[0][0]
    exact = {"alibi": True, "hidden_size": 512, "num_attention_heads": 8, "max_position_embeddings": 257}
    assert FALCON.reasons(FALCON.to_config(exact)) == ([], [])
    assert "rounds" in FALCON.reasons(FALCON.to_config({**exact, "max_position_embeddings": 258}))[0][0]


def test_gemmas_layers_are_local_in_turn() -> None:
    config = GEMMA2.to_config({"num_hidden_layers": 5, "sliding_window": 7})
    assert [block.mixer.window for block in config.decoder.blocks] == [7, None, 7, None, 7]
    types = ["full_attention", "sliding_attention", "sliding_attention"]
    config = GEMMA2.to_config({"num_hidden_layers": 3, "sliding_window": 7, "layer_types": types})
    assert [block.mixer.window for block in config.decoder.blocks] == [None, 7, 7]
    assert GEMMA2.published_config(config)["layer_types"] == types
    reasons, _ = LLAMA.reasons(config)
    assert any("decoder.layers.1" in reason for reason in reasons), reasons


def test_t5s_of_both_versions_have_their_heads() -> None:
    first, second = T5.to_config({}), T5.to_config({"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False})
    assert (first.head.tied, first.head.scale) == (True, 512**-0.5)
    assert (second.head.tied, second.head.scale) == (False, 1.0)
    assert (second.decoder.block.ffn.kind, second.decoder.block.ffn.activation) == ("gated", "gelu_tanh")
    assert T5.to_config({"tie_word_embeddings": None}) == first


def test_a_umt5_of_its_own_head_is_written_only_with_a_scale() -> None:
    """transformers 5 scales every UMT5's, and unties it by what a file holds."""
    tied, published = UMT5.to_config({}), UMT5.to_config({"tie_word_embeddings": False})
    assert (tied.head.tied, tied.head.scale) == (True, 512**-0.5)
    assert (published.head.tied, published.head.scale) == (False, 1.0)
    scaled = tied.override({"head.tied": False})
    assert UMT5.reasons(scaled) == ([], [])
    assert UMT5.published_config(scaled)["tie_word_embeddings"] is True
    message = "head.scale is 1.0, UMT5ForConditionalGeneration has 1/√dim"
    assert UMT5.reasons(published) == ([message], [])


def test_a_stack_too_many_or_too_few_is_said() -> None:
    reasons, _ = LLAMA.reasons(preset("t5-small"))
    assert reasons == ["the model has an encoder and a decoder, but LlamaForCausalLM has a decoder"]
    reasons, _ = T5.reasons(preset("bert-base-like"))
    assert reasons == ["the model has an encoder, but T5ForConditionalGeneration has an encoder and a decoder"]


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_has_a_family_or_reasons(name: str) -> None:
    """Whatever a model is made of, asking is no crash; and where nothing is said against it, there and back is the same."""
    config = preset(name)
    for family in ALL:
        reasons, lost = family.reasons(config)
        written, _ = family.rewrite(config, {})
        back, there = (
            resolved(family.to_config(family.published_config(written))) if not reasons else {},
            resolved(written),
        )
        if not family.holds_head(config):  # files beside its own do
            back, there = ({**each, "head": None} for each in (back, there))
        assert reasons or lost or back == there
        assert all("\n" not in reason for reason in reasons)


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        (GPT2, {"decoder.block.placement": "post"}, "placement"),
        (GPT2, {"decoder.block.norm": {"kind": "rms"}}, "block.norm.kind is rms, GPT2LMHeadModel has layer"),
        (GPT2, {"decoder.block.norm.bias": False}, "norm.bias is false"),
        (GPT2, {"decoder.block.mixer.kv_heads": 4}, "kv_heads is 4"),
        (GPT2, {"decoder.block.mixer.head_dim": 32}, "head_dim is 32"),
        (GPT2, {"decoder.block.mixer.value_dim": 32}, "value_dim is 32"),
        (GPT2, {"decoder.block.mixer.scale": "dim"}, "scale is dim"),
        (GPT2, {"decoder.block.mixer.scale": 0.5}, "scale is 0.5"),
        (GPT2, {"decoder.block.mixer.bias": False}, "mixer.bias is false"),
        (GPT2, {"decoder.block.mixer.qk_norm": {"kind": "rms"}}, "qk_norm is rms, GPT2LMHeadModel has none"),
        (GPT2, {"decoder.block.mixer.relative": {"kind": "rotary"}}, "relative is rotary"),
        (GPT2, {"decoder.block.ffn": {"kind": "gated"}}, "block.ffn.kind is gated"),
        (GPT2, {"decoder.block.ffn.bias": False}, "ffn.bias is false"),
        (GPT2, {"decoder.entry.positions": "none"}, "positions is none"),
        (GPT2, {"decoder.final_norm": False}, "final_norm is false"),
        (GPT2, {"dim": 100, "decoder.block.mixer.head_dim": 8}, "dim = 100 is not divisible"),
        (LLAMA, {"decoder.block.placement": "post"}, "placement"),
        (LLAMA, {"decoder.block.norm": {"kind": "layer"}}, "block.norm.kind is layer, LlamaForCausalLM has rms"),
        (LLAMA, {"decoder.block.mixer.relative": None}, "relative is none, LlamaForCausalLM has rotary"),
        (LLAMA, {"decoder.block.mixer.qk_norm": {"kind": "rms"}}, "qk_norm is rms"),
        (LLAMA, {"decoder.block.ffn": {"kind": "mlp"}}, "block.ffn.kind is mlp"),
        (LLAMA, {"decoder.entry.positions": "learned"}, "positions is learned"),
        (QWEN3, {}, "qk_norm is none, Qwen3ForCausalLM has rms"),
        (LLAMA, {"dim": 100, "decoder.block.mixer.heads": 8, "decoder.block.mixer.kv_heads": 8,
                 "decoder.block.mixer.head_dim": 8}, "dim = 100 must be a multiple of heads = 8"),
    ],
)  # fmt: skip
def test_what_a_family_cannot_express_is_said(family: Family, changes: dict[str, Any], message: str) -> None:
    base = preset("gpt2-small") if family is GPT2 else llama()
    data = base.to_dict()
    for path, value in changes.items():
        *parents, leaf = path.split(".")
        place = data
        for name in parents:
            place = place[name]
        place[leaf] = value
    reasons, _ = family.reasons(TransformerConfig.of(data))
    assert any(message in reason for reason in reasons), reasons


def test_a_modern_default_has_every_reason_named() -> None:
    default = sized(2, vocab_size=100)
    reasons, _ = LLAMA.reasons(default)
    assert reasons == ["decoder.block.mixer.qk_norm is rms, LlamaForCausalLM has none"]
    assert QWEN3.reasons(default) == ([], [])


def test_dropout_without_a_place_is_lost_aloud() -> None:
    config = llama().override({"decoder.block.dropout": 0.1, "decoder.block.mixer.dropout": 0.2})
    reasons, lost = LLAMA.reasons(config)
    assert reasons == []
    assert lost == ["decoder.block.dropout is 0.1, LlamaForCausalLM has 0.0"]


def test_open_sizes_are_compared_as_they_come_out() -> None:
    config = llama().override({"decoder.block.ffn": GatedConfig().to_dict()})
    assert config.decoder.block.ffn.hidden is None
    assert LLAMA.reasons(config) == ([], [])
    assert LLAMA.from_config(config)["intermediate_size"] == 11008
