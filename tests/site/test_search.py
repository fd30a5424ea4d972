"""What a reader looks for is found: names of the field lead to a page."""

import json
from pathlib import Path

import pytest
from sphinx.search.en import SearchEnglish

# Each with a word of the address of a page that must be among those that are found.
NAMES = {
    "rotary": "reference/api/heddle.config",
    "LoRA": "reference",
    "packing": "",
    "top_p": "reference/api/heddle.config",
    "GGUF": "reference/commands/export",
    "AttentionConfig": "reference/api/heddle.config",
    "dropout": "reference/api/heddle.nn",
    "alibi": "reference/api/heddle.config",
    "mixtral": "reference/presets",
    "beam": "reference/commands/translate",
    "perplexity": "",
    "checkpoint": "reference/run-directory",
    "safetensors": "reference/run-directory",
    "learning_rate": "reference/run-files",
    "layernorm": "reference/api/heddle.nn",
    "tokenizer": "reference/commands/tokenizer",
    "causal": "reference/api/heddle.nn",
    "flops": "reference/api/heddle.account",
    "quantize": "reference",
    "glove": "reference",
    "speculative": "reference/commands/generate",
    "nanogpt": "reference/presets",
    "TransformerConfig": "reference/api/heddle.config",
    "score_heads": "reference/api/heddle.look",
}


@pytest.fixture(scope="module")
def index(site: Path) -> dict:
    text = (site / "searchindex.js").read_text(encoding="utf-8")
    return json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))


def pages(index: dict, word: str) -> set[str]:
    """The pages that the site's own search gives for a word: by its stem, in the text, in titles and among objects."""
    numbers: set[int] = set()
    stem = SearchEnglish({}).stem(word.lower())
    for table in (index["terms"], index["titleterms"]):
        found_in = table.get(stem, [])
        numbers |= {found_in} if isinstance(found_in, int) else set(found_in)
    for entries in index["objects"].values():
        numbers |= {entry[0] for entry in entries if entry[4].lower().rpartition(".")[2] == word.lower()}
    return {index["docnames"][number] for number in numbers}


@pytest.mark.parametrize("word", NAMES)
def test_a_name_is_found(index: dict, word: str) -> None:
    assert any(page.startswith(NAMES[word]) for page in pages(index, word)), pages(index, word)


def test_a_word_that_no_page_has_is_not_found(index: dict) -> None:
    assert pages(index, "zweibrettsen") == set()
