"""Attention as people write it elsewhere: it passes, and a mistake in it is named."""

from collections.abc import Callable
from pathlib import Path

import pytest

from heddle.lessons.cases import cases
from heddle.lessons.grading import Grade, judge
from heddle.lessons.sandbox import Sandbox
from tests.lessons.students import ATTENTION, MASK, edited

IMPORTS = "import torch\nfrom torch import nn\nfrom torch.nn import functional as F\n"
HEADS = """
class Head(nn.Module):
    def __init__(self, dim, size):
        super().__init__()
        self.query, self.key, self.value = nn.Linear(dim, size), nn.Linear(dim, size), nn.Linear(dim, size)

    def forward(self, x):
        q, k, v = self.query(x), self.key(x), self.value(x)
        later = torch.ones(x.shape[1], x.shape[1]).tril() == 0
        scores = q @ k.mT * q.shape[-1] ** -0.5
        return scores.masked_fill(later, float("-inf")).softmax(-1) @ v


class CausalSelfAttention(nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = nn.ModuleList(Head(dim, dim // heads) for _ in range(heads))
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        return self.proj(torch.cat([head(x) for head in self.heads], dim=-1))
"""
TORCHS = """
class CausalSelfAttention(nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        self.mha = nn.MultiheadAttention(dim, heads, batch_first=True)

    def forward(self, x, layout=None):
        later = torch.full((x.shape[1], x.shape[1]), float("-inf")).triu(1)
        return self.mha(x, x, x, attn_mask=later, need_weights=False)[0]
"""
LISTS = edited(
    ATTENTION,
    [
        (
            f"self.{name} = nn.Linear(dim, dim)",
            f"self.{name} = nn.ModuleList(nn.Linear(dim, dim // heads) for _ in range(heads))",
        )
        for name in "qkv"
    ]
    + [
        (
            "self.q(x), self.k(x), self.v(x)",
            "(torch.cat([head(x) for head in each], -1) for each in (self.q, self.k, self.v))",
        )
    ],
)
INSIDE = edited(
    ATTENTION, [("        B, T, D = x.shape", "        x = x.to(torch.float32)\n        B, T, D = x.shape")]
)
STYLES = {
    "a class for a head": (IMPORTS + HEADS, [('.masked_fill(later, float("-inf"))', "")]),
    "torch's module": (IMPORTS + TORCHS, [("attn_mask=later, ", "")]),
    "lists of matrices": (LISTS, [(MASK, "")]),
    "float32 inside": (INSIDE, [(MASK, "")]),
}


Graded = Callable[[str], Grade]


@pytest.fixture
def graded(sandbox: Sandbox, tmp_path: Path) -> Graded:
    """The grade of a source."""

    def grade(source: str) -> Grade:
        file, tried = tmp_path / "attention.py", cases("attention")
        file.write_text(source)
        return judge(file, "attention", sandbox.run(file, "attention", tried), tried)

    return grade


@pytest.mark.parametrize("style", STYLES)
def test_a_right_file_passes_and_without_its_mask_it_is_named(style: str, graded: Graded) -> None:
    source, mistake = STYLES[style]
    right = graded(source)
    assert (right.grade, right.exit_code) == (1.0, 0), str(right)
    wrong = graded(edited(source, mistake))
    assert [each.name for each in wrong.faults] == ["no mask"]


def test_a_file_whose_forward_takes_no_layout_is_told_so(graded: Graded) -> None:
    """A mixer is called with one."""
    assert "layout=None" in str(graded(IMPORTS + HEADS))
    assert "layout=None" not in str(graded(IMPORTS + TORCHS))


def test_heads_in_another_order_are_wrong(graded: Graded) -> None:
    wrong = graded(edited(IMPORTS + HEADS, [("in self.heads]", "in reversed(self.heads)]")]))
    assert wrong.exit_code == 1


def test_another_constructor_and_another_name_get_a_line_that_tells_what_to_do(graded: Graded) -> None:
    other = edited(ATTENTION, [("def __init__(self, dim, heads=4)", "def __init__(self, config)")])
    assert "CausalSelfAttention(dim=12, heads=3)" in graded(other).problem
    renamed = edited(ATTENTION, [("class CausalSelfAttention", "class Attention")])
    assert graded(renamed).problem == "it has no class CausalSelfAttention(nn.Module); it has Attention"
