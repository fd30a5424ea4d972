"""`heddle eval RUN --tasks`: published tasks, by lm-eval."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from heddle.cli.models import open_model
from heddle.cli.output import console as console_of
from heddle.cli.output import print_json, table
from heddle.config.decoding import WeightKind
from heddle.errors import HeddleError


def evaluate_published(
    run: Path,
    tasks: Sequence[str],
    limit: int | None,
    shots: int | None,
    device: str,
    json: bool,
    weights: WeightKind = "trained",
) -> None:
    """Evaluate a run on tasks of lm-eval, and print what they measure.

    Raises:
        HeddleError: lm-eval is not installed, a number is too small, or what `evaluate_tasks` refuses.
    """
    for name, value, least in (("limit", limit, 1), ("shots", shots, 0)):
        if value is not None and value < least:
            raise HeddleError(f"{name} = {value}: must be at least {least}")
    try:
        import lm_eval as _  # noqa: F401
    except ImportError:
        raise HeddleError("--tasks needs lm-eval: pip install 'heddle-lm[eval]'") from None
    from heddle.predict.lm_eval import evaluate_tasks

    ready = open_model(run, device, weights)
    if ready.tokenizer is None:
        raise HeddleError(f"{run} has no tokenizer.json; import the weights with their tokenizer, or copy one there")
    found = evaluate_tasks(ready.model, ready.tokenizer, tasks, limit, shots)
    if json:
        print_json({"run": str(run), "precision": ready.precision, "tasks": found})
        return
    rows: list[list[Any]] = []
    for task, measured in found.items():
        for name, value in measured.items():
            if name != "examples" and not name.endswith("_stderr"):
                error = measured.get(f"{name}_stderr")
                rows.append(
                    [task, measured["examples"], name, f"{value:.4f}", "-" if error is None else f"{error:.4f}"]
                )
    console_of().print(table(["task", "examples", "metric", "value", "standard error"], rows))
