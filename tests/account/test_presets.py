"""Every preset builds without memory and has the count that the lectures or its authors give it."""

from typing import Any

import pytest
import torch

from heddle.account import parameter_count, training_settings
from heddle.account.repeats import measured
from heddle.account.report import PRINTED
from heddle.config import preset, preset_names
from tests.account.counts import parameters_of

# Preset -> exact count, 12Ld² where the lectures give it, and the rows that these numbers stand in.
COUNTS: dict[str, tuple[int, int | None, tuple[str, ...]]] = {
    "gpt1": (116_534_784, 84_934_656, ("L1-54", "L0-85", "D-14", "D-43")),
    "gpt2-small": (124_439_808, 84_934_656, ("L0-10", "L0-83", "D-14")),
    "gpt2-medium": (354_823_168, None, ("L0-10",)),
    "gpt2-large": (774_030_080, None, ("L0-10",)),
    "gpt2-xl": (1_557_611_200, 1_474_560_000, ("L1-55",)),
    "nanogpt": (124_475_904, 84_934_656, ("L0-11", "L0-86")),
    "gpt3-small": (125_226_240, 84_934_656, ("L1-63", "D-20")),
    "gpt3-medium": (355_871_744, 301_989_888, ("L1-64",)),
    "gpt3-large": (760_300_032, 679_477_248, ("L1-65",)),
    "gpt3-xl": (1_315_723_264, 1_207_959_552, ("L1-66", "L1-71", "D-17")),
    "gpt3-xl-as-printed": (1_517_123_584, None, ("L1-66", "L1-71", "D-17")),
    "gpt3-2.7b": (2_651_553_280, 2_516_582_400, ("L1-67",)),
    "gpt3-6.7b": (6_658_404_352, 6_442_450_944, ("L1-68",)),
    "gpt3-13b": (12_853_386_240, 12_582_912_000, ("L1-69", "L1-71", "D-16")),
    "gpt3-13b-as-printed": (12_936_488_380, 12_681_408_000, ("L1-69", "L1-71", "D-16")),
    "gpt3-175b": (174_604_259_328, 173_946_175_488, ("L1-45", "L1-56", "L1-70")),
    "mistral-7b": (7_241_732_096, 6_442_450_944, ("L1-46",)),
    "falcon-40b": (41_303_293_952, 48_318_382_080, ("L1-47", "L1-58", "D-19", "D-61")),
    "llama-7b": (6_738_415_616, 6_442_450_944, ("L2-43",)),
    "llama-3-8b": (8_030_261_248, 6_442_450_944, ("L2-43",)),
    "qwen3-0.6b": (596_049_920, 352_321_536, ("L2-78", "D-41")),
    "qwen3-8b": (8_190_735_360, 7_247_757_312, ("L2-78",)),
    "qwen3-30b-a3b": (30_532_122_624, 2_415_919_104, ("L2-78", "L2-68")),
    "mixtral-8x7b": (46_702_792_704, None, ()),
    "vaswani-base": (63_082_496, None, ("L2-34", "L3-02")),
    "vaswani-big": (214_245_376, None, ("L2-34", "L3-02")),
    "bert-base-like": (109_482_240, 84_934_656, ("L3-04",)),
    "bert-large-like": (335_141_888, 301_989_888, ("L3-04",)),
    "bycroft-nano": (85_584, 82_944, ("L3-39",)),
    "t5-small": (60_506_624, None, ()),
    "bart-base": (139_420_416, None, ()),
}


def marked(names: tuple[str, ...]) -> list[pytest.MarkDecorator]:
    return [pytest.mark.lecture(*names)] if names else []


@pytest.mark.lecture(  # the rows of `COUNTS`; marks are read without running anything
    "L0-10", "L0-11", "L0-83", "L0-85", "L0-86", "L1-45", "L1-46", "L1-47", "L1-54", "L1-55", "L1-56", "L1-58",
    "L1-59", "L1-63", "L1-64", "L1-65", "L1-66", "L1-67", "L1-68", "L1-69", "L1-70", "L1-71", "L2-34", "L2-43",
    "L2-68", "L2-78", "L3-02", "L3-04", "L3-39", "D-14",
)  # fmt: skip
@pytest.mark.parametrize("name", [pytest.param(name, marks=marked(rows)) for name, (_, _, rows) in COUNTS.items()])
def test_a_named_system_has_its_count(name: str) -> None:
    exact, rule, _ = COUNTS[name]
    known = parameters_of(name)
    alone = measured(preset(name), lambda some: {"parameters": parameter_count(some)})
    assert known.total == alone["parameters"] == exact
    if rule is not None:
        assert known.rule == rule
        assert known.rule_share == rule / exact


@pytest.mark.parametrize("name", preset_names())
def test_every_parameter_of_a_preset_has_a_place(name: str) -> None:
    known = parameters_of(name)
    assert name in COUNTS or name.startswith("laptop-") or name in ("conv-lm", "rnn-translate")
    assert known.parts["other"] == 0
    assert sum(known.parts.values()) == sum(known.groups.values()) == known.total
    assert known.active <= known.total
    assert (known.active < known.total) == any(part == "experts" for part in known.parts)


