"""Configs read, refuse, merge and write."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from heddle.cli.train import full_keys
from heddle.config import ModelChoice, RunConfig, TransformerConfig, parse_overrides, preset
from heddle.config.base import merge, read_table, set_path, write_toml
from heddle.config.key_names import ALIASES, OTHER_NAMES, unknown_keys
from heddle.errors import HeddleError
from tests.refusing import refusal

TINY: dict[str, Any] = {
    "vocab_size": 5,
    "dim": 4,
    "context": 3,
    "decoder": {"depth": 1, "block": {"mixer": {"heads": 2}}},
}


def changed(path: str, value: Any) -> dict[str, Any]:
    data = json.loads(json.dumps(TINY))
    set_path(data, path, value)
    return data


@pytest.mark.parametrize(
    ("path", "value", "line"),
    [
        ("contxt", 4, "unknown key 'contxt' in config. Did you mean 'context'?"),
        ("decoder.dept", 4, "unknown key 'decoder.dept' in config. Did you mean 'decoder.depth'?"),
        (
            "decoder.block.mixer.head",
            4,
            "unknown key 'decoder.block.mixer.head' in config. Did you mean 'decoder.block.mixer.heads'?",
        ),
        (
            "decoder.block.ffn",
            {"kind": "gated", "hiden": 8},
            "unknown key 'decoder.block.ffn.hiden' in config. Did you mean 'decoder.block.ffn.hidden'?",
        ),
        (
            "decoder.block.mixer.qk_norm",
            {"kind": "rms", "epss": 1e-6},
            "unknown key 'decoder.block.mixer.qk_norm.epss' in config. Did you mean 'decoder.block.mixer.qk_norm.eps'?",
        ),
        (
            "decoder.block.norm",
            {"kind": "rms", "bias": True},
            "unknown key 'decoder.block.norm.bias' in config. Known keys: eps, kind.",
        ),
        (
            "head.zzz",
            1,
            "unknown key 'head.zzz' in config. Known keys: activation, bias, cap, eps, kind, scale, tied, transform, "
            "transform_bias.",
        ),
        ("dim", "wide", "config: dim = 'wide': input should be a valid integer, unable to parse string as an integer"),
        ("dim", 0, "config: dim = 0: input should be greater than 0"),
        (
            "decoder.block.mixer.scale",
            "x",
            "config: decoder.block.mixer.scale = 'x': input should be 'head_dim' or 'dim', or a valid number",
        ),
        ("dim", float("nan"), "config: dim = nan: input should be a finite number"),
        (
            "decoder.block.norm",
            {"kind": "rsm"},
            "config: decoder.block.norm.kind = 'rsm' is not one of layer, rms, none. Did you mean 'rms'?",
        ),
        (
            "decoder.block.placement",
            "before",
            "config: decoder.block.placement = 'before': input should be 'pre', 'pre_ffn', 'post', 'sandwich', 'output', "
            "'literal' or 'bare'",
        ),
        ("decoder.block.dropout", 1.0, "config: decoder.block.dropout = 1.0: input should be less than 1"),
        ("decoder.block.mixer.heads", 3, None),
        (
            "decoder.block.mixer.kv_heads",
            4,
            "config: decoder.block.mixer: heads = 2 must be a multiple of kv_heads = 4",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(path: str, value: Any, line: str | None) -> None:
    text = refusal(lambda: TransformerConfig.of(changed(path, value)))
    if line is not None:
        assert text == line


@pytest.mark.lecture("L0-43", "L3-21", "D-41")
def test_a_width_that_heads_do_not_divide_is_refused() -> None:
    with pytest.raises(HeddleError, match=r"dim = 5140 is not divisible by heads = 40 \(128\.5 is not whole\)"):
        preset("gpt2-small").override({"dim": 5140, "decoder.block.mixer.heads": 40})
    wide = preset("gpt2-small").override(
        {"dim": 5140, "decoder.block.mixer.heads": 40, "decoder.block.mixer.head_dim": 128}
    )
    assert wide.decoder.block.mixer.width(wide.dim) == 128


def test_a_missing_key_is_named() -> None:
    data = changed("dim", 4)
    del data["decoder"]["block"]["mixer"]["heads"]
    with pytest.raises(HeddleError, match=r"^config: 'decoder\.block\.mixer\.heads' is missing$"):
        TransformerConfig.of(data)


@pytest.mark.parametrize(("alias", "ours"), OTHER_NAMES.items())
def test_names_of_other_codebases_are_refused_with_ours(alias: str, ours: str) -> None:
    message = refusal(lambda: TransformerConfig.of({**TINY, alias: 8}))
    assert message == f"unknown key {alias!r} in config. heddle calls it {ours!r}."


def test_a_misnamed_key_is_named_before_the_missing_one() -> None:
    data = changed("decoder.num_layers", 3)
    del data["decoder"]["depth"]
    with pytest.raises(
        HeddleError, match=r"^unknown key 'decoder\.num_layers' in config\. heddle calls it 'decoder\.depth'\.$"
    ):
        TransformerConfig.of(data)


def tables_of(config: Any) -> dict[str, set[str]]:
    """The keys of a config and of those inside it, by their class."""
    data = config.model_json_schema()
    tables = {config.__name__: data, **data.get("$defs", {})}
    return {name: set(table.get("properties", {})) for name, table in tables.items()}


def test_our_names_exist_and_theirs_do_not() -> None:
    tables = {**tables_of(TransformerConfig), **tables_of(RunConfig)}
    decoding = tables.pop("DecodingDefaults")  # whose early_stopping is a beam search's: its tables take no alias
    known = set().union(*tables.values())
    assert "early_stopping" in decoding
    assert not ALIASES.keys() & OTHER_NAMES.keys()
    for alias, ours in {**ALIASES, **OTHER_NAMES}.items():
        assert alias not in known, "a second spelling"
        assert ours in known, f"{alias} points to {ours}, which is not a key"


def test_an_alias_replaces_what_it_stands_for() -> None:
    """Where a config is changed, an alias is the key itself, not a second one beside it."""
    config = TransformerConfig.of(TINY)
    path = {"decoder.n_layer": 3, "n_embd": 96, "decoder.block.mixer.N": 3}
    assert config.override(path) == config.override({"decoder.depth": 3, "dim": 96, "decoder.block.mixer.heads": 3})
    choice = RunConfig.of({"model": {"L": 2, "decoder": {"block": {"mixer": {"n_heads": 1}}}}}).model
    assert choice.resolve(100, 1, 16).decoder.block.mixer.heads == 1
    assert full_keys([("n_layer", 2)]) == ({"model.n_layer": 2}, [])
    with pytest.raises(HeddleError, match=r"decoder: L = 2 and depth = 3 contradict each other; set only 'depth'"):
        TransformerConfig.of({**TINY, "decoder": {**TINY["decoder"], "L": 2, "depth": 3}})
    with pytest.raises(HeddleError, match=r"^unknown key 'n_layer' in config\. heddle calls it 'depth'\.$"):
        TransformerConfig.of({**TINY, "n_layer": 2})


def test_an_unknown_key_far_from_all_lists_them() -> None:
    assert unknown_keys(["qqq"], ["dim", "context"]) == ["unknown key 'qqq'. Known keys: context, dim."]
    assert unknown_keys(["a.contex", "qqq", "zzz"], ["dim", "context"], " in x.toml") == [
        "unknown key 'a.contex' in x.toml. Did you mean 'a.context'?",
        "unknown keys 'qqq', 'zzz' in x.toml. Known keys: context, dim.",
    ]


def test_configs_are_frozen() -> None:
    config = TransformerConfig.of(TINY)
    with pytest.raises(ValueError, match="frozen"):
        config.dim = 8
    assert {config: 1}[TransformerConfig.of(TINY)] == 1


def test_files_are_read(tmp_path: Path) -> None:
    config = TransformerConfig.of(TINY)
    for name, text in (("a.json", config.to_json()), ("a.toml", config.to_toml())):
        (tmp_path / name).write_text(text, encoding="utf-8")
        assert TransformerConfig.read(tmp_path / name) == config


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("gone.toml", None, "no such file"),
        ("bad.json", b'{"a": }', "not valid JSON"),
        ("bad.toml", b"a = = 1", "not valid TOML"),
        ("deep.json", b"[" * 100_000, "not valid JSON"),
        ("list.json", b"[1, 2]", "must be a table of keys, not list"),
        ("bytes.toml", b"\xff\xfe\x00", "cannot be read as text"),
        ("wrong.toml", b"vocab = 3", "unknown key 'vocab' in "),
    ],
)
def test_an_unreadable_file_is_refused_with_its_name(
    tmp_path: Path, name: str, content: bytes | None, line: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    message = refusal(lambda: TransformerConfig.read(path))
    assert line in message
    assert name in message


def test_a_key_that_a_file_has_twice_is_refused(tmp_path: Path) -> None:
    """TOML says so itself; of JSON, the last would be taken."""
    for name, text in (
        ("a.json", '{"dim": 8, "decoder": {"depth": 1, "depth": 2}}'),
        ("a.toml", "depth = 1\ndepth = 2"),
    ):
        (tmp_path / name).write_text(text)
        assert name in refusal(lambda name=name: read_table(tmp_path / name))
    assert "the key 'depth' occurs twice" in refusal(lambda: read_table(tmp_path / "a.json"))


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path: Path) -> None:
    for name, text in (("a.json", '{"depth": 1}'), ("a.toml", "depth = 1")):
        (tmp_path / name).write_text(text, encoding="utf-8-sig")
        assert read_table(tmp_path / name) == {"depth": 1}


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HeddleError, match=r"is a directory, not a \.toml or \.json file"):
        read_table(tmp_path)


def test_overrides_reach_down() -> None:
    config = TransformerConfig.of(TINY).override(
        {"decoder.depth": 3, "decoder.block.mixer.relative.base": 500.0, "dim": 8}
    )
    assert (config.decoder.depth, config.dim) == (3, 8)
    assert config.decoder.block.mixer.relative is not None
    assert config.decoder.block.mixer.relative.base == 500.0
    with pytest.raises(HeddleError, match=r"'dim\.x': 'dim' is a value, not a table of keys"):
        config.override({"dim.x": 1})
    with pytest.raises(HeddleError, match=r"^unknown key 'depht' in config\."):
        config.override({"depht": 1})


@pytest.mark.parametrize(
    ("word", "key", "value"),
    [
        ("steps=3", "steps", 3),
        ("train.learning-rate=3e-4", "train.learning_rate", 3e-4),
        ("tied=true", "tied", True),
        ("betas=[0.9, 0.95]", "betas", [0.9, 0.95]),
        ("name=laptop-small", "name", "laptop-small"),
        ("name='3'", "name", "3"),
        ("clip=none", "clip", "none"),
        ("text=a=b", "text", "a=b"),
        ("empty=", "empty", ""),
        (" spaced =1", "spaced", 1),
        ("path=C:\\new", "path", "C:\\new"),
    ],
)
def test_words_are_read_as_toml_where_they_can_be(word: str, key: str, value: Any) -> None:
    result = parse_overrides([word])
    assert result == {key: value}
    assert type(result[key]) is type(value)


@pytest.mark.parametrize("word", ["steps", "=3", " =3", ""])
def test_a_word_without_a_key_is_refused(word: str) -> None:
    with pytest.raises(HeddleError, match="is not of the form key=value"):
        parse_overrides([word])


def test_a_key_is_given_once() -> None:
    assert parse_overrides(["a=1", "b=2"]) == {"a": 1, "b": 2}
    for again in ("a=3", "a=1"):
        with pytest.raises(HeddleError, match=f"a is given twice, the second time as '{again}'"):
            parse_overrides(["a=1", "b=2", again])


def test_setting_a_path_makes_tables() -> None:
    data: dict[str, Any] = {"a": None}
    set_path(data, "a.b.c", 1)
    set_path(data, "a.d", 2)
    assert data == {"a": {"b": {"c": 1}, "d": 2}}


@pytest.mark.parametrize(
    ("base", "changes", "expected"),
    [
        ({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"c": 5}}, {"a": 1, "b": {"c": 5, "d": 3}}),
        ({"a": {"kind": "x", "b": 1}}, {"a": {"b": 2}}, {"a": {"kind": "x", "b": 2}}),
        ({"a": {"kind": "x", "b": 1}}, {"a": {"kind": "x", "c": 2}}, {"a": {"kind": "x", "b": 1, "c": 2}}),
        ({"a": {"kind": "x", "b": 1}}, {"a": {"kind": "y", "c": 2}}, {"a": {"kind": "y", "c": 2}}),
        ({"a": {"b": 1}}, {"a": 3}, {"a": 3}),
        ({"a": None}, {"a": {"b": 1}}, {"a": {"b": 1}}),
    ],
)
def test_merging(base: dict[str, Any], changes: dict[str, Any], expected: dict[str, Any]) -> None:
    before = json.dumps(base)
    assert merge(base, changes) == expected
    assert json.dumps(base) == before


@pytest.mark.parametrize(
    "data",
    [
        {"a": 1, "b": True, "c": 1.5e-7, "d": 1e300, "e": "x"},
        {"table": {"inner": {"deep": 1}, "value": 2}, "last": 3},
        {"list": [1, 2], "nested": [[1], [2.5]], "empty": []},
        {"tables": [{"a": 1}, {"b": {"c": "d"}}]},
        {"text": 'quote " backslash \\ newline \n tab \t bell \x07 delete \x7f'},
        {"text": "ünïcödé 🪡 \u2028 \uffff", "nothing": ""},
        {"a": {}, "b": {"c": {}}},
    ],
)
def test_toml_comes_back(data: dict[str, Any]) -> None:
    assert tomllib.loads(write_toml(data)) == data


def test_none_is_not_written_as_toml() -> None:
    with pytest.raises(HeddleError, match="none cannot be written as TOML"):
        RunConfig(model=ModelChoice(decoder={"final_norm": None})).to_toml()


def test_none_is_no_value_unless_it_is_a_choice() -> None:
    """So that files and settings, which have no word for it, can take a window away, and `positions = none` stays a choice."""
    config = preset("mistral-7b")
    assert config.override({"decoder.block.mixer.window": "none"}).decoder.block.mixer.window is None
    assert config.override({"decoder.entry.positions": "none"}).decoder.entry.positions == "none"
    assert config.override({"decoder.block.norm.kind": "none"}).decoder.block.norm.kind == "none"
    assert RunConfig.of({"train": {"steps": "none"}}).train.steps is None
    with pytest.raises(HeddleError, match=r"train\.clip = 'none'"):
        RunConfig.of({"train": {"clip": "none"}})


@pytest.mark.lecture("L1-51")
@pytest.mark.parametrize("place", ["decoder", "decoder.block", "decoder.block.mixer"])
@pytest.mark.parametrize("name", ["dim", "d_model", "hidden_size"])
def test_a_second_width_is_refused(place: str, name: str) -> None:
    with pytest.raises(HeddleError, match="A model has one width: set 'dim' at the top"):
        TransformerConfig.of(TINY).override({f"{place}.{name}": 8})


@pytest.mark.parametrize(
    "path", ["dim", "decoder.depth", "decoder.block.dropout", "decoder.block.norm.eps", "decoder.L"]
)
def test_true_is_not_the_number_one(path: str) -> None:
    name = path.rsplit(".", 1)[-1].replace("L", "depth")
    with pytest.raises(HeddleError, match=rf"{name} = true: must be a number"):
        TransformerConfig.of(TINY).override({path: True})


def test_keys_that_toml_does_not_know_are_written_as_texts() -> None:
    data = {"plain-key_1": 1, "two words": {"with.dot": [{'and "so" on': 2}]}, "": 3}
    assert tomllib.loads(write_toml(data)) == data


def test_what_stands_deeper_is_named_with_its_place() -> None:
    with pytest.raises(HeddleError, match=r"unknown key 'depth' in config\. Give the full path: 'decoder\.depth'\."):
        preset("gpt2-small").override({"depth": 2})


def test_what_is_deeper_in_a_model_is_suggested_where_it_is() -> None:
    with pytest.raises(HeddleError, match=r"Did you mean 'decoder\.depth'\?"):
        TransformerConfig.of({"vocab_size": 3, "dim": 4, "context": 2, "deph": 3})
