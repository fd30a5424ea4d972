"""A program: how many graphs torch.compile captures of models, whose configs are read as JSON from standard input.

It runs in a process without the shape checks, which cannot be traced (`HEDDLE_CHECKED=""`), and prints JSON.
"""

import json
import sys
from collections.abc import Sequence

import torch
from torch import Tensor

from heddle.config import TransformerConfig
from heddle.model import Transformer, build
from heddle.nn import Layout
from tests.graphs import captured

FORMS: dict[str, Sequence[Layout | None]] = {
    "whole": (None, None),
    "padded": (Layout.padded((6, 2), 6), Layout.padded((1, 5), 6)),
    "packed": [Layout.packed(lengths, 6) for lengths in ([[2, 4], [6]], [[3, 1], [1, 1, 1]], [[1, 1, 2, 1], [5, 1]])],
}


def scores(model: Transformer, tokens: Tensor, layout: Layout | None = None) -> Tensor:
    return model.logits(model(tokens, layout).hidden)


def graphs(model: Transformer, form: str, training: bool) -> int:
    model.train(training)
    compiled, made = captured(scores)
    for seed, layout in enumerate(FORMS[form]):
        tokens = torch.randint(11, (2, 6), generator=torch.Generator().manual_seed(seed))
        output = compiled(model, tokens, layout)
        if not training:
            torch.testing.assert_close(output, scores(model, tokens, layout))
    return made.count


def main() -> None:
    counts = {}
    for name, text in json.load(sys.stdin).items():
        model = build(TransformerConfig.of(text))
        for form, training in (("padded", True), ("packed", True), ("whole", False)):
            counts[f"{name} {form} {'training' if training else 'evaluation'}"] = graphs(model, form, training)
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
