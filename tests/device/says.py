"""What torch says of the imitated device when it is asked: one card, free memory, bf16 units."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.device.recording import Graph

if TYPE_CHECKING:
    from tests.device.imitation import Imitation

GIB = 2**30
FREE, ALL = 70 * GIB, 80 * GIB


def without_inference_mode() -> None:
    """In this process inference is a pass without gradients: tensors of inference cannot be shells. Before heddle is imported."""

    def without(mode: Any = True) -> Any:
        if callable(mode):
            return torch.no_grad()(mode)
        return torch.no_grad() if mode else nullcontext()

    torch.inference_mode = without  # type: ignore[assignment]


class Event:
    """Work that the host may wait for."""

    def __init__(self, gpu: "Imitation") -> None:
        self.gpu = gpu

    def record(self) -> None:
        """All work so far."""

    def synchronize(self) -> None:
        """Wait for it."""
        self.gpu.sync("event")


class Stream:
    """All work is in one order."""

    def wait_stream(self, other: "Stream") -> None:
        """Nothing to wait for."""


@contextmanager
def said_by_torch(gpu: "Imitation") -> Iterator[None]:
    """Inside the block torch says that there is a card, and threads that start have it too."""
    from heddle.nn import experts  # after `without_inference_mode`

    run = threading.Thread.run

    def run_here(thread: threading.Thread) -> None:
        with gpu.here():
            run(thread)

    answers: dict[str, Any] = {
        "_lazy_init": lambda: None,
        "current_device": lambda: 0,
        "device_count": lambda: 1,
        "empty_cache": lambda: None,
        "get_device_capability": lambda device=None: gpu.capability,
        "get_device_name": lambda device=None: "imitated",
        "is_available": lambda: True,
        "is_bf16_supported": lambda *args, **kwargs: gpu.capability >= (8, 0),
        "is_initialized": lambda: True,
        "manual_seed_all": lambda seed: None,
        "max_memory_allocated": lambda device=None: 0,
        "mem_get_info": lambda device=None: (FREE, ALL),
        "reset_peak_memory_stats": lambda device=None: None,
        "set_device": lambda device: None,
        "CUDAGraph": lambda: Graph(gpu),
        "graph": lambda graph, **settings: graph.capture(),
        "graph_pool_handle": lambda: (0, 0),
        "Stream": Stream,
        "current_stream": Stream,
        "Event": lambda: Event(gpu),
        "stream": lambda stream: nullcontext(),
        "synchronize": lambda device=None: gpu.sync("synchronize"),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, answer in answers.items():
            patch.setattr(torch.cuda, name, answer)
        patch.setattr(torch.accelerator, "is_available", lambda: True)
        patch.setattr(torch.accelerator, "synchronize", lambda device=None: gpu.sync("synchronize"))
        patch.setattr(threading.Thread, "run", run_here)
        # A module that moves keeps its parameters, which become others of the same identity.
        patch.setattr(torch.__future__, "get_swap_module_params_on_conversion", lambda: True)
        # An operator of heddle's own would be one kernel: its parts are counted.
        patch.setattr(experts, "_grouped", experts._experts)
        patch.setattr(experts, "_grouped_gradient", experts._experts_gradient)
        yield
