"""`heddle export` to a directory and to one file."""

from collections.abc import Callable
from pathlib import Path

import gguf

from tests.cli.conftest import TINY, Heddle


def test_a_name_that_ends_in_gguf_is_one_file(heddle: Heddle, trained: Path, tmp_path: Path) -> None:
    told = heddle("export", str(trained), "a.gguf")
    assert told.code == 0, told.err
    assert told.out.splitlines()[-1].startswith("a.gguf: ")
    assert "as llama.cpp's " in told.out
    found = heddle("export", str(trained), "b.gguf", "--json").json
    assert (found["file"], found["tensors"]) == ("b.gguf", len(gguf.GGUFReader(tmp_path / "b.gguf").tensors))
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    assert heddle("export", str(trained), "out", "--json").json["directory"] == "out"
    assert (tmp_path / "out" / "model.safetensors").is_file()


def test_what_llama_cpp_lacks_is_one_line(heddle: Heddle, corpus: str, refused: Callable[..., str]) -> None:
    windowed = [*TINY, "decoder.block.mixer.window=5", "steps=1", "evaluate_every=1"]
    assert heddle("train", corpus, *windowed, "--name", "windowed").code == 0
    line = refused("export", "windowed", "model.gguf")
    assert line.startswith("runs/windowed: no GGUF file can express this model: use_sliding_window = True")
    assert heddle("export", "windowed", "out").code == 0


def test_a_file_that_exists_is_not_replaced(trained: Path, refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_text("mine")
    assert "already exists" in refused("export", str(trained), "a.gguf")
