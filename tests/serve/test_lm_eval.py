"""lm-eval as a client: its `local-completions` gives the figures of its own `hf` backend on the exported model."""

import json
import random
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("lm_eval")

from lm_eval.models.huggingface import HFLM
from lm_eval.models.openai_completions import LocalCompletionsAPI

import heddle
from heddle.config import TransformerConfig
from heddle.config.serve import ServeConfig
from heddle.convert import export_model
from heddle.model import build
from heddle.serve import ServedRun
from tests.serve.conftest import ENGINE, Server

WORDS = ["the", "warp", "is", "held", "and", "weft", "thrown", "over", "a", "loom", "with", "threads"]
CONTEXT = 48


def request(*args: Any) -> Any:
    return SimpleNamespace(args=args)


def text(draw: random.Random, least: int, most: int) -> str:
    return " ".join(draw.choices(WORDS, k=draw.randint(least, most)))


def test_log_likelihoods_and_texts_are_those_of_the_exported_model(tmp_path: Path) -> None:
    tokenizer = heddle.train_tokenizer("bpe", [" ".join(WORDS) * 30], 300)
    block = {"mixer": {"heads": 2, "relative": {"kind": "rotary"}, "bias": False}, "norm": {"kind": "rms"}}
    block["ffn"] = {"kind": "gated", "bias": False}
    settings = {
        "vocab_size": tokenizer.vocab_size,
        "dim": 16,
        "context": CONTEXT,
        "decoder": {"depth": 2, "block": block},
    }
    model = build(TransformerConfig.of({**settings, "initial": {"std": 0.4, "scale_residual": False}})).eval()
    heddle.save(model, tmp_path / "run", tokenizer)
    export_model(tmp_path / "run", tmp_path / "out")
    reference = HFLM(pretrained=str(tmp_path / "out"), device="cpu", dtype="float32", batch_size=4)
    server = Server(ServeConfig(engine=ENGINE), [ServedRun("loom", model, tokenizer)])
    try:
        client = LocalCompletionsAPI(
            base_url=f"{server.url}/v1/completions",
            model="loom",
            tokenizer=str(tmp_path / "out"),
            max_length=CONTEXT,
            batch_size=4,
        )
        draw = random.Random(0)
        pairs = [request(text(draw, 1, 9), " " + text(draw, 1, 4)) for _ in range(20)]
        first = reference.generate_until([request("the warp", {"max_gen_toks": 3, "until": []})])[0]
        for words in WORDS:  # the most probable continuation of some
            result = reference.generate_until([request(words, {"max_gen_toks": 1, "until": []})])[0]
            pairs.append(request(words, result))
        actual, other = client.loglikelihood(pairs), reference.loglikelihood(pairs)
        for one, another in zip(actual, other, strict=True):
            assert one == (pytest.approx(another[0], abs=1e-3), another[1])
        assert {greedy for _, greedy in actual} == {True, False}
        writing = [request(text(draw, 1, 9), {"until": [" is"], "max_gen_toks": 8}) for _ in range(6)]
        assert client.generate_until(writing) == reference.generate_until(writing)
        if curl := shutil.which("curl"):
            body = '{"model": "loom", "prompt": "the warp", "temperature": 0, "max_tokens": 3}'
            call = [curl, "-sS", f"{server.url}/v1/completions", "-H", "Content-Type: application/json", "-d", body]
            output = subprocess.run(call, capture_output=True, text=True, check=True).stdout
            assert f'"text":{json.dumps(first, ensure_ascii=False)}' in output
    finally:
        server.stop()
