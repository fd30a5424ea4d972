"""The table of kernels, and which of them `auto` takes."""

from jaxtyping import Float
from torch import Tensor

from heddle.nn.dropout import Dropout
from heddle.nn.kernels.base import Bias, Kernel, Lowered
from heddle.nn.kernels.blockwise import Blockwise
from heddle.nn.kernels.fused import SDPA, Flex
from heddle.nn.kernels.plain import Plain
from heddle.nn.kernels.reference import Reference
from heddle.nn.mask import Mask


class Auto(Kernel):
    """The fastest kernel for this mask, length and device: see `fastest`."""

    def __init__(self, scale: float, dropout: float | Dropout = 0.0, cap: float | None = None) -> None:
        super().__init__(scale, dropout, cap)
        self.plain = Plain(scale, self.dropout, cap)
        self.blockwise = Blockwise(scale, self.dropout, cap)
        self.sdpa = SDPA(scale, self.dropout)

    @staticmethod
    def lower(mask: Mask, bias: Bias | None = None, fused: bool = True) -> Lowered:
        return KERNELS[fastest(mask.queries.position.device.type, mask.keys.width, fused)].lower(mask, bias)

    def forward(
        self, q: Float[Tensor, "B H T d"], k: Float[Tensor, "B K S d"], v: Float[Tensor, "B K S e"], lowered: Lowered
    ) -> Float[Tensor, "B H T e"]:
        # The layer itself has the last word: the hint that the mask was lowered with may have been another layer's.
        if lowered.kernel == "sdpa" and self.cap is None and (self.dropout.plain or not self.dropout.active):
            return self.sdpa(q, k, v, lowered)
        if lowered.kernel == "plain":
            return self.plain(q, k, v, lowered)
        if self.dropout.active:
            return self.plain(q, k, v, Plain.lower(lowered.mask, lowered.bias))
        if lowered.kernel == "sdpa":
            lowered = Blockwise.lower(lowered.mask, lowered.bias)
        return self.blockwise(q, k, v, lowered)


# device type -> longest key sequence for which `plain` beats `sdpa`, as measured; a device not named here never prefers it
PLAIN_UP_TO = {"cpu": 768}

KERNELS: dict[str, type[Kernel]] = {
    "auto": Auto,
    "reference": Reference,
    "blockwise": Blockwise,
    "plain": Plain,
    "sdpa": SDPA,
    "flex": Flex,
}


def fastest(device: str, keys: int, fused: bool = True) -> str:
    """The name of the kernel that `auto` takes for `keys` keys on a device type.

    `fused` is False where the layers need what torch's fused kernel does not know: a cap, or another kind of dropout. Then
    long sequences go to `blockwise`, or, as long as weights are dropped, to `plain`.
    """
    if keys <= PLAIN_UP_TO.get(device, 0):
        return "plain"
    return "sdpa" if fused else "blockwise"
