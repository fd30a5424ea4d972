"""Keywords that editors complete are the fields of the configs, with the same types."""

from collections.abc import Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, Unpack, get_args, get_origin, get_type_hints

import pytest

import heddle
from heddle.config import RunConfig, TrainConfig
from heddle.config.decoding import BeamConfig, SamplingConfig
from heddle.config.keywords import BeamSettings, ModelSettings, SamplingSettings, TrainSettings
from heddle.config.run import ModelChoice
from heddle.train.fit import OF_A_RUN

TABLES = {
    TrainSettings: (TrainConfig, {"steps", "loss", *OF_A_RUN}),
    SamplingSettings: (SamplingConfig, set()),
    BeamSettings: (BeamConfig, set()),
    ModelSettings: (ModelChoice, {"depth", "context", "preset", "start"}),
}


def kinds(annotation: Any) -> set[Any]:
    """What a value may be, without limits; a list, a tuple and a table are one kind each."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return kinds(inner[0])
    if origin in (Union, UnionType):
        return set().union(*map(kinds, inner))
    if origin is Literal:
        return set(inner)
    if origin in (Sequence, tuple, list):
        return {"list"}
    if origin in (Mapping, dict) or hasattr(annotation, "model_fields"):
        return {"table"}
    return {annotation}


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.__name__)
def test_keywords_are_the_fields_of_a_config(table: type) -> None:
    config, others = TABLES[table]
    hints = get_type_hints(table)
    assert hints.keys() == config.model_fields.keys() - others, "add the field to heddle/config/keywords.py"
    for name, hint in hints.items():
        declared, hinted = kinds(config.model_fields[name].annotation), kinds(hint)
        assert declared <= hinted, name
        assert hinted - declared <= {"table"}, name  # what a config also takes as a plain table


@pytest.mark.parametrize(
    ("call", "table"),
    [
        (heddle.fit, TrainSettings),
        (heddle.generate_text, SamplingSettings),
        (heddle.generate.reply, SamplingSettings),
        (heddle.translate, BeamSettings),
        (heddle.model_for, ModelSettings),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_calls_name_their_keywords(call: Any, table: type) -> None:
    (keywords,) = [hint for hint in call.__annotations__.values() if get_origin(hint) is Unpack]
    assert get_args(keywords) == (table,)


def test_a_config_names_its_fields_too() -> None:
    """`RunConfig(` and the others are completed as pydantic's models are."""
    assert RunConfig.__signature__.parameters.keys() >= {"model", "train"}
    assert NoneType in kinds(TrainConfig.model_fields["batch"].annotation)
