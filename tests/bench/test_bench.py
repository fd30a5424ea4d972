"""`heddle bench` on tiny models: its rows, its arithmetic, equal work of the contenders. No time is judged."""

from pathlib import Path
from typing import Any

import pytest
import torch

import heddle
from heddle.account import flops, parameter_count
from heddle.bench import MODELS, Bench, Rounds, Speed, bench
from heddle.bench import decoding as decoding_contenders
from heddle.bench import training as training_contenders
from heddle.bench.decoding import DECODERS, DecodingJob
from heddle.bench.hugging_face import published_model
from heddle.bench.models import LARGE, SMALL, sizes_for
from heddle.bench.run import left_out
from heddle.bench.timing import OUT_OF_MEMORY, Problem, Work, attempt, growth, held, steps_within, take_turns
from heddle.bench.training import TRAINERS, TrainingJob
from heddle.config import TransformerConfig, preset
from heddle.errors import HeddleError
from heddle.model.graphs import step as decoding_step

CPU = torch.device("cpu")
CHANGES = {"dim": 16, "vocab_size": 50, "context": 16, "decoder.depth": 1, "decoder.block.mixer.heads": 2}
TINY = preset("gpt2-small").override(CHANGES)
EAGER = ["heddle", "transformers"]


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The file of a model, on a machine whose ceilings are measured by small products."""
    for name, value in (("SMALL", 32), ("FEW", 16), ("MEGABYTES", 1)):
        monkeypatch.setattr(f"heddle.bench.machine.{name}", value)
    monkeypatch.setattr("heddle.bench.run.release", lambda device: None)  # looks through all that the tests hold
    monkeypatch.setattr("heddle.bench.run.forget", lambda device: None)
    (tmp_path / "tiny.toml").write_text(TINY.to_toml())
    return str(tmp_path / "tiny.toml")


def measure(tiny: str, **settings: Any) -> Bench:
    return bench("cpu", models=[tiny], quick=True, rounds=2, **settings)


@pytest.mark.parametrize(("name", "parameters"), [("gpt2-124m", 124e6), ("llama-350m", 350e6), ("llama-1b", 1.05e9)])
def test_models_have_the_sizes_of_their_names(name: str, parameters: float) -> None:
    assert parameter_count(MODELS[name]()) == pytest.approx(parameters, rel=0.01)


@pytest.mark.parametrize("name", MODELS)
def test_the_models_compared_are_equal_in_size(name: str) -> None:
    pytest.importorskip("transformers")
    other = published_model(MODELS[name](), torch.device("meta"), torch.float32)
    assert other.num_parameters() == parameter_count(MODELS[name]())
    assert other.config._attn_implementation == "sdpa"


class TestResult:
    def test_a_row_for_each_case_and_contender(self, tiny: str) -> None:
        pytest.importorskip("transformers")
        lines: list[str] = []
        result = measure(tiny, precision="fp32", tell=lines.append)
        assert [(row.rows, row.contender) for row in result.training] == [(2, name) for name in EAGER]
        assert [(row.rows, row.contender) for row in result.decoding] == [(n, name) for n in (1, 8) for name in EAGER]
        assert {row.problem for row in (*result.training, *result.decoding)} == {""}
        assert {row.parameters for row in (*result.training, *result.decoding)} == {parameter_count(TINY)}
        assert [each.what for each in result.ceilings] == ["fp32", "bf16", "copy"]
        assert lines[0] == "ceilings"
        assert any("2 rounds" in line for line in lines)

    def test_each_row_is_saved_and_smaller_models_come_first(self, tiny: str, tmp_path: Path) -> None:
        (tmp_path / "larger.toml").write_text(TINY.override({"dim": 32}).to_toml())
        saved: list[Bench] = []
        settings: dict[str, Any] = {"quick": True, "rounds": 1, "precision": "fp32", "save": saved.append}
        result = bench("cpu", ["training"], [str(tmp_path / "larger.toml"), tiny], **settings)
        assert [len(each.training) for each in saved] == [*range(len(result.training) + 1), len(result.training)]
        assert [each.complete for each in saved] == [False] * (len(saved) - 1) + [True]
        assert saved[-1] == result
        names = [row.model for row in result.training]
        assert names == sorted(names, key=["tiny", "larger"].index)

    def test_shares_ratios_and_memory(self, tiny: str) -> None:
        result = measure(tiny, precision="fp32", parts=["training"])
        assert result.decoding == ()
        first, *others = result.training
        assert first.rate is not None
        assert first.times_heddle == Rounds(1.0, 1.0, 1.0)
        assert first.tokens == 16  # the model's context
        work = flops(TINY, 1, 16).training / 16
        peak = next(each.rate for each in result.ceilings if each.what == "fp32")
        assert first.share == pytest.approx(first.rate.median * work / peak)
        assert first.predicted is not None
        assert first.measured is not None
        assert first.measured >= 4 * 3 * parameter_count(TINY)  # weights and two moments
        assert all(row.predicted is None for row in others)

    def test_as_text_and_as_html(self, tiny: str) -> None:
        result = measure(tiny, parts=["training"])
        text = result.markdown()
        assert text.startswith("on ")
        for word in (
            "torch",
            "heddle",
            "precision",
            "rounds 2",
            "**Ceilings**",
            "**Training, AdamW, clipping**",
            "| tiny | 2 × 16 | heddle |",
        ):
            assert word in text
        assert "**Decoding" not in text
        assert "Left out: " in text
        assert "decoding (--only)" in text
        tables = [line for line in text.splitlines() if line.startswith("|")]
        assert all(line.endswith(" |") for line in tables)
        assert "<table>" in result._repr_html_()
        assert "training" in repr(result)

    def test_a_failed_row(self) -> None:
        row = Speed("m", "transformers", 8, 16, problem=OUT_OF_MEMORY)
        assert row.cells()[:4] == ["m", "8 × 16", "transformers", "out of memory"]
        assert len(row.cells()) == len(Speed("m", "heddle", 8, 16, rate=Rounds(2.0, 1.0, 3.0)).cells())


class TestMemoryThatIsTooSmall:
    def test_rows_are_halved_until_they_fit(self, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
        own = TRAINERS["heddle"]

        def trains(job: TrainingJob, rows: int) -> Work:
            if rows > 1:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")
            return own(job, rows)

        monkeypatch.setitem(TRAINERS, "heddle", trains)
        rows = {row.contender: row for row in measure(tiny, parts=["training"]).training}
        assert rows["heddle"].rows == 1
        assert rows["heddle"].problem == ""

    def test_the_row_tells_and_the_others_are_measured(self, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
        def fails(job: object, rows: int = 0) -> Any:
            raise torch.OutOfMemoryError("CUDA out of memory")

        monkeypatch.setitem(TRAINERS, "other", fails)
        monkeypatch.setitem(DECODERS, "other", fails)
        result = measure(tiny)
        for part in (result.training, result.decoding):
            assert {row.problem for row in part if row.contender == "other"} == {OUT_OF_MEMORY}
            assert all(row.rate is not None for row in part if row.contender != "other")

    def test_an_error_later_ends_that_contender_alone(self) -> None:
        calls = {"good": 0, "bad": 0}

        def step(name: str) -> None:
            calls[name] += 1
            if calls["bad"] == 2 and name == "bad":
                raise RuntimeError("CUDA error\nmany lines")

        works = {name: Work(lambda name=name: step(name), tuple, 0) for name in calls}  # type: ignore[misc]
        taken = take_turns(works, dict.fromkeys(calls, 1), 3, CPU, park=False)
        assert taken["bad"] == Problem("RuntimeError: CUDA error")
        assert len(taken["good"]) == 3  # type: ignore[arg-type]
        assert calls == {"good": 3, "bad": 2}


class TestEqualWork:
    """Without the compiler, the plain loops compute what heddle's commands compute."""

    def test_training_losses(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(training_contenders, "compile_graphs", lambda call, **settings: call)
        job = TrainingJob(TINY, CPU, "fp32", 16)
        own, plain = (TRAINERS[name](job, 2) for name in ("heddle", "plain loop, compiled"))
        for _ in range(3):
            loss: Any = own.step()
            assert float(plain.step()) == pytest.approx(loss[0], abs=1e-5)  # type: ignore[arg-type]

    def test_decoded_ids(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def eager(model: Any) -> Any:
            def one(token: torch.Tensor, cache: Any) -> torch.Tensor:
                return decoding_step(model, token, cache.advance([1] * len(token), token.device), cache)

            model.steps = one
            return model

        job = DecodingJob(TINY, CPU, "fp32", 5)
        events: Any = DECODERS["heddle"](job)(3).step()
        monkeypatch.setattr(decoding_contenders, "compile_steps", eager)
        plain: Any = DECODERS["plain loop, compiled"](job)(3).step()
        assert plain == [[event.token for event in events if event.row == row] for row in range(3)]

    def test_transformers_decodes_as_many(self) -> None:
        pytest.importorskip("transformers")
        texts: Any = DECODERS["transformers"](DecodingJob(TINY, CPU, "fp32", 5))(3).step()
        assert [len(text) for text in texts] == [10, 10, 10]


class TestTurns:
    def test_they_alternate_and_only_one_is_on_the_device(self) -> None:
        order: list[str] = []
        tensors = {name: torch.ones(4) for name in "ab"}
        works = {
            name: Work(lambda name=name: order.append(name), lambda name=name: [tensors[name]] * 2, 4)  # type: ignore[misc]
            for name in tensors
        }
        taken = take_turns(works, {"a": 2, "b": 1}, 2, CPU, park=True)
        assert "".join(order) == "aaabb" * 2  # the first step of a turn is not timed
        assert [len(each) for each in taken.values()] == [2, 2]  # type: ignore[arg-type]
        assert held(works["a"]) == 16  # a tensor that is shared counts once

    def test_numbers_of_steps(self) -> None:
        assert (steps_within(0.0, 0.1), steps_within(1.0, 0.3), steps_within(1.0, 1e-9)) == (1, 4, 50)

    def test_growth_of_memory(self) -> None:
        measured = growth(lambda: torch.ones(2**24).add_(1), CPU)  # 64 MiB
        assert measured is None or measured >= 0.9 * 2**26

    def test_problems_are_short(self) -> None:
        def raises() -> None:
            raise ValueError("a" * 200)

        problem = attempt(raises)
        assert isinstance(problem, Problem)
        assert len(problem.text) == 80
        assert attempt(lambda: 3) == 3


class TestSizes:
    def test_a_gpu_gets_larger_models(self) -> None:
        assert sizes_for("cuda", quick=False) == LARGE
        assert sizes_for("cpu", quick=False, rounds=None) == SMALL
        quick = sizes_for("cuda", quick=True, rounds=7)
        assert (quick.models, quick.rounds, quick.compiled) == (LARGE.models[:1], 7, False)

    def test_what_is_left_out(self) -> None:
        lines = list(left_out(sizes_for("cpu", quick=True), ("training",), usual=True))
        assert lines[0] == "llama-30m, gpt2-124m, llama-350m, llama-1b (--model NAME)"
        assert lines[1] == "contenders that compile (without --quick)"
        assert lines[-1] == "decoding (--only)"


def test_bf16_without_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heddle.bench.machine.has_units", lambda device: False)
    with pytest.raises(HeddleError, match="has no units for it"):
        bench("cpu", ["ceilings"], ["gpt2-30m"], "bf16")


def test_a_model_without_a_class_of_hugging_face(tiny: str, tmp_path: Path) -> None:
    """Its rows say so; heddle's own are measured."""
    pytest.importorskip("transformers")
    config: TransformerConfig = heddle.preset("laptop-linear").override({"context": 16, "dim": 32, "decoder.depth": 1})
    (tmp_path / "own.toml").write_text(config.to_toml())
    result = measure(str(tmp_path / "own.toml"), parts=["training"], precision="fp32")
    problems = {row.contender: row.problem for row in result.training}
    assert problems["heddle"] == ""
    assert problems["transformers"].startswith("HeddleError: no Hugging Face family")
