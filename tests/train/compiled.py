"""A program: the losses of twenty compiled steps. It prints JSON."""

import json

import torch

from tests.train.test_wrapped import trained


def main() -> None:
    print(json.dumps([loss for loss, _ in trained(torch.compile, depth=1)[0]]))


if __name__ == "__main__":
    main()
