"""What is held out, and what is said of it: by training, by `runs` and by `eval`, all by one measure."""

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import TINY, Heddle

WORDS = ["the", "warp", "is", "held", "and", "weft", "thrown"]


@pytest.fixture
def many(tmp_path: Path) -> str:
    """6,000 documents of a few words."""
    draw = random.Random(0)
    lines = [json.dumps({"text": " ".join(draw.choices(WORDS, k=draw.randint(1, 4)))}) for _ in range(6000)]
    (tmp_path / "many.jsonl").write_text("\n".join(lines))
    return "many.jsonl"


def metrics(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "validation_loss" in line]


@pytest.mark.parametrize("kind", ["bytes", "words"])
def test_training_shows_what_eval_shows(
    heddle: Heddle, many: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Bits per byte of many documents, at every look and at the end; a sample says how far it may be off."""
    monkeypatch.setattr("heddle.train.length.ALWAYS", 600)
    other = [] if kind == "bytes" else [f"tokenizer={kind}"]  # TINY says bytes
    settings = [*TINY, *other, "evaluate_every=8", "steps=16", "learning_rate=1e-2"]
    result = heddle("train", many, *settings, "--name", "a", "--json")
    ended = result.json["validation"]
    true = heddle("eval", "a", "--json").json
    rate = true["bits_per_byte"] / true["loss"]
    assert (true["share"], true["standard_error"]) == (1, 0)
    assert ended["share"] < 0.5
    assert ended["bits_per_byte"] / ended["loss"] == pytest.approx(rate)
    assert abs(ended["loss"] - true["loss"]) < 4 * ended["standard_error"]
    looks = metrics(tmp_path / "runs" / "a")
    assert [look["step"] for look in looks] == [8, 16]
    for look in looks:
        assert look["bits_per_byte"] / look["validation_loss"] == pytest.approx(rate)
        assert look["validation_error"] > 0
    assert abs(looks[-1]["validation_loss"] - true["loss"]) < 4 * looks[-1]["validation_error"]
    # People see the error, and that the two figures are of different things.
    last = looks[-1]
    assert f"validation loss {last['validation_loss']:.4f} ± {last['validation_error']:.4f}, " in result.err
    ending = f"{ended['loss']:.4f} ± {ended['standard_error']:.4f}"
    assert f"finished: validation loss {ending}, " in result.err
    assert (
        f"{ended['tokens']:,} of {true['tokens']:,} held-out tokens, an even sample; `heddle eval runs/a`" in result.err
    )
    assert (
        f"the loss at the end of training, {ending}, was over an even sample of {ended['tokens']:,} of these"
        in heddle("eval", "a").out
    )
    row = heddle("runs", "--json").json[0]
    assert row["scored"] == f"{ended['share']:.0%}, of it"
    assert (row["validation_loss"], row["validation_error"]) == (ended["loss"], ended["standard_error"])
    assert row["bits_per_byte"] == pytest.approx(ended["bits_per_byte"])


def test_a_part_scored_whole_is_said_to_be(heddle: Heddle, corpus: str) -> None:
    result = heddle("train", corpus, *TINY, "--name", "a")
    line = next(line for line in result.out.splitlines() if line.startswith("finished"))
    assert "±" not in line
    assert re.search(r"bits per character \d\.\d{4} over all ", line)
    assert "end of training" not in heddle("eval", "a").out


def test_what_was_held_out_is_said(heddle: Heddle, many: str, corpus: str, tmp_path: Path) -> None:
    output = heddle("train", many, *TINY, "--dry-run").out
    assert "of 6,000 documents, sampled by content hash\n" in output
    assert (
        "held out for validation: 10.0% of the text, the end of the text\n"
        in heddle("train", corpus, *TINY, "--dry-run").out
    )
    (tmp_path / "books").mkdir()
    for number, size in enumerate((60_000, 60_000, 6)):
        text = "".join(f"line {number} {line} of a book\n" for line in range(size // 16 + 1))
        (tmp_path / "books" / f"{number}.txt").write_text(text[:size])
    output = heddle("train", "books", *TINY, "context=64", "--dry-run").out
    assert re.search(r"validation: (9|10)\.\d% of the text, the ends of 2 of 3 documents, too few or", output)


def test_text_that_an_epoch_leaves_out_is_said(heddle: Heddle, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("x" * 200)
    output = heddle("train", "short.txt", *TINY, "context=90", "validation=0.5", "--dry-run").out
    assert "reads 90 of its 101 targets" not in output  # a tenth is not worth a message
    output = heddle("train", "short.txt", *TINY, "context=51", "validation=0.5", "--dry-run").out
    assert (
        "each epoch reads 51 of the training text's 101 targets, different ones each time: the text is 2.0 windows of context = 51"
        in output
    )


@pytest.mark.parametrize("part", ["train", "validation"])
def test_overwritten_tokens_are_found(refused: Callable[..., str], heddle: Heddle, run_a: Path, part: str) -> None:
    file = run_a / "data" / f"{part}.tokens"
    data = file.read_bytes()
    file.write_bytes(b"\xff" * 50 + data[50:])
    assert refused("train", "--resume", "a").startswith(f"runs/a/data/{part}.tokens: damaged, checksum mismatch")
    if part == "validation":
        assert "damaged" in refused("eval", "a")
    file.write_bytes(data)
    assert heddle("train", "--resume", "a").code == 0
