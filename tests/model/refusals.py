"""A program: what a model says to ids and layouts that do not fit, where no shape checks are added."""

from collections.abc import Callable
from typing import Any

import torch

import heddle
from heddle.config import TransformerConfig
from heddle.errors import HeddleError
from heddle.nn import Layout


def attempt(call: Callable[[], object]) -> None:
    try:
        call()
    except HeddleError as error:
        print(error)


def main() -> None:
    model = heddle.build(heddle.sized(depth=1, dim=16, vocab_size=9, context=8))
    attempt(lambda: model(torch.tensor([1, 2, 3])))
    attempt(lambda: model(torch.ones(2, 3, dtype=int), Layout.whole(1, 3)))
    attempt(lambda: model.decoder(torch.ones(2, 3, 15), Layout.whole(2, 3)))
    attempt(lambda: model.decoder(torch.ones(2, 3, 16), Layout.whole(1, 3)))
    block: dict[str, Any] = {"mixer": {"heads": 1}}
    stacks = {
        "encoder": {"depth": 1, "block": block},
        "decoder": {"depth": 1, "block": {**block, "cross": {"heads": 1}}},
    }
    both = heddle.build(TransformerConfig.of({"vocab_size": 9, "dim": 8, "context": 8, **stacks}))
    ids = torch.ones(2, 3, dtype=int)
    attempt(lambda: both(ids, source=ids[:1]))
    attempt(lambda: both(ids, source=ids[:1], cache=both.new_cache(2)))


if __name__ == "__main__":
    main()
