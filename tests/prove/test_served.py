"""Served is what was trained: a prompt's ids are training's ids, and the token loop draws what one pass over the text says."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import pytest

import heddle
from heddle.config import TransformerConfig
from heddle.data.sources.documents import Document
from heddle.data.store import build_store
from heddle.generate import engine
from heddle.model import build
from heddle.prove import prove, prove_run, served_ids
from heddle.prove import run as run_module
from heddle.prove.subject import awaken
from heddle.text import Tokenizer, train_tokenizer
from heddle.text.base import Kind

TEXTS = [
    f"The warp {number} is held; the weft is thrown.\n  Ünder,  over — again {'and again ' * number}"
    for number in range(9)
]
SIZES = {"bpe": 300, "wordpiece": 120, "unigram": 320, "words": 20}


def trained(place: Path, kind: str, texts: Sequence[str] = TEXTS) -> tuple[Tokenizer, Path]:
    """A tokenizer and the store of its ids, as a run has them."""
    tokenizer = train_tokenizer(kind, texts, SIZES.get(kind))
    documents = [Document(text, str(number)) for number, text in enumerate(texts)]
    build_store(place, documents, tokenizer, 0.2, end_of_text=True)
    return tokenizer, place


@pytest.mark.parametrize("kind", get_args(Kind))
def test_prompts_become_the_ids_of_training(kind: str, tmp_path: Path) -> None:
    verdict = served_ids(*trained(tmp_path, kind))
    assert verdict.word == "EXACT", verdict
    assert int(verdict.detail.split()[0].replace(",", "")) > 20


@pytest.mark.parametrize("kind", get_args(Kind))
def test_a_long_text_is_looked_at_up_to_where_it_is_cut(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "MAX_IDS", 97)
    assert served_ids(*trained(tmp_path, kind, ["\n".join(TEXTS)])).word == "EXACT"


@pytest.mark.parametrize(
    "fault",
    [lambda t, text: t.encode(text.strip()), lambda t, text: [t.end_of_text, *t.encode(text)],
     lambda t, text: t.encode(" " + text), lambda t, text: t.encode(text)[:-1]],
    ids=["stripped", "an id in front", "a space in front", "the last id lost"],
)  # fmt: skip
def test_prompts_read_another_way_are_found(fault: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, data = trained(tmp_path, "bpe", [" " + text for text in TEXTS])
    assert served_ids(tokenizer, data).word == "EXACT"
    monkeypatch.setattr(run_module, "prompt_ids", fault)
    assert served_ids(tokenizer, data).word == "DIFFERENT"


def test_another_tokenizer_is_found(tmp_path: Path) -> None:
    _, data = trained(tmp_path, "bpe")
    verdict = served_ids(train_tokenizer("bpe", TEXTS, 290), data)
    assert (verdict.word, verdict.holds) == ("DIFFERENT", False)
    assert json.loads(json.dumps(verdict.to_dict(), allow_nan=False))["error"] is None


def test_where_no_text_is_kept_nothing_is_claimed(tmp_path: Path) -> None:
    tokenizer = train_tokenizer("bytes", [])
    assert served_ids(None, tmp_path).word == served_ids(tokenizer, tmp_path).word == "NOT CHECKED"


def test_the_proof_of_a_run_is_kept_in_it(tmp_path: Path) -> None:
    tokenizer = train_tokenizer("characters", TEXTS)
    model = build(heddle.sized(depth=1, dim=32, vocab_size=tokenizer.vocab_size, context=16))
    heddle.save(model, tmp_path / "run", tokenizer)
    trained_ids = [Document(text, str(number)) for number, text in enumerate(TEXTS)]
    build_store(tmp_path / "run" / "data", trained_ids, tokenizer, 0.2, end_of_text=True)
    proof = prove_run(tmp_path / "run", "mine")
    assert proof.holds
    assert {each.check: each.word for each in proof.verdicts}["served ids"] == "EXACT"
    assert json.loads((tmp_path / "run" / "proof.json").read_text()) == proof.to_dict()


@pytest.mark.thorough
def test_a_loop_that_mixes_up_its_rows_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    block = {"mixer": {"heads": 4, "relative": {"kind": "rotary"}}}
    config = TransformerConfig.of({"vocab_size": 31, "dim": 32, "context": 48, "decoder": {"depth": 2, "block": block}})
    model = awaken(build(config, seed=1), 1)
    assert not [verdict for verdict in prove(model).verdicts if not verdict.holds]
    feed = engine.feed  # type: ignore[attr-defined]
    monkeypatch.setattr(engine, "feed", lambda *args, **more: feed(*args, **more).flip(0))
    assert {verdict.check for verdict in prove(model).verdicts if not verdict.holds} == {"drawn tokens"}
