"""The report as data and as tables, and what a name on the command line may mean."""

import json
from functools import cache
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from heddle.account import changed, count, preset_table, render, resolve, walk
from heddle.account.parameters import weights
from heddle.account.report import layout
from heddle.account.tables import amount, short
from heddle.config import ModelChoice, RunConfig, SavedConfig, preset, preset_names
from heddle.errors import HeddleError
from heddle.model import build
from tests.thorough import thorough

SMALL = preset("gpt2-small")
TINY = preset("laptop-tiny")


@cache
def shown(name: str = "laptop-tiny") -> str:
    page = StringIO()
    console = Console(width=150, file=page)
    for part in render(count(preset(name), name=name), full=True):
        console.print(part)
    return page.getvalue()


def test_a_report_is_json() -> None:
    report = count(TINY, batch=2, length=32, name="laptop-tiny")
    data = json.loads(json.dumps(report.to_dict()))
    assert data["name"] == "laptop-tiny"
    assert data["family"] == "decoder"
    assert data["parameters"]["total"] == report.parameters.total
    assert data["flops"]["forward"] == report.flops.forward
    assert (data["memory"]["batch"], data["memory"]["length"]) == (2, 32)
    assert data["config"] == TINY.to_dict()


@pytest.mark.lecture("L2-37")
def test_costs_are_written_in_the_lectures_letters() -> None:
    text = shown("gpt2-small")
    for letters in ("8nd²", "2n²d", "24nd² + 4n²d", "B·n·d_MLP"):
        assert letters in text


@pytest.mark.lecture("L0-77", "L0-78", "L0-80", "L0-81", "L0-82", "L0-84", "L0-85", "D-44")
def test_the_tables_show_the_lectures_numbers() -> None:
    text = shown("gpt2-small")
    for number in ("124,439,808", "124.4M", "124,318,464", "+121,344", "84,934,656", "163,037,184", "38,597,376"):
        assert number in text
    for number in ("291,648,307,200", "17,716,740,096", "4,608", "18.18%", "50,331,648", "3,244,032", "524,800"):
        assert number in text
    assert "The lectures print 124M; exact / printed = 1.0035." in text


def test_units_begin_at_one() -> None:
    assert [amount(size) for size in (1023, 2**10, 2**20, 1.5 * 2**30, 2**40)] == [
        "1,023 B", "1.0 KiB", "1.0 MiB", "1.5 GiB", "1.0 TiB",
    ]  # fmt: skip
    numbers = (999, 10**3, 124_439_808, 10**9, 1.5e12)
    assert [short(number) for number in numbers] == ["999", "1K", "124.4M", "1B", "1.5T"]


@pytest.mark.parametrize("name", preset_names())
def test_the_layout_sums_to_every_parameter(name: str) -> None:
    """Every layer stands in one group, and its size is that of the built block."""
    config = preset(name)
    model = build(config, "meta")
    groups = layout(weights(model))
    assert sum(group.total for group in groups) == sum(value.numel() for value in model.parameters())
    for stack, part in config.stacks().items():
        blocks = getattr(model, stack).blocks
        own = [group for group in groups if group.name == f"{stack}.blocks"]
        assert sorted(number for group in own for number in group.layers) == list(range(part.depth))
        for group in own:
            for number in group.layers:
                assert sum(value.numel() for value in blocks[number].parameters()) == group.each


@pytest.mark.parametrize(
    ("layers", "labels"),
    [
        ("::2", ["0, 2 … 6", "1, 3 … 7"]),
        ("0", ["0", "1 … 7"]),
        ("3", ["0 … 2, 4 … 7", "3"]),
        ("4:", ["0 … 3", "4 … 7"]),
    ],
)
def test_layers_that_differ_are_apart(layers: str, labels: list[str]) -> None:
    wide = {"layers": layers, "block": {"ffn": {"kind": "mlp", "hidden": 32}}}
    config = TINY.override({"decoder.depth": 8, "decoder.overrides": [wide]})
    groups = [group for group in layout(weights(build(config, "meta"))) if group.layers]
    assert sorted(group.label() for group in groups) == sorted(f"decoder.blocks.{label}" for label in labels)


def test_a_difference_is_shown_where_there_is_one() -> None:
    text = shown()
    assert "positions not learned" in text
    assert "-8,192" in text


@pytest.mark.lecture("L1-53")
@pytest.mark.parametrize("dim", [768, 1600, 12288, 5140])
def test_an_odd_width_is_noted(dim: int) -> None:
    one = SMALL.override({"dim": dim, "decoder.depth": 1, "decoder.block.mixer.heads": 4})
    notes = ("dim = 5140 is 80.3125 times 64; matrix units prefer whole multiples.",)
    assert count(one, length=8).notes == (notes if dim == 5140 else ())


