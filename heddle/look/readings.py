"""What a model does, in numbers that are followed while it is trained: norms and lens losses of layers, scores of heads."""

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
REPEATED = 25  # random tokens that heads are scored on, read twice
SAMPLED = 4096  # held-out targets among which the row to look at is chosen
GIVEN = ("layout", "source", "source_layout", "types", "source_types")  # of a batch, to the model

Measures = dict[str, dict[str, float]]


@torch.no_grad()
@checked()
def take_reading(model: Transformer, tokens: Int[Tensor, "1 T"], **more: Any) -> Measures:
    """What a model does now: for each measure, its value at each place.

    - `norm`: mean length of the residual stream's vectors, after the entry and after each layer, such as `decoder.0`;
    - `lens_loss`: what the loss on this text would be if the model ended there (see `lens`), in nats; for decoders that
      score tokens;
    - `previous`, `induction` and the other fields of `HeadScores`: of each head of self-attention, such as
      `decoder.0.mixer.heads.1`, on random tokens that repeat (see `find_heads`).

    What a model does not have is left out, and so is what is infinite or NaN.

    Args:
        model: any model.
        tokens: one text.
        more: other arguments of the model: layout, source, source_layout, types, source_types.
    """
    stacks = list(model.config.stacks())
    streams = trace(
        model, tokens, [f"{name}.{each}" for name in stacks for each in ("entry", "*.residual_after")], **more
    )
    norms = {
        name.removesuffix(".residual_after"): torch.linalg.vector_norm(stream.float(), dim=-1).mean().item()
        for name, stream in streams.tensors.items()
    }
    found = {"norm": norms}
    if model.decoder is not None and model.config.head.kind == "language" and tokens.shape[1] > 1:
        read = lens(model, tokens, 1, **more)
        found["lens_loss"] = {
            f"decoder.{place}": loss for place, loss in zip(read.places, read.losses().tolist(), strict=True)
        }
    found |= _head_scores(model)
    finite = {name: {place: value for place, value in each.items() if isfinite(value)} for name, each in found.items()}
    return {name: each for name, each in finite.items() if each}


def _head_scores(model: Transformer) -> Measures:
    longest = model.last_stack().longest
    length = min(REPEATED, (model.config.context if longest is None else longest) // 2)
    own = "encoder" if model.decoder is None else "decoder"
    if length < 2 or not any(name.startswith(own) and name.endswith(".mixer") for name in kernels(model)):
        return {}
    scores = find_heads(model, length)
    return {
        field: {
            f"{layer}.heads.{head}": value
            for layer, each in scores.items()
            for head, value in enumerate(getattr(each, field).tolist())
        }
        for field in FIELDS
    }


class Readings:
    """A reader of a training's reports that saves what the model does at chosen steps, to `readings.jsonl` in the run.

    It looks at the weights to use and at one held-out row, always the same. Training is not changed by it: a run with readings
    is bit-equal to one without.

    Args:
        session: the training, of `Trainer.session`.
        at: a number: every so many steps, and before the first one; or the steps. None: those of the file, if there is one.

    Raises:
        HeddleError: a step is negative, or there are none.
    """

    @checked()
    def __init__(self, session: Session, at: int | Sequence[int] | None) -> None:
        self.session, self.path = session, session.run.directory / READINGS
        chosen, lines = _lines(self.path)
        self.at = _steps(chosen if at is None else at)
        if self.at is None:
            return
        kept = [{"at": self.at}, *(line for line in lines if session.step and line["step"] <= session.step)]
        write_file(self.path, "".join(json.dumps(line) + "\n" for line in kept).encode(), replace=True)
        if not session.step and self.wanted(0):
            self._save(0)

    def wanted(self, step: int) -> bool:
        """Whether a reading is saved after this step."""
        if self.at is None:
            return False
        return step % self.at == 0 if isinstance(self.at, int) else step in self.at

    def __call__(self, report: Report) -> None:
        """Save a reading, if this step is one of the chosen ones.

        Raises:
            WriteError: the disk is full or cannot be written.
        """
        if "loss" in report.values and self.wanted(report.step):
            self._save(report.step)

    def _save(self, step: int) -> None:
        session, task = self.session, self.session.task
        batches = task.held_out(1, SAMPLED).batches
        batch = task.batch(batches[len(batches) // 2]).to(session.model.device)
        more = {name: getattr(batch, name) for name in GIVEN if getattr(batch, name) is not None}
        with session.in_use():
            line = {"step": step, **take_reading(session.model, batch.tokens, **more)}
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise WriteError(f"cannot write {self.path}: {error.strerror}; the checkpoints stay") from error


@checked()
def read_readings(run: str | Path) -> dict[int, Measures]:
    """The readings that a run saved, by step; empty if it saved none. An incomplete last line, of a killed run, is skipped."""
    found = {}
    for line in _lines(Path(run) / READINGS)[1]:
        found[int(line["step"])] = {name: dict(each) for name, each in line.items() if isinstance(each, Mapping)}
    return found


def _lines(path: Path) -> tuple[Any, list[dict[str, Any]]]:
    """The chosen steps that a file of readings names, and its complete lines."""
    at, found = None, []
    with suppress(FileNotFoundError):
        for text in path.read_bytes().split(b"\n")[:-1]:
            with suppress(ValueError, TypeError, KeyError, RecursionError):
                line = json.loads(text)
                if "at" in line:
                    at = line["at"]
                else:
                    found.append({**line, "step": int(line["step"])})
    return at, found


def _steps(at: Any) -> int | list[int] | None:
    if at is None:
        return None
    if isinstance(at, int):
        if at < 1:
            raise HeddleError(f"readings = {at}: a reading every so many steps needs at least 1")
        return at
    steps = sorted(set(at))
    if not steps or steps[0] < 0:
        raise HeddleError(f"readings = {steps}: name at least one step, from 0")
    return steps
