"""`heddle look`: maps, the lens and heads as tables, documents and pictures; what is refused."""

import json
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from heddle.look import trace
from heddle.look.texts import read_text
from heddle.weights import load
from tests import programs

from .conftest import Heddle


@pytest.mark.lecture("L1-36", "L1-28", "L1-41")
def test_a_map_is_that_of_the_library(heddle: Heddle, run_a: Path) -> None:
    """As a document, with the strongest pairs; rows sum to 1. As a table, with the demo sentence's tokens."""
    words = ("--prompt", "man eats fish", "--attention", "0.1")
    report = heddle("look", "a", *words, "--json").json
    model, tokenizer = load("runs/a")
    text = read_text(model, tokenizer, "man eats fish")
    layer = trace(model, text.tokens, attention="decoder.0.mixer").attention["decoder.0.mixer"]
    weights = torch.tensor(report["layers"]["decoder.0.mixer"]["1"]["weights"])
    torch.testing.assert_close(weights, layer.weights(heads=1)[0, 0])
    assert "".join(report["tokens"]) == "man eats fish"
    torch.testing.assert_close(weights.sum(-1), torch.ones(13))
    result = heddle("look", "a", *words)
    assert (result.code, result.err) == (0, "")
    assert "decoder.0.mixer, head 1: strongest pairs off the diagonal" in result.out
    assert "these tokens" not in result.out
    every = heddle("look", "a", "--prompt", "man eats fish", "--attention", "all", "--json").json
    assert [list(heads) for heads in every["layers"].values()] == [["0", "1"]]


def test_what_is_masked_is_marked_in_the_terminal(heddle: Heddle, run_a: Path) -> None:
    lines = heddle("look", "a", "--prompt", "abcd", "--attention", "0.0").out.splitlines()[:4]
    assert [line.count("··") for line in lines] == [3, 2, 1, 0]
    assert [line[0] for line in lines] == ["a", "b", "c", "d"]


@pytest.mark.lecture("L1-44")
def test_the_lens_ends_in_the_loss(heddle: Heddle, run_a: Path) -> None:
    report = heddle("look", "a", "--prompt", "warp", "--lens", "--json").json
    assert report["places"] == ["entry", "0"]
    assert [len(row) for row in report["tokens"]] == [4, 4]
    model, tokenizer = load("runs/a")
    tokens = torch.tensor([tokenizer.encode("warp")])
    logits = model.logits(model(tokens).hidden)[0, :-1].detach()
    expected = torch.nn.functional.cross_entropy(logits, tokens[0, 1:])
    assert report["losses"][-1] == pytest.approx(float(expected))
    assert f"0 {float(expected):.3f}" in heddle("look", "a", "--prompt", "warp", "--lens").out


def test_heads_and_names(heddle: Heddle, run_a: Path) -> None:
    report = heddle("look", "a", "--heads", "--json").json
    assert list(report) == ["decoder.0.mixer"]
    assert len(report["decoder.0.mixer"]["previous"]) == len(report["decoder.0.mixer"]["names"]) == 2
    assert "on repeated random tokens" in heddle("look", "a", "--heads").out
    assert "on the prompt" in heddle("look", "a", "--heads", "--prompt", "the warp").out
    assert heddle("look", "a", "--names", "--json").json["decoder.0.mixer.weights"].startswith("B H T S: ")
    assert "decoder.0.ffn.hidden" in heddle("look", "a", "--names").out


FORMATS = {"a.svg": b"<?xml", "a.png": b"\x89PNG", "a.pdf": b"%PDF"}


@pytest.mark.parametrize(
    ("what", "formats"),
    [(["--attention", "0.1"], 3), (["--attention", "all"], 1), (["--lens"], 1), (["--heads"], 1)],
)
def test_pictures(heddle: Heddle, run_a: Path, what: list[str], formats: int) -> None:
    """Every view, and one of them in every format."""
    for name, start in list(FORMATS.items())[:formats]:
        result = heddle("look", "a", "--prompt", "a $x$ <b>\n", *what, "--png", name)
        assert (result.code, result.err) == (0, "")
        assert f"written: {name}" in result.out
        assert Path(name).read_bytes().startswith(start)
    ElementTree.parse("a.svg")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--lens", "--heads"], "choose one view"),
        (["--html", "a.html"], "--html needs a text: --prompt TEXT"),
        (["--html", "a.txt", "--prompt", "a"], "must end in .html"),
        (["--html", "a.html", "--lens", "--prompt", "a"], "leave out --lens"),
        (["--png", "a.png"], "--png draws --attention"),
        (["--lens", "--prompt", "a", "--port", "3"], "--lens does not serve a page: leave out --port"),
        (["--html", "a.html", "--prompt", "a", "--no-browser"], "--html does not serve a page: leave out --no-browser"),
        (["--heads", "--target", "a"], "--target needs a source: --prompt TEXT"),
        (["--names", "--prompt", "a"], "leave out --prompt"),
        (["--host", "0.0.0.0"], "can be reached from other machines"),
        (["--port", "99999"], "cannot listen on 127.0.0.1:99999"),
        (["--lens"], "--lens needs a text: --prompt TEXT"),
        (["--attention", "0.1"], "--attention needs a text"),
        (["--attention", "first", "--prompt", "a"], "use LAYER.HEAD"),
        (["--attention", "7.1", "--prompt", "a"], "this model has no decoder.7.mixer; it has decoder.0.mixer"),
        (["--attention", "0.9", "--prompt", "a"], "decoder.0.mixer has 2 heads, counted from 0"),
        (["--attention", "cross.0", "--prompt", "a"], "this model has no decoder.0.cross"),
        (["--lens", "--prompt", "a", "--png", "a.gif"], "must end in .png, .svg, .pdf"),
        (["--lens", "--prompt", "a", "--target", "b"], "only translation models take a target"),
        (["--names", "--png", "a.png"], "--png draws --attention, --lens or --heads"),
    ],
)
def test_what_cannot_be_looked_at_is_one_line(heddle: Heddle, run_a: Path, options: list[str], message: str) -> None:
    result = heddle("look", "a", *options)
    assert result.code == 2
    assert message in result.err
    assert result.err.count("\n") == 1
    assert not list(Path().glob("a.*"))
    document = json.loads(heddle("look", "a", *options, "--json").out)
    assert message in document["error"]


