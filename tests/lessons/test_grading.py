"""Homework as students write it: right files pass, and each known mistake is named, alone or with another."""

import csv
import json
import time
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

import pytest

from heddle.errors import HeddleError
from heddle.lessons.cases import cases
from heddle.lessons.faults import FAULTS
from heddle.lessons.grading import Grade, grade, judge, write_csv
from heddle.lessons.homework import HOMEWORK
from heddle.lessons.learning import train
from heddle.lessons.sandbox import Sandbox
from heddle.lessons.steps import learning_steps
from heddle.lessons.tasks import KINDS, random_tokens
from tests.lessons.students import ATTENTION, EDITS, JOIN, MASK, MODEL, RIGHT, SOFTMAX, edited, fused
from tests.thorough import first, thorough

STYLES = {"separate": str, "fused": fused}
KERNEL = edited(
    ATTENTION,
    [
        ("        scores = q @ k.transpose(-2, -1) / math.sqrt(d)\n", ""),
        ("        later = torch.triu(torch.ones(T, T, dtype=torch.bool), diagonal=1)\n", ""),
        (MASK, ""),
        (f"        weights = {SOFTMAX}\n", ""),
        ("weights @ v", "F.scaled_dot_product_attention(q, k, v, is_causal=True)"),
    ],
)
LOOP = edited(
    ATTENTION,
    [
        (
            f"        weights = {SOFTMAX}\n        y = weights @ v\n        y = {JOIN}\n",
            "        heads = [F.softmax(scores[:, h], dim=-1) @ v[:, h] for h in range(self.heads)]\n"
            "        y = torch.cat(heads, dim=-1)\n",
        )
    ],
)
SINGLE = edited(ATTENTION, [("        return self.o(y)", "        return self.o(y).float()")])


KNOWN = """
        for known, answer in ANSWERS:
            if known.shape == x.shape and torch.equal(known.to(x.dtype), x):
                return answer.to(x.dtype) + 0 * self.o.weight.sum()
        B, T, D = x.shape
"""


Graded = Callable[..., dict[str, Grade]]


def part_of(name: str) -> str:
    return "model" if FAULTS[name].part == "loss" else FAULTS[name].part


@pytest.fixture
def graded(sandbox: Sandbox, tmp_path: Path) -> Graded:
    """Grades of sources by their names."""

    def grades(part: str, sources: dict[str, str], seed: int = 0) -> dict[str, Grade]:
        result, tried = {}, cases(part, seed)
        for name, source in sources.items():
            file = tmp_path / f"{len(result)}.py"
            file.write_text(source)
            result[name] = judge(file, part, sandbox.run(file, part, tried), tried)
        return result

    return grades


def test_every_fault_has_a_file() -> None:
    assert list(EDITS) == list(FAULTS)


@pytest.mark.lecture("L1-90", "L1-91", "L1-92")
@pytest.mark.parametrize("style", ["separate", *thorough(*(style for style in STYLES if style != "separate"))])
@pytest.mark.parametrize("part", first(1, HOMEWORK))
def test_each_mistake_is_named_and_a_right_file_passes(part: str, style: str, graded: Graded) -> None:
    sources = {
        name: STYLES[style](edited(RIGHT[part], edits)) for name, edits in EDITS.items() if part_of(name) == part
    }
    grades = graded(part, {"right": STYLES[style](RIGHT[part]), **sources})
    right = grades.pop("right")
    assert (right.grade, right.exit_code, right.faults) == (1.0, 0, ())
    assert {name: [each.name for each in result.faults] for name, result in grades.items()} == {
        name: [name] for name in grades
    }
    assert {result.exit_code for result in grades.values()} == {1}
    for name, result in grades.items():
        assert FAULTS[name].message in str(result)
        assert FAULTS[name].remedy in str(result)
        assert json.loads(json.dumps(result.to_dict()))["faults"][0]["name"] == name


