"""A config is data: through JSON and TOML and back it is the same, and nonsense is refused in one line."""

import json
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.config import (
    AlibiConfig,
    AttentionConfig,
    BlockConfig,
    BucketsConfig,
    Config,
    ConvolutionConfig,
    EntryConfig,
    GatedConfig,
    LanguageHeadConfig,
    LayerNormConfig,
    LinearConfig,
    LinearScaling,
    Llama3Scaling,
    MLPConfig,
    MoEConfig,
    NoFeedForwardConfig,
    NoNormConfig,
    NTKScaling,
    RecurrentConfig,
    RMSNormConfig,
    RotaryConfig,
    RunConfig,
    SamplingConfig,
    SavedConfig,
    StackConfig,
    TrainConfig,
    TransformerConfig,
    YarnScaling,
    preset,
    preset_names,
)
from heddle.config.model import InitialConfig
from heddle.errors import HeddleError
from heddle.model import build
from tests.laws.models import COMBINATIONS

sizes = st.integers(1, 64)
maybe_size = st.none() | sizes
rates = st.floats(0, 0.99)
positive = st.floats(1e-12, 1e12)
activations = st.sampled_from(["gelu", "gelu_tanh", "relu", "relu_squared", "silu"])
norms = (
    st.builds(LayerNormConfig, eps=st.just(0.0) | positive, bias=st.booleans(), unbiased=st.booleans())
    | st.builds(RMSNormConfig, eps=positive)
    | st.just(NoNormConfig())
)
feeding = {"hidden": maybe_size, "activation": activations, "bias": st.booleans()}
mlps = st.builds(MLPConfig, **feeding) | st.builds(GatedConfig, **feeding)
experts = st.builds(
    MoEConfig,
    experts=st.integers(2, 5),
    active=st.integers(1, 2),
    expert=mlps,
    shared=st.integers(0, 2),
    gate=st.sampled_from(["softmax", "sigmoid"]),
    renormalise=st.booleans(),
    balance=rates,
    bias_rate=rates,
    dispatch=st.sampled_from(["grouped", "loop"]),
)
ffns = mlps | experts | st.just(NoFeedForwardConfig())
others = (
    st.builds(ConvolutionConfig, taps=st.integers(1, 5), dilation=st.integers(1, 3), bias=st.booleans())
    | st.builds(LinearConfig, taps=st.integers(1, 5))
    | st.builds(RecurrentConfig, cell=st.sampled_from(["gru", "lstm"]), hidden=maybe_size, bias=st.booleans())
)
factors = st.floats(1, 64)
scalings = (
    st.builds(LinearScaling, factor=factors)
    | st.builds(NTKScaling, factor=factors)
    | st.builds(YarnScaling, factor=factors, original=sizes)
    | st.builds(Llama3Scaling, factor=factors, original=sizes)
)
relatives = (
    st.builds(
        RotaryConfig, base=positive, pairing=st.sampled_from(["halves", "neighbours"]), scaling=st.none() | scalings
    )
    | st.just(AlibiConfig())
    | st.builds(BucketsConfig, buckets=st.integers(4, 16), furthest=st.integers(9, 64))
)


@st.composite
def transformer_configs(draw: st.DrawFn) -> TransformerConfig:
    """Any model that can be built."""
    kv_heads, group = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    head_dim = draw(st.none() | st.integers(1, 8).map(lambda half: 2 * half))
    mixer = AttentionConfig(
        heads=kv_heads * group,
        kv_heads=draw(st.none() if group == 1 else st.just(kv_heads)),
        head_dim=head_dim,
        value_dim=draw(maybe_size),
        scale=draw(st.sampled_from(["head_dim", "dim"]) | positive),
        bias=draw(st.booleans() | st.just(("q", "v"))),
        window=draw(maybe_size),
        cap=draw(st.none() | positive),
        qk_norm=draw(st.none() | norms),
        relative=draw(st.none() | relatives),
        dropout=draw(rates),
        kernel=draw(st.sampled_from(["auto", "reference", "plain"])),
    )
    block = BlockConfig(
        mixer=draw(st.just(mixer) | others),
        ffn=draw(ffns),
        norm=draw(norms),
        placement=draw(st.sampled_from(["pre", "post", "sandwich", "output", "literal", "bare"])),
        dropout=draw(rates),
    )
    stack = StackConfig(
        depth=draw(st.integers(1, 3)),
        block=block,
        entry=EntryConfig(
            positions=draw(st.sampled_from(["learned", "none"])),
            norm=draw(st.none() | norms),
            scale=draw(st.booleans()),
            types=draw(st.integers(0, 3)),
            dropout=draw(rates),
        ),
        final_norm=draw(st.none() | st.booleans()),
    )
    return TransformerConfig(
        vocab_size=draw(sizes),
        pad_vocab_to=draw(sizes),
        dim=draw(sizes) if head_dim else 2 * kv_heads * group * draw(st.integers(1, 4)),
        context=draw(sizes),
        decoder=stack,
        head=LanguageHeadConfig(tied=draw(st.booleans()), bias=draw(st.booleans()), cap=draw(st.none() | positive)),
        initial=InitialConfig(std=draw(positive), scale_residual=draw(st.booleans())),
    )


