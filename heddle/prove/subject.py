"""The model under test: passes traced layer by layer, and the measured rounding error."""

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

MIN_BOUND = 2.0**-22  # two units in the last place of the largest number; a smaller bound would be luck


class Subject:
    """A model in evaluation mode, in fp32 or fp64, with random test inputs.

    Args:
        model: is put into evaluation mode.
        seed: of the test inputs.
    """

    def __init__(self, model: Transformer, seed: int = 0) -> None:
        self.model = model.eval()
        self.config = model.config
        self.dtype = next(model.parameters()).dtype
        self.generator = torch.Generator().manual_seed(seed)
        # Bugs in heddle's layers show in short texts; a custom layer may depend on longer distances.
        has_custom = any(isinstance(module, Custom) for module in model.modules())
        self.length = min(96 if has_custom else 24, self.config.context)
        # The matmuls of an expert have one row per routed token, and the last bits of a row may depend on the number of rows.
        blocks = [block for stack in self.config.stacks().values() for block in stack.blocks]
        self.bitwise = not any(isinstance(block.ffn, MoEConfig) for block in blocks)
        self.bounds, self.scales = self._measure_rounding()

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether the model is an encoder-decoder."""
        return self.model.encoder is not None and self.model.decoder is not None

    @property
    def has_prefix(self) -> bool:
        """Whether the model is a decoder with bidirectional prefixes."""
        return self.model.last_stack().prefix

    def with_prefix(self, layout: Layout) -> Layout:
        """The layout with half of each document as its prefix, if the model has prefixes."""
        if not self.has_prefix:
            return layout
        sizes = torch.stack([(layout.segment == number).sum(1) for number in range(layout.documents)], dim=1)
        return layout.prefixed((sizes + 1) // 2)

    def prompt_layout(self, counts: Sequence[int], width: int) -> Layout | None:
        """The layout of rows whose first `counts` tokens are the prompt, which is the prefix if the model has prefixes."""
        if not self.has_prefix:
            return None
        return Layout.whole(len(counts), width).prefixed(torch.tensor(counts)[:, None])

    def tokens(self, rows: int, length: int | None = None) -> Tensor:
        """Random ids."""
        length = self.length if length is None else length
        vocab_size = self.config.vocab_size
        return torch.randint(0, vocab_size, (rows, length), generator=self.generator)

    def source(self, rows: int, length: int | None = None) -> Tensor:
        """Random source ids for the encoder."""
        length = self.length if length is None else length
        vocab_size = self.config.source_vocab_size or self.config.vocab_size
        return torch.randint(0, vocab_size, (rows, length), generator=self.generator)

    def changed_ids(self, tokens: Tensor) -> Tensor:
        """Ids that differ from these at every position, unless the vocabulary has only one id."""
        return (tokens + 1) % self.config.vocab_size

    def types(self, tokens: Tensor) -> Tensor | None:
        """Token types, if the model has any. They depend on the ids alone, so every slice of a text has the same types."""
        kinds = self.config.last()[1].entry.types
        return tokens % kinds if kinds else None

    def source_types(self, source: Tensor) -> Tensor | None:
        """Token types of the source, if the encoder of an encoder-decoder has any."""
        kinds = self.config.encoder.entry.types if self.is_encoder_decoder and self.config.encoder is not None else 0
        return source % kinds if kinds else None

    def source_row(self, row: int) -> Tensor | None:
        """Row `row` of the fixed source, if there is one."""
        return fixed_source(self, row + 1)[row:] if self.is_encoder_decoder else None

    def require_decoder(self) -> None:
        """Skip a check that applies only to decoders."""
        if self.model.decoder is None:
            raise NotApplicable("applies to decoders only")

    def require_two_tokens(self) -> None:
        """Skip a check that needs two tokens."""
        if self.length < 2:
            raise NotApplicable("needs a context of at least 2")

    def require_two_ids(self) -> None:
        """Skip a check that changes a token."""
        if self.config.vocab_size < 2:
            raise NotApplicable("needs a vocabulary of at least 2")

    def state_windows(self) -> list[int]:
        """The distinct window sizes of the decoder's rolling states."""
        assert self.model.decoder is not None
        states = tree_leaves(self.model.decoder.new_states())
        return sorted({state.window for state in states if isinstance(state, Rolling)})

    @torch.no_grad()
    def full_pass(
        self,
        tokens: Tensor,
        layout: Layout | None = None,
        source: Tensor | None = None,
        source_layout: Layout | None = None,
        model: Transformer | None = None,
        types: Tensor | None = None,
    ) -> Trace:
        """One pass over the full texts, as in training."""
        model = self.model if model is None else model
        return self.trace(lambda: self.hidden(tokens, layout, source, source_layout, model, types), model)

    def hidden(
        self,
        tokens: Tensor,
        layout: Layout | None = None,
        source: Tensor | None = None,
        source_layout: Layout | None = None,
        model: Transformer | None = None,
        types: Tensor | None = None,
    ) -> Tensor:
        """The hidden states of a full pass, with gradients if they are enabled."""
        types_by_name = {"types": self.types(tokens) if types is None else types}
        if self.is_encoder_decoder:
            source = fixed_source(self, tokens.shape[0]) if source is None else source
            types_by_name["source_types"] = self.source_types(source)
        given_types = {name: value for name, value in types_by_name.items() if value is not None}
        out: Tensor = (self.model if model is None else model)(
            tokens, layout, source, source_layout, **given_types
        ).hidden
        return out

    def differentiable(self, tokens: Tensor, layout: Layout | None = None) -> tuple[Tensor, Tensor]:
        """Token embeddings [B T d] as a leaf of the graph, and the hidden states [B T D] computed from them."""
        embeddings = []

        def keep(module: nn.Module, inputs: tuple[Tensor], vectors: Tensor) -> Tensor:
            embeddings.append(vectors.detach().requires_grad_())
            return embeddings[-1]

        hook = self.model.embedding.register_forward_hook(keep)
        try:
            hidden = self.hidden(tokens, layout)
        finally:
            hook.remove()
        return embeddings[-1], hidden  # with a shared table, the source is looked up first

    def reachable_distances(self, length: int) -> set[int]:
        """The distances below `length` over which the decoder's layers together can carry information."""
        reached = {0}
        for block in self.config.last()[1].blocks:
            mixer, steps = block.mixer, range(length)
            if isinstance(mixer, AttentionConfig) and mixer.window is not None:
                steps = range(mixer.window)
            elif isinstance(mixer, ConvolutionConfig | LinearConfig):
                steps = distances(mixer.taps, mixer.dilation, centred=False)
            if isinstance(block.ffn, CustomConfig):
                steps = range(length)
            reached = {distance + step for distance in reached for step in steps if distance + step < length}
        return reached

    def single_pass(self, tokens: Tensor, cuts: Sequence[int]) -> Trace:
        """The expected result of `stepwise_pass`: one pass, with the first piece as the prefix if the model has prefixes."""
        rows, width = tokens.shape
        return self.full_pass(
            tokens, self.prompt_layout([min((cut for cut in cuts if cut > 0), default=width)] * rows, width)
        )

    @torch.no_grad()
    def stepwise_pass(
        self, tokens: Tensor, cuts: Sequence[int], source: Tensor | None = None, source_layout: Layout | None = None
    ) -> Trace:
        """A pass through a cache in pieces that end at `cuts`, as in generation."""
        cache = self.model.new_cache(tokens.shape[0])
        inner_cuts = sorted({cut for cut in cuts if 0 < cut < tokens.shape[1]})
        pieces = []
        for start, stop in pairwise([0, *inner_cuts, tokens.shape[1]]):
            piece = tokens[:, start:stop]
            pieces.append(self.trace(partial(self.step, piece, cache, None, source, source_layout)))
        return concatenate(pieces)

    @torch.no_grad()
    def step(
        self,
        tokens: Tensor,
        cache: Cache,
        counts: Sequence[int] | None = None,
        source: Tensor | None = None,
        source_layout: Layout | None = None,
    ) -> Tensor:
        """Hidden states of the next tokens with a cache; the first call also reads the source."""
        layout = None if counts is None else cache.advance(counts)
        inputs: dict[str, Any] = {"types": self.types(tokens)}
        if self.is_encoder_decoder and cache.encoded is None:
            source = fixed_source(self, tokens.shape[0]) if source is None else source
            inputs |= {"source": source, "source_layout": source_layout, "source_types": self.source_types(source)}
        out: Tensor = self.model(tokens, layout, cache=cache, **inputs).hidden
        return out

    @torch.no_grad()
    def trace(self, call: Callable[[], Tensor], model: Transformer | None = None) -> Trace:
        """The outputs of all blocks of the last stack during `call`, and the logits."""
        model = self.model if model is None else model
        with model.last_stack().watched() as states:
            hidden = call()
        trace = {"entry" if i == 0 else f"layer {i - 1}": state for i, state in enumerate(states)}
        head = model.head
        scores = model.logits(hidden) if isinstance(head, LanguageHead) else hidden
        return {**trace, "output": scores}

    def _measure_rounding(self) -> tuple[dict[str, float], dict[str, float]]:
        """Measure the relative rounding error and the largest number at each place.

        The error is measured in fp32 against fp64; for an fp64 model it is scaled by the ratio of machine epsilons.
        """
        exact = copy.deepcopy(self.model).double()
        single = self.model if self.dtype == torch.float32 else copy.deepcopy(self.model).float()
        eps_ratio = torch.finfo(self.dtype).eps / torch.finfo(torch.float32).eps
        tokens = self.tokens(max(16, 64 // self.length))  # fewer would underestimate rounding errors
        actual, expected = self.full_pass(tokens, model=single), self.full_pass(tokens, model=exact)
        scales = {place: max(float(reference.abs().max()), 1e-30) for place, reference in expected.items()}
        errors = {
            place: float((actual[place].double() - reference).abs().max()) for place, reference in expected.items()
        }
        bounds = {place: max(error / scales[place], MIN_BOUND) for place, error in errors.items()}
        # Another order of summation may round differently at any place, so every bound is at least half of the largest.
        floor = max(bounds.values()) / 2
        return {place: max(bound, floor) * eps_ratio for place, bound in bounds.items()}, scales


def attentions(config: TransformerConfig, stack: str | None = None) -> list[AttentionConfig | LatentConfig]:
    """The configs of all self-attention layers of a model, or of one stack."""
    stacks = [part for name, part in config.stacks().items() if stack in (None, name)]
    kinds = AttentionConfig | LatentConfig
    return [block.mixer for part in stacks for block in part.blocks if isinstance(block.mixer, kinds)]


def fixed_source(subject: Subject, rows: int) -> Tensor:
    """A fixed source, in which a row does not depend on the number of rows."""
    generator = torch.Generator().manual_seed(99)
    vocab_size = subject.config.source_vocab_size or subject.config.vocab_size
    return torch.randint(0, vocab_size, (64, min(11, subject.config.context)), generator=generator)[:rows]


def concatenate(traces: Sequence[Trace]) -> Trace:
    """Concatenate the traces of consecutive pieces of the same rows."""
    return {place: torch.cat([trace[place] for trace in traces], dim=1) for place in traces[0]}


def cut(trace: Trace, where: Any) -> Trace:
    """Index the rows and positions of a trace."""
    return {place: tensor[where] for place, tensor in trace.items()}


@torch.no_grad()
def awaken(model: Transformer, seed: int = 0) -> Transformer:
    """Set random weights at which every part matters; fresh weights are so small that bugs could hide in rounding."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.empty(parameter.shape).normal_(generator=generator)
        if not parameter.requires_grad:
            parameter.copy_(0.1 * noise)
        elif parameter.dim() < 2:
            gain = name.endswith("weight")
            parameter.copy_(1.0 + 0.2 * noise if gain else 0.2 * noise)
        elif any(table in name for table in ("embedding", "positions", "types", "relative")):
            parameter.copy_(noise * (0.5 if "embedding" in name else 0.3))
        else:
            parameter.copy_(noise / sqrt(parameter.shape[-1]))
    return model
