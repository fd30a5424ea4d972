"""The table of panels, for the server and for files."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from heddle.config.model import ClassifierHeadConfig
from heddle.look.sites import kernels
from heddle.look.switches import switches
from heddle.page.architecture import architecture
from heddle.page.layers import attribution, layers, parts, patching
from heddle.page.maps import head_map, heads, query_steps, running_softmax
from heddle.page.plates import plates
from heddle.page.prefixes import prefixes
from heddle.page.queries import (
    AttentionQuery,
    AttributionQuery,
    BeamQuery,
    Document,
    HeadQuery,
    PatchingQuery,
    PositionQuery,
    Query,
    RunningQuery,
    TensorQuery,
    TextQuery,
)
from heddle.page.subject import PageModel
from heddle.page.training import training
from heddle.page.walk import tensor, walk
from heddle.page.write import beams, next_token

DEMO = ("I am a researcher", "The man eats the fish", "Thinking Machines")  # L0-98, L1-28, L3-25


class Panel(NamedTuple):
    """The queries of a panel, and the function that answers them."""

    query: type[Query]
    answer: Callable[[PageModel, Any], Document]


def about(subject: PageModel, query: Query) -> Document:
    """A summary of the model: what it is, what it can show, what can be switched off."""
    model = subject.model
    stack = model.config.last()[1]
    return {
        "run": subject.name,
        "family": "encoder-decoder" if subject.paired else f"{subject.stack}-only",
        "translates": subject.translates,
        "predicts": _predicts(subject),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "depth": stack.depth,
        "dim": model.config.dim,
        "context": model.config.context,
        "vocabulary": model.vocab_size,
        "text": subject.tokenizer is not None,
        "attention": list(kernels(model)),
        "parts": parts(subject),
        "switches": [[each.name, each.label, each.description] for each in switches(model).values()],
        "demo": DEMO,
        "curves": subject.directory is not None,
    }


def _predicts(subject: PageModel) -> str:
    head = subject.model.config.head
    if isinstance(head, ClassifierHeadConfig):
        return "words" if head.pooling == "none" else "number" if head.classes == 1 else "classes"
    if not subject.speaks:
        return {"embedding": "vector"}.get(head.kind, "nothing")
    return "translation" if subject.paired else "masked" if subject.model.decoder is None else "next"


PANELS = {
    "about": Panel(Query, about),
    "prefixes": Panel(TextQuery, prefixes),
    "next": Panel(PositionQuery, next_token),
    "beams": Panel(BeamQuery, beams),
    "heads": Panel(TextQuery, heads),
    "map": Panel(HeadQuery, head_map),
    "query": Panel(AttentionQuery, query_steps),
    "running": Panel(RunningQuery, running_softmax),
    "layers": Panel(TextQuery, layers),
    "divided": Panel(AttributionQuery, attribution),
    "exchanged": Panel(PatchingQuery, patching),
    "walk": Panel(TextQuery, walk),
    "plates": Panel(TextQuery, plates),
    "tensor": Panel(TensorQuery, tensor),
    "model": Panel(Query, architecture),
    "training": Panel(Query, training),
}


def answer(subject: PageModel, panel: str, query: Query) -> Document:
    """The document of a panel. Only one is computed at a time, because the hooks belong to the model.

    Raises:
        HeddleError: the model does not support the panel, or the text does not fit.
    """
    with subject.lock, torch.no_grad():
        return PANELS[panel].answer(subject, query)
