"""The glossary: its words, letters and keys, and what it says of the lectures' models."""

import re

import pytest
import torch
from torch.nn import functional as F

from heddle.config import SavedConfig, preset, preset_names
from heddle.config.model import TransformerConfig
from heddle.config.tasks import NextTokenConfig
from heddle.lessons.definition import AttentionSteps
from heddle.model import build
from heddle.nn import LayerNorm
from heddle.predict.evaluation_data import task_of
from tests.lectures.rows import ROOT
from tests.lessons import quiz_values

PAGE = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
(LIST,) = re.findall(r"^```\{glossary\}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
ENTRIES = dict(re.findall(r"^((?:\S.*\n)+)((?:  .+\n)+)", LIST, re.MULTILINE))
WORDS = {word: " ".join(text.split()) for words, text in ENTRIES.items() for word in words.splitlines()}
MODELS = [name for name in preset_names() if re.match(r"gpt|llama-7b|mistral|falcon|qwen3-8b|nanogpt", name)]


def test_words_are_in_order_and_each_is_explained_once() -> None:
    assert len(ENTRIES) >= 60
    first = [words.splitlines()[0].lower() for words in ENTRIES]
    assert first == sorted(first)
    assert len(WORDS) == sum(len(words.splitlines()) for words in ENTRIES)
    for word, text in WORDS.items():
        assert text.endswith("."), word
        assert not text.lower().startswith(f"{word.lower()} is"), word


def letters() -> dict[str, list[str]]:
    lines = [line for line in PAGE.splitlines() if line.startswith("| ")][1:]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return {first: rest for first, *rest in cells}


def test_keys_of_the_letters_are_settings() -> None:
    keys = [key for cells in letters().values() for key in re.findall(r"`([a-z_.]+)`", cells[-1])]
    assert {"context", "dim", "decoder.depth", "vocab_size"} <= set(keys)
    for key in keys:
        if key in ("batch", "x"):
            continue
        base = preset("laptop-moe" if ".experts" in key or ".active" in key or ".shared" in key else "gpt2-small")
        value: object = base
        for part in key.split("."):
            assert part in vars(value), key
            value = getattr(value, part)


def test_letters_of_the_decks_are_those_of_the_lectures() -> None:
    """D-50: which letters each deck has for length, width, heads, gain and shift, and vocabulary."""
    table = letters()
    assert table["tokens of a text"][:4] == ["T", "S", "n", "l"]
    assert table["width of a vector"][:4] == ["d", "D", "d", "h_dim"]
    assert [cell.split(",")[0] for cell in table["heads"][:4]] == ["h", "N", "H", "H"]
    assert table["gain and shift of a norm"][:4] == ["a, b", "γ, β", "γ, β", "γ, β"]
    assert table["tokens of the vocabulary"][:4] == [r"\|V\|", "V", "V", "n_vocab"]


def small(name: str) -> TransformerConfig:
    """A model of the lectures with its widths and depth made small."""
    changes = {"dim": 16, "context": 8, "vocab_size": 11, "decoder.depth": 1, "decoder.block.mixer.heads": 2}
    mixer = preset(name).decoder.block.mixer
    if mixer.kv_heads is not None:
        changes["decoder.block.mixer.kv_heads"] = 1
    if mixer.head_dim is not None:
        changes["decoder.block.mixer.head_dim"] = 8
    return preset(name).override(changes)


@pytest.mark.lecture("L1-34")
@pytest.mark.parametrize("name", MODELS)
def test_the_llms_of_the_lectures_are_causal_language_models(name: str) -> None:
    """As the glossary says: a decoder, with a causal mask, that learns the next token."""
    assert WORDS["CLM"] == (
        "A decoder with a causal mask that learns the next token. All LLMs of the lectures are CLMs."
    )
    config = small(name)
    assert list(config.stacks()) == ["decoder"]
    assert task_of(SavedConfig(model=preset(name))) == NextTokenConfig()
    model = build(config, seed=0).double().eval()
    ids = torch.arange(8)[None] % 11
    logits = model.logits(model(ids).hidden)
    for place in range(1, 8):
        changed = ids.clone()
        changed[:, place:] = 10
        other = model.logits(model(changed).hidden)
        torch.testing.assert_close(other[:, :place], logits[:, :place])
        assert not torch.allclose(other[:, place], logits[:, place])


@pytest.mark.lecture("L2-02")
def test_scores_of_normed_rows_are_correlations() -> None:
    """Attention considers correlations: of rows with mean 0 and variance 1, x · y / d is Pearson's coefficient."""
    assert "considers the correlations between tokens" in WORDS["attention"]
    x = torch.randn(5, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 3 + 1
    rows = LayerNorm(16, eps=0.0).double()(x).detach()
    torch.testing.assert_close(rows @ rows.T / 16, torch.corrcoef(x))
    weights = AttentionSteps().softmax(rows @ rows.T / 16**0.5)
    related = torch.corrcoef(x)
    torch.testing.assert_close(weights.argsort(-1), related.argsort(-1))
    torch.testing.assert_close(weights @ rows, F.scaled_dot_product_attention(rows[None], rows[None], rows[None])[0])


@pytest.mark.lecture("L1-22")
def test_llamas_letters_are_those_of_the_glossary() -> None:
    names = dict(re.findall(r"(w\d) is (\w+)", WORDS["gate"]))
    assert set(names) == {"w1", "w2", "w3"}
    assert quiz_values.is_llama(names["w1"], names["w3"], names["w2"])
    assert not quiz_values.is_llama(names["w3"], names["w1"], names["w2"])
    assert "w2(silu(w1 x) · w3 x)" in WORDS["gate"]
    assert "https://github.com/meta-llama/llama/issues/245" in (ROOT / "docs" / "map.md").read_text(encoding="utf-8")
