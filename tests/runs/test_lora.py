"""Runs that train adapters: only these change and are saved, and the run directory is a model like any other."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import heddle
from heddle.account import training_bytes
from heddle.config.run import RunConfig
from heddle.config.train import TrainConfig
from heddle.convert import merge_adapter
from heddle.errors import HeddleError
from heddle.model import build
from heddle.prove.kills import differences, short_copy
from heddle.runs import Trainer, prepare
from heddle.runs.session import open_session
from heddle.runs.start import Start as StartRun
from heddle.runs.start import check_start
from heddle.train import evaluate, fit
from heddle.weights import load, read_config, save
from heddle.weights.adapter import read_adapter
from heddle.weights.checkpoints import checkpoints
from tests.models import config_of
from tests.refusing import refusal
from tests.running import SIZES, TRAIN
from tests.runs.test_resume import stop_after, train, written

TOKENIZER = heddle.train_tokenizer("bytes", [], special=("<|endoftext|>", "[CLS]", "[SEP]", "[PAD]", "[MASK]"))
Start = Callable[..., Path]


@pytest.fixture
def start(tmp_path: Path, corpus: Path, quick: None) -> Start:
    """A new run that trains adapters beside the random weights of a base: `start("name", steps=3, model={...}, ema=0.5)`."""

    def started(
        name: str = "run",
        base: dict[str, Any] | None = None,
        task: Any = "next_token",
        data: dict[str, Any] | None = None,
        **settings: Any,
    ) -> Path:
        place = tmp_path / "base"
        if not place.exists():
            table = {"vocab_size": TOKENIZER.vocab_size, "dim": 16, "context": 16, **(base or {})}
            if base is None:
                table["decoder"] = {"depth": 2, "block": {"mixer": {"heads": 2}}}
            save(build(heddle.config.TransformerConfig.of(table), seed=1), place, TOKENIZER)
        settings = {**TRAIN, "lora": {"rank": 2}, "learning_rate": 0.03, **settings}
        sources = {"sources": [str(corpus)], **(data or {})}
        config = {"data": sources, "model": {"from": str(place)}, "task": task, "train": settings}
        prepare(RunConfig.of(config), tmp_path / name)
        return tmp_path / name

    return started


@pytest.mark.parametrize(
    "settings",
    [
        {"precision": "bf16", "accumulate": 2, "lora": {"rank": 2, "dropout": 0.3}},
        {"ema": 0.8, "patience": 3},
        {"average": 2, "checkpoint_activations": True, "optimizer": "sgd"},
    ],
    ids=str,
)
def test_stopping_changes_nothing(start: Start, tmp_path: Path, settings: dict[str, Any]) -> None:
    """Also with the mean of adapters and their moving average; the adapter alone is equal, too."""
    run = start(steps=8, evaluate_every=2, save_every=3, **settings)
    stopped = shutil.copytree(run, tmp_path / "stopped")
    train(run)
    train(stopped, 1, 4, 5)
    assert written(run) == written(stopped)
    assert (run / "adapter.safetensors").read_bytes() == (stopped / "adapter.safetensors").read_bytes()
    assert any("adapter.safetensors" in name for name in written(run))


def test_only_adapters_change_and_are_saved(start: Start, tmp_path: Path) -> None:
    run = start(steps=6)
    base = load(tmp_path / "base").model.state_dict()
    adapters = {f"decoder.blocks.{i}.mixer.{layer}" for i in (0, 1) for layer in "qv"}
    factors = {f"{name}.{each}" for name in adapters for each in ("lora_a", "lora_b")}
    session = open_session(run)
    assert {name for name, each in session.model.named_parameters() if each.requires_grad} == factors
    session.run.hold.release()
    result = Trainer(run).run()
    model = load(run).model
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, base[name])}
    assert changed == {f"{name}.weight" for name in adapters}
    last = checkpoints(run)[0][1]
    assert not (last / "model.safetensors").exists()
    assert load_file(last / "adapter.safetensors").keys() == factors
    optimizer = load_file(last / "optimizer.safetensors")
    assert {name.split("/")[1] for name in optimizer} == factors
    # The published weights are the base's with the adapter, which alone says all of it.
    adapter = read_adapter(run / "adapter.safetensors")
    assert adapter.factor == 8
    for name in adapters:
        a, b = (adapter.tensors[f"{name}.{each}"].double() for each in ("lora_a", "lora_b"))
        merged = base[f"{name}.weight"].double() + 8 * b @ a
        torch.testing.assert_close(model.state_dict()[f"{name}.weight"].double(), merged, rtol=0, atol=1e-6)
    task = open_session(run).task
    assert evaluate(model, task).loss == pytest.approx(result.loss, abs=1e-5)
    assert result.loss < evaluate(load(tmp_path / "base").model, task).loss - 0.01
    assert json.loads((run / "manifest.json").read_text())["files"].keys() >= {
        "adapter.safetensors",
        "model.safetensors",
    }


def test_a_run_that_was_stopped_is_a_model(start: Start) -> None:
    """Its newest checkpoint is loaded, merged; the checkpoint too, where it is; and it computes what training would score."""
    run = start(steps=6, evaluate_every=3)
    trainer = Trainer(run)
    stop_after(4, trainer)
    with pytest.raises(Exception, match="stopped at step 4"):
        trainer.run()
    assert checkpoints(run)[0][0] == 4
    session = trainer.session
    session.model.eval()
    tokens = torch.randint(200, (2, 9))
    with torch.no_grad():
        expected = session.model(tokens).hidden
        for place in (run, checkpoints(run)[0][1]):
            hidden = load(place, "cpu").model(tokens).hidden
            assert (hidden - expected).abs().max() < 1e-5 * expected.abs().max()
    del trainer, session
    copied = shutil.copytree(checkpoints(run)[0][1], run.parent / "elsewhere")
    assert "its adapters need start.safetensors" in refusal(lambda: load(copied))
    train(run)
    assert load(run).model.config == read_config(run).model


def test_the_weights_beside_must_be_those_of_the_start(start: Start) -> None:
    run = start(steps=4)
    train(run)
    file = run / "start.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    checkpoint = checkpoints(run)[0][1]
    assert "damaged, it is not the file that this run started from" in refusal(lambda: Trainer(run))
    assert "damaged, it is not the file that this run started from" in refusal(lambda: load(checkpoint))
    assert load(run).model  # the published weights are whole
    file.unlink()
    assert "start.safetensors: missing" in refusal(lambda: Trainer(run))


LABELS = {"quick": "good", "lazy": "bad"}
SENTENCES = [f"the fox is {word} {number}\t{label}" for number in range(40) for word, label in LABELS.items()]


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    file = tmp_path / "reviews.tsv"
    file.write_text("text\tlabel\n" + "\n".join(SENTENCES))
    return file


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_a_new_head_is_trained_beside_adapters(start: Start, tmp_path: Path, reviews: Path, stack: str) -> None:
    """The run says so in its config, and the adapter alone brings the head: it makes the same classifier of the base."""
    base = {stack: {"depth": 1, "block": {"mixer": {"heads": 2}}}, "head": {"transform": stack == "encoder"}}
    settings = {"base": base, "task": "classification", "data": {"sources": [str(reviews)]}}
    run = start(**settings, steps=40, save_every=20, evaluate_every=20)
    assert read_config(run).train.lora.head is True
    stopped = shutil.copytree(run, tmp_path / "stopped")
    train(run)
    train(stopped, 7)
    assert written(run) == written(stopped)
    head = {name for name in load(run).model.state_dict() if name.startswith("head.")}
    assert head >= {"head.scores.weight", "head.scores.bias"}
    assert {name for name in load_file(run / "adapter.safetensors") if "lora" not in name} == head
    merge_adapter(tmp_path / "base", run, tmp_path / "merged")
    merged, model = load(tmp_path / "merged").model, load(run).model
    assert merged.config.head == model.config.head
    assert merged.config.head.names == ("bad", "good")
    assert all(torch.equal(value, merged.state_dict()[name]) for name, value in model.state_dict().items())
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["accuracy"] for line in metrics if "accuracy" in line][-1] == 1.0


def test_a_chat_templates_tokens_and_the_template_come_with_the_run(start: Start, tmp_path: Path) -> None:
    """The base has neither; merged with the run, it answers in the same template with the same weights."""
    file = tmp_path / "chat.jsonl"
    roles = ("user", "assistant")
    talks = [[{"role": role, "content": f"{role} {number}"} for role in roles] for number in range(20)]
    file.write_text("".join(f"{json.dumps({'messages': talk})}\n" for talk in talks))
    stack = {"decoder": {"depth": 1, "block": {"mixer": {"heads": 2}}}, "context": 48}
    run = start(base=stack, task="chat", data={"sources": [str(file)]}, steps=3)
    train(run)
    model, tokenizer = load(run)
    assert model.vocab_size > TOKENIZER.vocab_size
    assert merge_adapter(tmp_path / "base", run, tmp_path / "merged")["checked"]
    merged, words = load(tmp_path / "merged")
    assert merged.config.chat == model.config.chat is not None
    assert words.special == tokenizer.special
    assert all(torch.equal(value, merged.state_dict()[name]) for name, value in model.state_dict().items())
    message = refusal(lambda: merge_adapter(tmp_path / "base", run / "adapter.safetensors", tmp_path / "alone"))
    assert "rows for added tokens; name its own base, and the run that trained it" in message


@pytest.mark.parametrize(
    ("run_head", "base_head", "trained"),
    [
        ({"transform": True}, {"kind": "classifier", "classes": 2}, True),
        ({"transform": True}, {}, True),
        ({}, {}, False),
        ({"kind": "classifier", "classes": 2}, {"kind": "classifier", "classes": 2}, True),
    ],
)
def test_a_head_is_trained_if_it_is_new_or_scores_classes(
    run_head: dict[str, Any], base_head: dict[str, Any], trained: bool
) -> None:
    model, start = (config_of(family="encoder").override({"head": head}) for head in (run_head, base_head))
    config = RunConfig(train=TrainConfig.of({"lora": {"rank": 2}}))
    completed = check_start(config, build(model, "meta"), StartRun("runs/base", start, start, 9))
    assert completed.train.lora is not None
    assert completed.train.lora.head is trained


def test_an_encoder_decoder(start: Start, tmp_path: Path) -> None:
    """Self-attention and cross-attention of both stacks, in bf16."""
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("source\ttarget\n" + "\n".join(f"fox {i}\tdog {i}" for i in range(60)))
    block = {"mixer": {"heads": 2}}
    base = {"encoder": {"depth": 1, "block": block}, "decoder": {"depth": 1, "block": {**block, "cross": {"heads": 2}}}}
    run = start(base=base, task="translation", data={"sources": [str(pairs)]}, precision="bf16", steps=4)
    train(run, 2)
    layers = read_adapter(run / "adapter.safetensors").layers()
    assert set(layers) == {
        f"{place}.{layer}"
        for place in ("encoder.blocks.0.mixer", "decoder.blocks.0.mixer", "decoder.blocks.0.cross")
        for layer in "qv"
    }


def test_what_cannot_be_adapted_is_refused(start: Start, tmp_path: Path, config: Callable[..., RunConfig]) -> None:
    no_base = refusal(lambda: prepare(config(lora={"rank": 2}), tmp_path / "x"))
    assert "lora trains adapters beside the weights of another run: name it, from=RUN" in no_base
    unmatched = refusal(lambda: start(lora={"layers": ["*.query"]}))
    assert "lora: layers = '*.query' matches no linear layer of this model's stacks. Similar names: " in unmatched
    assert "lora: head = true, but this model's head has no weights of its own" in refusal(
        lambda: start(lora={"head": True})
    )
    assert not (tmp_path / "run").exists()
    for bad, word in (
        ({"rank": 0}, "rank"),
        ({"dropout": 1.0}, "dropout"),
        ({"layers": []}, "layers"),
        ({"r": 8}, "lora.r"),
    ):
        assert word in refusal(lambda bad=bad: TrainConfig.of({"lora": bad}))


def test_the_plan_counts_what_is_trained(start: Start, tmp_path: Path, corpus: Path) -> None:
    start("first")
    table = {"data": {"sources": [str(corpus)]}, "model": {"from": str(tmp_path / "base")}}
    planned = prepare(RunConfig.of({**table, "train": {**TRAIN, "lora": {"rank": 4}}}), tmp_path / "second")
    assert (
        planned.trained.frozen
        == planned.parameters
        == sum(each.numel() for each in build(planned.model, "meta").parameters())
    )
    assert planned.trained == (planned.parameters, 2 * 2 * 4 * (16 + 16), 4, 2 * 2 * 4 * (16 + 16))
    assert planned.chosen.learning_rate == pytest.approx(3e-3 * 2 * (128 / 16) ** 0.5)
    full = training_bytes(planned.model, 4, "fp32", TrainConfig.of({"optimizer": "adamw"}))
    few = training_bytes(planned.model, 4, "fp32", TrainConfig.of({"lora": {"rank": 4}}))
    assert full - few == 12 * planned.parameters - 12 * planned.trained.adapters - 4 * planned.trained.adapters


def test_kills_compare_adapters(start: Start, tmp_path: Path) -> None:
    """A copy to kill begins without an adapter, and one that differs is found."""
    run = start(steps=4, save_every=2)
    train(run)
    assert not (short_copy(run, tmp_path / "copies" / "run") / "adapter.safetensors").exists()
    other = shutil.copytree(run, tmp_path / "other")
    assert not differences(other, run)
    file = checkpoints(other)[0][1] / "adapter.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    assert differences(other, run) == ["checkpoints/step-4/adapter.safetensors"]


TEXT = "the warp is held, the weft is thrown. " * 20


def test_fit_leaves_merged_weights_and_an_adapter(tmp_path: Path) -> None:
    """It trains what a run trains; the model then has no adapters, and the base with the adapter's file is that model."""
    model = build(heddle.sized(1, vocab_size=TOKENIZER.vocab_size, context=SIZES["context"], dim=16), seed=2)
    save(model, tmp_path / "base", TOKENIZER)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    settings = {"lora": {"rank": 2, "layers": ["*.mixer.*"]}, "batch": 4, "progress": False, "learning_rate": 0.02}
    history = fit(model, TOKENIZER, TEXT, steps=10, validation=0.2, **settings)
    assert history.losses[-1] < history.losses[0]
    assert model.state_dict().keys() == before.keys()
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {f"decoder.blocks.0.mixer.{each}.weight" for each in "qkvo"}
    assert all(each.requires_grad for each in model.parameters())
    history.adapter.save(tmp_path / "adapter.safetensors")
    assert merge_adapter(tmp_path / "base", tmp_path / "adapter.safetensors", tmp_path / "run") == {
        "layers": 4,
        "checked": True,
    }
    merged = load(tmp_path / "run").model.state_dict()
    assert all(torch.equal(value, merged[name]) for name, value in model.state_dict().items())
    save(model, tmp_path / "tuned", TOKENIZER)
    with pytest.raises(HeddleError, match=r"adapter\.safetensors was trained on other weights"):
        merge_adapter(tmp_path / "tuned", tmp_path / "adapter.safetensors", tmp_path / "twice")


