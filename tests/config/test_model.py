"""What a model config decides where nothing is said."""

from typing import Any

import pytest

from heddle.config import (
    AttentionConfig,
    BlockConfig,
    ConvolutionConfig,
    GatedConfig,
    InitialConfig,
    LayerNormConfig,
    MLPConfig,
    Override,
    RMSNormConfig,
    RotaryConfig,
    SpecialIds,
    StackConfig,
    TransformerConfig,
    sized,
)
from heddle.errors import HeddleError
from tests.refusing import refusal


def model(dim: int = 8, vocab_size: int = 5, **mixer: object) -> TransformerConfig:
    block = BlockConfig(mixer=AttentionConfig.of({"heads": 2, **mixer}))
    return TransformerConfig(vocab_size=vocab_size, dim=dim, context=4, decoder=StackConfig(depth=1, block=block))


@pytest.mark.lecture("D-27")
def test_the_usual_choices() -> None:
    config = model()
    block = config.decoder.block
    assert block.norm == LayerNormConfig(eps=1e-5, bias=True)
    assert RMSNormConfig().eps == 1e-6
    assert block.ffn == MLPConfig(activation="gelu", bias=True)
    assert block.placement == "pre"
    assert config.decoder.ends_in_norm()
    assert config.head.tied
    assert config.initial.std == 0.02
    assert config.initial.scale_residual
    assert (block.dropout, block.mixer.dropout, config.decoder.entry.dropout) == (0, 0, 0)
    assert block.mixer.scale == "head_dim"
    assert (block.mixer.bias, GatedConfig().bias) == (True, False)
    assert config.table_rows() == config.vocab_size == 5
    assert RotaryConfig().base == 10_000


@pytest.mark.lecture("L1-17")
@pytest.mark.parametrize(
    ("dim", "mlp", "gated"), [(768, 3072, 2048), (4096, 16_384, 11_008), (12_288, 49_152, 32_768), (1, 4, 256)]
)
def test_hidden_widths_follow_the_width(dim: int, mlp: int, gated: int) -> None:
    assert MLPConfig().width(dim) == mlp
    assert GatedConfig().width(dim) == gated
    assert MLPConfig(hidden=7).width(dim) == GatedConfig(hidden=7).width(dim) == 7


def test_heads_follow_the_width() -> None:
    assert AttentionConfig(heads=3).width(12) == 4
    assert AttentionConfig(heads=3, head_dim=5).width(12) == 5
    assert AttentionConfig(heads=3).key_heads() == 3
    assert AttentionConfig(heads=6, kv_heads=2).key_heads() == 2


def test_rotation_needs_pairs() -> None:
    relative = RotaryConfig()
    assert model(dim=8, relative=relative).decoder.block.mixer.relative == relative
    with pytest.raises(HeddleError, match="rotary positions rotate pairs of channels, and head_dim = 3 has no room"):
        model(dim=6, relative=relative)
    assert model(dim=6, relative=relative, head_dim=4).dim == 6


@pytest.mark.lecture("L0-86")
@pytest.mark.parametrize(
    ("size", "multiple", "rows"), [(50_257, 64, 50_304), (50_257, 1, 50_257), (64, 64, 64), (65, 64, 128), (1, 64, 64)]
)
def test_tables_are_rounded_up(size: int, multiple: int, rows: int) -> None:
    assert model(vocab_size=size).override({"pad_vocab_to": multiple}).table_rows() == rows


def test_a_head_without_a_transform_has_no_activation_in_it() -> None:
    assert model().override({"head.transform": True, "head.activation": "relu", "head.eps": 1e-5}).head.eps == 1e-5
    for changes in ({"head.activation": "relu"}, {"head.eps": 1e-5}):
        with pytest.raises(HeddleError, match="belong to the head's transform: set transform"):
            model().override(changes)


@pytest.mark.parametrize("scale", ["head_dim", "dim", 0.25, 1])
def test_scales(scale: str | float) -> None:
    assert AttentionConfig.of({"heads": 1, "scale": scale}).scale == scale


@pytest.mark.parametrize("scale", ["heads", 0, -1.0, float("inf"), None])
def test_other_scales_are_refused(scale: object) -> None:
    with pytest.raises(HeddleError, match=r"scale"):
        AttentionConfig.of({"heads": 1, "scale": scale})


TOO_LARGE = [
    {"dim": 2**23},
    {"decoder.depth": 10_001},
    {"vocab_size": 10**13},
    {"vocab_size": 1, "pad_vocab_to": 10**13},
    {"context": 10**15},
    {"decoder.block.ffn.hidden": 10**15},
    {"decoder.block.mixer.head_dim": 10**15},
    {"decoder.block.mixer.value_dim": 10**15},
    {"decoder.block.mixer.heads": 10**15, "decoder.block.mixer.head_dim": 1},
]


@pytest.mark.parametrize("sizes", TOO_LARGE, ids=str)
def test_no_size_is_larger_than_any_machine(sizes: dict[str, object]) -> None:
    with pytest.raises(HeddleError, match=r"^config: [a-z_.]+ = \d+: input should be less than or equal to \d+$"):
        model().override(sizes)


