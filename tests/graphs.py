"""Counting what torch.compile captures, for programs in a process without the shape checks (`tests/programs.py`)."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule


class Graphs:
    """A backend that runs what was captured as it is, and counts: a recompilation is one more."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, graph: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        self.count += 1
        return graph.forward


def captured(function: Callable[..., Any]) -> tuple[Callable[..., Any], Graphs]:
    """The function compiled, and its graphs as they come. What does not fit into one whole graph is an error."""
    torch._dynamo.reset()
    graphs = Graphs()
    return torch.compile(function, fullgraph=True, backend=graphs), graphs
