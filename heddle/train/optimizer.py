"""The optimizer step: fp32 masters, an update rule per parameter, clipping, and state as tensors."""

from collections.abc import Sequence
from math import isfinite

import torch
from torch import Tensor

from heddle.checks import POSITIVE, checked, one_of
from heddle.config.train import ProductKind, TrainConfig
from heddle.model.groups import freeze
from heddle.model.precision import DTYPES
from heddle.model.transformer import Transformer
from heddle.nn.moe import MoE, balance_bias
from heddle.nn.numeric import moved, on_host
from heddle.parallel.parts import Parts
from heddle.train.copies import at_once
from heddle.train.gradient_norms import GradientNorms
from heddle.train.masters import make_masters
from heddle.train.update_rules import make_optimizers


class Optimizer:
    """Owns the fp32 masters of a model and updates them; the model itself computes on a copy in the working precision.

    With `precision="fp32"` the masters are the model's parameters and nothing is copied.

    Args:
        model: a model in fp32; its matrices are cast in place.
        config: rates, decay, betas, momentum, which optimizer updates what, and the groups: parameters that these freeze get no
            gradient, no update and no state.
        learning_rate: the highest rate of AdamW or SGD.
        precision: `fp32` or `bf16`.
        by_onednn: which of Muon's products oneDNN computes (see `heddle.model.products`).
        parts: the parts of the model's parameters that this process has, if it is sharded; they are the masters.

    Attributes:
        norms: of the last step's gradient before clipping, by parameter, on the CPU.
        whole: whether all parameters have had the same number of updates; False after an update that failed halfway.
        loads: how many tokens of the last step's batch chose each expert, for each mixture in `mixtures`, on the CPU.
    """

    @checked(learning_rate=POSITIVE, precision=one_of(DTYPES))
    def __init__(
        self,
        model: Transformer,
        config: TrainConfig,
        learning_rate: float,
        precision: str,
        by_onednn: tuple[ProductKind, ...] = (),
        parts: Parts | None = None,
    ) -> None:
        self.frozen = freeze(model, config)
        self.parts = parts
        self.masters, self.copies = make_masters(model, precision) if parts is None else (parts.masters, [])
        self.mixtures = [module for module in model.modules() if isinstance(module, MoE)]
        self.norms, self.loads, self.whole = GradientNorms.of({}), list[Tensor](), True
        self.names = {id(master): name for name, master in self.masters.items()}
        self.optimizers = make_optimizers(self.masters, config, learning_rate, precision, by_onednn, parts)
        self.updaters = {self.names[id(w)]: each for each in self.optimizers for w in each.param_groups[0]["params"]}
        self.highest = [each.param_groups[0]["lr"] for each in self.optimizers]

    def collect(self) -> None:
        """Move the working copies' gradients to the masters, accumulating in fp32."""
        if self.parts is not None:
            self.parts.collect()
        for pairs in at_once([pair for pair in self.copies if pair[0].grad is not None]):
            gradients = [torch.empty_like(master) for _, master in pairs]
            torch._foreach_copy_(gradients, [working.grad for working, _ in pairs])  # type: ignore[misc]
            sums = [master.grad for _, master in pairs if master.grad is not None]
            more = [each for each, (_, master) in zip(gradients, pairs, strict=True) if master.grad is not None]
            if sums:
                torch._foreach_add_(sums, more)
            for gradient, (working, master) in zip(gradients, pairs, strict=True):
                master.grad, working.grad = gradient if master.grad is None else master.grad, None

    def step(self, factor: float, clip: float) -> float:
        """Measure the gradient and update; return its norm.

        If the norm is NaN or infinite, nothing is updated and the gradients are kept.
        """
        self.measure()
        length = self.norms.total().item()
        if isfinite(length):
            self.update(factor, clip)
        return length

    def measure(self, *others: Tensor) -> list[Tensor]:
        """Measure the norms of the gradients; return other small tensors on the CPU, read in the same copy."""
        norms = GradientNorms.of(self.masters)
        if self.parts is not None:
            norms = GradientNorms(*self.parts.norms(*norms))
        each, *read = on_host([norms.each, *others])
        self.norms = norms._replace(each=each)
        return read

    def update(self, factor: float, clip: float) -> None:
        """Clip the measured gradients, update every parameter at `factor` times its highest rate, and refresh the copies."""
        length = self.norms.total()
        if clip and length > clip:  # a factor of 1 would waste a pass over every gradient
            share = (clip / (length + 1e-6)).clamp(max=1.0).item()
            gradients = [master.grad for master in self.masters.values() if master.grad is not None]
            if gradients:  # a stage of a pipeline may have none
                torch._foreach_mul_(gradients, share)
            del gradients  # each optimizer frees its own before the next one updates
        self.whole = False
        for optimizer, rate in zip(self.optimizers, self.highest, strict=True):
            optimizer.param_groups[0]["lr"] = rate * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.refresh()
        self.whole = True

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the masters into the working parameters."""
        if self.copies:
            working, masters = zip(*self.copies, strict=True)
            torch._foreach_copy_(working, masters)

    def balance(self, loads: Sequence[Tensor]) -> None:
        """Update the routers' balancing biases, if they have any, towards experts that few tokens chose; loads are on the CPU."""
        self.loads = list(loads)
        for mixture, load in zip(self.mixtures, loads, strict=True):
            if (bias := mixture.router.bias) is not None and len(bias) and self.names[id(bias)] not in self.frozen:
                balance_bias(bias, moved(load, bias.device), mixture.bias_rate)

    def state(self) -> dict[str, Tensor]:
        """The optimizers' state, as tensors named `what/parameter`."""
        return {
            f"{what}/{name}": value.reshape(1) if value.dim() == 0 else value
            for name, optimizer in self.updaters.items()
            for what, value in optimizer.state.get(self.masters[name], {}).items()
        }

    @torch.no_grad()
    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned, bit for bit, on the device where torch has it: a fused kernel counts steps itself."""
        for key, value in state.items():
            what, name = key.split("/", 1)
            updater, master = self.updaters[name], self.masters[name]
            place = "cpu" if what == "step" and not updater.param_groups[0]["fused"] else master.device
            updater.state[master][what] = (value.reshape(()) if what == "step" else value).to(place)
