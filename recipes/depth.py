"""What depth is for: rows that repeat after an unknown period, learned by 1, 2 and 4 layers of as many parameters (L1-42, L1-43).

    python recipes/depth.py [--seeds 3 --steps 300] [--json FILE]

A row has 3 to 8 random signs, over and over. From the second round on, each sign tells the next one: the one that came after it
before. One layer finds the same sign again; what came after it takes a layer that reads what another has found. The models have
attention alone, one head in each layer, and the same steps; the fewer their layers, the wider they are.
"""

import time

import torch
from common import parser, report, spread

from heddle.config import TransformerConfig
from heddle.lessons.tasks import NOT_SCORED, Batch, Task, next_tokens
from heddle.lessons.training import Learned, learn
from heddle.model import Transformer, build

SIGNS, LENGTH, SHORTEST = 8, 16, 3
WIDTHS = {1: 45, 2: 32, 4: 22}  # by depth: about 10,000 parameters each


def rounds(rows: int, generator: torch.Generator) -> Batch:
    """Different signs that repeat after `SHORTEST` to `SIGNS` of them; the first round is not scored."""
    signs = torch.rand(rows, SIGNS, generator=generator).argsort(1)
    period, place = torch.randint(SHORTEST, SIGNS + 1, (rows, 1), generator=generator), torch.arange(LENGTH + 1)
    inputs, targets = next_tokens(signs.gather(1, place % period))
    return inputs, targets.masked_fill(place[:-1] < period, NOT_SCORED)


ROUNDS = Task(SIGNS, LENGTH, rounds)


def trained(depth: int, steps: int, seed: int) -> tuple[Transformer, Learned]:
    """A model of attention alone, and what it learned."""
    block = {"mixer": {"kind": "attention", "heads": 1}, "ffn": {"kind": "none"}, "norm": {"kind": "layer"}}
    stack = {"depth": depth, "block": block, "entry": {"positions": "learned"}}
    sizes = {"vocab_size": SIGNS, "dim": WIDTHS[depth], "context": LENGTH, "head": {"tied": False}}
    config = TransformerConfig.of({**sizes, "initial": {"rule": "xavier"}, "decoder": stack})
    model = build(config, seed=seed)
    return model, learn(model, ROUNDS, steps, seed=seed)


def main() -> None:
    more = parser(__doc__, seeds=3)
    more.add_argument("--steps", type=int, default=300)
    arguments = more.parse_args()
    rows = []
    for depth, width in WIDTHS.items():
        began = time.perf_counter()
        models = [trained(depth, arguments.steps, seed) for seed in range(arguments.seeds)]
        seconds = (time.perf_counter() - began) / arguments.seeds
        size = sum(parameter.numel() for parameter in models[0][0].parameters())
        losses, right = [each.loss for _, each in models], [100 * each.accuracy for _, each in models]
        rows.append([depth, width, f"{size:,}", spread(losses, 3), spread(right, 1), f"{seconds:.0f} s"])
    report(["layers", "width", "parameters", "loss", "right, %", "training"], rows, arguments.json)


if __name__ == "__main__":
    main()
