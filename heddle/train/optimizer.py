"""The optimizer step: fp32 masters, an update rule per parameter, clipping, and state as tensors."""

from collections.abc import Callable, Sequence
from functools import partial
from math import isfinite

import torch
from torch import Tensor, nn

from heddle.checks import POSITIVE, checked, one_of
from heddle.config.train import ProductKind, TrainConfig
from heddle.model.groups import freeze, parameter_settings
from heddle.model.precision import DTYPES, cast
from heddle.model.roles import DECAYED, role
from heddle.model.transformer import Transformer
from heddle.nn.moe import MoE, balance_bias
from heddle.train.gradient_norms import GradientNorms
from heddle.train.muon import Muon


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

    Attributes:
        norms: of the last step's gradient before clipping, by parameter.
        whole: whether all parameters have had the same number of updates; False after an update that failed halfway.
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
        self.frozen = freeze(model, config)
        full = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        cast(model, precision, tables=False)
        working = dict(model.named_parameters())
        self.masters = {
            name: w if w.dtype == full[name].dtype else nn.Parameter(full[name]) for name, w in working.items()
        }
        self.copies = [(w, self.masters[name]) for name, w in working.items() if self.masters[name] is not w]
        self.mixtures = [module for module in model.modules() if isinstance(module, MoE)]
        self.norms, self.loads, self.whole = GradientNorms.of({}), list[Tensor](), True
        self.names = {id(master): name for name, master in self.masters.items()}
        self.optimizers = self._make(config, learning_rate, precision, by_onednn)
        self.updaters = {self.names[id(w)]: each for each in self.optimizers for w in each.param_groups[0]["params"]}
        self.highest = [each.param_groups[0]["lr"] for each in self.optimizers]

    def _make(
        self, config: TrainConfig, learning_rate: float, precision: str, by_onednn: tuple[ProductKind, ...]
    ) -> list[torch.optim.Optimizer]:
        """An optimizer for each set of parameters with one update rule, one rate and one decay."""
        parameters: dict[tuple[str, float, float], list[Tensor]] = {}
        for name, setting in parameter_settings(config, self.masters).items():
            kind = role(name, self.masters[name].dim())
            rule = "adamw" if config.optimizer == "muon" and kind != "matrix" else config.optimizer
            rate = setting.rate * (config.matrix_learning_rate if rule == "muon" else learning_rate)
            decay = setting.weight_decay if kind in DECAYED else 0.0
            if not setting.frozen:
                parameters.setdefault((rule, rate, decay), []).append(self.masters[name])
        fused = next(iter(self.masters.values())).device.type in ("cpu", "cuda")
        rules: dict[str, Callable[..., torch.optim.Optimizer]] = {
            "muon": partial(Muon, dtype=DTYPES[precision], by_onednn=by_onednn),
            "adamw": partial(torch.optim.AdamW, betas=config.betas, eps=1e-10, fused=fused),
            "sgd": partial(torch.optim.SGD, momentum=config.momentum, nesterov=config.nesterov, fused=fused),
        }
        return [rules[rule](w, lr=rate, weight_decay=decay) for (rule, rate, decay), w in parameters.items()]

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
        self.whole = False
        for optimizer, rate in zip(self.optimizers, self.highest, strict=True):
            optimizer.param_groups[0]["lr"] = rate * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.refresh()
        self.whole = True
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
            if (bias := mixture.router.bias) is not None and self.names[id(bias)] not in self.frozen:
                balance_bias(bias, load, mixture.bias_rate)

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
