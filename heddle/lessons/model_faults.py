"""Known mistakes in a language model and its loss."""

from functools import partial
from math import sqrt

import torch
from torch import Tensor
from torch.nn import functional as F

from heddle.lessons.fault import Fault


def _only_last(logits: Tensor) -> Tensor:
    return logits[:, -1]


MODEL = (
    Fault(
        "positions left out", "model", ({"model.embed": lambda tokens, positions: tokens},),
        "Positions are not added: the model cannot tell a text from its words in another order.",
        "Add positions.weight[0 .. T - 1] to the vectors of the tokens.", 2, ("L0-17", "L1-05"),
    ),
    Fault(
        "positions start at 1", "model", ({"model.first_position": 1},),
        "The first token gets the second row of the table of positions.",
        "Count from 0: torch.arange(T).", 2, ("L0-15",),
    ),
    Fault(
        "embedding times √D", "model",
        ({"model.embed": lambda tokens, positions: tokens * sqrt(tokens.shape[-1]) + positions},),
        "The vectors of the tokens are multiplied by √D, as in the first transformer.",
        "Add tokens and positions as they are.", 2, ("L0-16",),
    ),
    Fault(
        "no last norm", "model", ({"model.last_norm": lambda x, gain, shift: x},),
        "The head reads the last block's output without a norm.",
        "Let the head read norm(x).", 8, ("D-06",),
    ),
    Fault(
        "a head of its own", "model", (),
        "The head has a matrix of its own.",
        "Use the token table: x @ tokens.weight.T.", 8, ("L0-75",),
    ),
    Fault(
        "softmax inside", "model",
        ({"model.logits": partial(torch.softmax, dim=-1)}, {"model.logits": partial(torch.log_softmax, dim=-1)}),
        "The model returns probabilities, not logits: the loss would take a softmax of a softmax.",
        "Return the logits; cross-entropy has the softmax.", 8, ("L0-73",),
    ),
    Fault(
        "only the last row", "model", ({"model.logits": _only_last}, {"model.logits": lambda logits: logits[:, -1:]}),
        "Only the last token's row is scored: a text of T tokens has T predictions.",
        "Return logits for every token.", 0, ("L0-02",),
    ),
    Fault(
        "one block for all layers", "model", ({"model.blocks": lambda depth: (0,) * depth},),
        "One block is used for all layers.",
        "Make `depth` blocks: nn.ModuleList(Block(dim, heads) for _ in range(depth)).", 6, ("L0-08",),
    ),
    Fault(
        "positions in every block", "model",
        (
            {"model.embed": lambda tokens, positions: tokens, "model.before_block": lambda x, positions: x + positions},
            {"model.before_block": lambda x, positions: x + positions},
        ),
        "Positions are added before every block.",
        "Add them once, before the first block.", 2, ("L0-09",),
    ),
    Fault(
        "last block left out", "model", ({"model.blocks": lambda depth: tuple(range(depth - 1))},),
        "The logits come from the block before the last.",
        "Pass the tensor through every block.", 6, ("L0-09",),
    ),
)  # fmt: skip


def _softmax_twice(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.softmax(-1), targets)


LOSS = (
    Fault(
        "target is the input", "loss", ({"model.shift": 0},),
        "The target of each token is the token itself: the loss goes to 0 and nothing is learned.",
        "The target of row i is token i + 1: logits[:, :-1] with ids[:, 1:].", 0, ("L1-24",),
    ),
    Fault(
        "target two ahead", "loss", ({"model.shift": 2},),
        "The target is two tokens ahead.",
        "Shift once: logits[:, :-1] with ids[:, 1:].", 0, ("L0-89",),
    ),
    Fault(
        "sum instead of mean", "loss", ({"model.surprise": partial(F.cross_entropy, reduction="sum")},),
        "The surprises are summed: the loss grows with the batch.",
        "Take the mean over all targets.", 8,
    ),
    Fault(
        "softmax twice", "loss", ({"model.surprise": _softmax_twice},),
        "The loss takes the softmax of probabilities: a softmax twice.",
        "Give cross-entropy the logits.", 8, ("L2-58",),
    ),
)  # fmt: skip
