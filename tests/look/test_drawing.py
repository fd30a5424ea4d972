"""Drawings of every preset: parameters add up, skips start where the model's do, boxes neither overlap nor leave the picture."""

import base64
import re
from itertools import combinations
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from heddle.account import parameters
from heddle.account.forward import count_pass
from heddle.config import TransformerConfig, preset, preset_names
from heddle.errors import HeddleError
from heddle.look import costs, draw, matrix_text, to_svg, treemap, write_drawing
from heddle.look.drawing import Box, Drawing
from heddle.look.svg import PLUS
from heddle.nn.block import Residual
from tests.look.inputs import inputs_of
from tests.models import EVERY, awake, name_of

ROOT = Path(__file__).parents[2]


def decoder(**block: Any) -> TransformerConfig:
    """Of one layer."""
    stack = {"depth": 1, "block": {"mixer": {"heads": 2}, **block}}
    return TransformerConfig.of({"vocab_size": 9, "dim": 8, "context": 16, "decoder": stack})


def named(drawing: Drawing) -> dict[str, Box]:
    return {box.name: box for box, _ in drawing.boxes()}


@pytest.fixture(scope="module", params=preset_names())
def drawn(request: pytest.FixtureRequest) -> tuple[str, Drawing]:
    """A preset's name and its drawing, which several tests look at."""
    return request.param, draw(preset(request.param))


def test_the_boxes_of_every_preset_sum_to_its_parameters(drawn: tuple[str, Drawing]) -> None:
    name, drawing = drawn
    total = parameters(preset(name)).total
    assert sum(box.parameters * times for box, times in drawing.boxes()) == drawing.parameters == total
    assert len(named(drawing)) == sum(1 for _ in drawing.boxes())
    areas = treemap(drawing)
    assert sum(area.parameters for area in areas) == total
    for area in areas:
        assert area.width * area.height == pytest.approx(area.parameters / total)
        assert min(area.x, area.y) >= 0
        assert max(area.x + area.width, area.y + area.height) <= 1 + 1e-9
    for one, two in combinations(areas, 2):
        across = min(one.x + one.width, two.x + two.width) - max(one.x, two.x)
        down = min(one.y + one.height, two.y + two.height) - max(one.y, two.y)
        assert min(across, down) < 1e-9


@pytest.mark.lecture("L0-12")
def test_gpt2_is_drawn_with_its_sizes() -> None:
    drawing = draw(preset("gpt2-small"))
    (column,) = drawing.columns
    assert [group.count for group in column.layers] == [12]
    assert drawing.parameters == 124_439_808
    picture = to_svg(drawing)
    for label in ("× 12", "D = 768", "V = 50257", "T = 1024", "124,439,808", "T V = 1024 × 50257"):
        assert label in picture
    for name in ("tokens", "embedding", "positions"):
        assert f'data-box="decoder.{name}"' in picture


@pytest.mark.lecture("L0-31", "L1-08")
def test_a_layer_lists_its_parts_and_the_true_start_of_each_skip() -> None:
    """Deck 000's second skip starts after the norm; the usual one before it (D-01). The slides are credited."""
    usual, literal = (named(draw(decoder(placement=each, dropout=0.1))) for each in ("pre", "literal"))
    labels = [box.label for box in usual.values()]
    for part in ("Masked attention, 2 heads", "LayerNorm", "Dropout 0.1", PLUS):
        assert part in labels
    assert any("MLP" in label for label in labels)
    assert usual["decoder.0.mixer.add"].adds == literal["decoder.0.mixer.add"].adds == "decoder.0.input"
    assert usual["decoder.0.ffn.add"].adds == "decoder.0.mixer.add"
    assert literal["decoder.0.ffn.add"].adds == "decoder.0.ffn.before"
    assert "https://sebastianraschka.com/pdf/slides/2024-acm.pdf" in (ROOT / "docs/look/page.md").read_text(
        encoding="utf-8"
    )


@pytest.mark.lecture("L2-23")
def test_post_norm_is_drawn_after_the_addition() -> None:
    order = list(named(draw(decoder(placement="post"))))
    assert order.index("decoder.0.mixer.outside") == order.index("decoder.0.mixer.add") + 1
    assert not any(name.endswith(".before") for name in order)
    pre = list(named(draw(decoder(placement="pre"))))
    assert pre.index("decoder.0.mixer.before") == pre.index("decoder.0.mixer") - 1
    assert not any(name.endswith(".outside") for name in pre)


