"""FLOPs of a forward pass, from the walk: matrix products only; a multiply and an add count as two.

Norms, activations, softmax and table look-ups are not counted, as in torch's counter. Attention is the full square, masked,
windowed or not: `reference` computes it, and the counter reports it for `sdpa`. `plain` skips fully masked blocks, so the counter
reports less there, except for a decoder with `prefix`: its rows are counted as all prefix, where no kernel skips anything. Only the
chosen ones of routed experts count. The source of an encoder-decoder is as long as its tokens.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from heddle.account.formulas import Line, causal_share, layer_flops, prefix_rows
from heddle.account.forward import counted, kernels_by_device
from heddle.account.parameters import deck_applies
from heddle.account.walk import HEAD, SCORES, WEIGHTED_SUM, walk
from heddle.checks import at_least, between, checked
from heddle.config.layers import AttentionConfig, ConvolutionConfig, LatentConfig, LinearConfig, RecurrentConfig
from heddle.config.model import BlockConfig, LanguageHeadConfig, TransformerConfig
from heddle.display import displayed, largest
from heddle.errors import HeddleError
from heddle.nn.convolution import distances
from heddle.nn.kernels import BLOCK

# The backward pass computes two products of the same size for every one of the forward pass: the gradients of the input
# and of the weight (or the other factor). A fused kernel that recomputes its scores adds to this.
TRAINING = 3


@displayed(".parts, .layer, .counted, .deck")
@dataclass(frozen=True)
class Flops:
    """The FLOPs of one pass over `batch` rows of `length` tokens.

    Attributes:
        parts: projections, scores, weighted sum, feed-forward, head, and any others; sums to `forward`.
        layer: the same for only the first layer of the stack under the head, without the head.
        forward: one forward pass, with a language head applied at every position.
        training: forward and backward, three times the forward pass.
        per_token: `training` for one token.
        quadratic_share: scores and weighted sum over the whole layer (C-06).
        crossover: the length at which that share is one half; 6d for a GPT-2-like layer, None without attention.
        counted: the result of torch's counter for the same pass, by kernel; `none` if no layer has attention.
        deck: the lectures' closed forms next to the walk (C-01 … C-07, C-14); empty if they do not apply.
        prefix_rows: rows of tokens for one prediction after every prefix, in one pass and separately (C-13); None for an
            encoder, which predicts nothing after a prefix.
        path: layers until the last token has seen the first (C-17); None if it never does, or if that is unknown.
        steps: sequential operations on that path: one for a layer, and one for each token in a recurrent layer (L1-75);
            None if there is no path.
        unknown: custom modules that cannot run on the meta device, and are not counted.
    """

    batch: int
    length: int
    parts: Mapping[str, int]
    layer: Mapping[str, int]
    forward: int
    training: int
    per_token: float
    quadratic_share: float
    crossover: float | None
    counted: Mapping[str, int]
    deck: tuple[Line, ...]
    prefix_rows: tuple[int, int] | None
    path: int | None
    steps: int | None
    unknown: tuple[str, ...]

    def _lines(self) -> Iterator[str]:
        yield f"FLOPs of a forward pass, batch {self.batch:,}, length {self.length:,}: {self.forward:,}"
        yield from (f"  {number:>22,}  {part}" for part, number in largest(self.parts, 3))


@checked(batch=at_least(1), length=at_least(1))
def flops(config: TransformerConfig, batch: int = 1, length: int | None = None) -> Flops:
    """The FLOPs of the model that a config describes.

    Args:
        length: tokens in a row; None: the config's context. It may exceed the learned positions.
    """
    length = config.context if length is None else length
    steps = walk(config, batch, length)
    parts, layer = steps.by_part(), steps.first_layer().by_part()
    total = sum(parts.values())
    blocks = config.last()[1].blocks
    layers_to_first = path([looks_back(block, config.decoder is not None) for block in blocks], length)
    square = layer[SCORES] + layer[WEIGHTED_SUM]
    straight = sum(layer.values()) - square
    count = _counts(config, batch, length)
    return Flops(
        batch=batch,
        length=length,
        parts=parts,
        layer=layer,
        forward=total,
        training=TRAINING * total,
        per_token=TRAINING * total / (batch * length),
        quadratic_share=square / max(1, square + straight),
        crossover=straight * length / square if square else None,
        counted=count,
        deck=_deck(config, batch, length, parts, layer, count) if deck_applies(config) else (),
        prefix_rows=None if config.decoder is None else prefix_rows(length),
        path=layers_to_first,
        steps=None if layers_to_first is None else sequential_steps(blocks[:layers_to_first], length),
        unknown=steps.unknown(),
    )


def _counts(config: TransformerConfig, batch: int, length: int) -> dict[str, int]:
    """The result of torch's counter for each relevant kernel that supports the model."""
    kernels = kernels_by_device(config, length)
    if not kernels:
        return {"none": counted(config, batch, length, None)}
    flops_by_kernel = {}
    for kernel in dict.fromkeys(("sdpa", *kernels.values())):
        try:
            flops_by_kernel[kernel] = counted(config, batch, length, kernel)
        except HeddleError:  # the kernel lacks a feature, such as capped scores in sdpa
            continue
    return flops_by_kernel