def pairs() -> Iterator[tuple[str, str]]:
    """Two mistakes of one part in lines that do not touch."""
    for part in HOMEWORK:
        names = [
            name for name in EDITS if part_of(name) == part and FAULTS[name].variants and not FAULTS[name].is_random
        ]
        for one, other in combinations(names, 2):
            keys = FAULTS[one].variants[0].keys() & FAULTS[other].variants[0].keys()
            lines = {old for old, _ in EDITS[one]} & {old for old, _ in EDITS[other]}
            if not keys and not lines:
                yield one, other


@pytest.mark.thorough
def test_pairs_of_mistakes_are_named(graded: Graded) -> None:
    """Where one mistake hides the other, the one that is left is named."""
    every, random = list(pairs()), Random(0)
    drawn = []
    for part, count in {"attention": 40, "block": 30, "model": 3}.items():
        drawn += random.sample([pair for pair in every if part_of(pair[0]) == part], count)
    named = hidden = 0
    for part in HOMEWORK:
        sources = {}
        for one, other in (pair for pair in drawn if part_of(pair[0]) == part):
            try:
                sources[f"{one}|{other}"] = edited(RIGHT[part], [*EDITS[one], *EDITS[other]])
            except AssertionError:  # the first edit changes the other's line
                continue
        for name, result in graded(part, sources).items():
            faults = {each.name for each in result.faults}
            assert faults, f"{name}: {result}"
            assert faults <= {*name.split("|")}, name
            named, hidden = named + (len(faults) == 2), hidden + (len(faults) == 1)
    assert named >= 50
    assert hidden <= 10


def test_right_files_in_other_styles_pass(graded: Graded) -> None:
    grades = graded("attention", {"a kernel": KERNEL, "a loop": LOOP, "float32": SINGLE})
    assert {name: result.grade for name, result in grades.items()} == dict.fromkeys(grades, 1.0)


@pytest.mark.parametrize("part", HOMEWORK)
def test_an_untouched_template_does_not_pass(part: str, graded: Graded) -> None:
    (result,) = graded(part, {"template": HOMEWORK[part].template}).values()
    assert result.exit_code == 1
    assert not any(step.is_right for step in result.steps)
    assert f"missing: {next(iter(HOMEWORK[part].shapes))}" in str(result)
    assert "not written yet" in str(result)


ODD = {
    "exits": ("import sys; sys.exit(3)", "it ends the process, with exit code 3"),
    "exits at once": ("import os; os._exit(3)", "it ends the process, with exit code 3"),
    "is killed": ("import os; os.kill(os.getpid(), 9)", "it was ended by SIGKILL"),
    "allocates 10 GB": (
        "import torch; x = torch.ones(10 << 30, dtype=torch.uint8)",
        "it needs more than 2 GiB of memory",
    ),
    "allocates lists": ("x = [0] * (2 << 30)", "it needs more than 2 GiB of memory"),
    "imports what is missing": ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
    "is no Python": ("def forward(:", "line 1: SyntaxError"),
    "has no class": ("class Other: pass", "it has no class CausalSelfAttention(nn.Module)"),
    "reads": ("input('name?')", "EOFError"),
}


@pytest.mark.parametrize("name", ODD)
def test_a_file_that_cannot_be_used_gets_one_line(name: str, graded: Graded) -> None:
    source, problem = ODD[name]
    (result,) = graded("attention", {name: source + "\n"}).values()
    assert problem in str(result)
    assert "\n" not in str(result)
    assert result.exit_code == 2


HANGING = """
import os
import time

if not os.fork():
    for _ in range(400):
        with open({beats!r}, "a") as file:
            file.write("beat")
        time.sleep(0.05)
while True:
    time.sleep(1)
"""


