"""Evaluation of language models with lm-eval (Gao et al. 2021). Needs the extra `heddle-lm[eval]`.

This module imports lm-eval, so it is imported on request only. `heddle eval RUN --tasks FILE.yaml` uses it.
`python -m heddle.predict.lm_eval --model heddle --model_args run=runs/mine --tasks …` is lm-eval's own command line, with heddle
as a registered model.
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

from heddle.config.decoding import SamplingConfig
from heddle.config.ids import SpecialIds
from heddle.errors import HeddleError
from heddle.generate.engine import Engine, raise_if_failed
from heddle.generate.text import start_ids
from heddle.model.precision import DTYPES, cast
from heddle.model.transformer import Transformer
from heddle.predict.precision import predicting_precision
from heddle.predict.rows import InputRow, evaluation, forward_batches
from heddle.text.stream import TextStream
from heddle.text.tokenizer import Tokenizer
from heddle.weights.run import load, read_config

Ids = list[int]
DEFAULT_TOKENS = 256  # as in lm-eval's own models
REASON_LENGTH = 300  # characters of an lm-eval error to report
SUPPORTED = {"until", "max_gen_toks", "do_sample", "temperature", "top_k", "top_p"}


@register_model("heddle")
class HarnessModel(TemplateLM):  # type: ignore[misc]  # mypy does not read lm-eval
    """A causal language model for lm-eval: log-likelihoods and generated texts.

    Texts are encoded as in lm-eval's own models: a published tokenizer puts its first ids before a text, and special tokens
    written out in a text are special. A text that does not fit into the context is truncated from the left.

    Args:
        model: a decoder that predicts the next token.
        tokenizer: its tokenizer.
        batch_size: texts to generate together. Log-likelihoods are computed in batches of similar length.

    Raises:
        HeddleError: the model does not predict the next token.
    """

    def __init__(self, model: Transformer, tokenizer: Tokenizer, batch_size: int = 16) -> None:
        super().__init__()
        model.check_predicts_next()
        self.model, self._tokenizer, self.batch_size = model.eval(), tokenizer, batch_size
        self.max_length, self._device = model.config.context, model.device

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None
    ) -> "HarnessModel":
        """The model of `run=DIR`, with lm-eval's `device` and `batch_size`, and a `precision` as of `heddle eval`.

        Raises:
            HeddleError: there is no such run, it has no tokenizer, or an argument is unknown.
        """
        args = {**arg_dict, **{name: value for name, value in (additional_config or {}).items() if value is not None}}
        run, device, size = Path(args.pop("run", "")), args.pop("device", "auto"), args.pop("batch_size", 16)
        precision = args.pop("precision", "auto")
        args.pop("max_batch_size", None)  # only for batch_size = auto, which is not supported
        if args:
            raise HeddleError(
                f"model_args: {next(iter(args))} is unknown; heddle reads run, device, precision and batch_size"
            )
        if not str(size).isdecimal() or int(size) < 1:
            raise HeddleError(f"batch_size = {size}: must be a whole number of at least 1")
        if precision not in ("auto", *DTYPES):
            raise HeddleError(f"precision = {precision}: must be auto, {' or '.join(DTYPES)}")
        model, tokenizer = load(run, device)
        if tokenizer is None:
            raise HeddleError(
                f"{run} has no tokenizer.json; import the weights with their tokenizer, or copy one there"
            )
        used, _ = predicting_precision(run, read_config(run), model.device, precision)
        return cls(cast(model, used), tokenizer, int(size))

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: dict[str, Any] | None = None) -> "HarnessModel":
        """The same from `run=DIR,…`."""
        return cls.create_from_arg_obj(utils.simple_parse_args_string(arg_string), additional_config)

    @property
    def eot_token_id(self) -> int:
        """The end-of-text id."""
        ids = self.model.config.ids or SpecialIds()
        end = next(iter(ids.ends()), self._tokenizer.end_of_text)
        if end is None:
            raise HeddleError("the tokenizer has no end-of-text token, which a text without a context starts from")
        return int(end)

    @property
    def prefix_token_id(self) -> int:
        """The id before a text without a context: what `generate` starts a text from, as training did."""
        start = start_ids(self.model.config, self._tokenizer)
        return int(start[-1] if start else self.eot_token_id)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **more: Any) -> Ids:
        """The ids of a text, after the ids that a published tokenizer puts first, or that every prompt begins with."""
        ids, config = self._tokenizer.encode(string, allow_special=True), self.model.config
        begins = list(start_ids(config, self._tokenizer) if config.prompts == "beginning" else self._tokenizer.begins)
        if add_special_tokens is False or (add_special_tokens is None and begins and ids[: len(begins)] == begins):
            return ids
        return begins + ids

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, Ids, Ids]], disable_tqdm: bool = False, **more: Any
    ) -> list[tuple[float, bool]]:
        """The log-likelihood of each continuation after its context, and whether greedy decoding would give it."""
        rows = []
        for _, context, continuation in requests:
            if len(continuation) > self.max_length:
                raise HeddleError(
                    f"a continuation has {len(continuation)} tokens, but the model's context is {self.max_length}"
                )
            ids = (context + continuation)[-self.max_length - 1 : -1]
            rows.append(InputRow(ids, len(ids), False))
        results = [(0.0, True)] * len(rows)
        with evaluation(self.model):
            for numbers, hidden, _ in forward_batches(self.model, rows):
                for number, vectors in zip(numbers, hidden, strict=True):
                    (key, _, continuation), end = requests[number], len(rows[number].ids)
                    scores = self.model.logits(vectors[end - len(continuation) : end]).float().log_softmax(-1)
                    targets = torch.tensor(continuation, device=scores.device)
                    total = float(scores.gather(1, targets[:, None]).sum())
                    results[number] = (total, bool((scores.argmax(-1) == targets).all()))
                    if key is not None:
                        self.cache_hook.add_partial("loglikelihood", key, results[number])
        return results

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """The log-likelihood of each text, in lm-eval's windows: each token once, with as much context as fits."""
        windows: list[tuple[None, Ids, Ids]] = []
        counts = []
        for request in requests:
            # The first window begins with `prefix_token_id`, the only id that heddle's own tokenizers put first.
            ids = self.tok_encode(request.args[0], None if self._tokenizer.begins else False)
            rolling = utils.get_rolling_token_windows(ids, self.prefix_token_id, self.max_length, context_len=1)
            text_windows = [(None, *utils.make_disjoint_window(window)) for window in rolling]
            windows += text_windows
            counts.append(len(text_windows))
        totals = iter([total for total, _ in self._loglikelihood_tokens(windows)])
        sums = [sum(next(totals) for _ in range(count)) for count in counts]
        for request, total in zip(requests, sums, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return sums

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """The text after each context, up to a stop text; greedy unless a task samples."""
        samplings = [self._sampling(dict(request.args[1])) for request in requests]
        texts = [""] * len(requests)
        for sampling in dict.fromkeys(samplings):
            room = self.max_length - sampling.max_tokens
            if room < 1:
                raise HeddleError(
                    f"a task generates {sampling.max_tokens} tokens, but the model's context is {self.max_length}: "
                    "set a smaller max_gen_toks in its generation_kwargs"
                )
            ids = {
                number: self.tok_encode(request.args[0])[-room:]
                for number, request in enumerate(requests)
                if samplings[number] == sampling
            }
            order = sorted(ids, key=lambda number: -len(ids[number]))
            for start in range(0, len(order), self.batch_size):
                batch = order[start : start + self.batch_size]
                generated = self._generate([ids[number] for number in batch], sampling)
                for number, text in zip(batch, generated, strict=True):
                    texts[number] = text
                    self.cache_hook.add_partial("generate_until", requests[number].args, text)
        return texts

    def _sampling(self, generation_kwargs: dict[str, Any]) -> SamplingConfig:
        """A task's `generation_kwargs` as heddle's config.

        Raises:
            HeddleError: one of them is unknown, or not a number where it should be.
        """
        try:
            kwargs = normalize_gen_kwargs(generation_kwargs, DEFAULT_TOKENS)
        except (TypeError, ValueError) as error:
            raise HeddleError(f"generation_kwargs: {error}") from error
        unknown = next(
            (name for name, value in kwargs.items() if name not in SUPPORTED and value not in (None, 1, 1.0)), None
        )
        if unknown is not None:
            raise HeddleError(f"generation_kwargs: {unknown} = {kwargs[unknown]!r} is not supported by heddle")
        settings = {"max_tokens": kwargs["max_gen_toks"], "stop": [text for text in kwargs["until"] if text]}
        # lm-eval's default temperature is 0, which is greedy decoding.
        settings["temperature"] = kwargs.get("temperature", 0.0) if kwargs["do_sample"] else 0.0
        if kwargs["do_sample"]:
            settings |= {name: kwargs[name] for name in ("top_k", "top_p") if kwargs.get(name) is not None}
        return SamplingConfig.of(settings, where="generation_kwargs")

    def _generate(self, prompts: list[Ids], sampling: SamplingConfig) -> list[str]:
        """The texts after prompts of ids."""
        end = self._tokenizer.end_of_text if self.model.config.ids is None else None
        engine = Engine.of(self.model, prompts, sampling, end, vocabulary=self._tokenizer.vocab_size)
        for row in engine.waiting:
            row.text = TextStream(self._tokenizer, row.ids[-1], sampling.stop)
        texts = [""] * len(prompts)
        while engine:
            for event in raise_if_failed(engine.step()):
                texts[event.row] += event.text
        return texts


def evaluate_tasks(
    model: Transformer, tokenizer: Tokenizer, tasks: Sequence[str], limit: int | None = None, shots: int | None = None
) -> dict[str, dict[str, Any]]:
    """Evaluate a language model on tasks of lm-eval.

    Args:
        model: a decoder that predicts the next token.
        tokenizer: its tokenizer.
        tasks: names of lm-eval's tasks, or paths of YAML files that define tasks.
        limit: number of examples of each task; None: all.
        shots: number of solved examples before each one; None: the task's default.

    Returns:
        For each task `examples`, the number of scored examples, and each metric by its name, with its standard error as
        `NAME_stderr`.

    Raises:
        HeddleError: a file or a task does not exist, a task is invalid, or the model does not predict the next token.
    """
    paths = [Path(task) for task in tasks if task.endswith((".yaml", ".yml"))]
    missing = next((path for path in paths if not path.is_file()), None)
    if missing is not None:
        raise HeddleError(f"{missing}: no such file")
    # Reading the list of published tasks takes seconds, and YAML files do not need it.
    manager = TaskManager(include_defaults=len(paths) < len(tasks))
    unknown = [task for task in tasks if not task.endswith((".yaml", ".yml")) and task not in manager.all_tasks]
    if unknown:
        raise HeddleError(f"lm-eval has no task {unknown[0]!r}; name one of its tasks, or a YAML file")
    harness = HarnessModel(model, tokenizer)
    with _report_errors(tasks):
        evaluated = simple_evaluate(
            model=harness,
            tasks=[str(task) for task in tasks],
            task_manager=manager,
            num_fewshot=shots,
            limit=limit,
            log_samples=False,
            bootstrap_iters=1000,
        )
    results: dict[str, dict[str, Any]] = {}
    for name, values in evaluated["results"].items():
        counts = evaluated["n-samples"].get(name, {})
        metrics = {
            key.removesuffix(",none").replace("_stderr,none", "_stderr"): value
            for key, value in values.items()
            if isinstance(value, int | float) and key != "sample_len"
        }
        results[name] = {"examples": counts.get("effective"), **metrics}
    return results


@contextmanager
def _report_errors(tasks: Sequence[str]) -> Iterator[None]:
    """Report errors in tasks in one line: lm-eval raises exceptions of any kind. Errors of the model pass unchanged.

    Raises:
        HeddleError: a task is invalid.
    """
    try:
        yield
    except (HeddleError, OSError, MemoryError):
        raise
    except Exception as error:
        if any(isinstance(frame.f_locals.get("self"), HarnessModel) for frame, _ in walk_tb(error.__traceback__)):
            raise
        reason = shorten(f"{type(error).__name__}: {error}", REASON_LENGTH, placeholder=" …")
        raise HeddleError(
            f"lm-eval cannot evaluate {', '.join(tasks)}: {reason}; check the task and the data that it names"
        ) from error


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
