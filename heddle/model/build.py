"""From a config to a model: built on the meta device, then filled. There are no buffers to bring back to life."""

import torch

from heddle.config.model import TransformerConfig
from heddle.model.initialise import initialise
from heddle.model.transformer import Transformer


def build(
    config: TransformerConfig,
    device: torch.device | str = "cpu",
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Transformer:
    """A model with initial weights. On `meta` it has shapes only, whatever its size."""
    with torch.device("meta"):
        model = Transformer(config).to(dtype)
    if torch.device(device).type == "meta":
        return model
    model = model.to_empty(device=device)
    initialise(model, config, torch.Generator().manual_seed(seed))
    return model
