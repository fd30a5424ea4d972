"""Figures of lessons: what they show is what was computed, for those who see it and for those who do not."""

import math
import re
from xml.etree import ElementTree

import pytest
import torch

from heddle.lessons.figures import FEW, STRONGEST, Figure, curves, grids

SVG = "{http://www.w3.org/2000/svg}"


def pictures(figure: Figure) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", figure._repr_html_())]


def texts(picture: ElementTree.Element) -> list[str | None]:
    return [text.text for text in picture.iter(f"{SVG}text")]


def test_a_grid_has_each_number_and_the_largest_has_the_strongest_colour() -> None:
    scores = torch.tensor([[1.0, -math.inf], [-2.0, 0.5]])
    figure = grids({"scores": scores, "weights": scores.softmax(-1)}, ["a < b", "b"], ["left", "right"])
    first, second = pictures(figure)
    assert texts(first) == ["left", "right", "a < b", "1.00", "−∞", "b", "−2.00", "0.50"]
    opacities = [float(cell.attrib["fill-opacity"]) for cell in first.iter(f"{SVG}rect")]
    assert opacities == pytest.approx([STRONGEST / 2, 0, STRONGEST, STRONGEST / 4], abs=0.006)
    colours = [cell.attrib["fill"] for cell in first.iter(f"{SVG}rect")]
    assert colours[0] == colours[3] != colours[2]
    assert second.attrib["aria-label"] == "weights: a < b 1.00 0.00; b 0.08 0.92"
    assert repr(figure).splitlines() == ["scores: a < b 1.00 −∞; b −2.00 0.50", "weights: a < b 1.00 0.00; b 0.08 0.92"]


def test_whole_numbers_have_no_decimals() -> None:
    counts, shares = torch.tensor([[19.0, 0.0], [-math.inf, -3.0]]), torch.tensor([[19.0, 0.5]])
    assert repr(grids({"counts": counts}, ["i", "n"], ["n", "g"])) == "counts: i 19 0; n −∞ −3"
    assert repr(grids({"shares": shares}, ["i"], ["n", "g"])) == "shares: i 19.00 0.50"


def test_a_wide_grid_has_colours_alone_and_zeros_have_none() -> None:
    columns = [str(column) for column in range(FEW + 1)]
    (picture,) = pictures(grids({"P": torch.zeros(2, FEW + 1)}, ["0", "1"], columns))
    assert texts(picture) == ["0", str(FEW), "0", "1"]
    assert picture.attrib["aria-label"] == f"P: 2 × {FEW + 1} numbers"
    assert {cell.attrib["fill-opacity"] for cell in picture.iter(f"{SVG}rect")} == {"0.00"}


@pytest.mark.parametrize("log", [False, True])
def test_a_curve_goes_through_its_points(log: bool) -> None:
    figure = curves("bytes", [1, 4, 16], {"all": [0.0, 500, 2000], "few": [-1000.0, 0, 0]}, "tokens", log=log)
    (picture,) = pictures(figure)
    lines = [[tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
             for line in picture.iter(f"{SVG}polyline")]  # fmt: skip
    _, (left, middle, right), _, few = lines  # each after the sample beside its name
    share = 0.5 if log else 3 / 15
    assert middle[0] == pytest.approx(left[0] + share * (right[0] - left[0]), abs=0.1)
    assert middle[1] == pytest.approx(left[1] + (right[1] - left[1]) / 4, abs=0.1)
    assert few[0][1] > few[1][1] == left[1]  # down is negative
    assert repr(figure) == "bytes: all from 0 at 1 to 2,000 at 16; few from −1,000 at 1 to 0 at 16"
    assert {"1", "4", "16", "tokens", "−1,000", "0", "2,000", "all", "few"} == set(texts(picture))
    assert len({line.attrib["stroke-dasharray"] for line in picture.iter(f"{SVG}polyline")}) == 2