@pytest.mark.lecture("L0-55")
@pytest.mark.parametrize("config", EVERY, ids=name_of)
def test_every_plus_is_an_addition_of_the_pass(config: TransformerConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as residuals that the built model leaves with a skip; the skip brings what `leave` was given."""
    model, seen = awake(config), list[tuple[bool, bool]]()
    leave = Residual.leave

    def watched(self: Residual, x: Any, entered: Any, change: Any) -> Any:
        whole = leave(self, x, entered, change)
        bare = self.outside(self.dropout(self.scaled(self.after(change))))
        seen.append((self.skip is not None, not torch.equal(whole, bare)))
        return whole

    monkeypatch.setattr(Residual, "leave", watched)
    tokens, more = inputs_of(model)
    model.eval()(tokens, **more)
    drawing = draw(config)
    drawn = sum(times for box, times in drawing.boxes() if box.label == PLUS)
    assert drawn == sum(skip for skip, _ in seen) == sum(added for _, added in seen)
    assert sum(times for box, times in drawing.boxes() if box.name.endswith(".add")) == len(seen)


@pytest.mark.lecture("L2-42")
def test_a_start_token_shifts_the_inputs() -> None:
    """n + 1 inputs where a text begins with a token of its own."""
    config = decoder()
    plain = named(draw(config))
    begun = named(draw(TransformerConfig.of(config.to_dict() | {"ids": {"begin": 0}})))
    assert plain["decoder.tokens"].label == "n inputs: x₁ … xₙ"
    assert begun["decoder.tokens"].label == "n+1 inputs: <start>, x₁ … xₙ"
    assert begun["decoder.out"].label == "n+1 outputs: x₁ … xₙ, <end>"
    assert named(draw(preset("vaswani-base")))["decoder.tokens"].label.startswith("n+1 inputs")


def test_pictures_are_whole(drawn: tuple[str, Drawing], tmp_path: Path) -> None:
    """XML that needs nothing else; boxes inside it, none over another, with labels that fit."""
    check_picture(drawn[1], tmp_path)


@pytest.mark.parametrize("block", [{"wiring": "parallel"}, {"wiring": "parallel_one_norm"}, {"placement": "bare"}])
def test_pictures_of_other_blocks_are_whole(block: dict[str, Any], tmp_path: Path) -> None:
    check_picture(draw(decoder(**block)), tmp_path)


def check_picture(drawing: Drawing, tmp_path: Path) -> None:
    write_drawing(drawing, tmp_path / "a.svg")
    root = ElementTree.parse(tmp_path / "a.svg").getroot()
    space = "{http://www.w3.org/2000/svg}"
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    boxes = []
    for group in root.iter(f"{space}g"):
        assert group.find(f"{space}title") is not None
        shape = group.find(f"{space}rect")
        if shape is None:
            circle = group.find(f"{space}circle")
            assert circle is not None
            x, y, r = (float(circle.attrib[each]) for each in ("cx", "cy", "r"))
            boxes.append((x - r, y - r, 2 * r, 2 * r))
            continue
        box = tuple(float(shape.attrib[each]) for each in ("x", "y", "width", "height"))
        boxes.append(box)
        for text in group.findall(f"{space}text"):
            assert 6.9 * len(text.text or "") <= box[2] + 2, text.text
    assert len(boxes) == sum(1 for _ in drawing.boxes())
    for x, y, wide, high in boxes:
        assert 0 <= x <= x + wide <= width
        assert 0 <= y <= y + high <= height
    for one, two in combinations(boxes, 2):
        across = min(one[0] + one[2], two[0] + two[2]) - max(one[0], two[0])
        down = min(one[1] + one[3], two[1] + two[3]) - max(one[1], two[1])
        assert min(across, down) <= 0
    assert not re.search(r"href|<script|url\((?!#)", (tmp_path / "a.svg").read_text(encoding="utf-8"))


def test_only_svg_is_written(tmp_path: Path) -> None:
    with pytest.raises(HeddleError, match=r"a\.png: must end in \.svg"):
        write_drawing(draw(decoder()), tmp_path / "a.png")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["bycroft-nano", "laptop-window", "vaswani-base"])
def test_costs_are_those_of_the_account(name: str) -> None:
    config = preset(name)
    lengths = (1, config.context // 4, config.context)
    for length, cost in zip(lengths, costs(config, lengths), strict=True):
        assert (cost.length, cost.linear + cost.quadratic) == (length, count_pass(config, 1, length))
    assert costs(config, [1])[0].quadratic == 0


def test_full_attention_grows_with_the_square() -> None:
    one, two, four = (cost.quadratic for cost in costs(preset("gpt2-small"), [256, 512, 1024]))
    assert two / one == pytest.approx(4, rel=0.02)
    assert four / two == pytest.approx(4, rel=0.02)


@pytest.mark.lecture("L3-40")
def test_a_matrix_is_printed_as_in_the_lectures() -> None:
    """Three leading columns, …, the last one, a row for each of T_0 … T_9."""
    torch.manual_seed(0)
    matrix = 10 * torch.randn(10, 64)
    matrix[0, :3], matrix[0, -1] = torch.tensor([7.23, -3.71, 0.55]), 12.08
    lines = matrix_text(matrix).splitlines()
    assert lines[0].split() == ["T_0", "7.23", "-3.71", "0.55", "…", "12.08"]
    assert [line.split()[0] for line in lines] == [f"T_{number}" for number in range(10)]
    assert {len(line) for line in lines} == {len(lines[0])}
    assert matrix_text(torch.eye(2)).splitlines()[0].split() == ["T_0", "1.00", "0.00"]


def test_a_notebook_shows_the_same_picture_without_its_styles_reaching_the_notebook() -> None:
    drawing = draw(decoder())
    html = drawing._repr_html_()
    pattern = r'<img style="max-width:100%" width="360" alt="([^"]*)" src="data:image/svg\+xml;base64,([^"]*)">'
    match = re.fullmatch(pattern, html)
    assert match is not None
    assert base64.b64decode(match[2]).decode() == to_svg(drawing)
    assert match[1].endswith(f"{drawing.parameters:,} parameters")
    assert 'fill="#fff"' in to_svg(drawing)  # its own ground, so that it is legible in the dark
