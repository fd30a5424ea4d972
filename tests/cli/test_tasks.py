"""Each task of the lectures from its data to an answer, on the command line and in Python."""

import itertools
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import heddle as library
from heddle.config import TrainConfig

from .conftest import Heddle

SIZES = ["depth=1", "dim=16", "context=32", "batch=4", "steps=2", "tokenizer=characters"]
QUICK = ["precision=fp32", "products=torch", "compile=off", "threads=1", "evaluate_every=999", "save_every=999"]
VERBS, THINGS = (
    ("holds", "lifts", "meets", "takes", "finds", "binds"),
    ("weft", "reed", "shed", "yarn", "loom", "heddle"),
)
TEXTS = [f"the warp {verb} the {thing}" for verb, thing in itertools.product(VERBS, THINGS)]
PAIRS = [(text, text[::-1]) for text in TEXTS]
LABELS = [(text, "early" if text[9] in "hlm" else "late") for text in TEXTS]
# A task: its columns, its records, the words to ask a run, and what its answer contains.
TASKS: dict[str, tuple[tuple[str, ...], list[Any], list[str], str]] = {
    "next_token": (("text",), TEXTS, ["generate", "run", "--prompt", "the ", "--max-tokens", "3"], "the "),
    "translation": (
        ("source", "target"),
        PAIRS,
        ["translate", "run", "--prompt", "the warp", "--max-tokens", "3"],
        "\n",
    ),
    "classification": (("text", "label"), LABELS, ["classify", "run", "the warp"], "early"),
    "masked": (("text",), TEXTS, ["fill", "run", "the [MASK]arp"], "the "),
    "contrastive": (("text", "pair"), PAIRS, ["embed", "run", "the warp", "--json"], "0."),
}


@pytest.mark.lecture("L3-01")
@pytest.mark.parametrize("task", TASKS)
def test_every_task_of_the_lectures_goes_from_data_to_an_answer(heddle: Heddle, tmp_path: Path, task: str) -> None:
    columns, records, words, answer = TASKS[task]
    rows = (record if isinstance(record, tuple) else (record,) for record in records)
    table = tmp_path / "records.tsv"
    table.write_text("\n".join("\t".join(row) for row in (columns, *rows)) + "\n")
    trained = heddle("train", str(table), f"task={task}", *SIZES, *QUICK, "--name", "run")
    assert trained.code == 0
    # The first hint is a command for this task that works as printed.
    hint = next(line for line in trained.out.splitlines() if f"heddle {words[0]} runs/run" in line)
    shown = heddle(*shlex.split(hint.partition("heddle ")[2]))
    assert (shown.code, bool(shown.out)) == (0, True), shown.err
    result = heddle(*words)
    assert result.code == 0, result.err
    assert answer in result.out
    data: Any = records if task != "next_token" else TEXTS
    tokenizer = library.tokenizer_for(task, data, kind="characters")
    model = library.model_for(task, tokenizer, data, depth=1, context=32)
    history = library.fit(model, tokenizer, data, task=task, config=TrainConfig(steps=2, batch=4))
    assert np.isfinite(history.losses).all()


@pytest.mark.thorough
@pytest.mark.lecture("L1-74")
def test_a_recurrent_translator_reverses_words(heddle: Heddle, tmp_path: Path) -> None:
    """It reads a sentence in one language, then writes it in another: two GRUs, the second with attention to the first's output."""
    numbers = ["one", "two", "three", "four"]
    sentences = [each for length in (1, 2, 3) for each in itertools.product(numbers, repeat=length)]
    table, sources = tmp_path / "pairs.tsv", tmp_path / "sources.txt"
    table.write_text("source\ttarget\n" + "".join(f"{' '.join(each)}\t{' '.join(each[::-1])}\n" for each in sentences))
    sources.write_text("".join(f"{' '.join(each)}\n" for each in sentences))
    sizes = ["preset=rnn-translate", "tokenizer=words", "dim=32", "context=8", "batch=16", "steps=100"]
    words = ["train", str(table), "task=translation", "learning_rate=0.02", *sizes, *QUICK, "--name", "rnn"]
    assert heddle(*words).code == 0
    lines = heddle("translate", "rnn", str(sources), "--beams", "1").out.splitlines()
    right = [line.split() == list(each[::-1]) for line, each in zip(lines, sentences, strict=True)]
    assert sum(right) / len(right) > 0.95