def test_the_page_is_written_as_one_file(heddle: Heddle, run_a: Path) -> None:
    """With the curves of the run and the texts that it wrote."""
    result = heddle("look", "a", "--prompt", "the warp", "--html", "a.html")
    assert (result.code, result.err) == (0, "")
    assert "written: a.html" in result.out
    page = Path("a.html").read_text(encoding="utf-8")
    assert '"loss"' in page
    assert '"samples": [[4' in page
    report = heddle("look", "a", "--prompt", "the warp", "--html", "b.html", "--json").json
    assert report == {"page": "b.html", "bytes": Path("b.html").stat().st_size}
    assert Path("b.html").read_bytes() == Path("a.html").read_bytes()


def test_the_page_is_served(trained: Path) -> None:
    """By the command, at a free port, until it is interrupted."""
    words = ["look", str(trained), "--no-browser", "--json", "--device", "cpu"]
    with subprocess.Popen(
        [sys.executable, "-m", "heddle", *words],
        env=programs.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stderr is not None
        line = next(line for line in running.stderr if " at http://" in line)
        address = re.search(r"http://\S+", line)[0]  # type: ignore[index]
        with urllib.request.urlopen(address) as response:
            assert b'id="main"' in response.read()
        request = urllib.request.Request(
            f"{address}look/about", b"{}", {"Content-Type": "application/json"}, method="POST"
        )
        with urllib.request.urlopen(request) as response:
            assert json.loads(response.read())["run"] == "a"
        running.send_signal(signal.SIGINT)
        assert running.wait(30) == 130  # interrupted, as the shell counts it
        assert "Traceback" not in running.stderr.read()


LITERAL = """
vocab_size = 61
dim = 16
context = 8
[decoder]
depth = 2
final_norm = true
[decoder.entry]
positions = "learned"
[decoder.block]
placement = "literal"
[decoder.block.mixer]
heads = 2
"""


def test_a_config_file_is_drawn(heddle: Heddle) -> None:
    """So the block of deck 000 to the letter can be set beside the usual one: only the skip differs."""
    Path("literal.toml").write_text(LITERAL)
    Path("usual.toml").write_text(LITERAL.replace("literal", "pre"))
    drawn = [heddle("look", f"{name}.toml", "--model", f"{name}.svg", "--json").json for name in ("literal", "usual")]
    assert drawn[0]["parameters"] == drawn[1]["parameters"] > 0
    assert Path("literal.svg").read_text() != Path("usual.svg").read_text()
    refused = heddle("look", "litteral.toml", "--model", "x.svg")
    assert refused.code == 2
    assert "is not a preset, a run directory or a file" in refused.err


@pytest.mark.parametrize("name", ["a", "gpt2-small"])
def test_the_model_of_a_run_or_a_preset_is_drawn(heddle: Heddle, run_a: Path, name: str) -> None:
    result = heddle("look", name, "--model", "model.svg")
    assert (result.code, result.err) == (0, "")
    assert "written: model.svg" in result.out
    ElementTree.parse("model.svg")
    report = heddle("look", name, "--model", "model.svg", "--json").json
    assert report["drawing"] == "model.svg"
    if name == "gpt2-small":
        assert report["parameters"] == 124_439_808
        assert "124,439,808" in result.out
    for options, message in (
        (["--lens"], "leave out --lens"),
        (["--prompt", "a"], "leave out --prompt"),
        (["--port", "1"], "leave out --port"),
        ([], "must end in .svg"),
    ):
        refused = heddle("look", name, "--model", "model.png" if not options else "b.svg", *options)
        assert refused.code == 2
        assert message in refused.err
    assert not Path("b.svg").exists()
