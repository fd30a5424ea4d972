"""The training loop, written out. A run directory goes in; the same directory, with trained weights, comes out."""

import shlex
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import Any

import torch

from heddle.account.flops import flops
from heddle.checks import checked
from heddle.errors import HeddleError
from heddle.model.roles import layer_of
from heddle.nn.moe import MoE
from heddle.train.diagnose import first_bad_layer
from heddle.train.evaluate import Evaluation, evaluate
from heddle.train.journal import Metrics, Report
from heddle.train.load import load_statistics
from heddle.train.outcome import Published
from heddle.train.runtime import seed_step
from heddle.train.schedule import factor
from heddle.train.session import open_session
from heddle.train.step import train_step
from heddle.train.task import tokens_per_step, tokens_read
from heddle.weights.files import WriteError
from heddle.weights.run import newest_valid, publish

Reader = Callable[[Report], None]
ENDING = 1 << 16  # least number of targets to score at the end of a run; a tenth of its training tokens if that is more


class Interrupted(Exception):
    """The run was asked to stop by `signal`; everything up to `step` is saved."""

    def __init__(self, run: Path, step: int, steps: int, signal: int = signal.SIGINT) -> None:
        super().__init__(f"stopped at step {step} of {steps}, saved; continue with: {resume_command(run)}")
        self.step = step
        self.signal = signal


class NotFinite(HeddleError):
    """The loss or its gradient became NaN or infinite, so training stopped; the last good checkpoint is kept."""