@checked(length=at_least(1), targets=between(0, 1), trained=between(0, 1))
def training_flops_per_token(config: TransformerConfig, length: int, targets: float = 1.0, trained: float = 1.0) -> int:
    """FLOPs of forward and backward for one token of a sequence of `length`, including the head.

    Args:
        config: the model.
        length: tokens of a sequence.
        targets: share of the tokens that a head of tokens scores.
        trained: share of the parameters that are trained; the others need no gradient.
    """
    parts = walk(config, 1, length).by_part()
    scored = targets if isinstance(config.head, LanguageHeadConfig) else 1.0
    forward = sum(count * (scored if part == HEAD else 1.0) for part, count in parts.items())
    return round((TRAINING - 1 + trained) * forward / length)


def looks_back(block: BlockConfig, causal: bool = True) -> Sequence[int] | None:
    """How many tokens back a layer can look, as a list of distances; None: to the beginning.

    An encoder also looks ahead, at negative distances. A custom mixer is treated as if it saw only the token itself.
    """
    mixer = block.mixer
    if isinstance(mixer, AttentionConfig):
        return None if mixer.window is None else range(0 if causal else 1 - mixer.window, mixer.window)
    if isinstance(mixer, ConvolutionConfig):
        return distances(mixer.taps, mixer.dilation, centred=not causal)
    if isinstance(mixer, LinearConfig):
        return distances(mixer.taps, centred=not causal)
    return None if isinstance(mixer, RecurrentConfig | LatentConfig) else range(1)


def path(layers: Sequence[Sequence[int] | None], length: int) -> int | None:
    """Layers until the last of `length` tokens has seen the first, given how far back each layer looks (L1-75, C-17).

    1 for attention without a window, and None if all layers together do not reach that far.
    """
    seen = torch.zeros(length, dtype=torch.bool)
    seen[-1] = True
    for number, distances_back in enumerate(layers):
        if seen[0]:
            return number
        if distances_back is None:
            return number + 1
        reached = seen.nonzero().flatten()
        # Windows are long: mark ranges by their edges instead of listing positions.
        if isinstance(distances_back, range) and distances_back.step == 1:
            edges = torch.zeros(length + 1, dtype=torch.long)
            edges.index_add_(0, (reached - distances_back[-1]).clamp(min=0), torch.ones_like(reached))
            edges.index_add_(0, (reached - distances_back[0] + 1).clamp(max=length), -torch.ones_like(reached))
            seen = edges.cumsum(0)[:-1] > 0
        else:
            positions = reached[:, None] - torch.tensor(list(distances_back))
            seen[positions[(positions >= 0) & (positions < length)]] = True
    return len(layers) if seen[0] else None


def sequential_steps(layers: Sequence[BlockConfig], length: int) -> int:
    """Sequential operations in these layers: n for a recurrent one, 1 for any other (C-17)."""
    return sum(length if isinstance(block.mixer, RecurrentConfig) else 1 for block in layers)


def _deck(
    config: TransformerConfig,
    batch: int,
    length: int,
    parts: Mapping[str, int],
    layer: Mapping[str, int],
    count: Mapping[str, int],
) -> tuple[Line, ...]:
    """The lectures' closed forms for this batch and length, with the walk's results."""
    dim = config.dim
    lines = [
        Line(f"{name}, one layer", formula, batch * value, layer[name])
        for name, (formula, value) in layer_flops(length, dim).items()
    ]
    layer_total = sum(line.value for line in lines)
    head = batch * 2 * length * dim * config.vocab_size
    total = sum(parts.values())
    lines.append(Line("one layer", "24nd² + 4n²d", layer_total, sum(layer.values())))
    lines.append(Line("head", "2ndV", head, parts[HEAD]))
    lines.append(Line("forward", "L(24nd² + 4n²d) + 2ndV", config.last()[1].depth * layer_total + head, total))
    last = config.last()[1]
    square_only = last.prefix or any(looks_back(block) is not None for block in last.blocks)
    if "plain" in count and length % BLOCK == 0 and config.decoder is not None and not square_only:
        square = parts[SCORES] + parts[WEIGHTED_SUM]
        remaining = round(causal_share(length, BLOCK) * square)
        lines.append(Line("attention, blocks skipped", "(n + b)/2n", remaining, count["plain"] - (total - square)))
    return tuple(lines)
