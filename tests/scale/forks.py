"""A program: what two processes hold in a training step, rehearsed and, in forks of this one, measured. It prints JSON.

Each group of a pipeline is rehearsed.

Its standard input names a preset, settings of training and the axes of a mesh, as JSON; its word is `measure` or `rehearse`. Here
types are not checked: a layer of a divided model returns a part of its tokens.
"""

import json
import sys
from functools import partial
from typing import Any

from torch.multiprocessing.spawn import start_processes

from heddle.config import TrainConfig, preset
from heddle.config.parallel import ParallelConfig
from heddle.parallel.mesh import mesh_sizes
from heddle.scale import measuring
from heddle.scale.rehearsal import Step, rehearse


def main(word: str, name: str, train: dict[str, Any], layout: dict[str, Any]) -> None:
    module: Any = measuring
    module.spawn, module.STEPS = partial(start_processes, start_method="fork"), 1
    config, settings, parallel = preset(name), TrainConfig.of(train), ParallelConfig.of(layout)
    step = Step(config, settings, parallel, mesh_sizes(parallel, 2), 2, 64, "fp32")
    numbers = [rehearse(step, node=8, gloo=True, place=group) for group in range(parallel.pipeline)]
    measured = measuring.measure(step).peak if word == "measure" else None
    print(json.dumps({"numbers": numbers, "measured": measured}))


if __name__ == "__main__":
    main(sys.argv[1], *json.load(sys.stdin))
