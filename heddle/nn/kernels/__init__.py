"""Attention kernels: softmax(q kᵀ · scale) v under a mask, implemented five times; a law checks that they agree.

- `base`: what kernels share: the lowered mask (`Lowered`), the scores (`Scoring`) and `Kernel`.
- `reference`: the definition, with the softmax over what the mask allows (`masked_softmax`).
- `blockwise`: FlashAttention, written for reading: tiles of queries and keys, a running softmax, memory linear in the length.
- `plain`: blocks of query rows, without the keys that a causal block cannot see; the fastest for short sequences on a CPU.
- `fused`: torch's kernels, `sdpa` and `flex`.
- `table`: all kernels by name (`KERNELS`), and `auto`, which chooses by the layer's needs, the device and the mask (`pick`).

A mask is lowered once per forward pass into the form that the chosen kernel takes, and all layers of a pattern share it.
"""

from heddle.nn.kernels.base import Bias as Bias
from heddle.nn.kernels.base import Kernel as Kernel
from heddle.nn.kernels.base import Lowered as Lowered
from heddle.nn.kernels.blockwise import Blockwise as Blockwise
from heddle.nn.kernels.blockwise import Running as Running
from heddle.nn.kernels.fused import SDPA as SDPA
from heddle.nn.kernels.fused import Flex as Flex
from heddle.nn.kernels.plain import BLOCK as BLOCK
from heddle.nn.kernels.plain import Plain as Plain
from heddle.nn.kernels.reference import Reference as Reference
from heddle.nn.kernels.reference import masked_softmax as masked_softmax
from heddle.nn.kernels.table import KERNELS as KERNELS
from heddle.nn.kernels.table import Auto as Auto
from heddle.nn.kernels.table import pick as pick

__all__ = [
    "BLOCK",
    "KERNELS",
    "SDPA",
    "Auto",
    "Bias",
    "Blockwise",
    "Flex",
    "Kernel",
    "Lowered",
    "Plain",
    "Reference",
    "Running",
    "masked_softmax",
    "pick",
]
