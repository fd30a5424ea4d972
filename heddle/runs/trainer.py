"""The training loop, written out. A run directory goes in; the same directory, with trained weights, comes out."""

import json
import shlex
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

from heddle.account.flops import training_flops_per_token
from heddle.account.trained import trained_of
from heddle.checks import checked
from heddle.errors import HeddleError, OutOfMemory
from heddle.model.transformer import Transformer
from heddle.parallel.board import Lost
from heddle.runs.journal import Metrics
from heddle.runs.session import open_session
from heddle.tasks.task import Task
from heddle.train.evaluate import Evaluation
from heddle.train.length import Evaluations, step_size
from heddle.train.model_selection import SelectedWeights
from heddle.train.rates import cards
from heddle.train.report import Report
from heddle.train.training import Reader, tell
from heddle.weights.files import WriteError
from heddle.weights.run import publish

LEAVING = 3.0  # seconds to wait for a checkpoint that is being written once another process is lost


class Interrupted(Exception):
    """The run was asked to stop by `signal`; everything up to `step` is saved."""

    def __init__(self, run: Path, step: int, steps: int, signal: int = signal.SIGINT) -> None:
        super().__init__(f"stopped at step {step} of {steps}, saved; continue with: {resume_command(run)}")
        self.step = step
        self.signal = signal


