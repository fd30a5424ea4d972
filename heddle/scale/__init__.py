"""A training on many devices, before it is started: bytes, communication and time of a layout, and layouts that fit.

- `devices`: a table of devices with their published figures.
- `meter`: counts the bytes that tensors hold, what processes send, and FLOPs, operation by operation.
- `rehearsal`: a training step of one process among many, on tensors without memory.
- `schedules`: what torch lets the groups of a pipeline compute, how long they wait, and processes that are not there.
- `layout`: predicts a layout, and proposes one that fits.
- `measuring`: the same step on real tensors, with as many processes on this machine.
- `text`: a prediction in words.
"""

__all__: list[str] = []
