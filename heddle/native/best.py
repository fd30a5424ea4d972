"""The most probable ids of each row of scores, in one pass over them."""

import ctypes
from collections.abc import Collection

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heddle.native.library import best_library


def best_logprobs(
    scores: Float[Tensor, "B V"], count: int, blocked: Collection[int] = ()
) -> tuple[Float[Tensor, "B n"], Int[Tensor, "B n"]] | None:
    """The `count` largest log probabilities of each row in fp32 and their ids, in order; of equal ones the least id comes first.

    Returns None if the scores are not on a CPU, or on a machine without a C++ compiler. Where fewer ids are left, -inf and id 0
    follow. A row with a NaN, or without a finite score, is NaN.

    Args:
        scores: in any dtype.
        count: n, at least 1.
        blocked: ids that are not among them, although they have their probabilities.
    """
    library = best_library() if scores.device.type == "cpu" else None
    if library is None:
        return None
    scores = scores.detach().float()
    if scores.stride(-1) != 1:
        scores = scores.contiguous()
    allowed = None
    if blocked:
        allowed = torch.ones(scores.shape[-1], dtype=torch.bool)
        allowed[list(blocked)] = False
    values, ids = scores.new_empty(len(scores), count), torch.empty(len(scores), count, dtype=torch.long)
    sizes = map(ctypes.c_int64, (*scores.shape, scores.stride(0)))
    places = (None if each is None else ctypes.c_void_p(each.data_ptr()) for each in (scores, allowed, values, ids))
    source, *others = places
    library.heddle_best(source, *sizes, others[0], ctypes.c_int64(count), *others[1:], torch.get_num_threads())
    return values, ids
