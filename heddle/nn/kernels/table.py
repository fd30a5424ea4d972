"""The table of kernels, and `auto`, which runs the kernel chosen for each pass."""

from jaxtyping import Float
from torch import Tensor, nn

from heddle.config.kernels import Needs, choose, missing
from heddle.nn.dropout import Dropout
from heddle.nn.kernels.base import Bias, Kernel, Lowered
from heddle.nn.kernels.blockwise import Blockwise
from heddle.nn.kernels.fused import SDPA, Flex, generates
from heddle.nn.kernels.plain import Plain
from heddle.nn.kernels.reference import Reference
from heddle.nn.mask import Mask


class Auto(Kernel):
    """Runs the kernel that the mask was lowered for, which `heddle.config.kernels.choose` chose for all layers of a pattern."""

    def __init__(self, scale: float, dropout: float | Dropout = 0.0, cap: float | None = None) -> None:
        super().__init__(scale, dropout, cap)
        self.kernels = nn.ModuleDict(
            {name: KERNELS[name](scale, self.dropout, cap) for name in ("plain", "blockwise", "sdpa", "flex")}
        )

    @staticmethod
    def lower(mask: Mask, bias: Bias | None = None) -> Lowered:
        """Lower the mask for a layer without special needs."""
        return pick("auto", Needs(), mask, bias).lower(mask, bias)

    def attend(
        self, q: Float[Tensor, "B H T d"], k: Float[Tensor, "B K S d"], v: Float[Tensor, "B K S e"], lowered: Lowered
    ) -> Float[Tensor, "B H T e"]:
        out: Tensor = self.kernels[lowered.kernel](q, k, v, lowered)
        return out


def pick(kernel: str, needs: Needs, mask: Mask, bias: Bias | None = None) -> type[Kernel]:
    """The kernel for a layer's pass under this mask: the named one, or the one that `auto` chooses."""
    # Steps of cached rows change their width all the time; a bias that learns has a slow gradient in `flex`.
    whole = mask.queries.form in ("whole", "padded", "packed") and bias is None
    skips = missing("sdpa", needs) is not None or not (mask.is_open() or mask.is_causal())
    device = mask.queries.position.device
    flex = whole and skips and generates(device)
    return KERNELS[choose(kernel, needs, device.type, mask.queries.width, mask.keys.width, flex)]


KERNELS: dict[str, type[Kernel]] = {
    "auto": Auto,
    "reference": Reference,
    "blockwise": Blockwise,
    "plain": Plain,
    "sdpa": SDPA,
    "flex": Flex,
}
