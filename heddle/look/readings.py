"""Statistics of a model during training: norms and lens losses of layers, scores of heads."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from heddle.checks import checked
from heddle.errors import HeddleError
from heddle.look.heads import FIELDS, find_heads
from heddle.look.lens import lens
from heddle.look.sites import kernels
from heddle.look.trace import trace
from heddle.model.transformer import Transformer
from heddle.runs.session import Session
from heddle.train.report import Report
from heddle.weights.files import WriteError, write_file

READINGS = "readings.jsonl"
REPEATED = 25  # random tokens, repeated once, on which heads are scored
SAMPLED = 4096  # held-out targets from which the observed row is chosen
MODEL_INPUTS = ("layout", "source", "source_layout", "types", "source_types")  # fields of a batch that the model takes

Measures = dict[str, dict[str, float]]


@torch.no_grad()
@checked()
def take_reading(model: Transformer, tokens: Int[Tensor, "1 T"], **more: Any) -> Measures:
    """Measure a model: values by measure and place.

    - `norm`: mean norm of the residual stream after the entry and after each layer, such as `decoder.0`;
    - `lens_loss`: loss on this text if the model ended there (see `lens`), in nats; for decoder language models;
    - `previous`, `induction` and the other fields of `HeadScores`: of each self-attention head, such as
      `decoder.0.mixer.heads.1`, on repeated random tokens (see `find_heads`).

    Inapplicable measures and non-finite values are left out.

    Args:
        model: any model.
        tokens: one text.
        more: further model arguments: layout, source, source_layout, types, source_types.
    """
    stacks = list(model.config.stacks())
    streams = trace(
        model, tokens, [f"{name}.{values}" for name in stacks for values in ("entry", "*.residual_after")], **more
    )
    norms = {
        name.removesuffix(".residual_after"): torch.linalg.vector_norm(stream.float(), dim=-1).mean().item()
        for name, stream in streams.tensors.items()
    }
    measures = {"norm": norms}
    if model.decoder is not None and model.config.head.kind == "language" and tokens.shape[1] > 1:
        lens_result = lens(model, tokens, 1, **more)
        measures["lens_loss"] = {
            f"decoder.{place}": loss
            for place, loss in zip(lens_result.places, lens_result.losses().tolist(), strict=True)
        }
    measures |= _head_scores(model)
    finite = {
        name: {place: value for place, value in values.items() if isfinite(value)} for name, values in measures.items()
    }
    return {name: values for name, values in finite.items() if values}


def _head_scores(model: Transformer) -> Measures:
    longest = model.last_stack().longest
    length = min(REPEATED, (model.config.context if longest is None else longest) // 2)
    last_stack = "encoder" if model.decoder is None else "decoder"
    if length < 2 or not any(name.startswith(last_stack) and name.endswith(".mixer") for name in kernels(model)):
        return {}
    scores = find_heads(model, length)
    return {
        field: {
            f"{layer}.heads.{head}": value
            for layer, layer_scores in scores.items()
            for head, value in enumerate(getattr(layer_scores, field).tolist())
        }
        for field in FIELDS
    }


class Readings:
    """Saves readings at chosen training steps to `readings.jsonl` in the run.

    It measures the weights to publish on one fixed held-out row. A run with readings is bit-identical to one without.

    Args:
        session: the training session, `Trainer.session`.
        steps: an interval in steps, which includes step 0, or a list of steps. None: as in the existing file, if there is one.

    Raises:
        HeddleError: a step is negative, or the list is empty.
    """

    @checked()
    def __init__(self, session: Session, steps: int | Sequence[int] | None) -> None:
        self.session, self.path = session, session.run.directory / READINGS
        saved_steps, lines = _read_lines(self.path)
        self.steps = _check_steps(saved_steps if steps is None else steps)
        if self.steps is None:
            return
        rewritten = [{"at": self.steps}, *(line for line in lines if session.step and line["step"] <= session.step)]
        write_file(self.path, "".join(json.dumps(line) + "\n" for line in rewritten).encode(), replace=True)
        if not session.step and self.is_due(0):
            self._save(0)

    def is_due(self, step: int) -> bool:
        """Whether to save a reading after this step."""
        if self.steps is None:
            return False
        return step % self.steps == 0 if isinstance(self.steps, int) else step in self.steps

    def __call__(self, report: Report) -> None:
        """Save a reading if one is due at this step.

        Raises:
            WriteError: the disk is full or cannot be written.
        """
        if "loss" in report.values and self.is_due(report.step):
            self._save(report.step)

    def _save(self, step: int) -> None:
        session, task = self.session, self.session.task
        batches = task.held_out(1, SAMPLED).batches
        batch = task.batch(batches[len(batches) // 2]).to(session.model.device)
        more = {name: getattr(batch, name) for name in MODEL_INPUTS if getattr(batch, name) is not None}
        with session.in_use():
            line = {"step": step, **take_reading(session.model, batch.tokens, **more)}
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise WriteError(f"cannot write {self.path}: {error.strerror}; the checkpoints stay") from error


@checked()
def read_readings(run: str | Path) -> dict[int, Measures]:
    """The saved readings of a run by step. An incomplete last line, as of a killed run, is skipped."""
    readings = {}
    for line in _read_lines(Path(run) / READINGS)[1]:
        readings[int(line["step"])] = {
            name: dict(values) for name, values in line.items() if isinstance(values, Mapping)
        }
    return readings


def _read_lines(path: Path) -> tuple[Any, list[dict[str, Any]]]:
    """The step selection in a readings file, and its complete lines."""
    steps, lines = None, []
    with suppress(FileNotFoundError):
        for text in path.read_bytes().split(b"\n")[:-1]:
            with suppress(ValueError, TypeError, KeyError, RecursionError):
                line = json.loads(text)
                if "at" in line:
                    steps = line["at"]
                else:
                    lines.append({**line, "step": int(line["step"])})
    return steps, lines


def _check_steps(steps: Any) -> int | list[int] | None:
    if steps is None:
        return None
    if isinstance(steps, int):
        if steps < 1:
            raise HeddleError(f"readings = {steps}: the interval must be at least 1")
        return steps
    ordered = sorted(set(steps))
    if not ordered or ordered[0] < 0:
        raise HeddleError(f"readings = {ordered}: give at least one step, counted from 0")
    return ordered
