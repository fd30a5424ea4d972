"""A program: the losses of twenty steps, eager and compiled block by block, and how many graphs were captured. It prints JSON.

Its words are the name of a model, and the widths of the batches: the first ten have the first, the others all of them in turns. The
graphs are counted after the first ten steps, and at the end.
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch._dynamo.backends.registry import lookup_backend
from torch.fx import GraphModule

from heddle.config import RotaryConfig, TransformerConfig
from heddle.config.train import TrainConfig
from heddle.data.batch import Batch
from heddle.model import build, checkpoint_activations, device
from heddle.model.lora import adapt
from heddle.nn.kernels import Blockwise, fused
from heddle.nn.layout import Layout
from heddle.tasks import CrossEntropy
from heddle.train import Optimizer, train_step
from heddle.train.compiling import compile_blocks
from tests.models import VOCABULARY, config_of

STEPS, FIRST, ROWS, CONTEXT = 20, 10, 16, 16
MODELS: dict[str, dict[str, Any]] = {
    "gpt": {"positions": "learned"},
    "llama": {"norm": {"kind": "rms"}, "ffn": "gated", "relative": RotaryConfig(), "positions": "none"},
    "encoder-decoder": {"family": "both"},
    "mixture": {"ffn": "moe"},
    "dropout": {"kernel": "plain", "dropout": 0.2},  # compiled, `sdpa` draws other numbers
    "checkpointed": {"kernel": "plain", "dropout": 0.2},
    "lora": {},
    "packed": {"kernel": "flex", "window": 5},
    "generated": {"kernel": "flex", "window": 5, "cap": 2.0, "sinks": True},
}


class Counted:
    """A backend with the compiler's own decompositions, and without its code, which takes long to compile. It counts graphs."""

    def __init__(self) -> None:
        self.count, self.after, self.backend = 0, list[int](), lookup_backend("aot_eager_decomp_partition")

    def __call__(self, graph: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        self.count += 1
        compiled: Callable[..., Any] = self.backend(graph, inputs)
        return compiled


def configured(name: str) -> TransformerConfig:
    """Three blocks in each stack, with the kernel that a GPU takes for most models: the CPU's own is unrolled by the width."""
    return config_of(depth=3, **{"kernel": "sdpa", **MODELS[name]}).override({"context": CONTEXT})


def batch(name: str, step: int, width: int) -> Batch:
    """Random ids, some rows of which end early; or two documents in each row."""
    random = torch.Generator().manual_seed(step % 2)
    ids = torch.randint(0, VOCABULARY, (ROWS, width), generator=random)
    lengths = [width - row % 4 for row in range(ROWS)]
    padded = Layout.padded(lengths, width)
    layout = (
        Layout.packed([[3, length - 3] for length in lengths], width) if name in ("packed", "generated") else padded
    )
    source = {"source": ids.flip(1), "source_layout": padded} if name == "encoder-decoder" else {}
    return Batch(ids, layout, ids.roll(-1, 1), layout.real.float(), **source)


def trained(name: str, widths: Sequence[int], counted: Counted | None = None) -> list[float]:
    """The losses of the steps, compiled if graphs are counted."""
    settings = TrainConfig.of({"lora": {"rank": 2, "layers": ["*.mixer.*"]}} if name == "lora" else {})
    model = adapt(build(configured(name)), settings.lora)
    if name == "checkpointed":
        checkpoint_activations(model)
    blocks = [block for stack in (model.encoder, model.decoder) if stack is not None for block in stack.layers()]
    forwards = [vars(block).get("forward") for block in blocks]
    optimizer = Optimizer(model, settings, 1e-2, "fp32")
    objective: Any = CrossEntropy(model)
    losses = []
    if counted is not None:
        objective = compile_blocks(objective, backend=counted)
    for step in range(STEPS):
        torch.manual_seed(step)
        width = widths[0 if step < FIRST else step % len(widths)]
        losses.append(train_step(objective, optimizer, batch(name, step, width), 1, 1.0, 1.0)[0])
        if counted is not None:
            counted.after.append(counted.count)
    assert [vars(block).get("forward") for block in blocks] == forwards  # evaluation computes as before
    return losses


@contextmanager
def generated() -> Iterator[None]:
    """Masks are lowered outside, as on a card, for torch's definition of FlexAttention, whose gradient it keeps from CPUs."""

    def refuse(*arguments: Any) -> None:
        raise AssertionError("blockwise was called")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused, "generates", lambda device: True)
        patch.setattr(Blockwise, "attend", refuse)
        patch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *tensors: None)
        yield


def main() -> None:
    vars(device)["LOGITS_BYTES"] = 1  # chunks of at most 64 rows
    name, *words = sys.argv[1:]
    torch._dynamo.reset()
    counted, widths = Counted(), [int(word) for word in words]
    eager = trained(name, widths)
    with generated() if name == "generated" else nullcontext():
        compiled = trained(name, widths, counted)
    print(json.dumps([eager, compiled, counted.after[FIRST - 1], counted.count]))


if __name__ == "__main__":
    main()
