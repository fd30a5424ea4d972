"""A program: the losses of twenty steps whose graphs, gradients too, are captured. It prints JSON."""

import json
from functools import partial

import torch

from tests.train.test_wrapped import trained


def main() -> None:
    # With the compiler's own decompositions, and without its code, which takes a minute to compile.
    captured = partial(torch.compile, backend="aot_eager_decomp_partition")
    print(json.dumps([loss for loss, _ in trained(captured, depth=1)[0]]))


if __name__ == "__main__":
    main()
