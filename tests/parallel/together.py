"""A program: ranks of one program, which torchrun's agent forks off this process, `together.py COUNT MODULE WORDS`."""

import runpy
import sys

from torch.distributed.launcher.api import LaunchConfig, elastic_launch


def rank(module: str, *words: str) -> None:
    """One of them: that program."""
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def main(count: str, *command: str) -> None:
    config = LaunchConfig(1, 1, int(count), rdzv_backend="c10d", rdzv_endpoint="localhost:0", max_restarts=0,
                          monitor_interval=0.1, start_method="fork")  # fmt: skip
    elastic_launch(config, rank)(*command)


if __name__ == "__main__":
    main(*sys.argv[1:])
