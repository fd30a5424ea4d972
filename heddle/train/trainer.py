"""The training loop, written out. A run directory goes in; the same directory, with trained weights, comes out."""

import os
import shlex
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heddle.account.flops import flops
from heddle.account.machine import matmul_rate, usable_precision
from heddle.checks import checked
from heddle.data.batch import Batch, next_token_batch
from heddle.data.order import windows
from heddle.data.store import TokenStore
from heddle.errors import HeddleError, counted
from heddle.generate.text import generate_text
from heddle.model.build import build
from heddle.model.device import pick_device
from heddle.model.packing import use_products
from heddle.model.precision import DTYPES
from heddle.model.products import has_onednn
from heddle.text.tokenizer import Tokenizer, load_tokenizer
from heddle.train.diagnose import first_bad_layer
from heddle.train.evaluate import Evaluation, evaluate
from heddle.train.journal import Metrics, Report
from heddle.train.objective import NextToken
from heddle.train.optimizer import Optimizer
from heddle.train.runtime import keep_memory, seed_step
from heddle.train.schedule import factor
from heddle.train.step import train_step
from heddle.weights.checkpoints import CHECKPOINTS, CONFIG, State
from heddle.weights.files import Hold, WriteError, sweep
from heddle.weights.run import damage, newest_valid, publish, read_config, read_state, save_checkpoint
from heddle.weights.tensors import compare, specs_of
from heddle.weights.vectors import VECTORS, load_rows, put_rows

Reader = Callable[[Report], None]
ENDING = 1 << 16  # targets that the end of a run scores in any case; more, where a tenth of its tokens is more


class Interrupted(Exception):
    """The run was asked to stop; everything up to `step` is saved. `signal` is the number of what asked."""

    def __init__(self, run: Path, step: int, steps: int, signal: int = signal.SIGINT) -> None:
        super().__init__(f"stopped at step {step} of {steps}, saved; go on with: {resume_command(run)}")
        self.step = step
        self.signal = signal


