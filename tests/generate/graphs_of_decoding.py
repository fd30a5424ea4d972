"""A program: how many graphs torch.compile captures of decoding steps.

It runs in a process without the shape checks, which cannot be traced (`HEDDLE_CHECKED=""`), and prints JSON.
"""

import json
from typing import Any

from heddle.config import (
    AttentionConfig,
    BlockConfig,
    EntryConfig,
    RotaryConfig,
    SamplingConfig,
    StackConfig,
    TransformerConfig,
)
from heddle.generate import generate
from heddle.model import build
from tests.graphs import captured

ONE, EVEN, RAGGED = [[1, 2, 3]], [[1, 2, 3], [4, 5, 6]], [[1, 2, 3], [4, 5, 6, 7, 8]]


def graphs(positions: str, prompts: list[list[int]], tokens: int) -> int:
    rotary = RotaryConfig() if positions == "rotary" else None
    block = BlockConfig(mixer=AttentionConfig(heads=4, kv_heads=2, relative=rotary))
    stack = StackConfig(depth=2, block=block, entry=EntryConfig(positions="none" if rotary else "learned"))
    model = build(TransformerConfig(vocab_size=61, dim=32, context=1024, decoder=stack))
    sampling = SamplingConfig(max_tokens=tokens)
    before = [(event.row, event.token) for event in generate(model, prompts, sampling)]
    whole = model.forward
    step, graphs = captured(whole)

    def forward(tokens: Any, *given: Any, **more: Any) -> Any:
        return (step if tokens.shape[1] == 1 else whole)(tokens, *given, **more)

    model.forward = forward  # type: ignore[method-assign]
    assert before == [(event.row, event.token) for event in generate(model, prompts, sampling)]
    return graphs.count


def main() -> None:
    short = {
        f"{positions} {len(prompts)} {len(prompts[-1])}": graphs(positions, prompts, 50)
        for positions in ("rotary", "learned")
        for prompts in (ONE, EVEN, RAGGED)
    }
    print(json.dumps({"short": short, "long": graphs("rotary", RAGGED, 500)}))


if __name__ == "__main__":
    main()
