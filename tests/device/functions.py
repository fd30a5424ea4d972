"""Functions of torch that the imitated device does in its own way, before they become operations."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

if TYPE_CHECKING:
    from tests.device.imitation import Imitation

FLASH_WIDTH = 256  # the widest head of flash attention


class Functions(TorchFunctionMode):
    """Attention and RMSNorm are one operation each, and memory is pinned by a mark."""

    def __init__(self, gpu: "Imitation") -> None:
        super().__init__()
        self.gpu = gpu

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function is F.scaled_dot_product_attention and args[0].is_cuda:
            return attention(self.gpu, *args, **kwargs)
        if function is F.rms_norm and args[0].is_cuda:
            return rms_norm(self.gpu, *args, **kwargs)
        if function is Tensor.pin_memory:
            pinned = args[0].clone()
            pinned.pinned = True
            return pinned
        if function is Tensor.is_pinned:
            return getattr(args[0], "pinned", False)
        return function(*args, **kwargs)


def attention(
    gpu: "Imitation",
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Scaled dot product attention, noted by what torch would choose for it."""
    devices = {each.device for each in (q, k, v, attn_mask) if each is not None}
    if len(devices) > 1:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but attention got {sorted(map(str, devices))}"
        )
    inputs = f"q {tuple(q.shape)}, k {tuple(k.shape)}, {str(q.dtype)[6:]}"
    inputs += "" if attn_mask is None else f", mask {tuple(attn_mask.shape)}, {str(attn_mask.dtype)[6:]}"
    gpu.attention[f"{backend(q, k, v, attn_mask, is_causal)}: {inputs}"] += 1
    # A mask of truth values becomes one of numbers: a fill and a masked fill.
    gpu.launch(1 if attn_mask is None or attn_mask.dtype != torch.bool else 3)
    settings = {"dropout_p": dropout_p, "is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
    out: Any = _Attention.apply(q, k, v, attn_mask, settings)  # type: ignore[no-untyped-call]
    if gpu.graph is not None:
        numbers: Any = [getattr(each, "numbers", None) for each in (q, k, v, attn_mask)]
        gpu.graph.note(lambda: F.scaled_dot_product_attention(*numbers, **settings), [out.numbers], [])
    return out


def backend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> str:
    """What torch's `select_sdp_backend` chooses on a card with bf16 units (ATen/native/transformers/cuda/sdp_utils.cpp)."""
    half, width = q.dtype in (torch.bfloat16, torch.float16), q.shape[-1]
    aligned = width == k.shape[-1] == v.shape[-1] and width % 8 == 0
    if half and mask is None and width <= FLASH_WIDTH and aligned and not (causal and q.shape[2] != k.shape[2]):
        return "flash"
    return "efficient" if half or q.dtype == torch.float32 else "math"


class _Attention(torch.autograd.Function):
    """The CPU's kernel on the numbers."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, mask: Any, settings: dict[str, Any]) -> Any:
        with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.enable_grad():
            tensors = [None if each is None else each.numbers.detach().clone() for each in (q, k, v, mask)]
            learned = [each.requires_grad_() for each in tensors if each is not None and each.is_floating_point()]
            out = F.scaled_dot_product_attention(*tensors, **settings)
        ctx.numbers, ctx.gpu, ctx.kind = (learned, out), q.gpu, type(q)
        return ctx.kind(out.detach(), ctx.gpu)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        learned, out = ctx.numbers
        with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.enable_grad():
            gradients = torch.autograd.grad(out, learned, gradient.numbers)
        ctx.gpu.launch(3)  # of flash attention: a product of rows, the gradient, a conversion
        of_mask = [ctx.kind(each, ctx.gpu) for each in gradients[3:]]
        return *(ctx.kind(each, ctx.gpu) for each in gradients[:3]), *(of_mask or [None]), None


def rms_norm(gpu: "Imitation", x: Tensor, shape: Any, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm, one kernel on CUDA."""
    gpu.launch(1)
    out: Any = _RMSNorm.apply(x, weight, eps)  # type: ignore[no-untyped-call]
    if gpu.graph is not None:
        numbers: Any = [getattr(each, "numbers", each) for each in (x, weight.shape, weight, eps)]
        gpu.graph.note(lambda: F.rms_norm(*numbers), [out.numbers], [])
    return out


class _RMSNorm(torch.autograd.Function):
    """The CPU's norm on the numbers."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, eps: float) -> Any:
        with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.enable_grad():
            learned = [each.numbers.detach().clone().requires_grad_() for each in (x, weight)]
            out = F.rms_norm(learned[0], weight.shape, learned[1], eps)
        ctx.numbers, ctx.gpu, ctx.kind = (learned, out), x.gpu, type(x)
        return ctx.kind(out.detach(), ctx.gpu)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        learned, out = ctx.numbers
        with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.enable_grad():
            gradients = torch.autograd.grad(out, learned, gradient.numbers)
        ctx.gpu.launch(3)  # of the rows, and of the gain in two passes
        return *(ctx.kind(each, ctx.gpu) for each in gradients), None
