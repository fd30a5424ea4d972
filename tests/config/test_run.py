"""A run's choices become a model."""

from typing import Any

import pytest

from heddle.config import (
    GatedConfig,
    MaskedConfig,
    ModelChoice,
    NextTokenConfig,
    RMSNormConfig,
    RunConfig,
    SamplingConfig,
    SavedConfig,
    TrainConfig,
    TransformerConfig,
    preset,
    sized,
)
from heddle.errors import HeddleError
from tests.refusing import refusal


def resolve(**settings: Any) -> TransformerConfig:
    return ModelChoice.of(settings).resolve(vocab_size=300, depth=4, context=128)


def test_nothing_said_is_the_size_that_fits() -> None:
    assert resolve() == sized(4, vocab_size=300, context=128)


def test_what_is_said_counts() -> None:
    assert resolve(depth=2, context=64) == sized(2, vocab_size=300, context=64)
    assert resolve(depth=2, dim=96, heads=3).decoder.block.mixer.heads == 3
    assert resolve(dim=128, depth=3) == sized(3, vocab_size=300, context=128, dim=128)
    assert resolve(kv_heads=2).decoder.block.mixer.key_heads() == 2


def test_a_preset_keeps_its_own_sizes_but_the_vocabulary() -> None:
    assert resolve(preset="gpt2-small") == preset("gpt2-small").override({"vocab_size": 300})
    changed = resolve(preset="gpt2-small", depth=2, dim=96, heads=4, context=32)
    assert (changed.decoder.depth, changed.dim, changed.decoder.block.mixer.heads, changed.context) == (2, 96, 4, 32)
    assert changed.decoder.block.ffn.activation == "gelu_tanh"


def test_dropout_goes_to_its_three_places() -> None:
    stack = resolve(dropout=0.2).decoder
    assert (stack.entry.dropout, stack.block.dropout, stack.block.mixer.dropout) == (0.2, 0.2, 0.2)
    assert resolve(dropout=0.0, preset="gpt2-small").decoder.block.dropout == 0.0


def test_deeper_keys_have_the_last_word() -> None:
    model = resolve(
        depth=2,
        dropout=0.2,
        decoder={"block": {"ffn": {"kind": "gated", "hidden": 64}, "dropout": 0.1, "mixer": {"relative": None}}},
        head={"tied": False},
        initial={"std": 0.01},
    )
    assert model.decoder.block.ffn == GatedConfig(hidden=64)
    assert (model.decoder.block.dropout, model.decoder.block.mixer.dropout) == (0.1, 0.2)
    assert model.decoder.block.mixer.relative is None
    assert isinstance(model.decoder.block.norm, RMSNormConfig)
    assert not model.head.tied
    assert model.initial.std == 0.01


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"dim": 100, "heads": 3}, "model: dim = 100 is not divisible by heads = 3"),
        ({"heads": 4, "kv_heads": 3}, "heads = 4 must be a multiple of kv_heads = 3"),
        ({"preset": "gpt-2"}, "unknown preset 'gpt-2'"),
        ({"decoder": {"dept": 3}}, "unknown key 'decoder.dept' in model. Did you mean 'decoder.depth'?"),
        (
            {"decoder": {"block": {"ffn": {"kind": "moe"}}}},
            "model: 'decoder.block.ffn.experts' is missing",
        ),
        ({"decoder": {"block": 3}}, "model: decoder.block = 3"),
    ],
)
def test_the_impossible_is_refused_when_it_is_resolved(settings: dict[str, Any], line: str) -> None:
    assert line in refusal(lambda: resolve(**settings))


@pytest.mark.parametrize(
    ("data", "line"),
    [
        ({"train": {"lr": 1e-3}}, "unknown key 'train.lr' in config. heddle calls it 'train.learning_rate'."),
        ({"train": {"n_layer": 2}}, "unknown key 'train.n_layer' in config. heddle calls it 'model.depth'."),
        ({"parallel": {"depth": 2}}, "unknown key 'parallel.depth' in config. It is in another table: 'model.depth'."),
        ({"parallel": {"contxt": 2}}, "unknown key 'parallel.contxt' in config. Did you mean 'parallel.context'?"),
        (
            {"train": {"batch": 10, "accumulate": 4}},
            "batch = 10 cannot be split into accumulate = 4 equal micro-batches",
        ),
        (
            {"train": {"optimizer": "adam"}},
            "config: train.optimizer = 'adam': input should be 'muon', 'adamw' or 'sgd'",
        ),
        ({"train": {"betas": [0.9]}}, "train.betas"),
        ({"train": {"betas": [0.9, 1.0]}}, "train.betas"),
        ({"model": {"depth": 0}}, "config: model.depth = 0: input should be greater than 0"),
        ({"data": {"validation": 1.0}}, "config: data.validation = 1.0: input should be less than 1"),
        ({"dta": {}}, "unknown key 'dta' in config. Did you mean 'data'?"),
    ],
)
def test_impossible_runs_are_refused(data: dict[str, Any], line: str) -> None:
    assert line in refusal(lambda: RunConfig.of(data))


