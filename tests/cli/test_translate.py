"""`heddle translate`, and `heddle eval` of translations, on a tiny run."""

import io
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from heddle.config import sized
from heddle.generate import score_translations, translate
from heddle.model import build
from heddle.text import train_tokenizer
from heddle.weights import load, save
from tests.tasks.pairs import MODELS, TOKENIZER

from .conftest import TINY, Heddle

LINES = ["abcd", "", "ba"]


@pytest.fixture
def run() -> str:
    model = build(MODELS["both"].override({"initial": {"std": 0.3, "scale_residual": False}}), seed=4)
    save(model, "runs/pairs", TOKENIZER, overwrite=True)
    return "pairs"


def test_lines_in_lines_out(heddle: Heddle, run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "source.txt"
    file.write_text("".join(f"{line}\n" for line in LINES))
    result = heddle("translate", run, str(file), "--max-tokens", "6")
    expected = [best.text for best, *_ in translate(*load("runs/pairs"), LINES)]
    assert (result.code, result.err) == (0, "")
    assert [line[:6] for line in result.out.splitlines()] == [line[:6] for line in expected]
    assert result.out.splitlines()[1] == ""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(file.read_bytes())))
    assert heddle("translate", run, "--max-tokens", "6") == result
    prompted = heddle("translate", run, "--prompt", LINES[0], "--prompt", LINES[2], "--max-tokens", "6")
    assert prompted.out.splitlines() == [result.out.splitlines()[0], result.out.splitlines()[2]]


