"""`[train.lora]` on the command line: the plan, the count, the adapter alone, and its way back into a model."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from heddle.config import sized
from heddle.model import build
from heddle.weights import load, save
from tests.cli.conftest import TINY, Heddle
from tests.tasks.labelled import TOKENIZER

RUN_FILE = """
[data]
sources = ["corpus.txt"]

[model]
from = "base"

[train]
steps = 4
batch = 4
threads = 1
evaluate_every = 4
precision = "fp32"
compile = "off"
device = "cpu"

[train.lora]
rank = 2
layers = ["*.mixer.q", "*.mixer.v"]
"""


@pytest.fixture
def tuned(heddle: Heddle, corpus: str, tmp_path: Path) -> Heddle:
    """A run `base`, and `run`, which has trained an adapter beside its weights."""
    (tmp_path / "corpus.txt").write_bytes(Path(corpus).read_bytes())
    gpt2 = ["preset=gpt2-small", *(word for word in TINY if not word.startswith("context")), "context=16"]
    assert heddle("train", "corpus.txt", *gpt2, "--name", "base", "--json").code == 0
    (tmp_path / "run.toml").write_text(RUN_FILE)
    result = heddle("train", "run.toml", "--name", "run")
    assert result.code == 0, result.err
    # Two layers from 16 to 16 numbers, rank 2.
    assert "128 parameters are trained (" in result.out
    assert "128 of them in adapters of rank 2 on 2 layers; " in result.out
    assert "with adamw" in result.out
    return heddle


def test_an_adapter_goes_out_and_comes_back(tuned: Heddle, refused: Callable[..., str], tmp_path: Path) -> None:
    report = tuned("adapter", "export", "run", "peft", "--json").json
    assert report == {"directory": "peft", "family": "gpt2", "modules": 1, "rank": 4, "parameters": 128}
    assert "peft2: gpt2, 1 module of rank 4 or less, 128 parameters" in tuned("adapter", "export", "run", "peft2").out
    expected = load("runs/run").model.state_dict()
    for source in ("run", "runs/run/adapter.safetensors", "peft"):
        name = f"merged-{Path(source).suffix}{Path(source).stem}"
        assert tuned("adapter", "merge", "base", source, name, "--json").json["checked"]
        merged = load(f"runs/{name}").model.state_dict()
        assert max((merged[key] - value).abs().max() for key, value in expected.items()) < 1e-6
        assert not torch.equal(
            merged["decoder.blocks.0.mixer.q.weight"], load("runs/base").model.decoder.blocks[0].mixer.q.weight
        )
    assert "2 layers of base changed" in tuned("adapter", "merge", "base", "run", "more").out
    assert tuned("export", "run", "merged").code == 0
    assert "was trained on other weights" in refused("adapter", "merge", "run", "peft", "twice")
    assert "base has no adapter.safetensors" in refused("adapter", "export", "base", "out")
    assert "no run" in refused("adapter", "merge", "base", "nowhere", "out")


def test_what_was_trained_is_counted(tuned: Heddle) -> None:
    output = tuned("count", "run").out
    assert "Training updated 128 parameters, 128 of them in adapters on 2 layers; " in output
    assert tuned("count", "run", "--json").json["trained"]["adapters"] == 128
    assert "trained" not in tuned("count", "base", "--json").json


def test_ranks_are_tried_as_a_series(tuned: Heddle) -> None:
    words = ["corpus.txt", "from=base", "lora.rank=[1,2]", *TINY[5:], "--name", "try", "--dry-run"]
    result = tuned("train", *words)
    assert result.code == 0, result.err
    assert result.out.startswith("runs/try-lora.rank=1\nruns/try-lora.rank=2\n")


def test_without_a_run_to_start_from(refused: Callable[..., str], corpus: str) -> None:
    assert "lora trains adapters beside the weights of another run" in refused("train", corpus, *TINY, "lora.rank=4")


def test_a_merged_run_still_translates(heddle: Heddle, tmp_path: Path) -> None:
    """It is a decoder alone: only its task says that it reads a source."""
    rows = "".join(f"{word} {word}\t{word}\n" for word in ("warp", "weft", "heddle", "reed") * 8)
    (tmp_path / "pairs.tsv").write_text(f"source\ttarget\n{rows}")
    tiny = [*TINY[5:], "task=translation"]
    sizes = ["tokenizer=characters", "family=decoder", "dim=16", "depth=1", "heads=2", "context=32"]
    assert heddle("train", "pairs.tsv", *tiny, *sizes, "--name", "base").code == 0
    assert heddle("train", "pairs.tsv", *tiny, "from=base", "lora.rank=2", "--name", "run").code == 0
    assert heddle("adapter", "merge", "base", "run", "merged").code == 0
    prompt = ["--prompt", "warp warp", "--max-tokens", "5"]
    translated = heddle("translate", "merged", *prompt)
    assert translated.code == 0
    assert translated == heddle("translate", "run", *prompt)
    scored = [heddle("eval", run, "pairs.tsv", "--beams", "1", "--json").json for run in ("merged", "run")]
    assert scored[0]["translations"] == scored[1]["translations"]
    assert scored[0]["loss"] == pytest.approx(scored[1]["loss"], abs=1e-5)


def test_a_merged_run_still_reads_pairs(heddle: Heddle, tmp_path: Path) -> None:
    """Without being told their column again; and one of single texts still refuses a second one."""
    words = [(number, word) for number in range(1, 11) for word in ("warp", "weft")]
    lines = [{"text": "the " * number + word, "second": "is held", "label": word} for number, word in words]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, lines)))
    save(
        build(sized(1, vocab_size=TOKENIZER.vocab_size, context=16, dim=16, stacks=("encoder",))),
        "runs/base",
        TOKENIZER,
    )
    tiny = ["pairs.jsonl", *TINY[5:], "from=base", "task=classification", "lora.rank=2"]
    for name, more in (("run", ["pair=second"]), ("single", [])):
        assert heddle("train", *tiny, *more, "--name", name).code == 0
        assert heddle("adapter", "merge", "base", name, f"merged-{name}").code == 0
    merged, original = (heddle("classify", run, "pairs.jsonl", "--json") for run in ("merged-run", "run"))
    assert [json.loads(line)["pair"] for line in merged.out.splitlines()] == ["is held"] * 20
    assert [json.loads(line)["label"] for line in merged.out.splitlines()] == [
        json.loads(line)["label"] for line in original.out.splitlines()
    ]
    assert heddle("eval", "merged-run", "pairs.jsonl").code == 0
    errors = heddle("classify", "merged-single", "the warp", "--pair", "is held").err
    assert "reads single texts: leave out --pair" in errors
