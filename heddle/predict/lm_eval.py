"""Language models on published tasks, by the evaluation harness lm-eval (Gao et al. 2021), which `heddle-lm[eval]` installs.

This module imports lm-eval, so it is imported on request only. `heddle eval RUN --tasks FILE.yaml` uses it, and
`python -m heddle.predict.lm_eval --model heddle --model_args run=runs/mine --tasks …` is the harness's own command line with
this model in its table.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from traceback import walk_tb
from typing import Any

import torch
from lm_eval import simple_evaluate, utils
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.tasks import TaskManager

from heddle.account.machine import usable_precision
from heddle.config.decoding import SamplingConfig
from heddle.config.ids import SpecialIds
from heddle.errors import HeddleError
from heddle.generate.engine import Engine, raise_if_failed
from heddle.generate.text import RowText, start_ids
from heddle.model.precision import cast
from heddle.model.transformer import Transformer
from heddle.predict.rows import InputRow, passes, predicting
from heddle.text.tokenizer import Tokenizer
from heddle.weights.run import load, read_config

Ids = list[int]
LONGEST = 256  # tokens to generate where a task does not say, as in the harness's own models
REASON = 300  # characters of an error of lm-eval that are told
SAMPLED = {"until", "max_gen_toks", "do_sample", "temperature", "top_k", "top_p"}


@register_model("heddle")
class HarnessModel(TemplateLM):  # type: ignore[misc]  # lm-eval is not looked at by mypy
    """A causal language model for lm-eval: sums of log-probabilities, and texts.

    Texts are encoded as the harness's own models encode them: a published tokenizer puts its first ids before a text, and
    special tokens written out in a text are special. A text that does not fit into the context loses its beginning.

    Args:
        model: a decoder that predicts the next token.
        tokenizer: its tokenizer.
        batch_size: texts that are generated together; log-probabilities are computed in batches of similar length.

    Raises:
        HeddleError: the model does not predict the next token.
    """

    def __init__(self, model: Transformer, tokenizer: Tokenizer, batch_size: int = 16) -> None:
        super().__init__()
        model.check_predicts_next()
        self.model, self.cut, self.batch_size = model.eval(), tokenizer, batch_size
        self.max_length, self._device = model.config.context, model.device

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None
    ) -> "HarnessModel":
        """The model of `run=DIR`, with the harness's `device` and `batch_size`.

        Raises:
            HeddleError: there is no such run, it has no tokenizer, or an argument is unknown.
        """
        said = {**arg_dict, **{name: value for name, value in (additional_config or {}).items() if value is not None}}
        run, device, size = Path(said.pop("run", "")), said.pop("device", "auto"), said.pop("batch_size", 16)
        said.pop("max_batch_size", None)  # says how far batch_size = auto may go, which is refused below
        if said:
            raise HeddleError(f"model_args: {next(iter(said))} is unknown; heddle reads run, device and batch_size")
        if not str(size).isdecimal() or int(size) < 1:
            raise HeddleError(f"batch_size = {size}: must be a whole number of at least 1")
        model, tokenizer = load(run, device)
        if tokenizer is None:
            raise HeddleError(
                f"{run} has no tokenizer.json; import the weights with their tokenizer, or copy one there"
            )
        chosen = read_config(run).chosen
        precision = usable_precision(chosen.precision if chosen else "fp32", model.device)
        return cls(cast(model, precision), tokenizer, int(size))

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: dict[str, Any] | None = None) -> "HarnessModel":
        """The same from `run=DIR,…`."""
        return cls.create_from_arg_obj(utils.simple_parse_args_string(arg_string), additional_config)

    @property
    def eot_token_id(self) -> int:
        """The id that ends a text.

        Raises:
            HeddleError: there is none.
        """
        ids = self.model.config.ids or SpecialIds()
        end = next(iter(ids.ends()), self.cut.end_of_text)
        if end is None:
            raise HeddleError("the tokenizer has no end of text, which a text without a context starts with")
        return int(end)

    @property
    def prefix_token_id(self) -> int:
        """The id before a text without a context: what `generate` starts a text from, as training did."""
        start = start_ids(self.model.config, self.cut)
        return int(start[-1] if start else self.eot_token_id)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **more: Any) -> Ids:
        """The ids of a text, after those that a published tokenizer puts first, or that every prompt begins with."""
        ids, config = self.cut.encode(string, allow_special=True), self.model.config
        begins = list(start_ids(config, self.cut) if config.prompts == "beginning" else self.cut.begins)
        if add_special_tokens is False or (add_special_tokens is None and begins and ids[: len(begins)] == begins):
            return ids
        return begins + ids

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, Ids, Ids]], disable_tqdm: bool = False, **more: Any
    ) -> list[tuple[float, bool]]:
        """The log-probability of each continuation after its context, and whether each of its ids is the most probable."""
        rows = []
        for _, context, continuation in requests:
            if len(continuation) > self.max_length:
                raise HeddleError(
                    f"a continuation has {len(continuation)} tokens, but the model's context is {self.max_length}"
                )
            ids = (context + continuation)[-self.max_length - 1 : -1]
            rows.append(InputRow(ids, len(ids), False))
        found = [(0.0, True)] * len(rows)
        with predicting(self.model):
            for numbers, hidden, _ in passes(self.model, rows):
                for number, vectors in zip(numbers, hidden, strict=True):
                    (key, _, continuation), end = requests[number], len(rows[number].ids)
                    scores = self.model.logits(vectors[end - len(continuation) : end]).float().log_softmax(-1)
                    right = torch.tensor(continuation, device=scores.device)
                    total = float(scores.gather(1, right[:, None]).sum())
                    found[number] = (total, bool((scores.argmax(-1) == right).all()))
                    if key is not None:
                        self.cache_hook.add_partial("loglikelihood", key, found[number])
        return found

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """The log-probability of each whole text, in the harness's windows: each token once, with as much context as fits."""
        windows: list[tuple[None, Ids, Ids]] = []
        counts = []
        for request in requests:
            # Before the first window comes `prefix_token_id`, which is all that an own run's tokenizer would put first.
            ids = self.tok_encode(request.args[0], None if self.cut.begins else False)
            pieces = utils.get_rolling_token_windows(ids, self.prefix_token_id, self.max_length, context_len=1)
            found = [(None, *utils.make_disjoint_window(piece)) for piece in pieces]
            windows += found
            counts.append(len(found))
        totals = iter([total for total, _ in self._loglikelihood_tokens(windows)])
        sums = [sum(next(totals) for _ in range(count)) for count in counts]
        for request, total in zip(requests, sums, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return sums

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """The text after each context, up to a stop text; greedy unless a task samples."""
        asked = [self._sampling(dict(request.args[1])) for request in requests]
        texts = [""] * len(requests)
        for sampling in dict.fromkeys(asked):
            room = self.max_length - sampling.max_tokens
            if room < 1:
                raise HeddleError(
                    f"a task generates {sampling.max_tokens} tokens, but the model's context is {self.max_length}: "
                    "set a smaller max_gen_toks in its generation_kwargs"
                )
            ids = {
                number: self.tok_encode(request.args[0])[-room:]
                for number, request in enumerate(requests)
                if asked[number] == sampling
            }
            order = sorted(ids, key=lambda number: -len(ids[number]))
            for start in range(0, len(order), self.batch_size):
                some = order[start : start + self.batch_size]
                written = self._written([ids[number] for number in some], sampling)
                for number, text in zip(some, written, strict=True):
                    texts[number] = text
                    self.cache_hook.add_partial("generate_until", requests[number].args, text)
        return texts

    def _sampling(self, given: dict[str, Any]) -> SamplingConfig:
        """How a task's `generation_kwargs` draw tokens.

        Raises:
            HeddleError: one of them is unknown, or no number where it should be.
        """
        try:
            said = normalize_gen_kwargs(given, LONGEST)
        except (TypeError, ValueError) as error:
            raise HeddleError(f"generation_kwargs: {error}") from error
        unknown = next(
            (name for name, value in said.items() if name not in SAMPLED and value not in (None, 1, 1.0)), None
        )
        if unknown is not None:
            raise HeddleError(f"generation_kwargs: {unknown} = {said[unknown]!r} is not supported by heddle")
        wanted = {"max_tokens": said["max_gen_toks"], "stop": [text for text in said["until"] if text]}
        # lm-eval counts a temperature that is not given as 0, which is the most probable token.
        wanted["temperature"] = said.get("temperature", 0.0) if said["do_sample"] else 0.0
        wanted |= {name: said[name] for name in ("top_k", "top_p") if said["do_sample"] and said.get(name) is not None}
        return SamplingConfig.of(wanted, where="generation_kwargs")

    def _written(self, prompts: list[Ids], sampling: SamplingConfig) -> list[str]:
        """The texts after prompts that are ids."""
        end = self.cut.end_of_text if self.model.config.ids is None else None
        engine = Engine.of(self.model, prompts, sampling, end, vocabulary=self.cut.vocab_size)
        rows = [RowText(self.cut, sampling.stop, row.text.ids[-1]) for row in engine.waiting]
        texts = [""] * len(rows)
        while engine:
            for event in raise_if_failed(engine.step()):
                row = rows[event.row]
                texts[event.row] += row.push(event.token, event.finish)
                if row.finish == "stop":
                    engine.leave({event.row})
        return texts


def evaluate_tasks(
    model: Transformer, tokenizer: Tokenizer, tasks: Sequence[str], limit: int | None = None, shots: int | None = None
) -> dict[str, dict[str, Any]]:
    """Evaluate a language model on tasks of lm-eval.

    Args:
        model: a decoder that predicts the next token.
        tokenizer: its tokenizer.
        tasks: names of tasks of lm-eval, or paths of YAML files that define some.
        limit: examples of each task; None: all.
        shots: solved examples before each one; None: what the task says.

    Returns:
        By task: `examples`, how many were scored; and each metric by its name, with its standard error under `NAME_stderr`.

    Raises:
        HeddleError: a file is missing, or there is no such task; a task is wrong; or the model does not predict the next token.
    """
    paths = [Path(task) for task in tasks if task.endswith((".yaml", ".yml"))]
    missing = next((path for path in paths if not path.is_file()), None)
    if missing is not None:
        raise HeddleError(f"{missing}: no such file")
    # The list of all published tasks takes seconds to read, and files need none of it.
    manager = TaskManager(include_defaults=len(paths) < len(tasks))
    unknown = [task for task in tasks if not task.endswith((".yaml", ".yml")) and task not in manager.all_tasks]
    if unknown:
        raise HeddleError(f"lm-eval has no task {unknown[0]!r}; name one of its tasks, or a YAML file")
    harness = HarnessModel(model, tokenizer)
    with _about(tasks):
        found = simple_evaluate(
            model=harness,
            tasks=[str(task) for task in tasks],
            task_manager=manager,
            num_fewshot=shots,
            limit=limit,
            log_samples=False,
            bootstrap_iters=1000,
        )
    results: dict[str, dict[str, Any]] = {}
    for name, measured in found["results"].items():
        counted = found["n-samples"].get(name, {})
        kept = {
            key.removesuffix(",none").replace("_stderr,none", "_stderr"): value
            for key, value in measured.items()
            if isinstance(value, int | float) and key != "sample_len"
        }
        results[name] = {"examples": counted.get("effective"), **kept}
    return results


@contextmanager
def _about(tasks: Sequence[str]) -> Iterator[None]:
    """Mistakes in tasks in one line: lm-eval raises whatever its code stumbles over. What the model raises is left as it is.

    Raises:
        HeddleError: there is such a mistake.
    """
    try:
        yield
    except (HeddleError, OSError, MemoryError):
        raise
    except Exception as error:
        if any(isinstance(frame.f_locals.get("self"), HarnessModel) for frame, _ in walk_tb(error.__traceback__)):
            raise
        reason = shorten(f"{type(error).__name__}: {error}", REASON, placeholder=" …")
        raise HeddleError(
            f"lm-eval cannot evaluate {', '.join(tasks)}: {reason}; check the task and the data that it names"
        ) from error


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