class Trainer:
    """Trains what a run directory describes: step, report, evaluate, save, finish.

    It locks the directory until `run` ends or the trainer is collected; reading the run needs no lock.

    Args:
        run: a directory with `config.json`, `tokenizer.json` and `data/`.
        readers: functions to call with every `Report`; one may raise `StopTraining` to end the run after this step.

    Attributes:
        session: the model, the optimizer, the task and the step (see `heddle.runs.session`).
        published: which weights `run` published (see `heddle.train.model_selection`); None before.

    Raises:
        HeddleError: the directory is not a training run, its files do not belong together, or it is already being trained.
    """

    @checked()
    def __init__(self, run: str | Path, readers: Sequence[Reader] = ()) -> None:
        self.session = open_session(run)
        self.readers = list(readers)
        self.published: SelectedWeights | None = None
        self.stop = threading.Event()
        self._scored: tuple[int, Evaluation] | None = None  # the newest evaluation and its step
        self._signal: int = signal.SIGINT
        chosen = self.session.run.chosen
        devices = cards(chosen.device, self.session.ranks.count)
        evaluations = Evaluations(self.session.task, chosen.steps, chosen.evaluate_every, devices)
        self.probe, self.ending = evaluations.probe, evaluations.ending
        self.flops_per_token = flops_per_token(self.session.model, self.session.task)
        self.peak = self.session.opening.peak * self.session.ranks.count

    def run(self) -> Evaluation:
        """Train to the last step, score the held-out text (an even sample if it is long), and publish weights and score.

        Which weights are published, and when training stops earlier, is the rule of `heddle.train.model_selection`; afterwards the
        session's model has these weights.

        A trainer runs once; to continue, make another.

        Raises:
            Interrupted: SIGINT or SIGTERM arrived; the run is saved and can be resumed.
            HeddleError: a step does not fit into memory, which saves the steps before it; the loss became NaN or infinite, the
                disk is full, another process is lost, or this trainer has already run, which all leave the last good checkpoint.
        """
        directory, hold = self.session.run.directory, self.session.run.hold
        if hold is not None and not hold.release.alive:
            raise HeddleError(f"this trainer of {directory} has already run; make a new one to continue")
        try:
            return self._run()
        except WriteError as error:
            raise WriteError(
                error.problem, f". Once it can be written, continue with: {resume_command(directory)}"
            ) from error
        finally:
            if hold is not None:
                hold.release()

    @contextmanager
    def _naming_lost(self) -> Iterator[None]:
        """Inside the block, an error for want of another process says which one."""
        try:
            yield
        except Lost as error:
            raise self._stopped_by(error) from error
        except RuntimeError as error:
            if (lost := self.session.ranks.lost(error)) is None:
                raise
            raise self._stopped_by(lost) from error

    def _stopped_by(self, lost: Lost) -> Lost:
        """The same, with where the run stands, unless the process that failed has said it."""
        session = self.session
        session.close(LEAVING)
        step, left = session.step, session.last_good()
        if left in lost.problem:
            return lost
        where = f"step {step + 1}" if step < session.run.chosen.steps else "after the last step"
        return Lost(f"{where}: {lost.problem}; {left}", lost.speaks)

    def _run(self) -> Evaluation:
        session = self.session
        leads = session.ranks.leads
        metrics = Metrics(session.run.directory / "metrics.jsonl", keep=session.step) if leads else None
        with session.ranks.watched():
            try:
                with self._naming_lost():
                    with self._stoppable():
                        self._steps(metrics)
                    with self._saved_if_full(metrics, self._once_free()):
                        return self._finish()
            finally:
                session.close()
                if metrics:
                    metrics.close()

    def _steps(self, metrics: Metrics | None) -> None:
        """All steps that are left."""
        session, chosen = self.session, self.session.run.chosen
        readers: list[Reader] = [metrics, *self.readers] if metrics else []
        with ExitStack() as starting:
            starting.enter_context(session.ranks.patient())  # the first step may compile
            while session.step < chosen.steps and not session.stopped_early:
                with self._saved_if_full(metrics, self._retry()):
                    ended = tell(readers, self._one_step())
                starting.close()
                with self._saved_if_full(metrics, self._once_free()):
                    best, ended = (
                        self._evaluate_if_due(readers, ended) if session.due(chosen.evaluate_every) else (False, ended)
                    )
                failed = session.saver is not None and session.saver.failed
                stop, session.ended, failed = self._any_rank(self.stop.is_set(), ended, failed)
                if failed:
                    session.settle()
                early = session.stopped_early
                if session.due(chosen.save_every) or best or early or stop:
                    self._save(metrics)
                if stop and session.step < chosen.steps and not early:
                    session.settle()
                    number = self._signal if self.stop.is_set() else signal.SIGTERM  # which another rank got
                    raise Interrupted(session.run.directory, session.step, chosen.steps, number)

    def _evaluate_if_due(self, readers: Sequence[Reader], ended: bool) -> tuple[bool, bool]:
        """Evaluate and report; whether the loss is the lowest so far, in a run with `patience`, and whether a reader ends it."""
        with self.session.ranks.patient():
            report = self._score()
        ended |= tell(readers, report)
        return self.session.update_best(report.values["validation_loss"]), ended

    def _save(self, metrics: Metrics | None) -> None:
        """All save; the leader's files may take long."""
        with self.session.ranks.patient():
            if metrics:
                metrics.sync()
            self.session.save()
            self.session.ranks.wait()

    def _any_rank(self, *flags: bool) -> tuple[bool, ...]:
        """Which of these are true on any rank: all of them stop after the same step."""
        if self.session.ranks.count == 1:
            return flags
        every = [json.loads(text) for text in self.session.ranks.gather(json.dumps(flags))]
        return tuple(map(any, zip(*every, strict=True)))

    def _one_step(self) -> Report:
        session = self.session
        report = session.advance()
        rate = report.speed["tokens_per_second"] * self.flops_per_token
        self.peak = max(self.peak, rate)  # it was measured while another program computed
        share = rate / self.peak
        return replace(report, speed={**report.speed, "share_of_peak": share})

    @contextmanager
    def _saved_if_full(self, metrics: Metrics | None, retry: str) -> Iterator[None]:
        """What fails inside for want of memory saves the steps before it, and says how to continue."""
        try:
            yield
        except OutOfMemory as error:
            self._save_done(metrics)
            raise OutOfMemory(error.problem, f"{self.session.last_good()}; {retry}") from None

    def _save_done(self, metrics: Metrics | None) -> None:
        """Save the steps before one that failed, if its update has not begun and they are not saved yet, and this process can."""
        session = self.session
        alone, unsaved = session.optimizer.parts is None, not session.checkpoint(session.step).exists()
        if metrics and session.step and session.optimizer.whole and alone and unsaved:
            metrics.sync()
            session.save()

    def _retry(self) -> str:
        """How to continue a run of which a step does not fit into memory."""
        if self.session.train.checkpoint_activations:
            return self._once_free()
        command = resume_command(self.session.run.directory)
        return f"continue with: {command} checkpoint_activations=true, or train a new run"

    def _once_free(self) -> str:
        """How to continue a run in which something else does not fit."""
        command = resume_command(self.session.run.directory)
        return f"continue with: {command}, once more memory is free, or train a new run"

    def _score(self) -> Report:
        """Score the same sample of the held-out text every time, and sometimes sample text from the model.

        This runs before the checkpoint of the same step, so that weights with a NaN or infinite loss are not saved.
        """
        session, chosen = self.session, self.session.run.chosen
        scored = session.score(self.probe)
        self._scored = session.step, scored
        number, last = session.step // chosen.evaluate_every, session.step == chosen.steps
        with_sample = number in (1, 2) or (number % 5 == 0 and not last)
        with session.in_use():
            samples = self.samples([session.run.train.seed + session.step]) if with_sample else []
        return session.report(scored, next(iter(samples), None))

    def samples(self, seeds: Sequence[int], tokens: int = 60) -> list[str]:
        """For each seed, a text of about `tokens` tokens that the model generates; none if the task has nothing to show."""
        session = self.session
        with session.whole_model():
            return session.task.samples(session.model, session.run.tokenizer, seeds, tokens)

    def _finish(self) -> Evaluation:
        """Score and publish; the leader's files may take long."""
        session = self.session
        with session.ranks.patient():
            self.published = session.finish()
            adapter = session.merge()
            result = self._reusable_score() if adapter is None else None
            result = result or session.evaluate(self.ending)
            weights = session.weights()
            if session.ranks.leads:
                extra = {"evaluation": result.to_dict(), "weights": self.published.to_dict()}
                publish(session.run.directory, weights, session.step, extra, adapter)
            session.ranks.wait()
        return result

    def _reusable_score(self) -> Evaluation | None:
        """The evaluation of the last step, if it scored everything held out with the weights that are published now."""
        if self._scored is None or self.published is None:
            return None
        step, scored = self._scored
        whole = self.published.kind == "last" and self.published.steps == (step,) and scored.whole
        return scored if whole else None

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


def flops_per_token(model: Transformer, task: Task) -> float:
    """FLOPs of a step for each token that it reads, at the width of its rows; only targets are scored."""
    config, size, changed = model.config, step_size(task), trained_of(model)
    stacks = len(config.stacks())
    width = min(config.context, max(1, round(mean(length for _, length in task.shapes()))))
    learned = min(1.0, changed.total / (changed.total + changed.frozen))
    # For an encoder-decoder, FLOPs are per target with a source as long, and both are read.
    return training_flops_per_token(config, width, min(1.0, size.targets * stacks / size.tokens), learned) / stacks


def resume_command(run: Path) -> str:
    """The shell command that continues a run."""
    return f"heddle train --resume {shlex.quote(str(run))}"