class Trainer:
    """Trains what a run directory describes, from its newest valid checkpoint on, or from the start when there is none.

    It has the directory for itself until `run` ends or the trainer is collected; others may read the run meanwhile.

    Args:
        run: a directory with `config.json`, `tokenizer.json` and `data/`.
        readers: called with every `Report`; the one way to watch.

    Attributes:
        source: the checkpoint that it goes on from, or None.
        notes: a line for each newer checkpoint that is damaged.
        damaged: what is wrong with weights that were published before; `run` writes them anew.
        precision: what is computed in: that of the run, or fp32 where a run from another machine continues and that is
            over twice as fast here.
        moved: a line for each thing that is computed differently than where the run started, so that the result is not
            bit-equal to it.

    Raises:
        HeddleError: the directory is not a training run, its parts do not belong together, or it is being trained already.
    """

    @checked()
    def __init__(self, run: str | Path, readers: Sequence[Reader] = ()) -> None:
        run = Path(run)
        self.run_directory = run
        self.config = read_config(run)
        if self.config.train is None or self.config.chosen is None:
            came = "imported, not trained here" if self.config.origin else "saved without its training"
            raise HeddleError(f"{run} was {came}; there is nothing to resume")
        self.train, self.chosen = self.config.train, self.config.chosen
        self.tokenizer: Tokenizer = load_tokenizer(run / "tokenizer.json")
        self.store = TokenStore.open(run / "data")
        if self.store.tokenizer != self.tokenizer.fingerprint():
            raise HeddleError(f"{run}: data/ was cut by another tokenizer than tokenizer.json; train a new run")
        if self.tokenizer.vocab_size != self.config.model.vocab_size:
            raise HeddleError(
                f"{run}: tokenizer.json has {self.tokenizer.vocab_size} ids, config.json {self.config.model.vocab_size}"
            )
        self.store.verify()
        self.readers = list(readers)
        self.stop = threading.Event()
        self._signal: int = signal.SIGINT
        self._hold = Hold(run)
        try:
            self._prepare()
        except BaseException:
            self._hold.release()
            raise

    def _prepare(self) -> None:
        keep_memory()
        device = pick_device(self.chosen.device)
        for folder in (self.run_directory, self.run_directory / CHECKPOINTS):
            if folder.is_dir():
                sweep(folder)  # what a killed training left, before anything is looked for
        self.source, self.notes = newest_valid(self.run_directory)
        self.damaged = damage(self.run_directory)
        found = self.source
        before = None if found is None else self._read(found)
        self.precision, self.moved = self._adapt(device, resumed=before is not None)
        self.model = build(self.config.model, device, self.train.seed)
        ways = self.chosen.onednn if has_onednn() else ()
        use_products(self.model, ways)
        if before is not None:
            self.model.load_state_dict(before.model, strict=True)
        elif self.chosen.vectors is not None:
            put_rows(self.model, *load_rows(self.run_directory / VECTORS, self.chosen.vectors.sha256))
        self.optimizer = Optimizer(self.model, self.train, self.chosen.learning_rate, self.precision, ways)
        if before is not None:
            self.optimizer.load_state(before.optimizer)
        self.step = 0 if before is None else int(before.state["step"])
        objective = NextToken(self.model)
        self.eager = objective
        self.objective: Callable[[Batch], Any] = torch.compile(objective) if self.chosen.compile else objective
        # Scoring costs a third of training; a fifth of the tokens between two looks makes it some 7 % of the time.
        between = self.chosen.evaluate_every * self.chosen.batch * self.config.model.context
        self.probe, self.ending = between // 5, max(ENDING, between * 2)
        self.flops_per_token = flops(self.config.model).per_token

    def _adapt(self, device: torch.device, resumed: bool) -> tuple[str, list[str]]:
        """The precision to compute in here and what differs from where the run started; sets the threads."""
        wanted, cores, moved = self.chosen.precision, os.cpu_count() or 1, []
        torch.set_num_threads(min(self.chosen.threads, cores))
        if self.chosen.threads > cores:
            moved.append(f"{self.chosen.threads} threads were chosen and this machine has {counted(cores, 'core')}")
        # A run that starts was measured here, or its user asked for the precision.
        precision: str = usable_precision(wanted, device) if resumed else wanted
        self.peak = self.chosen.peak
        if precision != wanted:
            moved.append(f"{wanted} is over twice as slow as {precision} here, so {precision} is used")
            self.peak = matmul_rate(DTYPES[precision], device=device)
        if self.chosen.onednn and not has_onednn():
            moved.append("oneDNN computed some of its products, and torch has none here")
        return precision, moved

    def _read(self, checkpoint: Path) -> State:
        """What to go on from; a checkpoint that does not belong to the run's other files is refused."""
        if read_config(checkpoint) != self.config:
            raise HeddleError(
                f"{self.run_directory / CONFIG} is not the one that {checkpoint.name} was trained with; "
                f"bring it back: cp {checkpoint / CONFIG} {self.run_directory / CONFIG}"
            )
        before = read_state(checkpoint)
        if before.state.get("data") != self.store.sources:
            raise HeddleError(
                f"{self.run_directory}: data/ is not what {checkpoint.name} was trained on; train a new run"
            )
        wanted = specs_of(build(self.config.model, "meta").state_dict())
        compare(specs_of(before.model), wanted, checkpoint)
        return before

    def batch(self, step: int) -> tuple[Batch, npt.NDArray[Any]]:
        """What step `step` (from 0) trains on, and where in the training part each of its rows begins."""
        context = self.config.model.context
        starts = windows(len(self.store.train.tokens), context, self.train.seed, step, self.chosen.batch)
        rows = np.stack([self.store.train.tokens[start : start + context + 1] for start in starts])
        return next_token_batch(rows).to(self.chosen.device), starts

    def run(self) -> Evaluation:
        """Train to the last step, score the validation part, of a very long one an even sample, and publish both.

        A trainer runs once; to continue, make another.

        Raises:
            Interrupted: SIGINT or SIGTERM came; the run is saved and can be resumed.
            HeddleError: the loss became NaN or infinite, the disk is full, or this trainer has run; the last good
                checkpoint stays.
        """
        if not self._hold.release.alive:
            raise HeddleError(f"this trainer of {self.run_directory} has run; make a new one to continue")
        try:
            return self._run()
        except WriteError as error:
            raise WriteError(
                error.problem, f". Make room, then continue with: {resume_command(self.run_directory)}"
            ) from error
        finally:
            self._hold.release()

    def _run(self) -> Evaluation:
        metrics = Metrics(self.run_directory / "metrics.jsonl", keep=self.step)
        readers: list[Reader] = [metrics, *self.readers]
        try:
            with self._stoppable():
                while self.step < self.chosen.steps:
                    report = self._one_step()
                    _tell(readers, report)
                    if self._due(self.chosen.evaluate_every):
                        _tell(readers, self._look())
                    if self._due(self.chosen.save_every) or self.stop.is_set():
                        metrics.sync()
                        self.save()
                    if self.stop.is_set() and self.step < self.chosen.steps:
                        raise Interrupted(self.run_directory, self.step, self.chosen.steps, self._signal)
            return self._finish(readers)
        finally:
            metrics.close()

    def _due(self, every: int) -> bool:
        return self.step % every == 0 or self.step == self.chosen.steps

    def _one_step(self) -> Report:
        began = time.perf_counter()
        chosen, train = self.chosen, self.train
        self.model.train()
        seed_step(train.seed, self.step)
        batch, starts = self.batch(self.step)
        scale = factor(self.step, chosen.steps, chosen.warmup, train.schedule, train.final)
        loss, norm = train_step(self.objective, self.optimizer, batch, train.accumulate, scale, train.clip)
        if not (isfinite(loss) and isfinite(norm)):
            gradients = {name: master.grad for name, master in self.optimizer.masters.items()}
            layer = first_bad_layer(self.eager, batch, gradients)
            rows = ", ".join(str(start) for start in starts[:8]) + (", …" if len(starts) > 8 else "")
            where = f"first seen in the {layer}; batch of the windows that begin at training tokens {rows}"
            raise self._not_a_number(self.step + 1, f"loss is {loss} ({where})")
        self.step += 1
        seconds = time.perf_counter() - began
        rate = batch.tokens.numel() / seconds
        speed = {
            "tokens_per_second": rate,
            "share_of_peak": rate * self.flops_per_token / self.peak,
            "seconds": seconds,
        }
        values = {"loss": loss, "gradient_norm": norm, "learning_rate": scale * chosen.learning_rate}
        return Report(self.step, chosen.steps, values, speed)

    def _not_a_number(self, step: int, what: str) -> HeddleError:
        kept, _ = newest_valid(self.run_directory)
        where = f"the last good checkpoint is {kept}" if kept else "there is no checkpoint yet"
        return HeddleError(
            f"step {step}: {what}. Training stopped, {where}; lower learning_rate or matrix_learning_rate"
        )

    def _look(self) -> Report:
        """Score a sample of the validation part, the same in every look; write some text now and then.

        It comes before the checkpoint of the same step, so that weights gone wrong are not saved.
        """
        scored = self._score(self.probe)
        if not isfinite(scored.loss):
            layer = first_bad_layer(self.eager, self.batch(self.step)[0], {})
            raise self._not_a_number(self.step, f"validation loss is {scored.loss} (first seen in the {layer})")
        number, last = self.step // self.chosen.evaluate_every, self.step == self.chosen.steps
        sample = (
            self.sample(self.train.seed + self.step) if number in (1, 2) or (number % 5 == 0 and not last) else None
        )
        values = {
            "validation_loss": scored.loss,
            "validation_error": scored.error or 0.0,
            "bits_per_byte": scored.bits_per_byte,
        }
        return Report(self.step, self.chosen.steps, values, {}, sample)

    def _score(self, targets: int) -> Evaluation:
        return evaluate(self.model, self.store.validation, self.config.model.context, most=targets)

    def sample(self, seed: int, tokens: int = 60) -> str:
        """What the model writes by itself after the first tokens of the validation text."""
        first = self.store.validation.tokens[:8].tolist()
        # A special token is no text: it could not be read back by every tokenizer.
        length = next((place for place, token in enumerate(first) if token == self.tokenizer.end_of_text), len(first))
        prompt = self.tokenizer.decode(first[:length])
        wanted = {"max_tokens": tokens, "seed": seed, "temperature": 0.8, "window": True}
        return prompt + generate_text(self.model, self.tokenizer, prompt, **wanted)

    def weights(self) -> dict[str, Tensor]:
        """All that makes the model: the masters, and what a user's own module keeps beside its parameters."""
        masters = self.optimizer.masters
        return {name: masters.get(name, tensor).detach() for name, tensor in self.model.state_dict().items()}

    def save(self) -> None:
        """Write a checkpoint: weights, what the optimizers remember, and the step."""
        state = {"step": self.step, "data": self.store.sources}
        save_checkpoint(self.run_directory, self.step, self.weights(), self.optimizer.state(), state, self.train.keep)

    def _finish(self, readers: Sequence[Reader]) -> Evaluation:
        result = self._score(self.ending)
        publish(self.run_directory, self.weights(), self.step, {"evaluation": asdict(result)})
        return result

    @contextmanager
    def _stoppable(self) -> Iterator[None]:
        """While training, the first SIGINT or SIGTERM asks to stop after the step; a second one works as usual."""
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
    """The command that continues a run, as a shell takes it."""
    return f"heddle train --resume {shlex.quote(str(run))}"


def _tell(readers: Sequence[Reader], report: Report) -> None:
    for reader in readers:
        reader(report)
