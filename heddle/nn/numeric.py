"""Numerics shared by many layers, and moves between devices for which the host does not wait."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """fp32, or `dtype` if it is wider: the precision of statistics, sums over tokens and softmax."""
    return torch.promote_types(dtype, torch.float32)


def in_dtype(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`x` in another precision, and `x` itself where it has it, without an operation.

    An autograd.Function returns what it computed last: where its forward ends with an operation that changes nothing, or that
    writes in place, torch 2.11's compiler silently gives no gradient.
    """
    return x if x.dtype == dtype else x.to(dtype)


def on_device(
    numbers: Sequence[object] | Tensor, device: torch.device | str | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """These numbers, or rows of numbers, on a device. A GPU's earlier work is not waited for."""
    tensor = torch.as_tensor(numbers, dtype=dtype)
    # CUDA has read pageable memory when the call returns; on other devices the memory could be freed before it is read.
    return tensor if device is None else tensor.to(device, non_blocking=torch.device(device).type == "cuda")


def with_sinks(scores: Float[Tensor, "*b T S"], sinks: Float[Tensor, " H"] | None) -> Float[Tensor, "*b T s"]:
    """Scores with each head's sink as a last column, which takes its share of the softmax; unchanged without sinks
    (gpt-oss; Xiao et al. 2024, 3.3)."""
    if sinks is None:
        return scores
    column = sinks.to(scores.dtype)[:, None, None].expand(*scores.shape[:-1], 1)
    return torch.cat((scores, column), -1)


def capped(scores: Float[Tensor, "..."], cap: float | None) -> Float[Tensor, "..."]:
    """cap · tanh(scores / cap): close to the scores while they are small, never beyond ±cap (Gemma 2, section 2)."""
    return scores if cap is None else cap * (scores / cap).tanh()


def moved(tensor: Tensor, device: torch.device | str) -> Tensor:
    """The tensor on another device. A copy to CUDA starts from pinned memory, so that the host need not wait for its end."""
    if torch.device(device).type == "cuda" and tensor.device.type == "cpu":
        return tensor.contiguous().pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def read_later(tensor: Tensor) -> Callable[[], Tensor]:
    """Begin to copy a tensor to the host; what is returned waits for the copy, but not for work that the device gets meanwhile."""
    if tensor.device.type != "cuda":
        return tensor.cpu
    copy, done = tensor.to("cpu", non_blocking=True), torch.cuda.Event()
    done.record()

    def read() -> Tensor:
        done.synchronize()
        return copy

    return read


def on_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Small tensors of one device as tensors on the CPU, in one copy, so that the host waits for the device once."""
    numbers = torch.cat([tensor.reshape(-1).view(torch.uint8) for tensor in tensors]).cpu()
    pieces = numbers.split([tensor.numel() * tensor.element_size() for tensor in tensors])
    # Each piece gets memory of its own, since a dtype's numbers must start at a multiple of their size.
    read = zip(pieces, tensors, strict=True)
    return [piece.clone().view(tensor.dtype).reshape(tensor.shape) for piece, tensor in read]
