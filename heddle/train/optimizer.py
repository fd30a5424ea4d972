"""The optimizer step: fp32 masters, an update rule per parameter, clipping, and state as tensors."""

from collections.abc import Sequence
from math import isfinite

import torch
from torch import Tensor, nn

from heddle.checks import POSITIVE, checked, one_of
from heddle.config.run import ProductKind, TrainConfig
from heddle.model.precision import DTYPES, cast
from heddle.model.roles import role
from heddle.model.transformer import Transformer
from heddle.nn.moe import MoE, balance_bias
from heddle.train.muon import Muon
from heddle.train.norms import GradientNorms

DECAYED = ("table", "matrix")


class Optimizer:
    """Owns the fp32 masters of a model and updates them; the model itself computes on a copy in the working precision.

    With `precision="fp32"` the masters are the model's parameters and nothing is copied.

    Args:
        model: a model in fp32; its matrices are cast in place.
        config: rates, decay, betas, and which optimizer updates the matrices.
        learning_rate: AdamW's highest rate.
        precision: `fp32` or `bf16`.
        by_onednn: which of Muon's products oneDNN computes (see `heddle.model.products`).

    Attributes:
        norms: of the last step's gradient before clipping, by parameter.
        loads: how many tokens of the last step's batch chose each expert, for each mixture in `mixtures`.
    """

    @checked(learning_rate=POSITIVE, precision=one_of(DTYPES))
    def __init__(
        self,
        model: Transformer,
        config: TrainConfig,
        learning_rate: float,
        precision: str,
        by_onednn: tuple[ProductKind, ...] = (),
    ) -> None:
        full = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        cast(model, precision, tables=False)
        working = dict(model.named_parameters())
        self.masters = {
            name: w if w.dtype == full[name].dtype else nn.Parameter(full[name]) for name, w in working.items()
        }
        self.copies = [(w, self.masters[name]) for name, w in working.items() if self.masters[name] is not w]
        self.mixtures = [module for module in model.modules() if isinstance(module, MoE)]
        self.norms, self.loads = GradientNorms.of({}), list[Tensor]()
        self.names = {id(master): name for name, master in self.masters.items()}
        self.optimizers = self._make(config, learning_rate, precision, by_onednn)
        grouped = [(each, group) for each in self.optimizers for group in each.param_groups]
        self.updaters = {self.names[id(master)]: each for each, group in grouped for master in group["params"]}
        self.highest = [[group["lr"] for group in optimizer.param_groups] for optimizer in self.optimizers]

    def _make(
        self, config: TrainConfig, learning_rate: float, precision: str, by_onednn: tuple[ProductKind, ...]
    ) -> list[torch.optim.Optimizer]:
        roles: dict[str, list[Tensor]] = {"table": [], "matrix": [], "vector": []}
        for name, master in self.masters.items():
            roles[role(name, master.dim())].append(master)
        optimizers: list[torch.optim.Optimizer] = []
        if config.optimizer == "muon" and roles["matrix"]:
            rates = config.matrix_learning_rate, config.weight_decay
            optimizers.append(Muon(roles.pop("matrix"), *rates, dtype=DTYPES[precision], by_onednn=by_onednn))
        groups = [
            {"params": parameters, "weight_decay": config.weight_decay if kind in DECAYED else 0.0}
            for kind, parameters in roles.items()
            if parameters
        ]
        fused = next(iter(self.masters.values())).device.type in ("cpu", "cuda")
        optimizers.append(torch.optim.AdamW(groups, lr=learning_rate, betas=config.betas, eps=1e-10, fused=fused))
        return optimizers

    def collect(self) -> None:
        """Move the working copies' gradients to the masters, accumulating in fp32."""
        for working, master in self.copies:
            if working.grad is not None:
                gradient = working.grad.to(master.dtype)
                master.grad = gradient if master.grad is None else master.grad.add_(gradient)
                working.grad = None

    def step(self, factor: float, clip: float) -> float:
        """Clip, update every parameter at `factor` times its highest rate, and refresh the copies; return the gradient's norm.

        If the norm is NaN or infinite, nothing is updated and the gradients are kept.
        """
        self.norms = GradientNorms.of(self.masters)
        length = self.norms.total().item()
        if not isfinite(length):
            return length
        if clip and length > clip:  # a factor of 1 would waste a pass over every gradient
            torch.nn.utils.clip_grads_with_norm_(list(self.masters.values()), clip, self.norms.total())
        for optimizer, rates in zip(self.optimizers, self.highest, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.refresh()
        return length

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the masters into the working parameters."""
        for working, master in self.copies:
            working.copy_(master)

    def balance(self, loads: Sequence[Tensor]) -> None:
        """Update the routers' balancing biases, if they have any, towards experts that few tokens chose."""
        self.loads = list(loads)
        for mixture, load in zip(self.mixtures, loads, strict=True):
            if mixture.router.bias is not None:
                balance_bias(mixture.router.bias, load, mixture.bias_rate)

    def state(self) -> dict[str, Tensor]:
        """The optimizers' state, as tensors named `what/parameter`."""
        return {
            f"{what}/{self.names[id(master)]}": value.reshape(1) if value.dim() == 0 else value
            for optimizer in self.optimizers
            for master, remembered in optimizer.state.items()
            for what, value in remembered.items()
        }

    @torch.no_grad()
    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned, bit for bit."""
        for key, value in state.items():
            what, name = key.split("/", 1)
            master = self.masters[name]
            self.updaters[name].state[master][what] = value.reshape(()) if what == "step" else value.to(master.device)
