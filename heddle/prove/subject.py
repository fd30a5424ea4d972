"""The model that is put to the proof: its passes traced layer by layer, its own rounding error measured."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn

from heddle.config.layers import MoEConfig
from heddle.model.head import LanguageHead
from heddle.model.stack import Memory, Stack
from heddle.model.transformer import Transformer
from heddle.nn.layout import Layout
from heddle.prove.verdict import Trace

LEAST = 2.0**-22  # two units in the last place of the largest number: nothing is asked to be nearer by luck
TRIFLE = 1e-3  # of the largest number at a place


class Subject:
    """A model in fp32 and evaluation mode, with random texts to try it on.

    Args:
        model: the model; it is put into evaluation mode.
        seed: of the texts.
    """

    def __init__(self, model: Transformer, seed: int = 0) -> None:
        self.model = model.eval()
        self.config = model.config
        self.generator = torch.Generator().manual_seed(seed)
        self.length = min(24, self.config.context)
        # An expert's products have as many rows as tokens chose it, and a row's last bits may depend on how many there are.
        blocks = [block for stack in self.config.stacks().values() for block in stack.blocks]
        self.bitwise = not any(isinstance(block.ffn, MoEConfig) for block in blocks)
        self.bounds = self._bounds()

    @property
    def both(self) -> bool:
        """Whether there is an encoder whose output a decoder looks at."""
        return self.model.encoder is not None and self.model.decoder is not None

    def tokens(self, rows: int, length: int | None = None) -> Tensor:
        """Random ids."""
        length = self.length if length is None else length
        most = self.config.vocab_size
        return torch.randint(0, most, (rows, length), generator=self.generator)

    def source(self, rows: int, length: int | None = None) -> Tensor:
        """Random ids of what the encoder reads."""
        length = self.length if length is None else length
        most = self.config.source_vocab_size or self.config.vocab_size
        return torch.randint(0, most, (rows, length), generator=self.generator)

    def others(self, tokens: Tensor) -> Tensor:
        """Ids that differ from these everywhere; the same where there is only one id."""
        return (tokens + 1) % self.config.vocab_size

    @torch.no_grad()
    def whole(
        self,
        tokens: Tensor,
        layout: Layout | None = None,
        source: Tensor | None = None,
        source_layout: Layout | None = None,
        model: Transformer | None = None,
    ) -> Trace:
        """One pass over everything, as training makes it."""
        model = self.model if model is None else model
        if self.both and source is None:
            source = fixed_source(self, tokens.shape[0])
        return self.traced(lambda: model(tokens, layout, source, source_layout), model)

    @torch.no_grad()
    def stepped(
        self, tokens: Tensor, cuts: Sequence[int], source: Tensor | None = None, source_layout: Layout | None = None
    ) -> Trace:
        """The same through a cache, in pieces that end at `cuts`, as generation makes it."""
        memory = self.remembered(tokens.shape[0], source, source_layout)
        cache = self.model.new_cache(tokens.shape[0], memory)
        bounds = [0, *[cut for cut in cuts if 0 < cut < tokens.shape[1]], tokens.shape[1]]
        pieces = []
        for start, stop in pairwise(bounds):
            piece = tokens[:, start:stop]
            pieces.append(self.traced(lambda piece=piece: self.model.step(piece, cache)))
        return joined(pieces)

    def remembered(self, rows: int, source: Tensor | None = None, source_layout: Layout | None = None) -> Memory | None:
        """The encoder's output for a decoder, where there is one."""
        if not self.both:
            return None
        return self.model.encode(fixed_source(self, rows) if source is None else source, source_layout)

    def traced(self, call: Callable[[], Tensor], model: Transformer | None = None) -> Trace:
        """What every block of the last stack gave during `call`, and the scores of what came out."""
        model = self.model if model is None else model
        found: Trace = {}
        with watched(last_stack(model), found):
            hidden = call()
        head = model.head
        scores = model.logits(hidden)[..., : self.config.vocab_size] if isinstance(head, LanguageHead) else hidden
        return {**found, "output": scores}

    def _bounds(self) -> dict[str, float]:
        """At each place, the model's error in fp32 against itself in fp64, relative to the largest number there."""
        exact = copy.deepcopy(self.model).double()
        tokens = self.tokens(16, self.config.context if self.config.context < self.length else self.length)
        near, far = self.whole(tokens), self.whole(tokens, model=exact)
        found = {}
        for place, wanted in far.items():
            # Token by token, since some comparisons are of one, beside its own largest number if that is no trifle.
            largest, error = wanted.abs().amax(-1), (near[place].double() - wanted).abs().amax(-1)
            least = max(float(largest.max()) * TRIFLE, 1e-30)
            found[place] = max(float((error / largest.clamp(min=least)).max()), LEAST)
        # Products in another order round differently at any place: no place is allowed less than half of the worst.
        least = max(found.values()) / 2
        return {place: max(bound, least) for place, bound in found.items()}


def last_stack(model: Transformer) -> Stack:
    """The stack under the head."""
    stack = model.encoder if model.decoder is None else model.decoder
    assert stack is not None
    return stack


def fixed_source(subject: Subject, rows: int) -> Tensor:
    """The same source for every pass over as many rows; row b's does not depend on how many rows there are."""
    generator = torch.Generator().manual_seed(99)
    most = subject.config.source_vocab_size or subject.config.vocab_size
    return torch.randint(0, most, (64, min(11, subject.config.context)), generator=generator)[:rows]


@contextmanager
def watched(stack: Stack, found: Trace) -> Iterator[None]:
    """Keep what each block gives while this is entered."""

    def keep(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, given: Any, output: Any) -> None:
            found[name] = output[0] if isinstance(output, tuple) else output

        return hook

    hooks = [stack.entry.register_forward_hook(keep("entry"))]
    hooks += [block.register_forward_hook(keep(f"layer {i}")) for i, block in enumerate(stack.blocks)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def joined(traces: Sequence[Trace]) -> Trace:
    """Passes over consecutive pieces of the same rows, as one."""
    return {place: torch.cat([trace[place] for trace in traces], dim=1) for place in traces[0]}


def cut(trace: Trace, where: Any) -> Trace:
    """The same at fewer tokens: `where` indexes rows and positions."""
    return {place: tensor[where] for place, tensor in trace.items()}


@torch.no_grad()
def awaken(model: Transformer, seed: int = 0) -> Transformer:
    """Weights at which every part has a say: fresh ones are so small that half of all mistakes would hide in rounding."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        draw = torch.empty(parameter.shape).normal_(generator=generator)
        if not parameter.requires_grad:
            parameter.copy_(0.1 * draw)
        elif parameter.dim() < 2:
            gain = name.endswith("weight")
            parameter.copy_(1.0 + 0.2 * draw if gain else 0.2 * draw)
        elif name.endswith(("embedding.weight", "positions.weight", "types.weight", "relative.weight")):
            parameter.copy_(draw * (0.5 if "embedding" in name else 0.3))
        else:
            parameter.copy_(draw / sqrt(parameter.shape[-1]))
    return model