def test_fit_trains_a_head_beside_adapters() -> None:
    """One that scores classes: the adapter brings it, with the classes' names."""
    data = [tuple(sentence.split("\t")) for sentence in SENTENCES]
    model = heddle.model_for("classification", TOKENIZER, data, depth=1, dim=16, context=32)
    table = model.embedding.weight.detach().clone()
    history = fit(model, TOKENIZER, data, steps=2, task="classification", lora={"rank": 1}, progress=False)
    assert history.adapter.head.names == ("bad", "good")
    assert {name for name in history.adapter.others() if name.startswith("head.")} == set(history.adapter.others())
    assert torch.equal(history.adapter.others()["head.scores.weight"], model.head.scores.weight)
    assert torch.equal(model.embedding.weight, table)


def test_fit_takes_adapters_off_after_an_error() -> None:
    model = build(heddle.sized(1, vocab_size=TOKENIZER.vocab_size, context=16, dim=16), seed=2)
    names = list(model.state_dict())

    def broken(report: Any) -> None:
        raise RuntimeError("a reader failed")

    with pytest.raises(RuntimeError, match="a reader failed"):
        fit(model, TOKENIZER, TEXT, steps=3, lora={"rank": 2}, progress=False, readers=[broken])
    assert list(model.state_dict()) == names
    with pytest.raises(HeddleError, match="matches no linear layer"):
        fit(model, TOKENIZER, TEXT, steps=3, lora={"layers": ["x"]}, progress=False)
    assert list(model.state_dict()) == names
