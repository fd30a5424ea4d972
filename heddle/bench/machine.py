"""The machine: what it is, the precision that suits it, and its ceilings."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version

import torch

from heddle.account.machine import (
    card_has_bf16,
    check_units,
    copy_rate,
    has_bf16,
    matmul_rate,
    slowdown,
    total_memory,
)
from heddle.bench.report import Ceiling
from heddle.display import size
from heddle.errors import HeddleError, pluralize
from heddle.model.precision import DTYPES
from heddle.native.measured import processor

# Sides of matrices: a product takes milliseconds, so that launching it and waiting for it does not count.
LARGE, SMALL, FEW = 8192, 2048, 256
MEGABYTES = 256  # that are copied; on an accelerator eight times as many
TOO_SLOW = 2.0  # times as slow as fp32; then products are measured on few numbers


def describe(device: torch.device) -> dict[str, str]:
    """The device, the processor and the versions, by name."""
    name = processor().split(",")[0]
    description = {"on": f"{name}, {pluralize(torch.get_num_threads(), 'thread')}", "memory": size(total_memory())}
    if device.type == "cuda":
        card = f"{torch.cuda.get_device_name(device)} (CUDA {torch.version.cuda})"
        description = {"on": card, "memory": size(total_memory(device)), "processor": name}
    elif device.type != "cpu":
        description["device"] = device.type
    versions = {name: _version(name) for name in ("heddle", "torch", "transformers")}
    return description | {name: number for name, number in versions.items() if number}


def _version(package: str) -> str:
    try:
        return torch.__version__ if package == "torch" else version(package)
    except PackageNotFoundError:
        return ""


def has_units(device: torch.device) -> bool:
    """Whether the device multiplies faster in bf16 than in fp32."""
    if device.type == "cuda":
        return card_has_bf16(device)
    return (device.type != "cpu" or has_bf16() is not False) and slowdown(torch.bfloat16, device) < 1


def pick_precision(precision: str, device: torch.device) -> str:
    """The requested precision; `auto` is bf16 where the device has units for it.

    Raises:
        HeddleError: bf16 is requested on a device without units for it.
    """
    check_units(precision, False, device)
    if precision == "bf16" and not has_units(device):
        raise HeddleError(f"precision = 'bf16': this {device.type} has no units for it; leave it out, or use fp32")
    return ("bf16" if has_units(device) else "fp32") if precision == "auto" else precision


def ceilings(device: torch.device, quick: bool) -> tuple[Ceiling, ...]:
    """Matrix products by dtype, on CUDA also fp32 as TF32, and a copy."""
    seconds = 0.1 if quick else 0.5
    is_cpu = device.type == "cpu"
    side = SMALL if is_cpu or quick else LARGE
    rows = []
    for name, dtype in (*DTYPES.items(), *(() if is_cpu else (("fp16", torch.float16),))):
        slow = is_cpu and dtype != torch.float32 and (has_bf16() is False or slowdown(dtype, device) > TOO_SLOW)
        rows.append(Ceiling(name, matmul_rate(dtype, FEW if slow else side, seconds, device)))
    if device.type == "cuda":
        with _tf32():
            rows.append(Ceiling("tf32", matmul_rate(torch.float32, side, seconds, device)))
    return (*rows, Ceiling("copy", copy_rate(MEGABYTES * (1 if is_cpu or quick else 8), seconds, device)))


@contextmanager
def _tf32() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