class Trainer:
    """Trains what a run directory describes: step, report, evaluate, save, finish.

    It locks the directory until `run` ends or the trainer is collected; reading the run needs no lock.

    Args:
        run: a directory with `config.json`, `tokenizer.json` and `data/`.
        readers: functions to call with every `Report`.

    Attributes:
        session: the model, the optimizer, the task and the step (see `heddle.train.session`).
        published: which weights `run` published (see `heddle.train.outcome`); None before.

    Raises:
        HeddleError: the directory is not a training run, its files do not belong together, or it is already being trained.
    """

    @checked()
    def __init__(self, run: str | Path, readers: Sequence[Reader] = ()) -> None:
        self.session = open_session(run)
        self.readers = list(readers)
        self.published: Published | None = None
        self.stop = threading.Event()
        self._signal: int = signal.SIGINT
        model, chosen = self.session.run.config.model, self.session.run.chosen
        # Scoring a token costs a third of training on it, so scoring a fifth of the tokens between evaluations adds about 7 %.
        between = chosen.evaluate_every * tokens_per_step(self.session.task)
        self.probe, self.ending = between // 5, max(ENDING, between * 2)
        # Of an encoder-decoder, FLOPs are per target of a source as long, and what is read is both.
        self.flops_per_token = flops(model).per_token / len(model.stacks())
        modules = self.session.model.named_modules()
        self.mixtures = [layer_of(name) for name, module in modules if isinstance(module, MoE)]

    def run(self) -> Evaluation:
        """Train to the last step, score the held-out text (an even sample if it is long), and publish weights and score.

        Which weights are published, and when training stops earlier, is the rule of `heddle.train.outcome`; afterwards the
        session's model has these weights.

        A trainer runs once; to continue, make another.

        Raises:
            Interrupted: SIGINT or SIGTERM arrived; the run is saved and can be resumed.
            HeddleError: the loss became NaN or infinite, the disk is full, or this trainer has already run; the last good
                checkpoint is kept.
        """
        directory, hold = self.session.run.directory, self.session.run.hold
        if hold is not None and not hold.release.alive:
            raise HeddleError(f"this trainer of {directory} has already run; make a new one to continue")
        try:
            return self._run()
        except WriteError as error:
            raise WriteError(error.problem, f". Make room, then continue with: {resume_command(directory)}") from error
        finally:
            if hold is not None:
                hold.release()

    def _run(self) -> Evaluation:
        session, chosen, leads = self.session, self.session.run.chosen, self.session.ranks.leads
        metrics = Metrics(session.run.directory / "metrics.jsonl", keep=session.step) if leads else None
        readers: list[Reader] = [metrics, *self.readers] if metrics else []
        try:
            with self._stoppable():
                while session.step < chosen.steps and not session.stopped_early:
                    _tell(readers, self._one_step())
                    best = self._due(chosen.evaluate_every) and self._look(readers)
                    stop, early = self._is_stopped(), session.stopped_early
                    if metrics and (self._due(chosen.save_every) or best or early or stop):
                        metrics.sync()
                        session.save()
                    if stop and session.step < chosen.steps and not early:
                        raise Interrupted(session.run.directory, session.step, chosen.steps, self._signal)
            return self._finish()
        finally:
            if metrics:
                metrics.close()

    def _look(self, readers: Sequence[Reader]) -> bool:
        """Evaluate and report; whether the loss is the lowest so far, in a run with `patience`, on every rank."""
        loss = 0.0
        if self.session.ranks.leads:
            report = self._score()
            _tell(readers, report)
            loss = report.values["validation_loss"]
        return self.session.judge(self.session.ranks.total(loss))

    def _is_stopped(self) -> bool:
        """Whether any rank was asked to stop: all of them stop after the same step."""
        asked = torch.tensor([float(self.stop.is_set())], device=self.session.model.device)
        return bool(self.session.ranks.sum(asked).item())

    def _due(self, every: int) -> bool:
        return self.session.step % every == 0 or self.session.step == self.session.run.chosen.steps

    def _one_step(self) -> Report:
        began = time.perf_counter()
        session, train, chosen = self.session, self.session.run.train, self.session.run.chosen
        session.model.train()
        seed_step(train.seed, session.step, session.ranks.rank)
        batch, reduce = session.batch(), session.ranks.sum
        scale = factor(session.step, chosen.steps, chosen.warmup, train)
        loss, norm = train_step(
            session.objective, session.optimizer, batch, train.accumulate, scale, train.clip, reduce
        )
        if not (isfinite(loss) and isfinite(norm)):
            gradients = {name: master.grad for name, master in session.optimizer.masters.items()}
            layer = first_bad_layer(session.eager, batch, gradients)
            where = (
                f"first seen in the {layer}; batch of the {session.task.describe(session.task.examples(session.step))}"
            )
            raise self._not_finite(session.step + 1, f"loss is {loss} ({where})")
        session.step += 1
        if session.ema is not None:
            session.ema.update(session.step)
        seconds = time.perf_counter() - began
        rate = tokens_read(batch) * session.ranks.count / seconds
        speed = {
            "tokens_per_second": rate,
            "share_of_peak": rate * self.flops_per_token / (session.opening.peak * session.ranks.count),
            "seconds": seconds,
        }
        values = {"loss": loss, "gradient_norm": norm, "learning_rate": scale * chosen.learning_rate}
        layers = {f"gradient_norm/{layer}": value for layer, value in session.optimizer.norms.by_layer().items()}
        loads = dict(zip(self.mixtures, (load.tolist() for load in session.optimizer.loads), strict=True))
        return Report(session.step, chosen.steps, {**values, **layers, **load_statistics(loads)}, speed, loads=loads)

    def _not_finite(self, step: int, what: str) -> "NotFinite":
        kept, _ = newest_valid(self.session.run.directory)
        where = f"the last good checkpoint is {kept}" if kept else "there is no checkpoint yet"
        return NotFinite(f"step {step}: {what}. Training stopped, {where}; lower learning_rate or matrix_learning_rate")

    def _score(self) -> Report:
        """Score the same sample of the held-out text every time, and sometimes sample text from the model.

        This runs before the checkpoint of the same step, so that weights with a NaN or infinite loss are not saved.
        """
        session, chosen = self.session, self.session.run.chosen
        with session.in_use():
            scored = evaluate(session.model, session.task, most=self.probe)
            if not isfinite(scored.loss):
                layer = first_bad_layer(session.eager, session.batch(), {})
                raise self._not_finite(session.step, f"validation loss is {scored.loss} (first seen in the {layer})")
            number, last = session.step // chosen.evaluate_every, session.step == chosen.steps
            wanted = number in (1, 2) or (number % 5 == 0 and not last)
            sample = self.sample(session.run.train.seed + session.step) if wanted else None
        values = {"validation_loss": scored.loss, "validation_error": scored.standard_error or 0.0, **scored.metrics}
        return Report(session.step, chosen.steps, values, {}, sample)

    def sample(self, seed: int, tokens: int = 60) -> str | None:
        """Text of about `tokens` tokens that the model generates; None if the task has nothing to show."""
        return self.session.task.sample(self.session.model, self.session.run.tokenizer, seed, tokens)

    def _finish(self) -> Evaluation:
        session = self.session
        self.published = session.finish()
        result = evaluate(session.model, session.task, most=self.ending)
        if session.ranks.leads:
            extra = {"evaluation": result.to_dict(), "weights": self.published.to_dict()}
            publish(session.run.directory, session.weights(), session.step, extra)
        return result

    @contextmanager
    def _stoppable(self) -> Iterator[None]:
        """While training, the first SIGINT or SIGTERM asks to stop after the step; a second one acts as usual."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before: dict[int, Any] = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

        def ask(number: int, frame: Any) -> None:
            self._signal = number
            self.stop.set()
            signal.signal(number, before[number])

        for number in before:
            signal.signal(number, ask)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def resume_command(run: Path) -> str:
    """The shell command that continues a run."""
    return f"heddle train --resume {shlex.quote(str(run))}"


def _tell(readers: Sequence[Reader], report: Report) -> None:
    for reader in readers:
        reader(report)
