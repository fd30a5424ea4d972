"""A Marian that heddle trained is written as published ones are: its last id pads, and its decoder starts with a zero vector."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from heddle.config import SavedConfig
from heddle.config.model import TransformerConfig
from heddle.convert import export_model, import_model
from heddle.generate import translate
from heddle.model import build
from heddle.text import Tokenizer, train_tokenizer
from heddle.weights import load
from heddle.weights.run import write_model
from tests.convert.conftest import shrunk

TEXT = "The weaver lifts the heddle, and the shuttle passes; ein Webfach öffnet sich. The warp is the loom's.\n"
WORDS = TEXT.split()
SOURCES = [" ".join(WORDS[n % len(WORDS) :][: 3 + n % 7] + WORDS[: n % 3]) for n in range(5)]
VASWANI = {"encoder.entry.positions": "sinusoidal_halves", "decoder.entry.positions": "sinusoidal_halves"}


def make_run(path: Path, name: str, tokenizer: Tokenizer, **changes: Any) -> TransformerConfig:
    """A random model that translates: its end is likely after a while, since no other token is far more likely."""
    sizes = {"vocab_size": tokenizer.vocab_size, "context": 64, "initial": {"std": 0.25}}
    config = shrunk(name, **{**sizes, **changes})
    path.mkdir()
    write_model(path, build(config, seed=4).state_dict(), SavedConfig(model=config), tokenizer, step=3)
    return config


@pytest.mark.thorough
def test_a_marian_of_heddles_own_starts_with_a_zero_vector_and_computes_the_same(tmp_path: Path) -> None:
    """With one table or two, a head of its own or none, scaled or not: the last id pads, starts, and is never generated."""
    tokenizer = train_tokenizer("bpe", [TEXT * 20], 300)
    count = tokenizer.vocab_size
    for number, changes in enumerate(
        (
            {},
            {"encoder.entry.scale": False, "decoder.entry.scale": False},
            {"head.tied": False},
            {"source_vocab_size": count, "pad_vocab_to": 16},
        )
    ):
        run, out = tmp_path / f"run-{number}", tmp_path / f"out-{number}"
        make_run(run, "vaswani-base", tokenizer, **VASWANI, **changes)
        report = export_model(run, out)
        assert (report["family"], report["checked"]) == ("marian", True)
        reference, cut = AutoModelForSeq2SeqLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
        assert (reference.config.vocab_size, len(cut), cut.pad_token_id) == (count + 1, count + 1, count)
        assert reference.config.decoder_start_token_id == reference.config.pad_token_id == count
        assert not reference.model.decoder.embed_tokens.weight[count].any()
        made = reference.generate(**cut(SOURCES, return_tensors="pt", padding=True), num_beams=5, max_new_tokens=16)
        ours = translate(*load(run, "cpu"), SOURCES, beams=5, max_tokens=16)
        assert cut.batch_decode(made, skip_special_tokens=True) == [best.text for best, *_ in ours]
        import_model(out, tmp_path / f"again-{number}")
        again = translate(*load(tmp_path / f"again-{number}", "cpu"), SOURCES, beams=5, max_tokens=16)
        assert [best.text for best, *_ in again] == [best.text for best, *_ in ours]
        assert torch.allclose(
            torch.tensor([b.score for b, *_ in again]), torch.tensor([b.score for b, *_ in ours]), atol=1e-4
        )
