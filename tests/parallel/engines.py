"""A program for several ranks: small runs on several processes, `engines.py FOLDER`, whose `cases.json` lists them.

Each case is a run of `tests/prove/tasks.py` with settings of training and the sizes of the mesh. The rank that leads writes what
comes of each, `N.json` and `N.safetensors`.
"""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from heddle.config.parallel import ParallelConfig
from heddle.model.linear import use_products
from heddle.model.transformer import Transformer
from heddle.parallel import context
from heddle.parallel.join import join_ranks
from heddle.parallel.mesh import mesh_sizes
from heddle.parallel.parts import Parts
from heddle.parallel.ranks import Ranks
from tests.device import trainings


def divided(mesh: dict[str, Any], accumulate: int, ranks: Ranks, model: Transformer, precision: str) -> Parts | None:
    """The model divided among several processes."""
    if ranks.count == 1:
        return None
    from heddle.parallel.pipeline import divide

    config = ParallelConfig.of(mesh)
    use_products(model, ())  # as a run does, which changes the classes of layers
    return divide(model, config, mesh_sizes(config, ranks.count), precision, accumulate)


def trained(case: dict[str, Any], ranks: Ranks) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """What each step reports and how the end scores; the weights."""
    settings: dict[str, Any] = case.get("train", {})
    if ranks.count > 1:
        ranks = ranks.on(mesh_sizes(ParallelConfig.of(case.get("mesh", {})), ranks.count))
    divide = partial(divided, case.get("mesh", {}), settings.get("accumulate", 1), ranks)
    store = trainings.store_of(case["run"])
    training = trainings.training(
        case["run"], store, "cpu", case.get("precision", "fp32"), ranks, divide, case.get("depth"),
        case.get("model"), **{"optimizer": "adamw", **settings},
    )  # fmt: skip
    outcome = trainings.outcome(training, scored_after=0 if training.ema is None else 2)
    results = {"reports": outcome["reports"], "score": outcome["score"].to_dict()}
    return results, {name: tensor.clone() for name, tensor in outcome["weights"].items()}


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    ranks = join_ranks("cpu")
    for number, case in enumerate(json.loads((folder / "cases.json").read_text())):
        vars(context)["LEAST"] = number % 2 << 20  # in turns, keys of one head are gathered at a time, and those of all
        results, weights = trained(case, ranks)
        if ranks.leads:
            (folder / f"{number}.json").write_text(json.dumps(results))
            save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / f"{number}.safetensors")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
