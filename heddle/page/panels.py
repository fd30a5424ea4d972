"""The panels: what each answers, as one table for the server and for files."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from heddle.config.model import ClassifierHeadConfig
from heddle.look.sites import kernels
from heddle.page.architecture import architecture
from heddle.page.asked import (
    At,
    Beams,
    CheckpointQuery,
    Divided,
    Document,
    OneHead,
    OneQuery,
    OneTensor,
    Query,
    TwoTexts,
)
from heddle.page.layers import divided, exchanged, layers, parts
from heddle.page.maps import heads, one_map, one_query
from heddle.page.plates import plates
from heddle.page.prefixes import prefixes
from heddle.page.subject import PageModel
from heddle.page.training import training
from heddle.page.walk import tensor, walk
from heddle.page.write import beams, following

DEMO = ("I am a researcher", "The man eats the fish", "Thinking Machines")  # L0-98, L1-28, L3-25


class Panel(NamedTuple):
    """What can be asked for, and what answers it."""

    asked: type[Query]
    answer: Callable[[PageModel, Any], Document]


def about(subject: PageModel, asked: Query) -> Document:
    """The model in a few words: what it is, what it can show, what can be switched off."""
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
    "prefixes": Panel(CheckpointQuery, prefixes),
    "next": Panel(At, following),
    "beams": Panel(Beams, beams),
    "heads": Panel(CheckpointQuery, heads),
    "map": Panel(OneHead, one_map),
    "query": Panel(OneQuery, one_query),
    "layers": Panel(CheckpointQuery, layers),
    "divided": Panel(Divided, divided),
    "exchanged": Panel(TwoTexts, exchanged),
    "walk": Panel(CheckpointQuery, walk),
    "plates": Panel(CheckpointQuery, plates),
    "tensor": Panel(OneTensor, tensor),
    "model": Panel(Query, architecture),
    "training": Panel(Query, training),
}


def answer(subject: PageModel, panel: str, asked: Query) -> Document:
    """What a panel shows, one at a time: hooks are the model's.

    Raises:
        HeddleError: the model cannot show it, or the text does not fit.
    """
    with subject.lock, torch.no_grad():
        return PANELS[panel].answer(subject, asked)
