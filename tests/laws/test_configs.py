"""A config is data: through JSON and TOML and back it is the same, and nonsense is refused in one line.

Models out of every choice: test_property.py.
"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.config import (
    Config,
    RunConfig,
    SamplingConfig,
    SavedConfig,
    TrainConfig,
    TransformerConfig,
    preset,
    preset_names,
)
from tests.laws.laws import survives
from tests.models import COMBINATIONS, refusal

maybe_size = st.none() | st.integers(1, 64)
rates = st.floats(0, 0.99)
positive = st.floats(1e-12, 1e12)

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


@given(runs | samplings)
def test_runs_survive_writing(config: Config) -> None:
    survives(config)


@pytest.mark.parametrize("name", preset_names())
def test_presets_survive_writing(name: str) -> None:
    survives(preset(name))


def paths_of(table: dict[str, Any], before: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The way to every key."""
    ways = [(*before, key) for key in table]
    return ways + [way for key in table if isinstance(table[key], dict) for way in paths_of(table[key], (*before, key))]


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
rubbish = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner), max_leaves=6
)


@given(st.data())
def test_nonsense_is_refused_in_one_line(data: st.DataObject) -> None:
    """Whatever value is put at whatever key: a valid config, or one line that a person can read. Never another error."""
    table = data.draw(st.sampled_from(COMBINATIONS)).to_dict()
    *way, last = data.draw(st.sampled_from(paths_of(table)))
    place = table
    for key in way:
        place = place[key]
    where = data.draw(st.sampled_from([last, "kind"]) | st.text(max_size=8))
    place[where] = data.draw(rubbish)
    line = refusal(TransformerConfig, table)
    assert not line or line.isprintable()


@given(rubbish)
@pytest.mark.parametrize("kind", [TransformerConfig, RunConfig, SavedConfig])
def test_what_is_no_config_is_refused_in_one_line(kind: type[Config], data: Any) -> None:
    line = refusal(kind, data)
    assert not line or line.isprintable()
    if kind is not RunConfig:  # a run may leave everything out
        assert line
