"""Attention kernels: softmax(q kᵀ · scale) v under a mask, five ways that agree by law.

`reference` is the definition. `blockwise` is FlashAttention written to be read: tiles of queries and keys, a running softmax,
memory linear in the length. `plain` walks through blocks of query rows and leaves out the keys that a causal block cannot see;
for short sequences on CPU it is the fastest. `sdpa` and `flex` are torch's fused kernels. `auto` is a table: mask, then length
and device. A mask is lowered once per forward pass into what the kernel wants; every layer receives the lowered thing.
"""

from heddle.nn.kernels.base import Bias as Bias
from heddle.nn.kernels.base import Kernel as Kernel
from heddle.nn.kernels.base import Lowered as Lowered
from heddle.nn.kernels.base import masked_softmax as masked_softmax
from heddle.nn.kernels.blockwise import Blockwise as Blockwise
from heddle.nn.kernels.blockwise import Running as Running
from heddle.nn.kernels.fused import SDPA as SDPA
from heddle.nn.kernels.fused import Flex as Flex
from heddle.nn.kernels.plain import BLOCK as BLOCK
from heddle.nn.kernels.plain import Plain as Plain
from heddle.nn.kernels.reference import Reference as Reference
from heddle.nn.kernels.table import KERNELS as KERNELS
from heddle.nn.kernels.table import Auto as Auto

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
]
