"""Tables of config fields: both directions from one row, related families, and what is refused."""

from dataclasses import replace
from typing import Any

import pytest

from heddle.config import TransformerConfig
from heddle.convert.families import ALL
from heddle.convert.fields import (
    ACTIVATION,
    BIAS,
    FieldRow,
    FieldTable,
    Part,
    both,
    derived,
    setting,
    switch,
    written,
)
from heddle.errors import HeddleError

ROWS = (
    FieldRow("words", 11, "vocab_size"),
    FieldRow("width", 24, "dim"),
    FieldRow("length", 12, "context"),
    FieldRow("layers", 2, "decoder.depth"),
    FieldRow("heads", 4, "decoder.block.mixer.heads"),
    FieldRow("key_heads", None, "decoder.block.mixer.kv_heads"),
    FieldRow("biased", False, ("decoder.block.mixer.bias", "decoder.block.ffn.bias"), BIAS),
    FieldRow("act", "gelu_new", "decoder.block.ffn.activation", ACTIVATION),
    FieldRow("parallel", False, "decoder.block.wiring", switch("parallel", "serial")),
)


def _read_window(f: Any, data: dict[str, Any]) -> None:
    data["decoder"]["overrides"] = [{"layers": "0", "block": {"mixer": {"window": f["window"]}}}] if f["window"] else []


WINDOW = Part({"window": None}, _read_window, lambda config: {"window": setting(config, "decoder.block.mixer.window")})
TABLE = FieldTable(
    "a small config.json",
    {"decoder.block.ffn.kind": "mlp"},
    (*ROWS, WINDOW, written(kind="small")),
    fixed={"kind": "small"},
    idle=("note",),
)


def read(**fields: Any) -> TransformerConfig:
    return TABLE.to_config(fields, "SmallForCausalLM", ())


def test_a_row_goes_both_ways() -> None:
    fields = {"words": 13, "layers": 3, "key_heads": 2, "biased": True, "act": "relu", "parallel": True, "window": 5}
    config = read(**fields)
    block = config.decoder.blocks[0]
    assert (config.vocab_size, config.decoder.depth, block.mixer.kv_heads, block.mixer.window) == (13, 3, 2, 5)
    assert (block.mixer.bias, block.ffn.bias, block.ffn.activation, block.wiring) == (True, True, "relu", "parallel")
    assert config.decoder.blocks[1].mixer.window is None
    published = TABLE.from_config(config)
    assert published == {"width": 24, "length": 12, "heads": 4, "kind": "small", **fields}
    assert read(**published) == config


def test_open_settings_are_written_as_their_values() -> None:
    config = read()
    assert config.decoder.block.mixer.kv_heads is None
    assert TABLE.from_config(config)["key_heads"] == 4
    assert setting(config, "decoder.block.ffn.hidden") == 4 * 24
    assert setting(config, "decoder.block.mixer.scale") == pytest.approx(6**-0.5)
    assert setting(config, "decoder.block.norm.no_such") is None


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"depth": 3}, "depth = 3 in config.json: heddle does not know what this field changes"),
        ({"kind": "large"}, "kind = 'large' in config.json: heddle supports only 'small'"),
        ({"act": "own"}, "act = 'own' in config.json: heddle supports gelu_new"),
        ({"heads": 5}, "a small config.json in heddle's terms: "),
        ({"architectures": ["OtherModel"]}, "heddle reads SmallForCausalLM"),
    ],
)
def test_what_no_row_expresses_is_refused(fields: dict[str, Any], line: str) -> None:
    with pytest.raises(HeddleError) as error:
        read(**fields)
    assert line in str(error.value)
    assert read(note="any", model_type="small", depth=None) == read()


def test_a_related_family_has_other_defaults_and_rows() -> None:
    own = FieldRow("width", 48, ("dim", "decoder.block.ffn.hidden"))
    rows = derived(ROWS, ("parallel",), words=7, width=own)
    config = replace(TABLE, rows=(*rows, WINDOW)).to_config({}, "SmallForCausalLM", ())
    assert (config.vocab_size, config.dim, config.decoder.block.ffn.hidden) == (7, 48, 48)
    assert [row.published for row in rows] == [row.published for row in ROWS if row.published != "parallel"]
    with pytest.raises(AssertionError, match="no_such"):
        derived(ROWS, no_such=1)


def test_paths_in_both_stacks() -> None:
    assert both("depth", "entry.scale") == (
        "encoder.depth",
        "encoder.entry.scale",
        "decoder.depth",
        "decoder.entry.scale",
    )


@pytest.mark.parametrize("family", ALL, ids=lambda family: family.architecture)
def test_no_field_is_in_two_rows(family: Any) -> None:
    names = [name for row in family.fields.rows for name in row.defaults]
    assert len(names) == len(set(names))