def test_standard_input_has_the_lines_that_a_file_has(
    heddle: Heddle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a line feed ends one, so translations stay beside their sources."""
    tokenizer = train_tokenizer("bytes", [], special=("<|endoftext|>",))
    model = build(MODELS["both"].override({"vocab_size": tokenizer.vocab_size}), seed=4)
    save(model, "runs/any", tokenizer, overwrite=True)
    text = "\ufeffab\u2028cd\r\nb\x85a\n\nkl".encode()
    file = tmp_path / "source.txt"
    file.write_bytes(text)
    translations = heddle("translate", "any", str(file), "--max-tokens", "6", "--json").json["translations"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert heddle("translate", "any", "--max-tokens", "6", "--json").json["translations"] == translations
    assert [each["source"] for each in translations] == ["ab\u2028cd", "b\x85a", "", "kl"]


@pytest.mark.parametrize("piped", [False, True])
def test_sources_are_read_in_the_encoding_that_is_named(
    heddle: Heddle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piped: bool
) -> None:
    tokenizer = train_tokenizer("bytes", [], special=("<|endoftext|>",))
    model = build(MODELS["both"].override({"vocab_size": tokenizer.vocab_size}), seed=4)
    save(model, "runs/any", tokenizer, overwrite=True)
    file = tmp_path / "latin.txt"
    file.write_bytes("caf\u00e9\nab\n".encode("cp1252"))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(file.read_bytes())))
    words = ["translate", "any", *([] if piped else [str(file)]), "--max-tokens", "6", "--json"]
    result = heddle(*words, "--encoding", "cp1252")
    assert [each["source"] for each in result.json["translations"]] == ["caf\u00e9", "ab"]
    assert "encoding = 'cp12522' is unknown to Python" in heddle(*words, "--encoding", "cp12522").err
    prompted = heddle("translate", "any", "--prompt", "ab", "--encoding", "cp1252")
    assert (prompted.code, prompted.out) == (2, "")
    assert "--encoding does not apply to --prompt" in prompted.err


def test_the_best_few_and_as_a_document(heddle: Heddle, run: str) -> None:
    words = ["--prompt", "abcd", "--beams", "3", "--best", "2", "--max-tokens", "5", "--length-penalty", "0.6"]
    lines = [line.split("\t") for line in heddle("translate", run, *words).out.splitlines()]
    data = heddle("translate", run, *words, "--json").json
    assert (data["run"], data["beam"]["beams"], data["precision"]) == ("runs/pairs", 3, "fp32")
    (translation,) = data["translations"]
    assert translation["source"] == "abcd"
    assert [[number, text] for number, _, text in lines] == [["0", each["text"]] for each in translation["best"]]
    assert [float(score) for _, score, _ in lines] == pytest.approx(
        [each["score"] for each in translation["best"]], abs=1e-4
    )
    assert all((each["finish"] == "end") == (each["tokens"] < 5) for each in translation["best"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--prompt", "a" * 40], "the text has 40 tokens, but the model has room for 31"),
        (["--prompt", "a", "--best", "6"], "best = 6 is more than beams = 5"),
        (["nowhere.txt"], "nowhere.txt: no such file"),
        (["--prompt", "a", "nowhere.txt"], "give files or --prompt, not both"),
        (["--prompt", "a", "--beams", "0"], "beams"),
        (["--prompt", "a", "--prompt", "a" * 40], "text 2 has 40 tokens, but"),
        (["long.txt"], "long.txt:3 has 40 tokens, but the model has room for 31; shorten it, or crop"),
        (["empty.txt"], "every text is empty"),
        (["--prompt", ""], "every text is empty"),
        (["binary.txt"], "binary.txt: a binary file, not text (a zero byte at byte 1)"),
        (["latin.txt"], "latin.txt: not UTF-8 at byte 3 (0xe9); convert it with iconv"),
        (["."], ".: not a regular file"),
    ],
)
def test_what_cannot_be_translated_is_one_line(
    heddle: Heddle, run: str, tmp_path: Path, words: list[str], message: str
) -> None:
    files = {"long": b"a\n\n" + b"a" * 40, "empty": b"", "binary": b"a\0b", "latin": "café".encode("latin-1")}
    for name, content in files.items():
        (tmp_path / f"{name}.txt").write_bytes(content)
    result = heddle("translate", run, *words)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert message in result.err


def test_a_run_that_cannot_translate_says_so(heddle: Heddle) -> None:
    encoder = build(sized(1, vocab_size=TOKENIZER.vocab_size, context=16, dim=16, stacks=("encoder",)))
    save(encoder, "runs/reader", TOKENIZER, overwrite=True)
    result = heddle("translate", "reader", "--prompt", "a")
    assert (result.code, result.err) == (2, "heddle: this model has no decoder, so it cannot translate\n")


def test_a_run_of_another_task_says_so(refused: Callable[..., str], heddle: Heddle, run_a: Path, corpus: str) -> None:
    message = "was not trained to translate; train one with task=translation"
    assert refused("translate", "a", "--prompt", "warp") == f"runs/a {message}, for example from=runs/a"
    assert heddle("train", corpus, *TINY, "task=masked", "--name", "masked").code == 0
    assert refused("translate", "masked", "--prompt", "warp") == f"runs/masked {message}"


def test_translations_are_scored(heddle: Heddle, tmp_path: Path) -> None:
    file = tmp_path / "pairs.tsv"
    file.write_text(
        "source\ttarget\n" + "".join(f"{word} {word}\t{word}\n" for word in ("warp", "weft", "heddle", "reed") * 8)
    )
    settings = [*TINY, "task=translation", "tokenizer=characters", "context=32", "steps=2"]
    assert heddle("train", str(file), *settings, "--name", "pairs2").code == 0
    output = tmp_path / "out.txt"
    result = heddle("eval", "pairs2", str(file), "--beams", "2", "--lowercase", "--output", str(output), "--json")
    translations = result.json["translations"]
    assert (translations["texts"], len(output.read_text().splitlines())) == (32, 32)
    assert translations["bleu_signature"].startswith("nrefs:1|case:lc|eff:no|tok:13a")
    assert "chrF" in heddle("eval", "pairs2", "--beams", "1").out
    assert heddle("eval", "pairs2", "--tokenize", "none").err == "heddle: --tokenize needs --beams, such as --beams 5\n"
    sources = file.read_bytes()
    for words, message in (
        (["--beams", "0"], "beams"),
        (["--beams", "2", "--tokenize", "moses"], "no tokenization 'moses'"),
    ):
        refusal = heddle("eval", "pairs2", str(file), *words)
        assert (refusal.code, refusal.out) == (2, "")
        assert message in refusal.err
        assert "scoring" not in refusal.err, "before anything takes time"
    refusal = heddle("eval", "pairs2", str(file), "--beams", "2", "--output", str(file))
    assert (refusal.code, refusal.out) == (2, "")
    assert refusal.err.startswith(f"heddle: {file}: already exists; nothing was changed.")
    assert file.read_bytes() == sources


def test_references_are_the_files_text(heddle: Heddle, tmp_path: Path) -> None:
    """Not what the tokenizer makes of it, in which every word that it does not know is the same."""
    file = tmp_path / "pairs.tsv"
    file.write_text("source\ttarget\n" + "".join(f"{word}\tthe {word}\n" for word in ("warp", "weft", "reed") * 8))
    settings = [*TINY, "task=translation", "tokenizer=words", "context=32", "steps=2"]
    assert heddle("train", str(file), *settings, "--name", "words").code == 0
    new = tmp_path / "new.tsv"
    new.write_text("source\ttarget\nwarp\tthe shuttle and the beam\n")
    output = tmp_path / "out.txt"
    translations = heddle("eval", "words", str(new), "--beams", "1", "--output", str(output), "--json").json[
        "translations"
    ]
    assert output.read_text().strip(), "a translation to score"
    expected = score_translations(output.read_text().splitlines(), ["the shuttle and the beam"])
    assert (translations["bleu"], translations["chrf"]) == (expected.bleu, expected.chrf)


def test_an_imported_encoder_decoder_is_scored(heddle: Heddle, run: str, tmp_path: Path) -> None:
    """Nothing says what it was trained for, and pairs of texts are what it can be scored on."""
    file = tmp_path / "pairs.tsv"
    file.write_text("source\ttarget\nabcd\tdcba\nab\tba\n")
    report = heddle("eval", run, str(file), "--beams", "1", "--json").json
    assert report["tokens"] == 8
    assert report["translations"]["texts"] == 2
