"""A program: two machines, each a network namespace of this one, train together, `nodes.py FOLDER`. It prints what came of it.

On each, torchrun's agent starts a rank; they meet by torchrun's c10d rendezvous over a pair of virtual cards. The rank on the
second machine kills itself, so that the agents start both again. Without the right to make namespaces, it prints why.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from heddle.cli import main as cli
from heddle.runs.trainer import Trainer
from tests.parallel.scenes import text, words, write

NETWORK = 0x40000000  # CLONE_NEWNET
ADDRESSES = ("10.213.7.1", "10.213.7.2")


class NoNamespacesError(Exception):
    """They cannot be made here."""


def ip(*arguments: str) -> None:
    """Set up a network."""
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoNamespacesError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


@contextmanager
def network(names: tuple[str, str]) -> Iterator[None]:
    """Two namespaces of these names, whose cards have the same names and the addresses above."""
    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", names[0], "netns", names[0], "type", "veth", "peer", "name", names[1], "netns", names[1])
        for name, address in zip(names, ADDRESSES, strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", name)
            for card in (name, "lo"):
                ip("-n", name, "link", "set", card, "up")
        yield
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def machine(folder: Path, number: int, name: str) -> None:
    """The agent of one machine, in this process."""
    with open(f"/run/netns/{name}") as place:
        if ctypes.CDLL(None, use_errno=True).setns(place.fileno(), NETWORK):
            raise OSError(ctypes.get_errno(), "setns")
    os.environ["GLOO_SOCKET_IFNAME"] = (
        name  # both namespaces have the machine's name, which has no address in this network
    )

    def rank() -> None:
        write(folder, str(number))
        if number == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            once = Trainer._one_step

            def broken(self: Trainer) -> Any:
                if self.session.step == 6:
                    os.kill(os.getpid(), signal.SIGKILL)
                return once(self)

            Trainer._one_step = broken  # type: ignore[method-assign]
        cli.run(words(folder, "steps=12", "save_every=4"))

    config = LaunchConfig(
        *(2, 2, 1), rdzv_backend="c10d", rdzv_endpoint=f"{ADDRESSES[0]}:29400", run_id="looms", max_restarts=1,
        monitor_interval=0.1, start_method="fork", local_addr=ADDRESSES[number], rdzv_configs={"is_host": number == 0},
    )  # fmt: skip
    elastic_launch(config, rank)()


def agents(folder: Path, names: tuple[str, str]) -> list[int]:
    """Their exit codes."""
    children = []
    for number, name in enumerate(names):
        if not (child := os.fork()):
            code = 1
            try:
                machine(folder, number, name)
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def main(folder: Path) -> None:
    names = (f"warp{os.getpid()}", f"weft{os.getpid()}")
    text(folder)
    try:
        with network(names):
            codes = agents(folder, names)
    except (NoNamespacesError, FileNotFoundError) as error:
        print(json.dumps({"skipped": str(error)}))
        return
    run = folder / "run"
    logs = {file.name: file.read_text() for file in run.glob("logs/*")}
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    print(json.dumps({"codes": codes, "logs": logs, "steps": steps, "finished": (run / "model.safetensors").exists()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
