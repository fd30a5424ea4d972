"""`heddle export` to a directory and to one file."""

from collections.abc import Callable
from pathlib import Path

import gguf
from transformers import AutoTokenizer

from tests.cli.conftest import TINY, Heddle
from tests.convert.conftest import make
from tests.convert.test_token_roles import write_bert


def test_a_name_that_ends_in_gguf_is_one_file(heddle: Heddle, trained: Path, tmp_path: Path) -> None:
    result = heddle("export", str(trained), "a.gguf")
    assert result.code == 0, result.err
    assert result.out.splitlines()[-1].startswith("a.gguf: ")
    assert "as llama.cpp's " in result.out
    report = heddle("export", str(trained), "b.gguf", "--json").json
    assert (report["file"], report["tensors"]) == ("b.gguf", len(gguf.GGUFReader(tmp_path / "b.gguf").tensors))
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    assert heddle("export", str(trained), "out", "--json").json["directory"] == "out"
    assert (tmp_path / "out" / "model.safetensors").is_file()


def test_what_llama_cpp_lacks_is_one_line(heddle: Heddle, corpus: str, refused: Callable[..., str]) -> None:
    windowed = [*TINY, "decoder.block.mixer.window=5", "steps=1", "evaluate_every=1"]
    assert heddle("train", corpus, *windowed, "--name", "windowed").code == 0
    line = refused("export", "windowed", "model.gguf")
    assert line.startswith("runs/windowed: cannot be exported as GGUF: use_sliding_window = True")
    assert heddle("export", "windowed", "out").code == 0


def test_a_file_that_exists_is_not_replaced(trained: Path, refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_text("mine")
    assert "already exists" in refused("export", str(trained), "a.gguf")


def test_special_tokens_written_out_are_text_unless_asked(heddle: Heddle, tmp_path: Path) -> None:
    """Of an imported BERT: the ids are those of transformers, without `--special` those of its `split_special_tokens`."""
    folder = write_bert(make, tmp_path / "published", tokenizer_class="BertTokenizer")
    assert heddle("import", str(folder), "bert").code == 0
    reference = AutoTokenizer.from_pretrained(folder)
    text = "warp [MASK] loom[SEP]weft"
    for split, more in ((False, ["--special"]), (True, [])):
        read = reference(text, add_special_tokens=False, split_special_tokens=split)["input_ids"]
        ids = heddle("tokenizer", "encode", "bert", text, *more, "--json").json["ids"]
        assert ids == read, more
        assert (reference.mask_token_id in ids) == (not split)
