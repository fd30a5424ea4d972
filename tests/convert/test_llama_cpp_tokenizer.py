"""A tokenizer goes into a GGUF file only where llama.cpp would give its ids."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest

from heddle.config import SavedConfig, SpecialIds, TransformerConfig
from heddle.convert import export_gguf
from heddle.model import build
from heddle.text import Tokenizer, load_tokenizer, train_tokenizer
from heddle.text.bpe import GPT2_SPLIT, GPT4_SPLIT, QWEN_SPLIT
from heddle.text.file import byte_level, byte_symbols
from heddle.weights.run import write_model
from tests.convert.test_gguf import metadata

TEXT = "the warp is held, the weft is thrown; das Webfach öffnet sich. " * 9
KEY = "tokenizer.ggml."
Change = Callable[[dict[str, Any]], object]


def learned(kind: str = "bpe", **more: Any) -> Tokenizer:
    return train_tokenizer(kind, [TEXT], 299, **more)


def changed(folder: Path, change: Change) -> Tokenizer:
    """A trained tokenizer with a change in its file."""
    learned().save(folder)
    content = json.loads((folder / "tokenizer.json").read_text())
    change(content)
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return load_tokenizer(folder)


def resplit(pattern: str) -> Change:
    """Splitting by this pattern alone."""

    def change(content: dict[str, Any]) -> None:
        _, split, symbols = content["pre_tokenizer"]["pretokenizers"]
        split["pattern"]["Regex"] = pattern
        content["pre_tokenizer"]["pretokenizers"] = [split, symbols]

    return change


def exported(
    folder: Path, tiny: TransformerConfig, tokenizer: Tokenizer | None, **more: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the export of a run with this tokenizer says, and the metadata in its file."""
    config = tiny.override({"vocab_size": 310, **more})
    (folder / "run").mkdir()
    write_model(folder / "run", build(config, seed=1).state_dict(), SavedConfig(model=config), tokenizer, step=1)
    notes = export_gguf(folder / "run", folder / "model.gguf")
    return notes, metadata(folder / "model.gguf")


def test_the_tokens_are_the_tokenizers(tmp_path: Path, tiny: TransformerConfig) -> None:
    tokenizer = learned(special=("<|endoftext|>", "<a>"))
    notes, stored = exported(tmp_path, tiny, tokenizer)
    assert notes["tokenizer"]
    assert len(notes["notes"]) == 1
    assert "256 characters without whitespace" in notes["notes"][0]
    tokens, kinds = stored[KEY + "tokens"], stored[KEY + "token_type"]
    assert len(tokens) == len(kinds) == len(set(tokens)) == 310
    symbols = byte_symbols()
    for i in range(tokenizer.vocab_size):
        if i in tokenizer.special.values():
            assert (tokenizer.special[tokens[i]], kinds[i]) == (i, gguf.TokenType.CONTROL)
        else:
            assert bytes(symbols[each] for each in tokens[i]) == tokenizer.token_bytes(i)
            assert kinds[i] == gguf.TokenType.NORMAL
    assert set(kinds[tokenizer.vocab_size :]) == {gguf.TokenType.UNUSED}
    # Each merge joins two earlier tokens into the next one.
    made = [merge.replace(" ", "") for merge in stored[KEY + "merges"]]
    assert made == tokens[256 : 256 + len(made)]
    end = tokenizer.end_of_text
    assert (stored[KEY + "bos_token_id"], stored[KEY + "eos_token_id"]) == (end, end)
    assert (stored[KEY + "add_bos_token"], stored[KEY + "add_eos_token"]) == (False, False)
    assert (stored[KEY + "model"], stored[KEY + "pre"]) == ("gpt2", "llama-bpe")


@pytest.mark.parametrize(("pattern", "name"), [(GPT2_SPLIT, "gpt-2"), (GPT4_SPLIT, "llama-bpe"), (QWEN_SPLIT, "qwen2")])
def test_the_split_has_llama_cpps_name(tmp_path: Path, tiny: TransformerConfig, pattern: str, name: str) -> None:
    notes, stored = exported(tmp_path, tiny, changed(tmp_path, resplit(pattern)))
    assert (stored[KEY + "pre"], notes["notes"]) == (name, [])


def test_gpt2s_own_split_is_known(tmp_path: Path, tiny: TransformerConfig) -> None:
    def change(content: dict[str, Any]) -> None:
        content["pre_tokenizer"] = byte_level(use_regex=True)

    assert exported(tmp_path, tiny, changed(tmp_path, change))[1][KEY + "pre"] == "gpt-2"


