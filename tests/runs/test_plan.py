"""What is decided before anything is spent, what is refused, and that it is decided once."""

import json
import time
from collections.abc import Callable
from importlib import import_module
from itertools import pairwise
from math import ceil
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from heddle.account.memory import PROCESS, training_bytes
from heddle.account.parameters import parameters
from heddle.config import SavedConfig, TransformerConfig, sized
from heddle.config.run import RunConfig
from heddle.config.train import TrainConfig
from heddle.data.batch import Batch
from heddle.data.corpus import Corpus, Part
from heddle.data.order import windows_per_epoch
from heddle.errors import HeddleError
from heddle.model import build
from heddle.model.products import PRODUCT_KINDS
from heddle.native.cores import cores
from heddle.runs import Trainer, prepare
from heddle.runs.plan import TOKENS_PER_PARAMETER
from heddle.tasks import DataSpec
from heddle.tasks.table import make_task
from heddle.train import rates
from heddle.train.length import SHARE
from heddle.train.rates import faster_precision, measure
from tests import refusing
from tests.cards import OLD, SMALL, Card, put_in
from tests.running import Begin

Make = Callable[..., RunConfig]
NEED = import_module("heddle.runs.need")
TEXT = Part(np.arange(100, dtype=np.uint16) % 41, 100, 1, 1)
READING = DataSpec(Corpus(TEXT), sized(1, vocab_size=41, context=8, dim=16), rows=4)


@pytest.fixture
def planning() -> ModuleType:
    return import_module("heddle.runs.plan")


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing runs beside a measurement, which would be made again."""
    monkeypatch.setattr("heddle.native.measured._since", lambda before: False)


def never(*args: Any, **settings: Any) -> Any:
    pytest.fail("this machine was measured")


def refusal(config: RunConfig, run: Path) -> str:
    """The one line that refuses a config; nothing may be left of the run."""
    line = refusing.refusal(lambda: prepare(config, run))
    before = [path.name for path in run.parent.iterdir()]
    assert before == ["corpus.txt"], before
    return line


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.mark.usefixtures("quick")
class TestRefusals:
    @pytest.fixture(autouse=True)
    def unmeasured(self, quick: None, planning: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("measure", "peak_rate"):
            monkeypatch.setattr(planning, name, never)

    def test_a_context_that_the_text_cannot_fill(self, config: Make, run: Path) -> None:
        tokens = len((run.parent / "corpus.txt").read_bytes())
        held = tokens - int(tokens * 0.9)
        for context in (held, 10**9):
            text = refusal(config(model={"context": context}), run)
            assert text == (
                f"context = {context}, but training has {tokens - held:,} tokens and validation {held}: "
                f"set context={held - 1} or less, or give more text"
            )

    @pytest.mark.parametrize(
        ("model", "message"),
        [
            ({"dim": 10, "heads": 3}, "dim = 10 is not divisible by heads = 3"),
            ({"heads": 2, "kv_heads": 3}, "heads = 2 must be a multiple of kv_heads = 3"),
            ({"preset": "gpt2-smal"}, "Did you mean 'gpt2-small'"),
            ({"dim": 10**9, "heads": 10}, "less than or equal to 4194304"),
        ],
    )
    def test_impossible_sizes_before_the_text_is_read(
        self, config: Make, run: Path, monkeypatch: pytest.MonkeyPatch, model: dict[str, Any], message: str
    ) -> None:
        module = import_module("heddle.data.raw")
        monkeypatch.setattr(module, "read_documents", lambda *args: pytest.fail("the text was read"))
        assert message in refusal(config(model=model), run)

    @pytest.mark.parametrize("precision", ["auto", "fp32", "bf16"])
    def test_more_memory_than_there_is(self, config: Make, run: Path, precision: str) -> None:
        """A model of 10^12 weights, whatever the machine."""
        text = refusal(config(model={"dim": 300_000, "heads": 10}, precision=precision), run)
        assert text.startswith("the weights, gradients and optimizer state alone need ")
        assert text.endswith(": use a smaller model, adapters, or another optimizer")

    def test_a_batch_beyond_memory(
        self, config: Make, run: Path, planning: ModuleType, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(NEED, "available_memory", lambda device: 2**26)
        monkeypatch.setattr(planning, "available_memory", lambda device: 2**26)
        assert "training needs about 0." in refusal(config(batch=4096), run)
        for name, rate in (("measure", 1e5), ("peak_rate", 1e10)):
            monkeypatch.setattr(planning, name, lambda *args, rate=rate, **more: rate)
        assert prepare(config(batch=4096, accumulate=128), run).memory - PROCESS < 2**26

    def test_more_threads_than_cores(self, config: Make, run: Path) -> None:
        """The C library would end the process when it cannot start them."""
        text = refusal(config(threads=100_000), run)
        assert text.startswith(f"threads = 100000: this machine has {cores()} core")

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"data": {"sources": ["nowhere.txt"]}}, "nowhere.txt: no such file or folder"),
            ({"data": {"tokenizer": "syllables"}}, "'syllables' is neither one of bytes, characters, words, bpe"),
            ({"data": {"tokenizer": "bpe", "tokenizer_size": 7}}, "vocab_size 7 is too small for bpe"),
            ({"data": {"validation": 1e-9}}, "validation part would have"),
        ],
    )
    def test_text_that_will_not_do(self, config: Make, run: Path, settings: dict[str, Any], message: str) -> None:
        assert message in refusal(config(**settings), run)

    def test_a_run_that_is_there(self, config: Make, run: Path) -> None:
        run.mkdir()
        with pytest.raises(
            HeddleError, match=r"already exists: continue it with `heddle train --resume .*another --name"
        ):
            prepare(config(), run)
        assert list(run.iterdir()) == []


def test_it_is_decided_once(begin: Begin, planning: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was chosen is in config.json, and a resumed run reads it from there."""
    run = begin(steps=3, precision="auto", threads=None, learning_rate=None, batch=None, compile="auto")
    chosen = SavedConfig.read(run / "config.json").chosen
    assert chosen is not None
    assert (chosen.device, chosen.steps, chosen.compile) == ("cpu", 3, False)
    assert chosen.tokens_per_second == 1e5
    for name in ("measure", "peak_rate", "available_memory"):
        monkeypatch.setattr(planning, name, never)
    monkeypatch.setattr("heddle.runs.split.faster_precision", never)
    trainer = Trainer(run)
    assert trainer.session.run.chosen == chosen
    trainer.run()
    assert SavedConfig.read(run / "config.json").chosen == chosen
    assert Trainer(run).session.step == 3


