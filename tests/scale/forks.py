"""A program: what two processes hold in a training step, which are forks of this one. It prints the bytes of the first.

Its standard input names a preset, settings of training and the sizes of a mesh, as JSON.
"""

import json
import sys
from functools import partial
from typing import Any

from torch.multiprocessing.spawn import start_processes

from heddle.config import TrainConfig, preset
from heddle.scale import measuring


def main(name: str, train: dict[str, Any], sizes: dict[str, int]) -> None:
    module: Any = measuring
    module.spawn, module.STEPS = partial(start_processes, start_method="fork"), 1
    print(measuring.measure(preset(name), TrainConfig.of(train), sizes, 2, 64, "fp32").peak)


if __name__ == "__main__":
    main(*json.load(sys.stdin))
