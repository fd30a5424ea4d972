"""A program: how many graphs torch.compile captures of mixers, for a whole sequence and for the steps of a cache.

It runs in a process without the shape checks, which cannot be traced (`HEDDLE_CHECKED=""`), and prints JSON.
"""

import json
from typing import Any

import torch
from torch import Tensor

from heddle.config import ConvolutionConfig, RecurrentConfig
from heddle.nn import Layout, Scope, Setting
from heddle.nn.convolution import Convolution
from heddle.nn.recurrent import Recurrent
from tests.graphs import captured
from tests.nn.mixing import DIM, cache_for, filled, keys_for, tokens, whole


def graphs(mixer: Any, counts: list[int]) -> list[int]:
    x = tokens(len(counts), 5)
    expected = whole(mixer, x)
    plain, of_plain = captured(lambda x: whole(mixer, x))
    torch.testing.assert_close(plain(x), expected)
    cache = cache_for(mixer, len(counts))
    state = cache.states[0].mixer

    def step(x: Tensor, queries: Layout, keys: Layout) -> Tensor:
        out: Tensor = mixer(x, Scope(queries, keys), state)
        return out

    decoding, of_decoding = captured(step)
    for number in range(4):
        x = tokens(len(counts), max(counts) if number == 0 else 1)
        queries = cache.advance(counts if number == 0 else [1] * len(counts))
        (decoding if number else step)(x, queries, keys_for(mixer, cache))
    return [of_plain.count, of_decoding.count]


def main() -> None:
    setting = Setting(DIM)
    convolution = filled(Convolution(ConvolutionConfig(taps=3, dilation=2), setting))
    results = {
        "convolution": graphs(convolution, [4, 4]),
        "convolution, ragged": graphs(convolution, [4, 2]),
        "gru": graphs(filled(Recurrent(RecurrentConfig(cell="gru", hidden=5), setting)), [4, 4]),
        "lstm, ragged": graphs(filled(Recurrent(RecurrentConfig(cell="lstm", hidden=5), setting)), [4, 2]),
    }
    print(json.dumps(results))


if __name__ == "__main__":
    main()