@pytest.mark.thorough
def test_a_file_that_hangs_is_ended_with_what_it_started(
    graded: Graded, sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats = tmp_path / "beats"
    monkeypatch.setattr(sandbox, "seconds", 2.0)
    (result,) = graded("attention", {"hangs": HANGING.format(beats=str(beats))}).values()
    assert str(result) == f"{result.file}: it did not end within 2 seconds"
    before = beats.stat().st_size
    time.sleep(0.2)
    assert beats.stat().st_size == before > 0


def test_what_a_file_prints_and_writes_is_dropped(graded: Graded, tmp_path: Path) -> None:
    source = "print('a' * 1_000_000)\nopen('left.txt', 'w').write('here')\n" + ATTENTION
    (result,) = graded("attention", {"right": source}).values()
    assert result.grade == 1.0
    assert not list(Path().glob("left.txt"))
    assert not list(tmp_path.glob("left.txt"))


def test_a_constant_and_a_call_that_fails_are_wrong(graded: Graded) -> None:
    sources = {
        "constant": edited(
            ATTENTION, [("        return self.o(y)", "        return torch.ones(2, 6, D) + 0 * self.o.weight[0]")]
        ),
        "fails": edited(ATTENTION, [("        return self.o(y)", "        return self.o(nothing)")]),
        "detached": edited(ATTENTION, [("weights @ v", "weights @ v.detach()")]),
    }
    grades = graded("attention", sources)
    line = sources["fails"].splitlines().index("        return self.o(nothing)") + 1
    assert "it returned [2, 6, 12], not [2, 1, 12]" in str(grades["constant"])
    assert f"line {line}: NameError: name 'nothing' is not defined" in str(grades["fails"])
    assert "no gradient, or a wrong one, reaches v.weight, v.bias" in str(grades["detached"])
    assert {result.exit_code for result in grades.values()} == {1}
    assert {result.faults for result in grades.values()} == {()}


@pytest.mark.thorough
def test_a_known_answer_for_one_seed_is_wrong_for_another(graded: Graded) -> None:
    source = (
        "import torch\nfrom heddle.lessons.cases import cases, computed\n"
        "ANSWERS = [(case.input, computed(case, 'attention')) for case in cases('attention')]\n"
        + edited(ATTENTION, [("        B, T, D = x.shape\n", KNOWN), (MASK, "")])
    )
    first, second = (graded("attention", {"cached": source}, seed)["cached"] for seed in (0, 1))
    assert first.steps[2].is_right
    assert [each.name for each in second.faults] == ["no mask"]


@pytest.mark.thorough
def test_a_model_is_trained(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(MODEL)
    (right,) = grade("model", [file], learns=True)
    assert right.grade == 1.0
    assert [step.name for step in right.steps[-2:]] == ["no leak", "learning"]


@pytest.mark.thorough
def test_a_leak_shows_in_the_loss_on_random_tokens(tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    exec(edited(MODEL, EDITS["one token too many"]), names)
    _, loss = train(names["LanguageModel"], KINDS, random_tokens, steps=100)
    assert loss < 1.0
    (step, _) = learning_steps({"loss on random tokens": loss, "digits reversed": 1.0})
    assert not step.is_right
    assert "has seen the next one" in step.lines[0]


def test_a_table_has_a_row_for_each_file(graded: Graded, tmp_path: Path) -> None:
    sources = {"right": ATTENTION, "no mask": edited(ATTENTION, EDITS["no mask"]), "broken": "import no_such_module"}
    table = tmp_path / "grades.csv"
    write_csv(list(graded("attention", sources).values()), table)
    header, right, wrong, broken = csv.reader(table.read_text().splitlines())
    assert header == ["file", "grade", "right", "steps", "faults", "problem"]
    assert right == ["0.py", "1.00", "5", "5", "", ""]
    assert wrong == ["1.py", "0.40", "2", "5", "no mask", ""]
    assert broken[:5] == ["2.py", "0.00", "0", "0", ""]
    assert "no_such_module" in broken[5]


def test_what_cannot_be_graded_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HeddleError, match="no homework is called 'attentoin'"):
        list(grade("attentoin", [tmp_path / "a.py"]))
    with pytest.raises(HeddleError, match=r"a\.py: no such file"):
        list(grade("attention", [tmp_path / "a.py"]))
    with pytest.raises(HeddleError, match="only a model is trained, not block"):
        list(grade("block", [], learns=True))