@pytest.mark.lecture("D-19")
def test_the_scope_of_the_rule_is_noted() -> None:
    one = SMALL.override({"decoder.depth": 1})
    assert not any("12Ld²" in note for note in count(one, length=8).notes)
    grouped = one.override({"decoder.block.mixer.kv_heads": 4})
    assert any("12Ld²" in note for note in count(grouped, length=8).notes)


def test_a_length_beyond_the_positions_is_counted_and_noted() -> None:
    one = SMALL.override({"decoder.depth": 1})
    report = count(one, length=2048)
    assert report.flops.layer["scores"] == 4 * 1_610_612_736
    assert report.parameters.parts["positions"] == 1024 * 768
    assert any("2048 tokens" in note for note in report.notes)


@pytest.mark.parametrize(("batch", "length"), [(0, 8), (1, 0), (1, -5)])
def test_sizes_below_one_are_refused(batch: int, length: int) -> None:
    with pytest.raises(HeddleError, match="at least 1"):
        count(TINY, batch, length)


@pytest.mark.lecture("L1-57", "L1-59")
def test_every_preset_has_its_row() -> None:
    rows = {row["name"]: row for row in preset_table()}
    assert sorted(rows) == preset_names()
    assert rows["gpt2-small"]["parameters"] == 124_439_808
    assert rows["gpt2-xl"]["rule"] == 1_474_560_000
    assert rows["gpt2-xl"]["parameters"] / rows["gpt2-xl"]["printed"] == pytest.approx(1.0384, abs=1e-4)
    families = {"gpt2-small": "decoder", "bert-base-like": "encoder", "t5-small": "encoder-decoder"}
    assert {name: rows[name]["family"] for name in families} == families
    assert {row["family"] for row in rows.values()} == set(families.values())


@pytest.mark.lecture("L0-83")
def test_a_preset_by_its_name() -> None:
    name, config = resolve("gpt2-small")
    assert name == "gpt2-small"
    sizes = (config.decoder.depth, config.dim, config.vocab_size, config.context, config.decoder.block.mixer.heads)
    assert sizes == (12, 768, 50_257, 1024, 12)


def test_a_run_by_its_directory(tmp_path: Path) -> None:
    run = tmp_path / "first-run"
    run.mkdir()
    (run / "config.json").write_text(SavedConfig(model=TINY).to_json())
    assert resolve(str(run)) == ("first-run", TINY)


@pytest.mark.parametrize("suffix", [".json", ".toml"])
@pytest.mark.parametrize("what", [TINY, SavedConfig(model=TINY)])
def test_a_model_by_its_file(tmp_path: Path, what: SavedConfig, suffix: str) -> None:
    path = tmp_path / f"mine{suffix}"
    path.write_text(what.to_json() if suffix == ".json" else what.to_toml())
    assert resolve(str(path)) == ("mine", TINY)


def test_a_run_file(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text('[data]\ntokenizer_size = 1000\n[model]\npreset = "gpt2-small"\ndepth = 2\n')
    config = resolve(str(path))[1]
    assert (config.vocab_size, config.decoder.depth, config.dim) == (1000, 2, 768)
    path.write_text("[train]\nsteps = 10\n")
    assert resolve(str(path))[1] == ModelChoice().resolve(4096, 4, 256)
    path.write_text(RunConfig(model=ModelChoice(depth=3)).to_toml())
    assert resolve(str(path))[1].decoder.depth == 3


def test_an_unknown_name_is_one_clear_line() -> None:
    with pytest.raises(HeddleError, match="Did you mean 'gpt2-small'") as refusal:
        resolve("gpt2-smal")
    assert "\n" not in str(refusal.value)
    assert ".toml or .json" in str(refusal.value)


def test_what_holds_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HeddleError, match=r"no config\.json"):
        resolve(str(tmp_path))
    other = tmp_path / "config.json"
    other.write_text('{"model_type": "gpt2", "n_layer": 12}')
    with pytest.raises(HeddleError, match="another library"):
        resolve(str(tmp_path))
    other.write_text('{"vocab_size": 10, "widht": 3}')
    with pytest.raises(HeddleError, match=r"config\.json"):
        resolve(str(other))
    other.write_text('{"version": 2, "model": {"dim": 3}}')
    with pytest.raises(HeddleError, match="missing"):
        resolve(str(other))


@pytest.mark.lecture("L2-09")
@pytest.mark.parametrize("dim", [4096, *thorough(8192)])
def test_a_preset_can_be_counted_with_another_width(dim: int, capsys: pytest.CaptureFixture[str]) -> None:
    """As `heddle count gpt3-6.7b dim=8192` does; the name says so, and no printed figure is set beside it."""
    name, config = changed("gpt3-6.7b", [f"dim={dim}"])
    assert (name, config.dim) == (f"gpt3-6.7b dim={dim}", dim)
    assert walk(config, 1, 2048).first_layer().by_part()["scores"] == 2 * 2048**2 * dim
    report = count(config, length=16, name=name)
    assert report.flops.layer["scores"] == 2 * 16**2 * dim
    assert report.printed is None