def test_large_models_are_fine() -> None:
    trillion = {"dim": 32_000, "decoder.depth": 100, "decoder.block.mixer.heads": 250}
    assert model().override(trillion).dim == 32_000


def test_a_copy_has_the_blocks_of_its_own_fields() -> None:
    stack = model().decoder
    assert len(stack.blocks) == stack.depth
    assert len(stack.model_copy(update={"depth": 5}).blocks) == 5


REFUSED = [
    ({"decoder.block.norm": {"kind": "rms", "eps": 0}, "decoder.block.placement": "output"}, "rows of zeros"),
    ({"decoder.block.norm": {"kind": "layer", "eps": 1e-30}, "decoder.block.placement": "bare"}, "rows of zeros"),
    ({"decoder.block.mixer.qk_norm": {"kind": "rms", "eps": 0}}, "decoder.block.mixer.qk_norm.eps = 0"),
    ({"decoder.block.mixer.head_dim": 1, "decoder.block.mixer.qk_norm": {"kind": "layer", "unbiased": True}}, "unbiased"),
    ({"dim": 1, "decoder.block.mixer.head_dim": 2, "decoder.block.norm.unbiased": True}, "decoder.block.norm.unbiased"),
    ({"dim": 1, "decoder.block.mixer.head_dim": 2, "decoder.entry.norm": {"kind": "rms", "eps": 0}}, "entry.norm.eps"),
    (
        {"dim": 1, "decoder.block.mixer.head_dim": 2, "head.tied": False,
         "decoder.entry": {"positions": "learned", "combine": "concat"}},
        "leaves no room for positions",
    ),
    ({"decoder.block.mixer.relative": {"kind": "rotary", "base": 1.0}}, "base = 1.0"),
    (
        {"decoder.block.mixer.relative": {"scaling": {"kind": "yarn", "factor": 2, "original": 8, "fast": 1, "slow": 32}}},
        "fast = 1 must be larger than slow = 32",
    ),
    (
        {"decoder.block.mixer.relative": {"scaling": {"kind": "llama3", "factor": 2, "original": 2**70}}},
        "decoder.block.mixer.relative.scaling.original",
    ),
    ({"decoder.block.mixer.cap": 1e-40}, "cap = 1e-40"),
    ({"decoder.block.mixer.scale": 1e39}, "scale"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
def test_what_would_have_no_value_is_refused_when_it_is_made(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(HeddleError, match=reason):
        model().override(changes)


def test_what_an_override_is_given_is_what_a_file_gives_back() -> None:
    block = {"mixer": ConvolutionConfig(taps=1), "norm": RMSNormConfig()}
    written = Override(layers="0", block={**block, "ffn": {"kind": "none"}})
    assert Override.of(written.to_dict()) == written
    assert Override(layers="0", block={"mixer": {"bias": ("q",)}}) == Override(
        layers="0", block={"mixer": {"bias": ["q"]}}
    )


def test_equal_layers_are_one_object() -> None:
    stack = StackConfig(
        depth=6, block=model().decoder.block, overrides=(Override(layers="::2", block={"ffn": {"kind": "none"}}),)
    )
    assert [id(block) for block in stack.blocks] == [id(stack.blocks[0]), id(stack.block)] * 3


@pytest.mark.parametrize("option", [{"std": 0.5}, {"position_std": 3.0}, {"scale_residual": False}], ids=str)
def test_options_of_one_rule_are_refused_with_the_other(option: dict[str, object]) -> None:
    config = model().override({"decoder.entry.positions": "learned"})
    assert config.override({"initial": option}).initial == InitialConfig.of(option)
    with pytest.raises(HeddleError, match="rule = 'xavier' depends on sizes only: leave out std"):
        config.override({"initial": {"rule": "xavier", **option}})
    fields = InitialConfig(rule="xavier").to_dict()  # all of them, as a run's config.json has them
    assert config.override({"initial": fields}).initial == InitialConfig(rule="xavier")


def test_a_deviation_of_positions_needs_positions_that_are_learned() -> None:
    for kind in ("none", "sinusoidal"):
        with pytest.raises(HeddleError, match=r"initial\.position_std applies to learned positions only"):
            model().override({"initial.position_std": 0.01, "decoder.entry.positions": kind})


@pytest.mark.parametrize(
    ("ids", "line"),
    [
        ({"end": [3, 10]}, "ids: id 10 is out of range (vocab size 10)"),
        ({"banned": [[1, 12]]}, "ids: id 12 is out of range"),
        ({"banned": [[]]}, "an empty run of ids"),
        ({"begin": -1}, "ids.begin = -1"),
        ({"stop": 3}, "unknown key 'ids.stop'"),
    ],
)
def test_special_ids_are_ids_of_the_model(ids: dict[str, Any], line: str) -> None:
    data = sized(1, vocab_size=10).to_dict()
    assert line in refusal(lambda: TransformerConfig.of({**data, "ids": ids}))
    assert TransformerConfig.of({**data, "ids": {"end": [3, 9]}}).ids == SpecialIds(end=(3, 9))
