"""A training on many devices, before it is started: bytes, communication and time of a layout, and layouts that fit.

- `devices`: a table of devices with their published figures.
- `meter`: counts the bytes that tensors hold, what processes send, and FLOPs, operation by operation.
- `rehearsal`: a training step of one process among many, on tensors without memory.
- `layout`: predicts a layout, and proposes one that fits.
- `measuring`: the same step on real tensors, with as many processes on this machine.
- `text`: a prediction in words.
"""

from heddle.scale.devices import DEVICES as DEVICES
from heddle.scale.devices import Device as Device
from heddle.scale.devices import find_row as find_row
from heddle.scale.layout import Prediction as Prediction
from heddle.scale.layout import Request as Request
from heddle.scale.layout import predict as predict
from heddle.scale.layout import propose as propose
from heddle.scale.measuring import Measured as Measured
from heddle.scale.measuring import measure as measure
from heddle.scale.text import describe as describe

__all__ = [
    "DEVICES",
    "Device",
    "Measured",
    "Prediction",
    "Request",
    "describe",
    "find_row",
    "measure",
    "predict",
    "propose",
]
