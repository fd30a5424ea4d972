"""`heddle eval RUN --tasks`: benchmarks from lm-eval."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from heddle.cli.models import open_model, tokenizer_of
from heddle.cli.output import console, print_json, table
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
    """Evaluate a run on lm-eval tasks, and print their metrics."""
    for name, value, minimum in (("limit", limit, 1), ("shots", shots, 0)):
        if value is not None and value < minimum:
            raise HeddleError(f"{name} = {value}: must be at least {minimum}")
    try:
        import lm_eval as _  # noqa: F401
    except ImportError:
        raise HeddleError("--tasks needs lm-eval: pip install 'heddle-lm[eval]'") from None
    from heddle.predict.lm_eval import evaluate_tasks

    ready = open_model(run, device, weights)
    results = evaluate_tasks(ready.model, tokenizer_of(ready, run), tasks, limit, shots)
    if json:
        print_json({"run": str(run), "precision": ready.precision, "tasks": results})
        return
    rows: list[list[Any]] = []
    for task, metrics in results.items():
        for name, value in metrics.items():
            if name != "examples" and not name.endswith("_stderr"):
                standard_error = metrics.get(f"{name}_stderr")
                rows.append(
                    [
                        task,
                        metrics["examples"],
                        name,
                        f"{value:.4f}",
                        "-" if standard_error is None else f"{standard_error:.4f}",
                    ]
                )
    console().print(table(["task", "examples", "metric", "value", "standard error"], rows))
