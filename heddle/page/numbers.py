"""Tensors in documents, as base64 of their little-endian bytes."""

import base64

import numpy as np
import torch
from torch import Tensor

from heddle.page.queries import Document


def encode_tensor(tensor: Tensor) -> Document:
    """A tensor as fp32 (`f32`), or as bytes (`u8`) if its dtype is uint8."""
    kind = "u8" if tensor.dtype == torch.uint8 else "f32"
    array = tensor.detach().cpu().to(torch.uint8 if kind == "u8" else torch.float32).numpy()
    little = np.ascontiguousarray(array, dtype="<f4" if kind == "f32" else "u1")
    return {"shape": list(tensor.shape), "kind": kind, "data": base64.b64encode(little.tobytes()).decode()}


def encode_bits(tensor: Tensor) -> Document:
    """A boolean tensor as `bits`: eight values per byte, each row starting at a new byte."""
    bits = np.packbits(tensor.detach().cpu().numpy().astype(bool), axis=-1)
    return {"shape": list(tensor.shape), "kind": "bits", "data": base64.b64encode(bits.tobytes()).decode()}
