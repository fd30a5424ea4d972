"""The same model as a class of Hugging Face transformers, with weights of its own."""

import os
from importlib.util import find_spec
from typing import Any

import torch

from heddle.config.model import TransformerConfig
from heddle.convert.fitting import choose


def installed() -> bool:
    """Whether Hugging Face transformers is."""
    return find_spec("transformers") is not None


def published_model(config: TransformerConfig, device: torch.device, dtype: torch.dtype) -> Any:
    """A model of the class that a config exports to, on a device, with sdpa attention.

    Raises:
        HeddleError: no class can express the model.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when it is imported
    import transformers

    family, _ = choose(config)
    fields = {name: value for name, value in family.published_config(config).items() if name != "architectures"}
    published = transformers.AutoConfig.for_model(family.name, **fields)
    make = getattr(transformers, family.architecture)._from_config
    with torch.device(device):
        return make(published, dtype=dtype, attn_implementation="sdpa")