def test_what_is_left_open(begin: Begin, tmp_path: Path) -> None:
    open_ = {"batch": None, "evaluate_every": None, "save_every": None, "accumulate": 3, "steps": 1000}
    chosen = SavedConfig.read(begin("open", **open_) / "config.json").chosen
    assert chosen is not None
    assert chosen.batch == 258  # the first multiple of 3 from 4096 / 16 on
    assert (chosen.warmup, chosen.evaluate_every, chosen.save_every) == (20, 50, 50)
    assert chosen.learning_rate == pytest.approx(6e-3 * 4)  # width 16 is 16 times smaller than 256
    settings = {"batch": 6, "evaluate_every": 7, "save_every": 8, "warmup": 4, "learning_rate": 0.5, "steps": 5}
    chosen = SavedConfig.read(begin("said", **settings) / "config.json").chosen
    assert chosen is not None
    assert (chosen.batch, chosen.evaluate_every, chosen.save_every, chosen.warmup) == (6, 7, 8, 4)
    assert chosen.learning_rate == 0.5


@pytest.mark.usefixtures("quick")
def test_minutes_become_steps(config: Make, tmp_path: Path) -> None:
    planned = prepare(config(steps=None, minutes=2.0), tmp_path / "run")
    assert 0.85 * 120 * 1e5 / 64 < planned.chosen.steps < 0.98 * 120 * 1e5 / 64
    assert planned.minutes == pytest.approx(2.0, rel=0.01)
    per_epoch = windows_per_epoch(planned.train_tokens, 16, ring=True)
    assert planned.epochs == pytest.approx(planned.chosen.steps * 4 / per_epoch)
    assert planned.parameters == parameters(planned.model).total
    assert planned.train_tokens + planned.validation_tokens == len((tmp_path / "corpus.txt").read_bytes())


