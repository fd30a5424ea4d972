"""CTranslate2 itself converts what heddle exports, and writes what heddle does."""

from pathlib import Path

import pytest

from benchmarks.ct2 import MODELS, REASONS, compare, translations
from heddle.text import train_tokenizer
from tests.convert.test_marian import TEXT, VASWANI, WORDS, make_run
from tests.thorough import first

SOURCES = [" ".join(WORDS[n % len(WORDS) :][: 3 + n % 7] + WORDS[: n % 3]) for n in range(20)]


@pytest.fixture(autouse=True)
def _installed() -> None:
    pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed")


def test_a_marian_of_heddles_own_is_translated_with_alike(tmp_path: Path) -> None:
    """Beam search by both, of the same 20 sources: equal texts, and log probabilities."""
    tokenizer = train_tokenizer("bpe", [TEXT * 20], 300)
    make_run(tmp_path / "run", "vaswani-base", tokenizer, **VASWANI)
    outcome, parted = translations(tmp_path / "run", SOURCES, beams=5, tokens=16)
    assert (outcome.equal, parted) == (20, [])
    assert outcome.difference < 1e-4


@pytest.mark.parametrize("name", first(5, (name for name in MODELS if name not in REASONS)))
def test_a_tiny_model_of_each_class_writes_or_reads_alike(tmp_path: Path, name: str) -> None:
    outcome = compare(name, 3, tmp_path, tokens=6)
    assert (outcome.equal, outcome.refused) == (3, "")
