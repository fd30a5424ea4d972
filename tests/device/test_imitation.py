"""The imitated GPU itself: what it refuses, what it waits for, what it counts."""

import pytest
import torch
from torch.nn import functional as F

from tests.device.imitated import imitated
from tests.device.imitation import Imitation, numbers_of

TWO_DEVICES = "Expected all tensors to be on the same device"


@imitated
def test_tensors_say_that_they_are_on_the_device() -> None:
    with Imitation() as gpu:
        model = torch.nn.Linear(3, 2).to("cuda")
        x = torch.tensor([[1.0, 2, 3]], device="cuda", requires_grad=True)
        model(x).sum().backward()
        for each in (x, x.grad, model.weight, model.weight.grad):
            assert each.device == torch.device("cuda", 0)
            assert each.is_cuda
        assert isinstance(model.weight, torch.nn.Parameter)
        assert x.grad.tolist() == [model.weight.sum(0).tolist()]
        with pytest.raises(TypeError, match=r"can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu\(\)"):
            x.detach().numpy()
        assert gpu.launches


@imitated
def test_two_devices_are_refused_as_on_cuda() -> None:
    with Imitation():
        here, there = torch.ones(4), torch.ones(4, device="cuda")
        for mix in (
            lambda: here + there,
            lambda: torch.where(here > 0, there, 0.0),
            lambda: there.masked_fill(here > 0, 0.0),
            lambda: torch.cat([here, there]),
            lambda: there.index_select(0, torch.tensor(1)),
            lambda: F.scaled_dot_product_attention(
                *[there.view(1, 1, 2, 2)] * 3, attn_mask=torch.ones(2, 2, dtype=torch.bool)
            ),
        ):
            with pytest.raises(RuntimeError, match=TWO_DEVICES):
                mix()
        with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator but found 'cpu'"):
            torch.rand(3, device="cuda", generator=torch.Generator())
        # A number of the host may be anywhere, and an index is copied.
        assert (there + torch.tensor(2.0)).tolist() == [3.0] * 4
        assert there[torch.tensor([0, 1])].tolist() == [1.0] * 2


@imitated
def test_what_waits_for_the_device() -> None:
    with Imitation() as gpu:
        x, mask = torch.arange(4.0, device="cuda"), torch.tensor([True, False, True, True], device="cuda")
        for number, call in [
            (0, lambda: x + 1),
            (0, lambda: x.view(2, 2).t()),
            (1, lambda: x.sum().item()),
            (1, lambda: bool(mask.all())),
            (1, lambda: x.tolist()),
            (1, lambda: x.cpu()),
            (1, lambda: torch.ones(3).to("cuda")),
            (0, lambda: torch.ones(3).pin_memory().to("cuda", non_blocking=True)),
            (1, lambda: torch.tensor([1, 2], device="cuda")),
            (1, lambda: x[mask]),
            (1, lambda: mask.nonzero()),
            (1, lambda: x[torch.tensor([1])]),
            (0, lambda: x[1]),
            (0, lambda: x[x.long()]),
            (1, torch.cuda.synchronize),
        ]:
            gpu.reset()
            call()
            assert sum(gpu.syncs.values()) == number, gpu.syncs


@imitated
def test_kernels() -> None:
    with Imitation() as gpu:
        x = torch.ones(4, 4, device="cuda")
        many = [torch.ones(3, device="cuda") for _ in range(250)]
        for number, call in [
            (0, lambda: x.t()[:2].unflatten(1, (2, 2))),
            (0, lambda: torch.empty_like(x)),
            (1, lambda: x @ x),
            (2, lambda: x.mul_(2).add(1)),
            (3, lambda: torch._foreach_mul(many, 2.0)),
            (3, lambda: x.softmax(-1).log().sum()),
            (4, lambda: F.scaled_dot_product_attention(*[x.view(1, 1, 4, 4)] * 3, attn_mask=x > 0)),
        ]:
            gpu.reset()
            call()
            assert sum(gpu.launches.values()) == number, gpu.launches


@imitated
def test_a_copy_that_is_not_waited_for_has_no_numbers_yet() -> None:
    with Imitation() as gpu:
        x = torch.ones(3, device="cuda")
        copied = x.to("cpu", non_blocking=True)
        pinned = torch.zeros(3).pin_memory()
        pinned.copy_(x, non_blocking=True)
        x += 1  # after the copies in the device's queue
        assert copied.isnan().all()
        assert pinned.isnan().all()
        assert not gpu.syncs
        torch.cuda.synchronize()
        assert copied.tolist() == pinned.tolist() == [1.0] * 3


@imitated
def test_a_device_without_float64() -> None:
    with Imitation(double=False):
        x = torch.ones(3, device="cuda")
        for call in (
            x.double,
            lambda: x.sum(dtype=torch.float64),
            lambda: torch.zeros(2, dtype=torch.float64, device="cuda"),
        ):
            with pytest.raises(TypeError, match="doesn't support float64"):
                call()
        assert x.cpu().double().sum() == 3


@imitated
@pytest.mark.parametrize(
    ("dtype", "masked", "causal", "width", "kind"),
    [
        ("bfloat16", False, True, 8, "flash"),
        ("bfloat16", False, False, 8, "flash"),
        ("bfloat16", True, False, 8, "efficient"),
        ("bfloat16", False, True, 6, "efficient"),
        ("float32", False, True, 8, "efficient"),
        ("float64", False, True, 8, "math"),
    ],
)
def test_attentions_backend_is_noted(dtype: str, masked: bool, causal: bool, width: int, kind: str) -> None:
    with Imitation() as gpu:
        q = torch.randn(2, 4, 5, width, dtype=getattr(torch, dtype), device="cuda", requires_grad=True)
        mask = torch.ones(5, 5, dtype=torch.bool, device="cuda").tril() if masked else None
        out = F.scaled_dot_product_attention(q, q, q, mask, is_causal=causal)
        out.sum().backward()
        (note,) = gpu.attention
        assert note.startswith(f"{kind}: q (2, 4, 5, {width})")
        assert ("mask (5, 5), bool" in note) == masked
    real = numbers_of(q.detach()).requires_grad_()
    allowed = None if mask is None else numbers_of(mask)
    F.scaled_dot_product_attention(real, real, real, allowed, is_causal=causal).sum().backward()
    torch.testing.assert_close(numbers_of(q.grad), real.grad)