@pytest.mark.usefixtures("quick")
def test_minutes_become_more_steps_on_more_cards(config: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank has a card of its own, and one of them evaluates; processes on a CPU share its cores."""
    put_in(SMALL, monkeypatch)
    for device, lowest, highest in (("cuda", 3.6, 4.0), ("cpu", 1.0, 1.0)):
        one, four = (
            prepare(
                config(steps=None, minutes=2.0, device=device, evaluate_every=None),
                tmp_path / f"{device}{ranks}",
                ranks=ranks,
            )
            for ranks in (1, 4)
        )
        assert lowest <= four.chosen.steps / one.chosen.steps <= highest
        assert four.minutes == pytest.approx(2.0, rel=0.01)
        assert four.chosen.tokens_per_second == (4e5 if device == "cuda" else 1e5)


@pytest.mark.parametrize(("device", "rows", "accumulate"), [("cpu", 32, 1), ("cuda", 512, 2)])
def test_the_whole_step_of_an_accelerator_is_measured(
    planning: ModuleType, device: str, rows: int, accumulate: int
) -> None:
    """A small one would leave it idle; on a CPU a part of a long step has the same rate."""
    long = DataSpec(Corpus(TEXT), sized(1, vocab_size=41, context=128, dim=16), rows=512)
    step, parts = planning._measured_step(long, TrainConfig(accumulate=2), device)
    assert (step.rows, parts) == (rows, accumulate)


@pytest.mark.usefixtures("quick")
def test_epochs_become_steps(config: Make, tmp_path: Path) -> None:
    """Rounded up, so that everything is read; without a depth, the deepest model that sees enough tokens in them."""
    planned = prepare(config(steps=None, epochs=3), tmp_path / "run")
    an_epoch = windows_per_epoch(planned.train_tokens, 16, ring=True) / 4
    assert planned.chosen.steps == ceil(3 * an_epoch)
    assert planned.epochs == pytest.approx(3, rel=0.1)
    assert planned.epochs >= 3
    open_depth = {"depth": None, "dim": None, "heads": None}
    depths = [
        prepare(config(steps=None, epochs=epochs, model=open_depth), tmp_path / f"{epochs}").model.decoder.depth
        for epochs in (1, 2000)
    ]
    assert depths[0] == 2 < depths[1]


@pytest.mark.usefixtures("quick")
def test_the_depth_follows_from_the_time(
    corpus: Path, tmp_path: Path, planning: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deepest that sees enough tokens: one more would not. Few models are measured, and the one that is taken is."""
    measured: list[TransformerConfig] = []

    def rate(model: TransformerConfig) -> float:
        """A machine that is better used by larger models."""
        return 2e9 * parameters(model).total ** -0.7

    def measure(reading: DataSpec, *arguments: Any, **settings: Any) -> float:
        measured.append(reading.model)
        return rate(reading.model)

    monkeypatch.setattr(planning, "measure", measure)
    monkeypatch.setattr(NEED, "training_bytes", lambda *args: 0)  # memory is the next test's
    depths = []
    for minutes in (0.01, 3.0, 12.0):
        train = {"minutes": minutes, "precision": "fp32", "products": "torch", "compile": "off"}
        run_config = RunConfig.of({"data": {"sources": [str(corpus)], "tokenizer": "bytes"}, "train": train})
        planned = prepare(run_config, tmp_path / str(minutes))
        depth = planned.model.decoder.depth
        deeper = sized(depth + 1, vocab_size=257, context=256)
        seconds = minutes * 60 * SHARE
        assert planned.model == sized(depth, vocab_size=257, context=256)
        assert planned.model in measured
        assert len(measured) <= 5
        assert planned.chosen.tokens_per_second == rate(planned.model)
        assert depth == 2 or seconds * rate(planned.model) >= TOKENS_PER_PARAMETER * planned.parameters
        # What the deeper one would reach is expected from the last one measured, a little too low.
        expected = rate(planned.model) * planned.parameters / parameters(deeper).total
        assert seconds * expected < TOKENS_PER_PARAMETER * parameters(deeper).total
        depths.append(depth)
        measured.clear()
    assert depths[0] == 2
    assert all(less < more for less, more in pairwise(depths))


@pytest.mark.usefixtures("quick")
def test_the_depth_stays_within_memory(
    corpus: Path, tmp_path: Path, planning: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = training_bytes(sized(3, vocab_size=257, context=256), 16, "fp32", TrainConfig())
    monkeypatch.setattr(planning, "available_memory", lambda device: room)
    train = {"minutes": 1e5, "precision": "fp32", "products": "torch", "compile": "off"}
    run_config = RunConfig.of({"data": {"sources": [str(corpus)], "tokenizer": "bytes"}, "train": train})
    assert prepare(run_config, tmp_path / "run").model.decoder.depth == 3


@pytest.mark.parametrize(
    ("choice", "minutes", "gain", "compiler", "expected"),
    [
        ("on", 1, 1.0, False, True),
        ("off", 1000, 2.0, True, False),
        ("auto", 1000, 2.0, True, True),
        ("auto", 1000, 1.0, True, False),
        ("auto", 1, 2.0, True, False),
        ("auto", 1000, 2.0, False, False),
    ],
)
def test_compiling(
    planning: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    choice: str,
    minutes: int,
    gain: float,
    compiler: bool,
    expected: bool,
) -> None:
    """When asked; or when there is a compiler, time enough for it to pay, and it was measured to be faster."""

    def measured(*args: Any, compiled: bool = False, **settings: Any) -> float:
        return 1e5 * gain if compiled else 1e5

    monkeypatch.setattr(planning, "measure", measured)
    monkeypatch.setattr(planning, "has_compiler", lambda: compiler)
    config, tokens = RunConfig(train=TrainConfig(compile=choice)), int(minutes * 60 * 1e5)
    candidate = planning.SizeCandidate(sized(1, vocab_size=9, dim=16), 0, (), 1e5, TrainConfig())
    assert planning._compile(config, READING, candidate, "cpu", "fp32", tokens) is expected


def test_a_precision_that_cannot_win_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU without bf16 units would spend minutes on it: its flags are read, then its matrix products compared."""

    tried: list[str] = []
    bf16 = 0.0

    def measure(reading: DataSpec, device: str, precision: str, config: Any, by_onednn: Any = (), **how: Any) -> float:
        assert how == {"steady": True}
        tried.append(precision)
        return {"fp32": 1.0, "bf16": bf16}[precision]

    monkeypatch.setattr(rates, "measure", measure)
    for units, slower, faster, expected in (
        (False, 0.25, 2.0, "fp32"),  # whatever a noisy moment says
        (True, 200.0, 2.0, "fp32"),
        (None, 200.0, 2.0, "fp32"),
        (True, 0.25, 2.0, "bf16"),
        (True, 0.25, 1.01, "fp32"),  # not worth the rounding
        (None, 0.25, 2.0, "bf16"),
    ):
        bf16 = faster
        tried.clear()
        monkeypatch.setattr(rates, "has_bf16", lambda units=units: units)
        monkeypatch.setattr(rates, "slowdown", lambda *arguments, slower=slower: slower)
        assert faster_precision(READING, "cpu", RunConfig()) == expected
        assert sorted(tried) == ([] if units is False or slower > 1 else ["bf16", "fp32"])


@pytest.mark.parametrize(("card", "expected"), [(OLD, "fp32"), (SMALL, "bf16")])
def test_the_precision_on_a_card_is_not_measured(card: Card, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put_in(card, monkeypatch)
    for name in ("measure", "slowdown"):
        monkeypatch.setattr(rates, name, never)
    assert faster_precision(READING, "cuda", RunConfig()) == expected


def test_tf32_is_asked_for_with_fp32_and_a_card_for_it(config: Make, run: Path) -> None:
    for precision in ("auto", "bf16"):
        with pytest.raises(HeddleError, match=f"tf32 = true has no effect with precision = {precision}"):
            config(precision=precision, tf32=True)
    assert refusal(config(precision="fp32", tf32=True), run) == (
        "tf32 = true: device = cpu has no units for TF32; leave it out"
    )


@pytest.mark.parametrize(("train", "rows"), [({"batch": 8}, 8), ({"batch_tokens": 256}, 32)])
@pytest.mark.usefixtures("quiet")
def test_a_rate_is_of_the_rows_that_are_trained(
    config: Make,
    tmp_path: Path,
    planning: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    train: dict[str, Any],
    rows: int,
) -> None:
    """Short documents: eight rows that were asked for do not become as many as the tokens of eight whole contexts."""
    shapes: list[tuple[int, ...]] = []
    (tmp_path / "short.jsonl").write_text("".join(f'{{"text": "{number}"}}\n' for number in range(1000)))

    def seconds(task: Any, train: Any, batch: Batch, *more: Any) -> float:
        shapes.append(tuple(batch.tokens.shape))
        return 1.0

    monkeypatch.setattr(rates, "_seconds", seconds)
    monkeypatch.setattr(planning, "peak_rate", lambda *arguments: 1e10)
    monkeypatch.setenv("HEDDLE_CACHE", str(tmp_path / "measurements"))
    data = {"sources": [str(tmp_path / "short.jsonl")], "layout": "documents"}
    prepare(config(data=data, **{"batch": None, **train}), tmp_path / "run")
    assert {rows for rows, _ in shapes} == {rows}, shapes


def test_who_multiplies(planning: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN is asked for or measured, in fp32 on a CPU; elsewhere there is nothing to choose."""
    model = sized(1, vocab_size=41, context=8, dim=16)
    monkeypatch.setattr(rates, "faster_products", lambda model, tokens: ("inputs",))
    monkeypatch.setattr(rates, "has_onednn", lambda: True)
    assert planning.pick_products("auto", model, 8, "cpu", "fp32") == ("inputs",)
    assert planning.pick_products("torch", model, 8, "cpu", "fp32") == ()
    assert planning.pick_products("onednn", model, 8, "cpu", "fp32") == PRODUCT_KINDS
    assert planning.pick_products("auto", model, 8, "cuda", "fp32") == ()
    assert planning.pick_products("auto", model, 8, "cpu", "bf16") == ()
    with pytest.raises(HeddleError, match="products = onednn"):
        planning.pick_products("onednn", model, 8, "cuda", "fp32")
    monkeypatch.setattr(rates, "has_onednn", lambda: False)
    with pytest.raises(HeddleError, match="products = onednn"):
        planning.pick_products("onednn", model, 8, "cpu", "fp32")


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("compile_", "expected"), [("off", ("forward", "weights")), ("on", ())])
def test_who_multiplies_is_kept(
    corpus: Path, tmp_path: Path, planning: ModuleType, monkeypatch: pytest.MonkeyPatch, compile_: str, expected: Any
) -> None:
    """In the run's config, for whoever continues it; a compiler makes its own choice."""
    calls: list[Any] = []

    def measure(reading: Any, device: str, precision: str, config: Any, by_onednn: Any = (), **how: Any) -> float:
        calls.append(by_onednn)
        return 1e5

    monkeypatch.setattr(planning, "measure", measure)
    monkeypatch.setattr(rates, "faster_products", lambda model, tokens: ("forward", "weights"))
    train = {"steps": 3, "precision": "fp32", "compile": compile_}
    run_config = RunConfig.of({"data": {"sources": [str(corpus)], "tokenizer": "bytes"}, "train": train})
    assert prepare(run_config, tmp_path / "run").chosen.onednn == expected
    assert calls[0] == ("forward", "weights")


def test_a_compiler_and_onednn_are_not_both_asked_for(planning: ModuleType) -> None:
    """A compiled model chooses its own products."""
    with pytest.raises(HeddleError, match="products = onednn"):
        RunConfig.of({"train": {"products": "onednn", "compile": "on"}})
    candidate = planning.SizeCandidate(sized(1, vocab_size=9, dim=16), 0, PRODUCT_KINDS, 1.0, TrainConfig())
    assert (
        planning._compile(RunConfig(train=TrainConfig(products="onednn")), READING, candidate, "cpu", "fp32", 10**9)
        is False
    )


@pytest.mark.usefixtures("new_machine", "quiet")
@pytest.mark.parametrize(("steady", "read"), [(False, 4), (True, 2)])
def test_a_slow_model_is_measured_in_few_steps(monkeypatch: pytest.MonkeyPatch, steady: bool, read: int) -> None:
    """In time by one step after the one that warms up, in processor time by the first, which is long enough."""
    clock = iter(float(10 * tick) for tick in range(100))
    name = "thread_time" if steady else "perf_counter"
    monkeypatch.setattr(rates, "time", SimpleNamespace(**{**vars(time), name: lambda: next(clock)}))
    assert measure(READING, "cpu", "fp32", RunConfig(), steady=steady) == 4 * 8 / 10
    assert next(clock) == 10.0 * read


@pytest.mark.parametrize(("seconds", "steps"), [(0.02, 12), (0.3, 6), (5.0, 3)])
def test_an_accelerator_is_waited_for_after_several_steps(
    monkeypatch: pytest.MonkeyPatch, seconds: float, steps: int
) -> None:
    """It computes while the host goes on, so the clock stops when it has finished: after one step, one more, and all others."""
    clock, waiting, parts = [0.0], [0], list[int]()

    def step(objective: Any, optimizer: Any, batch: Batch, accumulate: int, *more: Any) -> None:
        waiting[0] += 1
        parts.append(accumulate)

    def finish(device: torch.device) -> None:
        clock[0] += seconds * waiting[0]
        waiting[0] = 0

    monkeypatch.setattr(rates, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    for name, replacement in (
        ("train_step", step),
        ("finish", finish),
        ("build", lambda model, device: build(model, "cpu")),
    ):
        monkeypatch.setattr(rates, name, replacement)
    task = make_task(RunConfig().task, READING)
    batch = task.batch(task.examples(0))
    monkeypatch.setattr(Batch, "to", lambda self, device: self)
    measured = rates._seconds(task, TrainConfig(), batch, "cuda", "fp32", (), False, False, 2)
    assert measured == pytest.approx(seconds)
    assert parts == [2] * steps


@pytest.mark.usefixtures("new_machine", "quiet")
def test_a_step_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same step of the same model has one rate on a machine; what a step does not depend on does not matter."""
    first = measure(READING, "cpu", "fp32", RunConfig())
    monkeypatch.setattr(rates, "_seconds", lambda *args: 1.0)
    assert measure(READING, "cpu", "fp32", RunConfig(train=TrainConfig(minutes=7, seed=3))) == first
    assert measure(READING, "cpu", "fp32", RunConfig(train=TrainConfig(optimizer="sgd"))) == 4 * 8
    assert measure(READING, "cpu", "bf16", RunConfig()) == 4 * 8


@pytest.mark.thorough
@pytest.mark.usefixtures("new_machine", "quiet")
def test_two_plans_of_one_command_agree(config: Make, tmp_path: Path, planning: ModuleType, monkeypatch: Any) -> None:
    """For real: everything that is decided by measurement, to the last digit; the second plan measures nothing."""
    settings = config(steps=None, minutes=0.02, precision="auto", products="auto", compile="auto")
    first = prepare(settings, tmp_path / "a").chosen
    monkeypatch.setattr(rates, "_seconds", never)
    monkeypatch.setattr("heddle.account.machine._seconds", never)
    assert prepare(settings, tmp_path / "b").chosen == first


@pytest.mark.usefixtures("new_machine")
def test_measuring_is_training() -> None:
    """For real: a rate comes out, and both precisions are tried."""
    before = torch.random.get_rng_state()
    assert measure(READING, "cpu", "bf16", RunConfig()) > 0
    assert faster_precision(READING, "cpu", RunConfig()) in ("fp32", "bf16")
    assert torch.equal(torch.random.get_rng_state(), before)


def test_the_config_is_readable(begin: Begin) -> None:
    run = begin(steps=3)
    data = json.loads((run / "config.json").read_text())
    assert data.keys() == {"version", "model", "data", "task", "train", "parallel", "chosen", "origin"}
    assert sorted(path.name for path in run.iterdir()) == ["config.json", "data", "tokenizer.json"]


@pytest.mark.usefixtures("quick")
@pytest.mark.lecture("L1-72", "L1-73", "D-18")
def test_a_preset_brings_its_batch_its_rate_and_its_optimizer(
    config: Make, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole number of sequences nearest to the preset's tokens, and its highest rate, unless something else is said."""
    settings = {"batch_tokens": 6 * 32 + 9, "learning_rate": 0.004, "optimizer": "adamw"}
    monkeypatch.setattr("heddle.config.run.preset_training", lambda name: dict(settings))
    model = {"preset": "laptop-tiny", "depth": 1, "dim": 16, "heads": 2, "context": 32}
    planned = prepare(config(model=model, batch=None), run)
    assert (planned.chosen.batch, planned.chosen.learning_rate) == (6, 0.004)
    assert json.loads((run / "config.json").read_text())["train"]["optimizer"] == "adamw"
    explicit = prepare(config(model=model, batch=4, learning_rate=0.1, optimizer="muon"), run.with_name("other"))
    assert (explicit.chosen.batch, explicit.chosen.learning_rate) == (4, 0.1)
    assert json.loads((run.with_name("other") / "config.json").read_text())["train"]["optimizer"] == "muon"
    tokens = prepare(config(model=model, batch=None, batch_tokens=100), run.with_name("tokens"))
    assert tokens.chosen.batch == 3
