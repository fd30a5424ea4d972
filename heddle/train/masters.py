"""The fp32 masters that an optimizer updates, and the copies in the working precision that a model computes with."""

from torch import nn

from heddle.model.precision import cast
from heddle.model.transformer import Transformer


def make_masters(
    model: Transformer, precision: str
) -> tuple[dict[str, nn.Parameter], list[tuple[nn.Parameter, nn.Parameter]]]:
    """Cast a model in fp32; return the masters by name, and each parameter that is a copy with its master.

    With `precision="fp32"` the masters are the model's parameters and nothing is copied.
    """
    full = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    cast(model, precision, tables=False)
    working = dict(model.named_parameters())
    masters = {name: w if w.dtype == full[name].dtype else nn.Parameter(full[name]) for name, w in working.items()}
    return masters, [(w, masters[name]) for name, w in working.items() if masters[name] is not w]
