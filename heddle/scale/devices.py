"""Devices and their published figures. A new device is a new row."""

from typing import NamedTuple

from heddle.account.machine import available_memory
from heddle.checks import checked
from heddle.errors import HeddleError, did_you_mean

GIB, TERA, GIGA = 2**30, 10**12, 10**9
HDR, NDR = 25 * GIGA, 50 * GIGA  # InfiniBand of 200 and 400 Gb/s, one adapter for each device


class Device(NamedTuple):
    """A device. Rates are without sparsity.

    Attributes:
        name: what `--device` calls it.
        memory: bytes.
        bf16: FLOP/s of products in bf16, accumulated in fp32; None: measured here.
        fp32: FLOP/s in fp32, without TF32.
        bandwidth: bytes/s of its memory.
        link: bytes/s that it sends to others in its machine; None: measured here.
        network: bytes/s that it sends to other machines; None: as in its machine.
        node: how many are in a machine.
        source: where the figures are published.
    """

    name: str
    memory: int
    bf16: float | None
    fp32: float | None
    bandwidth: float | None
    link: float | None
    network: float | None
    node: int
    source: str


# Seconds of the smallest kernel: 2 to 7 µs on an H200 (docs/evidence/decoding.md). A step has one for each operation.
KERNEL = 5e-6
DEVICES = (
    Device("b200", 180 * GIB, 2250 * TERA, 75 * TERA, 8000 * GIGA, 900 * GIGA, NDR, 8,
           "NVIDIA DGX B200 datasheet: per GPU an eighth of the system's figures"),
    Device("h200", 141 * GIGA, 989 * TERA, 67 * TERA, 4800 * GIGA, 450 * GIGA, NDR, 8, "NVIDIA H200 datasheet, SXM"),
    Device("h100", 80 * GIB, 989 * TERA, 67 * TERA, 3350 * GIGA, 450 * GIGA, NDR, 8, "NVIDIA H100 datasheet, SXM"),
    Device("a100", 80 * GIB, 312 * TERA, 19.5 * TERA, 2039 * GIGA, 300 * GIGA, HDR, 8,
           "NVIDIA A100 datasheet, 80 GB SXM"),
    Device("a100-40", 40 * GIB, 312 * TERA, 19.5 * TERA, 1555 * GIGA, 300 * GIGA, HDR, 8,
           "NVIDIA A100 datasheet, 40 GB SXM"),
    Device("l40s", 48 * GIB, 362 * TERA, 91.6 * TERA, 864 * GIGA, 32 * GIGA, HDR, 8,
           "NVIDIA L40S datasheet; PCIe 4.0 x16"),
    Device("4090", 24 * GIB, 165.2 * TERA, 82.6 * TERA, 1008 * GIGA, 32 * GIGA, 12.5 * GIGA, 8,
           "NVIDIA Ada GPU architecture whitepaper, appendix A; PCIe 4.0 x16"),
    Device("cpu", 0, None, None, None, None, None, 2**30, "measured here"),
)  # fmt: skip


@checked()
def find_row(name: str) -> Device:
    """The device with this name; `cpu` is this machine, with the memory that is free.

    Raises:
        HeddleError: there is none.
    """
    for device in DEVICES:
        if device.name == name.lower():
            return device._replace(memory=available_memory("cpu")) if device.name == "cpu" else device
    names = [device.name for device in DEVICES]
    raise HeddleError(f"--device {name}: not one of {', '.join(names)}.{did_you_mean(name.lower(), names)}")