@pytest.mark.lecture("L1-54", "L1-57", "L1-58")
def test_the_rule_against_the_gpt_rows() -> None:
    names = ("small", "medium", "large", "xl", "2.7b", "6.7b", "13b", "175b")
    everyone = ("gpt1", "gpt2-small", "gpt2-medium", "gpt2-large", "gpt2-xl", *(f"gpt3-{name}" for name in names))
    shares = [parameters_of(name).rule_share or 2 for name in everyone]
    assert [round(share, 4) for share in shares[-len(names) :]] == [
        0.6782,
        0.8486,
        0.8937,
        0.9181,
        0.9491,
        0.9676,
        0.979,
        0.9962,
    ]
    assert max(shares) < 1
    assert (parameters_of("falcon-40b").rule_share or 0) > 1


@pytest.mark.lecture("L0-76", "L1-47", "L1-54", "L2-34", "L3-02", "L3-39", "D-61")
def test_counts_that_the_rows_give_beside() -> None:
    """Matrices alone, and with a head of its own."""

    def matrices(name: str) -> int:
        parts = parameters_of(name).parts
        vectors = ("norm gains", "norm shifts", "entry norm", "final norm")
        return sum(number for part, number in parts.items() if "biases" not in part and part not in vectors)

    assert matrices("gpt1") == 116_414_976
    assert matrices("vaswani-base") == 62_984_192
    assert matrices("vaswani-big") == 214_048_768
    assert parameters_of("bycroft-nano").untied == 85_728
    assert parameters_of("falcon-40b").untied == 41_835_970_560
    assert parameters_of("gpt2-small").untied == 163_037_184


@pytest.mark.lecture("L1-71", "D-16", "D-17")
def test_only_the_printed_rows_have_heads_that_do_not_add_up_to_the_width() -> None:
    def whole(name: str) -> bool:
        config = preset(name)
        mixer = config.last()[1].block.mixer
        return mixer.heads * mixer.width(config.dim) == config.dim

    gpt3 = [name for name in preset_names() if name.startswith("gpt3-")]
    assert [name for name in gpt3 if not whole(name)] == ["gpt3-13b-as-printed", "gpt3-xl-as-printed"]


@pytest.mark.lecture("D-44", "L1-55", "L1-45", "L1-46", "L1-47")
@pytest.mark.parametrize(
    ("name", "ratio"),
    [
        ("gpt3-medium", 1.0168),
        ("gpt3-2.7b", 0.9821),
        ("gpt3-6.7b", 0.9938),
        ("gpt2-xl", 1.0384),
        ("gpt3-13b", 0.9887),
        ("gpt3-175b", 0.9977),
        ("mistral-7b", 1.0345),
        ("falcon-40b", 1.0326),
    ],
)
def test_printed_beside_exact(name: str, ratio: float) -> None:
    assert round(parameters_of(name).total / PRINTED[name], 4) == ratio


@pytest.mark.lecture("L1-72", "L1-73", "D-18")
def test_batches_and_rates_of_gpt3() -> None:
    batches = {
        "small": 256,
        "medium": 256,
        "large": 256,
        "xl": 512,
        "2.7b": 512,
        "6.7b": 1024,
        "13b": 1024,
        "175b": 1600,
    }
    rates = [6e-4, 3e-4, 2.5e-4, 2e-4, 1.6e-4, 1.2e-4, 1e-4, 0.6e-4]
    for (name, sequences), rate in zip(batches.items(), rates, strict=True):
        settings = training_settings(f"gpt3-{name}")
        assert (settings["sequences"], settings["batch_tokens"]) == (sequences, sequences * 2048)
        assert settings["learning_rate"] == rate
    assert training_settings("gpt2-small") == {}


@pytest.mark.lecture("L2-68", "L2-78")
def test_what_a_token_goes_through() -> None:
    known = parameters_of("qwen3-30b-a3b")
    assert known.active == 3_353_032_704
    assert known.active - known.parts["token embedding"] == 3_041_867_776


def transformers_count(name: str, **sizes: Any) -> int:
    """What the class of the transformers library has, built without memory."""
    transformers = pytest.importorskip("transformers")
    made = getattr(transformers, name)
    config = made.config_class(**sizes)
    with torch.device("meta"):
        model = made(config)
    return sum(parameter.numel() for parameter in model.parameters())


MIXTRAL = {"hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32, "num_local_experts": 8}
WITNESSES: dict[str, tuple[str, dict[str, Any]]] = {
    "mixtral-8x7b": ("MixtralForCausalLM", {**MIXTRAL, "vocab_size": 32_000, "num_key_value_heads": 8}),
    "t5-small": ("T5ForConditionalGeneration", {"vocab_size": 32_128, "d_model": 512, "num_layers": 6, "d_ff": 2048}),
    "bert-base-like": ("BertModel", {}),
    "gpt2-small": ("GPT2LMHeadModel", {}),
    "bart-base": (
        "BartForConditionalGeneration",
        {
            **{
                f"{side}_{what}": number
                for side in ("encoder", "decoder")
                for what, number in (("layers", 6), ("ffn_dim", 3072))
            },
            **{f"{side}_attention_heads": 12 for side in ("encoder", "decoder")},
            "d_model": 768,
        },
    ),
}


@pytest.mark.parametrize("name", WITNESSES)
def test_the_transformers_library_counts_the_same(name: str) -> None:
    made, sizes = WITNESSES[name]
    assert transformers_count(made, **sizes) == COUNTS[name][0]
