"""Devices and compilation for them."""

import ctypes
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from itertools import chain
from typing import Any

import torch
from torch import nn

from heddle.checks import checked, short_repr
from heddle.display import size
from heddle.errors import HeddleError, OutOfMemory, did_you_mean, room_for

DEVICES = ("auto", "cpu", "cuda", "cuda:N", "mps")
COMPILERS = ("c++", "g++", "clang++")
# fp32 logits that a loss computes at once, on a CPU and elsewhere; fewer save little memory and cost time.
LOGITS_BYTES, GPU_LOGITS_BYTES = 256 << 20, 512 << 20


@checked()
def pick_device(name: str = "auto") -> torch.device:
    """The device with this name; `auto` is the first of cuda, mps and cpu that is available.

    A card such as `cuda:1` becomes the current one, so that measurements for `cuda` are its own.

    Raises:
        HeddleError: the name is unknown, or the device is not available on this machine or in this build of torch.
    """
    kind, colon, number = name.partition(":")
    if name not in ("auto", "cpu", "cuda", "mps") and not (kind == "cuda" and number.isascii() and number.isdigit()):
        raise HeddleError(
            f"device = {short_repr(name)} is not one of {', '.join(DEVICES)}.{did_you_mean(name, DEVICES)}"
        )
    if name == "auto":
        return torch.device(_available()[0])
    _check_available(kind, name)
    if not colon:
        return torch.device(name)
    card = _card(int(number))
    torch.cuda.set_device(card)
    return card


@checked()
def find_device(device: torch.device | str, meta: bool = False) -> torch.device:
    """The device with a name from torch (`cuda:1`) or from `pick_device`; none becomes the current one.

    Args:
        device: its name, or the device itself.
        meta: whether `meta` will do, whose tensors have shapes alone.

    Raises:
        HeddleError: the name is unknown, or the device is not available on this machine or in this build of torch.
    """
    if isinstance(device, str):
        try:
            device = pick_device() if device == "auto" else torch.device(device)
        except RuntimeError:
            return pick_device(str(device))  # raises the error that lists the names
    if device.type == "cuda":
        _check_available("cuda", str(device))
    elif not (meta and device.type == "meta"):
        pick_device(device.type)
    return _card(device.index) if device.type == "cuda" and device.index is not None else device


def _available() -> list[str]:
    """The types of device that are here, faster ones first."""
    present = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    return [kind for kind, available in present.items() if available]


def _check_available(kind: str, name: str) -> None:
    """Refuse a device whose type is not here, by its name."""
    if kind not in _available():
        names = " or ".join(_available())
        raise HeddleError(
            f"device = {name!r}: torch {torch.__version__} does not find this device here; use {names} or auto"
        )


def _card(number: int) -> torch.device:
    """The GPU with this number."""
    count = torch.cuda.device_count()
    if number >= count:
        cards = "one GPU, cuda:0" if count == 1 else f"{count} GPUs, cuda:0 to cuda:{count - 1}"
        raise HeddleError(f"device = 'cuda:{number}': this machine has {cards}")
    return torch.device("cuda", number)


def move(model: nn.Module, device: torch.device) -> None:
    """Move a model to a device, all of it or nothing.

    Raises:
        OutOfMemory: it does not fit there.
    """
    before = next(model.parameters()).device
    try:
        with room_for_weights(model, device):
            model.to(device)
    except OutOfMemory:
        model.to(before)
        raise


def room_for_weights(model: nn.Module, device: torch.device | str) -> AbstractContextManager[None]:
    """`room_for` a model on a device."""
    needed = sum(tensor.nbytes for tensor in chain(model.parameters(), model.buffers()))
    return room_for(f"{size(needed)} of weights on {device}", "use a smaller model, or another device")


def logits_bytes(device: str) -> int:
    """Bytes of fp32 logits that a loss computes at once on this type of device."""
    return LOGITS_BYTES if device == "cpu" else GPU_LOGITS_BYTES


def has_compiler() -> bool:
    """Whether there is a C++ compiler, which torch.compile needs on a CPU."""
    return any(shutil.which(name) for name in COMPILERS)


def compile_graphs(call: Callable[..., Any], **settings: Any) -> Any:
    """`torch.compile`, with a cache that never serves another processor's code.

    torch stores compiled graphs on disk under a key without the vector width of the processor, on which their loops depend. If a
    home directory moves between machines, or `ATEN_CPU_CAPABILITY` changes, a graph then computes wrong numbers without an
    error (torch 2.13). So the width becomes part of the key of every graph that this process compiles from now on.
    """
    width = torch.backends.cpu.get_cpu_capability()
    if width not in torch.compiler.config.cache_key_tag:
        torch.compiler.config.cache_key_tag += width
    return torch.compile(call, **settings)


def release_threads() -> None:
    """End this thread's idle OpenMP workers on the CPU; its next operation starts new ones.

    OpenMP keeps workers for every thread that has computed. If there are more of them than cores, all sleep after each operation
    instead of spinning until the next, and decoding takes 1.5 times as long.
    """
    with suppress(OSError, AttributeError):  # a build of torch without OpenMP
        ctypes.CDLL(None).omp_pause_resource_all(1)  # 1: omp_pause_soft (OpenMP 5.0, 3.6.1)
