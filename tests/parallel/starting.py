"""A program for several ranks: what each holds at the start of runs, `starting.py same|peak RUN...`; and the runs for it.

`same` compares it, and the loss of a step, with one process, which wrote `expected.safetensors` into the run. `peak` prints bytes
of tensors: the most that each rank held at a time, those at the end, those of its parts and of the largest tensor.
"""

import gc
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.profiler import ProfilerActivity, profile

from heddle.config.parallel import ParallelConfig
from heddle.model import build
from heddle.nn.custom import Custom
from heddle.runs.session import Session, open_session
from heddle.weights.run import read_config
from tests.parallel.cases import launch

EXPECTED, LOSS = "expected.safetensors", "loss"


def on_mesh(run: Path, place: Path, mesh: dict[str, Any]) -> Path:
    """A copy of a run for a mesh."""
    copy, config = shutil.copytree(run, place), read_config(run)
    changed = config.model_copy(update={"parallel": ParallelConfig.of(mesh)})
    (copy / "config.json").write_text(changed.to_json(), encoding="utf-8")
    return copy


def expect(run: Path) -> None:
    """Write what one process holds at the start of a run, and the loss of its first step."""
    session = opened(run)
    tensors = {name: each.clone() for name, each in {**session.own_weights(), **others(session.model)}.items()}
    save_file({**tensors, LOSS: torch.tensor(session.advance().values["loss"])}, run / EXPECTED)


def others(model: nn.Module) -> dict[str, Tensor]:
    """The buffers of a user's modules, and their tensors that are neither parameters nor buffers."""
    plain = {
        f"{name}.{key}": value
        for name, custom in model.named_modules()
        if isinstance(custom, Custom)
        for key, value in vars(custom.inner).items()
        if isinstance(value, Tensor)
    }
    return {**plain, **dict(model.named_buffers())}


def same(session: Session, expected: dict[str, Tensor]) -> None:
    """Check that this rank holds its parts of what one process holds, bit for bit, and trains as it does."""
    parts, there, loss = session.optimizer.parts, others(session.model), float(expected.pop(LOSS))
    own_tensors = session.model.state_dict()
    assert parts is not None
    for name, value in expected.items():
        tensor = there.pop(name) if name in there else own_tensors[name]
        if name not in parts.masters:  # a buffer, or a second name
            assert torch.equal(tensor.full_tensor() if isinstance(tensor, DTensor) else tensor, value), (
                f"{name} has other numbers"
            )
            continue
        own = parts.masters[name].detach()
        assert torch.equal(own, parts.part(name, value)), f"this rank has another part of {name}"
        assert torch.equal(parts.whole(name, own), value), f"{name} has other numbers"
        assert session.ema is None or torch.equal(session.ema.average[name], own)
    assert not there
    assert parts.masters.keys() == dict(session.model.named_parameters()).keys()
    assert abs(session.advance().values["loss"] - loss) <= 1e-5
    for name, parameter in session.model.named_parameters():
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        assert local.data_ptr() == parts.masters[name].data_ptr(), f"the model has {name} elsewhere"


def opened(run: str | Path) -> Session:
    """A run that this process opens, and leaves as it is."""
    session = open_session(run)
    session.close()
    if session.run.hold is not None:
        session.run.hold.release()
    return session


def most(run: str) -> dict[str, int]:
    """Bytes of tensors while this rank opens a run: the most at a time, those at the end, its parts, the largest tensor."""
    gc.collect()  # an earlier run would leave memory while this one is opened
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        session = opened(run)
    held = peak = 0
    events = [each for each in profiler.profiler.kineto_results.events() if each.name() == "[memory]"]
    for event in sorted(events, key=lambda event: int(event.start_ns())):
        held += event.nbytes()
        peak = max(peak, held)
    shapes = build(session.model.config, "meta").parameters()
    parts = sum(each.nbytes for each in session.optimizer.masters.values())
    return {"peak": peak, "end": held, "parts": parts, "largest": max(each.nbytes for each in shapes)}


def peaks(processes: int, *runs: Path) -> list[dict[str, int]]:
    """The same of every rank and run."""
    lines = launch(processes, "tests.parallel.starting", "peak", *map(str, runs)).splitlines()
    return [json.loads(line) for line in lines]


def main(what: str, *runs: str) -> None:
    torch.set_num_threads(1)
    for number, run in enumerate(runs):
        if what == "peak":
            sys.stdout.write(json.dumps({"run": number, **most(run)}) + "\n")
        else:
            same(opened(run), load_file(Path(run) / EXPECTED))


if __name__ == "__main__":
    main(*sys.argv[1:])
