"""The model that is put to the proof: its passes traced layer by layer, its own rounding error measured."""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from heddle.config.layers import AttentionConfig, ConvolutionConfig, CustomConfig, LatentConfig, LinearConfig, MoEConfig
from heddle.config.model import TransformerConfig
from heddle.model.head import LanguageHead
from heddle.model.transformer import Transformer
from heddle.nn.cache import Cache
from heddle.nn.convolution import distances
from heddle.nn.custom import Custom
from heddle.nn.layout import Layout
from heddle.nn.state import Rolling
from heddle.prove.verdict import NotApplicable, Trace

LEAST = 2.0**-22  # two units in the last place of the largest number: nothing is asked to be nearer by luck


class Subject:
    """A model in evaluation mode and its own precision, fp32 or fp64, with random texts to try it on.

    Args:
        model: the model; it is put into evaluation mode.
        seed: of the texts.
    """

    def __init__(self, model: Transformer, seed: int = 0) -> None:
        self.model = model.eval()
        self.config = model.config
        self.dtype = next(model.parameters()).dtype
        self.generator = torch.Generator().manual_seed(seed)
        # What heddle's own layers do depends on places in ways that show at once; what a user's do, nobody knows.
        own = any(isinstance(module, Custom) for module in model.modules())
        self.length = min(96 if own else 24, self.config.context)
        # An expert's products have as many rows as tokens chose it, and a row's last bits may depend on how many there are.
        blocks = [block for stack in self.config.stacks().values() for block in stack.blocks]
        self.bitwise = not any(isinstance(block.ffn, MoEConfig) for block in blocks)
        self.bounds, self.scales = self._measured()

    @property
    def both(self) -> bool:
        """Whether there is an encoder whose output a decoder looks at."""
        return self.model.encoder is not None and self.model.decoder is not None

    @property
    def prefix(self) -> bool:
        """Whether it is a decoder whose prefixes see both ways."""
        return self.model.last_stack().prefix

    def prefixed(self, layout: Layout) -> Layout:
        """The layout with half of each document as its prefix, where the model has prefixes."""
        if not self.prefix:
            return layout
        sizes = torch.stack([(layout.segment == number).sum(1) for number in range(layout.documents)], dim=1)
        return layout.prefixed((sizes + 1) // 2)

    def begun(self, counts: Sequence[int], width: int) -> Layout | None:
        """The layout of whole rows whose first `counts` tokens a cache reads in one call: prefixes, where the model has them."""
        if not self.prefix:
            return None
        return Layout.whole(len(counts), width).prefixed(torch.tensor(counts)[:, None])

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

    def types(self, tokens: Tensor) -> Tensor | None:
        """The tokens' types, where there are any. They follow from the ids, so every cut of a text has the same."""
        kinds = self.config.last()[1].entry.types
        return tokens % kinds if kinds else None

    def source_types(self, source: Tensor) -> Tensor | None:
        """Those of what the encoder reads beside a decoder."""
        kinds = self.config.encoder.entry.types if self.both and self.config.encoder is not None else 0
        return source % kinds if kinds else None

    def source_row(self, row: int) -> Tensor | None:
        """Row `row` of the fixed source, where there is one."""
        return fixed_source(self, row + 1)[row:] if self.both else None

    def needs_decoder(self) -> None:
        """Skip what only a decoder promises."""
        if self.model.decoder is None:
            raise NotApplicable("only a decoder promises this")

    def needs_two_tokens(self) -> None:
        """Skip what concerns a token before or next to another."""
        if self.length < 2:
            raise NotApplicable("a context of 1 holds no two tokens")

    def needs_two_ids(self) -> None:
        """Skip what changes a token, where there is no other."""
        if self.config.vocab_size < 2:
            raise NotApplicable("a vocabulary of 1 has no other token")

    def reaches(self) -> list[int]:
        """How many tokens the decoder's states keep that forget, each number once."""
        assert self.model.decoder is not None
        states = tree_leaves(self.model.decoder.new_states())
        return sorted({state.window for state in states if isinstance(state, Rolling)})

    @torch.no_grad()
    def whole(
        self,
        tokens: Tensor,
        layout: Layout | None = None,
        source: Tensor | None = None,
        source_layout: Layout | None = None,
        model: Transformer | None = None,
        types: Tensor | None = None,
    ) -> Trace:
        """One pass over everything, as training makes it; types are those that follow from the ids if left out."""
        model = self.model if model is None else model
        return self.traced(lambda: self.hidden(tokens, layout, source, source_layout, model, types), model)

    def hidden(
        self,
        tokens: Tensor,
        layout: Layout | None = None,
        source: Tensor | None = None,
        source_layout: Layout | None = None,
        model: Transformer | None = None,
        types: Tensor | None = None,
    ) -> Tensor:
        """The hidden vectors of such a pass alone, with their gradients where those are wanted."""
        said = {"types": self.types(tokens) if types is None else types}
        if self.both:
            source = fixed_source(self, tokens.shape[0]) if source is None else source
            said["source_types"] = self.source_types(source)
        given = {name: value for name, value in said.items() if value is not None}
        out: Tensor = (self.model if model is None else model)(tokens, layout, source, source_layout, **given).hidden
        return out

    def differentiable(self, tokens: Tensor, layout: Layout | None = None) -> tuple[Tensor, Tensor]:
        """The tokens' vectors [B T d] as a leaf of the graph, and the hidden vectors [B T D] that are computed from them."""
        looked_up = []

        def keep(module: nn.Module, inputs: tuple[Tensor], vectors: Tensor) -> Tensor:
            looked_up.append(vectors.detach().requires_grad_())
            return looked_up[-1]

        hook = self.model.embedding.register_forward_hook(keep)
        try:
            hidden = self.hidden(tokens, layout)
        finally:
            hook.remove()
        return looked_up[-1], hidden  # an encoder's source comes first, where both have one table

    def reachable(self, length: int) -> set[int]:
        """How many steps back, below `length`, a token of the decoder may be told of by all layers together."""
        found = {0}
        for block in self.config.last()[1].blocks:
            mixer, steps = block.mixer, range(length)
            if isinstance(mixer, AttentionConfig) and mixer.window is not None:
                steps = range(mixer.window)
            elif isinstance(mixer, ConvolutionConfig | LinearConfig):
                steps = distances(mixer.taps, mixer.dilation, centred=False)
            if isinstance(block.ffn, CustomConfig):
                steps = range(length)
            found = {one + other for one in found for other in steps if one + other < length}
        return found

    def at_once(self, tokens: Tensor, cuts: Sequence[int]) -> Trace:
        """What `stepped` must give: one pass, where the first of the pieces is the prefix of a model that has one."""
        rows, width = tokens.shape
        return self.whole(tokens, self.begun([min((cut for cut in cuts if cut > 0), default=width)] * rows, width))

    @torch.no_grad()
    def stepped(
        self, tokens: Tensor, cuts: Sequence[int], source: Tensor | None = None, source_layout: Layout | None = None
    ) -> Trace:
        """The same through a cache, in pieces that end at `cuts`, as generation makes it."""
        cache = self.model.new_cache(tokens.shape[0])
        inside = sorted({cut for cut in cuts if 0 < cut < tokens.shape[1]})
        pieces = []
        for start, stop in pairwise([0, *inside, tokens.shape[1]]):
            piece = tokens[:, start:stop]
            pieces.append(self.traced(partial(self.step, piece, cache, None, source, source_layout)))
        return joined(pieces)

    @torch.no_grad()
    def step(
        self,
        tokens: Tensor,
        cache: Cache,
        counts: Sequence[int] | None = None,
        source: Tensor | None = None,
        source_layout: Layout | None = None,
    ) -> Tensor:
        """The hidden vectors of the next tokens of a cache; its first call is given the source where there is one."""
        layout = None if counts is None else cache.advance(counts)
        given: dict[str, Any] = {"types": self.types(tokens)}
        if self.both and cache.encoded is None:
            source = fixed_source(self, tokens.shape[0]) if source is None else source
            given |= {"source": source, "source_layout": source_layout, "source_types": self.source_types(source)}
        out: Tensor = self.model(tokens, layout, cache=cache, **given).hidden
        return out

    @torch.no_grad()
    def traced(self, call: Callable[[], Tensor], model: Transformer | None = None) -> Trace:
        """What every block of the last stack gave during `call`, and the scores of what came out."""
        model = self.model if model is None else model
        with model.last_stack().watched() as kept:
            hidden = call()
        found = {"entry" if i == 0 else f"layer {i - 1}": state for i, state in enumerate(kept)}
        head = model.head
        scores = model.logits(hidden) if isinstance(head, LanguageHead) else hidden
        return {**found, "output": scores}

    def _measured(self) -> tuple[dict[str, float], dict[str, float]]:
        """At each place, the largest number, and the model's rounding error in its own precision, relative to that.

        The error is measured in fp32 against fp64; in fp64 it is smaller by as much as a unit in the last place is.
        """
        exact = copy.deepcopy(self.model).double()
        rounded = self.model if self.dtype == torch.float32 else copy.deepcopy(self.model).float()
        finer = torch.finfo(self.dtype).eps / torch.finfo(torch.float32).eps
        tokens = self.tokens(max(16, 64 // self.length))  # a few would not show how far rounding can go
        near, far = self.whole(tokens, model=rounded), self.whole(tokens, model=exact)
        scales = {place: max(float(wanted.abs().max()), 1e-30) for place, wanted in far.items()}
        errors = {place: float((near[place].double() - wanted).abs().max()) for place, wanted in far.items()}
        found = {place: max(error / scales[place], LEAST) for place, error in errors.items()}
        # Products in another order round differently at any place: no place is allowed less than half of the worst.
        least = max(found.values()) / 2
        return {place: max(bound, least) * finer for place, bound in found.items()}, scales


def attentions(config: TransformerConfig, stack: str | None = None) -> list[AttentionConfig | LatentConfig]:
    """Every self-attention of a model, or of one of its stacks."""
    stacks = [part for name, part in config.stacks().items() if stack in (None, name)]
    kinds = AttentionConfig | LatentConfig
    return [block.mixer for part in stacks for block in part.blocks if isinstance(block.mixer, kinds)]


def fixed_source(subject: Subject, rows: int) -> Tensor:
    """The same source for every pass over as many rows; row b's does not depend on how many rows there are."""
    generator = torch.Generator().manual_seed(99)
    most = subject.config.source_vocab_size or subject.config.vocab_size
    return torch.randint(0, most, (64, min(11, subject.config.context)), generator=generator)[:rows]


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
        elif any(table in name for table in ("embedding", "positions", "types", "relative")):
            parameter.copy_(draw * (0.5 if "embedding" in name else 0.3))
        else:
            parameter.copy_(draw / sqrt(parameter.shape[-1]))
    return model