# What a file can hold: any text that UTF-8 can write.
texts = st.text(st.characters(exclude_categories=["Cs"]))
trainings = st.builds(
    TrainConfig,
    seed=st.integers(0, 2**62),
    steps=maybe_size,
    learning_rate=st.none() | positive,
    betas=st.tuples(rates, rates),
    clip=st.just(0.0) | positive,
    optimizer=st.sampled_from(["muon", "adamw"]),
)
samplings = st.builds(
    SamplingConfig,
    temperature=st.floats(0, 100),
    top_k=maybe_size,
    top_p=st.none() | st.floats(1e-9, 1),
    seed=st.integers(0, 2**63 - 1),
    stop=st.lists(texts.filter(bool), max_size=3).map(tuple),
)
runs = st.builds(
    lambda sources, tokenizer, train, head: RunConfig.of(
        {"data": {"sources": sources, "tokenizer": tokenizer}, "train": train, "model": {"head": head}}
    ),
    st.lists(texts, max_size=3),
    texts,
    trainings,
    st.fixed_dictionaries({}, optional={"tied": st.booleans()}),
)


def survives(config: Config) -> None:
    kind = type(config)
    assert kind.of(config.to_dict()) == config
    assert kind.of(json.loads(config.to_json())) == config
    assert kind.of(tomllib.loads(config.to_toml())) == config
    assert config.override({}) == config


@given(transformer_configs())
def test_models_survive_writing(config: TransformerConfig) -> None:
    survives(config)
    survives(SavedConfig(model=config))


@given(runs | samplings)
def test_runs_survive_writing(config: Config) -> None:
    survives(config)


@pytest.mark.parametrize("name", preset_names())
def test_presets_survive_writing(name: str) -> None:
    survives(preset(name))


@given(transformer_configs())
def test_every_valid_config_builds(config: TransformerConfig) -> None:
    model = build(config, device="meta")
    assert all(parameter.is_meta for parameter in model.parameters())
    assert not list(model.buffers()), "nothing derived is kept"


def paths_of(table: dict[str, Any], before: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The way to every key."""
    ways = [(*before, key) for key in table]
    return ways + [way for key in table if isinstance(table[key], dict) for way in paths_of(table[key], (*before, key))]


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
rubbish = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner), max_leaves=6
)


def refusal(kind: type[Config], data: Any) -> str | None:
    """What is said against the data, or nothing. Any other error than a refusal goes through."""
    try:
        config = kind.of(data)
    except HeddleError as error:
        return str(error)
    assert kind.of(config.to_dict()) == config
    return None


@given(st.data())
def test_nonsense_is_refused_in_one_line(data: st.DataObject) -> None:
    """Whatever stands in whatever place: a valid config, or one line that a person can read. Never another error."""
    table = data.draw(st.sampled_from(COMBINATIONS)).to_dict()
    *way, last = data.draw(st.sampled_from(paths_of(table)))
    place = table
    for key in way:
        place = place[key]
    where = data.draw(st.sampled_from([last, "kind"]) | st.text(max_size=8))
    place[where] = data.draw(rubbish)
    line = refusal(TransformerConfig, table)
    assert line is None or (line and line.isprintable())


@given(rubbish)
@pytest.mark.parametrize("kind", [TransformerConfig, RunConfig, SavedConfig])
def test_what_is_no_config_is_refused_in_one_line(kind: type[Config], data: Any) -> None:
    line = refusal(kind, data)
    assert line is None or (line and line.isprintable())
    if kind is not RunConfig:  # a run may leave everything out
        assert line