def test_a_batch_can_be_cut_evenly() -> None:
    assert TrainConfig(batch=12, accumulate=4).batch == 12
    assert TrainConfig(accumulate=4).batch is None
    assert TrainConfig().accumulate == 1


def test_an_imported_model_has_no_run() -> None:
    saved = SavedConfig(model=sized(1, vocab_size=10))
    assert (saved.data, saved.train, saved.chosen) == (None, None, None)
    assert SavedConfig.of(saved.to_dict()) == saved
    assert saved.task is None


@pytest.mark.parametrize("version", [1, 3, None, "2"])
def test_the_run_of_another_version_is_refused_as_such(version: Any) -> None:
    """In one line that says what to do, whatever else has changed since."""
    saved = SavedConfig(model=sized(1, vocab_size=10)).to_dict()
    with pytest.raises(
        HeddleError,
        match=r"^runs/a: run directory version .*, but this heddle reads version 2: train it again, or export",
    ) as error:
        SavedConfig.of({**saved, "version": version, "older": 3}, "runs/a")
    assert "\n" not in str(error.value)


def test_a_run_has_a_task() -> None:
    assert RunConfig.of({"task": {"kind": "next_token"}}).task == RunConfig().task == NextTokenConfig()
    assert "[task]" in RunConfig().to_toml()
    with pytest.raises(HeddleError, match=r"task\.kind = 'next'.*next_token"):
        RunConfig.of({"task": {"kind": "next"}})
    assert RunConfig.of({"task": "masked"}).task == RunConfig.of({"task": {"kind": "masked"}}).task == MaskedConfig()
    with pytest.raises(HeddleError, match=r"task.*share"):
        RunConfig.of({"task": {"share": 0.2}})


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"temperature": -1}, "temperature = -1"),
        ({"temperature": float("nan")}, "temperature = nan"),
        ({"top_p": 0}, "top_p = 0"),
        ({"top_p": 1.1}, r"top_p = 1\.1"),
        ({"top_k": 0}, "top_k = 0"),
        ({"max_tokens": 0}, "max_tokens = 0"),
        ({"seed": 2**63}, "seed = 9223372036854775808"),
        ({"stop": ["a", ""]}, "stop contains an empty text"),
        ({"topk": 3}, r"unknown key 'topk' in config\. Did you mean 'top_[kp]'"),
    ],
)
def test_impossible_sampling_is_refused(settings: dict[str, Any], line: str) -> None:
    with pytest.raises(HeddleError, match=line):
        SamplingConfig.of(settings)


def test_sampling_as_it_stands() -> None:
    fields = SamplingConfig(max_tokens=200, temperature=1.0, top_k=None, top_p=None, seed=0, stop=(), window=False)
    assert SamplingConfig() == fields


def test_what_a_mixer_does_not_have_is_refused_not_left_out() -> None:
    """Heads of a recurrent network would be dropped without a word; dropout is set in the places that there are."""
    recurrent = {"depth": 1, "decoder": {"block": {"mixer": {"kind": "recurrent"}}}}
    with pytest.raises(HeddleError, match=r"unknown key 'decoder.block.mixer.heads'"):
        ModelChoice.of({**recurrent, "heads": 2}).resolve(50, 1, 16)
    assert ModelChoice.of({**recurrent, "dropout": 0.1}).resolve(50, 1, 16).decoder.block.dropout == 0.1


@pytest.mark.lecture("D-03", "D-13", "D-54")
def test_what_a_run_says_of_dropout_and_padding_reaches_the_model() -> None:
    settings = {"depth": 1, "pad_vocab_to": 64, "dropout": {"rate": 0.2, "style": "classic", "mask": "batch"}}
    model = RunConfig.of({"model": settings}).model.resolve(100, 1, 16)
    assert (model.table_rows(), model.dropout.style, model.dropout.mask) == (128, "classic", "batch")
    assert (model.decoder.block.dropout, model.decoder.block.mixer.dropout, model.decoder.entry.dropout) == (0.2,) * 3
    plain = RunConfig.of({"model": {"depth": 1, "dropout": 0.2}}).model.resolve(100, 1, 16)
    assert (plain.dropout.style, plain.decoder.block.dropout) == ("inverted", 0.2)
    with pytest.raises(HeddleError, match=r"dropout\.style"):
        RunConfig.of({"model": {"dropout": {"style": "new"}}}).model.resolve(100, 1, 16)
    with pytest.raises(HeddleError, match=r"batch = 4 and batch_tokens = 1024 both set the batch size; leave one out"):
        RunConfig.of({"train": {"batch": 4, "batch_tokens": 1024}})


def test_a_key_outside_its_section_is_told_where_it_belongs() -> None:
    for key, section in (("steps", "train"), ("depth", "model"), ("sources", "data")):
        with pytest.raises(HeddleError, match=rf"{key} belongs in \[{section}\]"):
            RunConfig.of({key: 3})
