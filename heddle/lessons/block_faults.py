"""Known mistakes in a block."""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from heddle.lessons import definition
from heddle.lessons.definition import Map
from heddle.lessons.fault import DROPPED, Changes, Fault


def _deviation_of_a_sample(x: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + 1e-5).sqrt() * gain + shift


def _norm_over_length(x: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
    centred = x - x.mean(-2, keepdim=True)
    return centred / (x.var(-2, correction=0, keepdim=True) + 1e-5).sqrt() * gain + shift


def _plain_norm(x: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
    return definition.norm(x, torch.ones_like(gain), torch.zeros_like(shift))


def _every_norm(function: Any) -> tuple[Changes, ...]:
    """In the blocks alone, or in the last norm too."""
    return {"block.norm": function}, {"block.norm": function, "model.last_norm": function}


def _bare(x: Tensor, normed: Map) -> Tensor:
    return x


def _normed_sum(x: Tensor, inner: Tensor, branch: Tensor, normed: Map) -> Tensor:
    return normed(x + branch)


def _from_normed(x: Tensor, inner: Tensor, branch: Tensor, normed: Map) -> Tensor:
    return inner + branch


def _no_skip(x: Tensor, inner: Tensor, branch: Tensor, normed: Map) -> Tensor:
    return branch


def _dropped_sum(x: Tensor, inner: Tensor, branch: Tensor, normed: Map) -> Tensor:
    return F.dropout(x + branch, DROPPED)


BLOCK = (
    Fault(
        "norms after the sums", "block",
        (
            {
                "block.enter_first": _bare, "block.leave_first": _normed_sum,
                "block.enter_second": _bare, "block.leave_second": _normed_sum,
            },
        ),
        "The norms come after the sums: this is a post-norm block.",
        "Norm what a branch reads, and nothing else: x + attention(norm1(x)).", 6, ("L2-35", "D-05"),
    ),
    Fault(
        "skip from the normed tensor", "block",
        (
            {"block.leave_first": _from_normed, "block.leave_second": _from_normed},
            {"block.leave_first": _from_normed},
            {"block.leave_second": _from_normed},
        ),
        "The skip starts at the normed tensor, as deck 000 writes it to the letter.",
        "Add the branch to the tensor before the norm: x + attention(norm1(x)).", 6, ("L0-28", "D-01"),
    ),
    Fault(
        "no skip around attention", "block", ({"block.leave_first": _no_skip},),
        "Attention has no skip connection.",
        "Add what attention returns to its block's input.", 6, ("L0-53",),
    ),
    Fault(
        "no skip around the MLP", "block", ({"block.leave_second": _no_skip},),
        "The MLP has no skip connection.",
        "Add what the MLP returns to the tensor before its norm.", 6, ("L0-53",),
    ),
    Fault(
        "no norm before attention", "block", ({"block.enter_first": _bare},),
        "Attention reads the tensor itself, without a norm.",
        "Let attention read norm1(x).", 6, ("L2-35",),
    ),
    Fault(
        "no norm before the MLP", "block", ({"block.enter_second": _bare},),
        "The MLP reads the tensor itself, without a norm.",
        "Let the MLP read norm2(h).", 6, ("L2-35",),
    ),
    Fault(
        "one norm twice", "block",
        ({"block.norms": lambda first, second: (first, first)}, {"block.norms": lambda first, second: (second, second)}),
        "One norm is used for both branches.",
        "Each branch has a norm of its own: norm1 before attention, norm2 before the MLP.", 6, ("L1-07",),
    ),
    Fault(
        "no activation", "block", ({"block.activation": lambda x: x},),
        "The MLP has no activation: two linear maps in a row are one linear map.",
        "Put GELU between `up` and `down`.", 6, ("L1-20",),
    ),
    Fault(
        "ReLU for GELU", "block", ({"block.activation": F.relu},),
        "The activation is ReLU.",
        "Use GELU: torch.nn.functional.gelu.", 6, ("L0-68",),
    ),
    Fault(
        "tanh form of GELU", "block", ({"block.activation": partial(F.gelu, approximate="tanh")},),
        "GELU is computed by its tanh form, as the first GPT-2 did; the exact form uses erf.",
        'Leave out approximate="tanh".', 6, ("L0-68", "D-07"),
    ),
    Fault(
        "MLP before attention", "block", ({"block.branches": lambda attend, feed: (feed, attend)},),
        "The MLP comes before attention.",
        "First attention, then the MLP.", 6, ("L0-67",),
    ),
    Fault(
        "branches side by side", "block", ({"block.between": lambda x, middle: x},),
        "Both branches read the block's input: the MLP does not see what attention found.",
        "Let the MLP read the sum after attention.", 6, ("L2-35",),
    ),
    Fault(
        "input added twice", "block", ({"block.end": lambda x, out: x + out},),
        "The block's input is added twice.",
        "The second skip starts at the sum after attention, which has the input already.", 6, ("L0-53",),
    ),
    Fault(
        "variance over d - 1", "block", _every_norm(_deviation_of_a_sample),
        "The variance is divided by d - 1: normed numbers are too small by √((d - 1) / d).",
        "Divide by d: x.var(-1, correction=0).", 6, ("L2-26", "D-04"),
    ),
    Fault(
        "norm over the length", "block", _every_norm(_norm_over_length),
        "The norm runs over the tokens of a text: each token sees the later ones through their mean.",
        "Norm each token by itself: over the last dimension.", 6, ("L1-09", "L3-29"),
    ),
    Fault(
        "norm without gain and shift", "block", _every_norm(_plain_norm),
        "The norms have a gain and a shift, and do not use them.",
        "Multiply by the norm's weight, and add its bias.", 6, ("L2-28",),
    ),
    Fault(
        "dropout after the sum", "block",
        (
            {"block.leave_second": _dropped_sum},
            {"block.leave_first": _dropped_sum},
            {"block.leave_first": _dropped_sum, "block.leave_second": _dropped_sum},
        ),
        "Two calls of the model in evaluation differ, and numbers of the sum are exactly 0: the skip is dropped too.",
        "Drop what a branch returns before it is added, and only in training.", 7, ("L0-29",), is_random=True,
    ),
)  # fmt: skip