def test_nfc_is_a_note(tmp_path: Path, tiny: TransformerConfig) -> None:
    def change(content: dict[str, Any]) -> None:
        resplit(QWEN_SPLIT)(content)
        content["normalizer"] = {"type": "NFC"}

    notes, _ = exported(tmp_path, tiny, changed(tmp_path, change))
    assert notes["notes"] == ["llama.cpp does not normalise text (NFC) as this tokenizer does"]


def template(ids: list[int]) -> Change:
    """Tokens before each text."""

    def change(content: dict[str, Any]) -> None:
        start = [{"SpecialToken": {"id": f"<{i}>", "type_id": 0}} for i in ids]
        text = [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"]
        content["post_processor"] = {
            "type": "TemplateProcessing", "single": [*start, text[0]], "pair": [*start, *text],
            "special_tokens": {f"<{i}>": {"id": f"<{i}>", "ids": [i], "tokens": [f"<{i}>"]} for i in ids},
        }  # fmt: skip

    return change


def test_a_beginning_is_added(tmp_path: Path, tiny: TransformerConfig) -> None:
    """Of an imported model, whose files say so; one that heddle trained has read texts without it."""
    imported, trained = tmp_path / "imported", tmp_path / "trained"
    for folder, ids in ((imported, {"end": 296}), (trained, None)):
        folder.mkdir()
        _, stored = exported(folder, tiny, changed(folder, template([7])), ids=ids)
        assert (stored[KEY + "bos_token_id"], stored[KEY + "add_bos_token"]) == ((7, True) if ids else (296, False))


def test_several_ends_and_a_chat_template_are_kept(tmp_path: Path, tiny: TransformerConfig) -> None:
    tokenizer = learned(special=("<|endoftext|>", "<a>", "<b>", "<c>"))
    ids = SpecialIds(begin=3, end=tuple(tokenizer.special.values()), padding=5, banned=((9,),))
    chat = {"template": "{% for m in messages %}{{ m.content }}<a>{% endfor %}"}
    notes, stored = exported(tmp_path, tiny, tokenizer, ids=ids.to_dict(), chat=chat)
    names = ("eos", "eot", "eom", "bos", "padding")
    a, end, b = (tokenizer.special[name] for name in ("<a>", "<|endoftext|>", "<b>"))
    assert [stored[f"{KEY}{name}_token_id"] for name in names] == [a, end, b, 3, 5]
    assert stored["tokenizer.chat_template"] == chat["template"]
    assert any("of the 4 ids that end a text" in note for note in notes["notes"])
    assert any("never be generated" in note for note in notes["notes"])


def ignoring(content: dict[str, Any]) -> None:
    content["normalizer"] = {"type": "Lowercase"}


def unordered(content: dict[str, Any]) -> None:
    content["model"]["merges"].reverse()


LEFT_OUT: dict[str, tuple[Callable[[Path], Tokenizer | None], str]] = {
    "none": (lambda folder: None, "the run has no tokenizer"),
    "bytes": (lambda folder: train_tokenizer("bytes", []), "no tokenizer of this kind (bytes)"),
    "unigram": (lambda folder: learned("unigram"), "no tokenizer of this kind (unigram)"),
    "words": (lambda folder: learned("words"), "no tokenizer of this kind (words)"),
    "split": (lambda folder: changed(folder, resplit(r"\w+|\W")), "does not support"),
    "case": (lambda folder: changed(folder, ignoring), "does not support"),
    "order": (lambda folder: changed(folder, unordered), "does not support"),
    "end": (lambda folder: learned(special=()), "no id ends a text"),
    "beginnings": (lambda folder: changed(folder, template([7, 8])), "2 ids before a text"),
}


@pytest.mark.parametrize("kind", LEFT_OUT)
def test_a_tokenizer_that_llama_cpp_lacks_is_left_out(tmp_path: Path, tiny: TransformerConfig, kind: str) -> None:
    make, reason = LEFT_OUT[kind]
    ids = {"end": 296} if kind == "beginnings" else None  # of an imported model, which reads them
    notes, stored = exported(tmp_path, tiny, make(tmp_path), ids=ids)
    assert not notes["tokenizer"]
    assert len(notes["notes"]) == 1
    assert notes["notes"][0].startswith("no tokenizer was written, so llama.cpp only reads and returns ids: ")
    assert reason in notes["notes"][0]
    assert [key for key in stored if key.startswith("tokenizer")] == [KEY + "model"]
    assert stored[KEY + "model"] == "no_vocab"
