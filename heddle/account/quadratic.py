"""Memory of attention as sequences become longer: n² against n·d, next to the lectures' closed forms."""

from collections.abc import Iterable
from dataclasses import dataclass

from heddle.account.formulas import Line, flash_bytes, score_bytes
from heddle.account.forward import attentions
from heddle.account.walk import FEED_FORWARD, PROJECTIONS, SCORES, WEIGHTED_SUM, Walk, walk
from heddle.checks import at_least, checked, one_of
from heddle.config.layers import AttentionConfig
from heddle.config.model import TransformerConfig
from heddle.display import displayed
from heddle.model.precision import DTYPES

FP32 = 4


@displayed()
@dataclass(frozen=True)
class AttentionRow:
    """One layer's attention at one length, in bytes: its quadratic and its linear parts (L2-12, L2-16).

    Attributes:
        scores: all score matrices at once, B·H·n²·bytes (C-08).
        flash: the state of a blockwise kernel instead, n·d·bytes + 2·H·n·4 for each row of the batch (C-09).
        qkvo: queries, keys, values and output (C-11).
        quadratic_share: scores and weighted sum over the whole layer's FLOPs (C-06).
    """

    length: int
    scores: int
    flash: int
    qkvo: int
    quadratic_share: float


def doublings(length: int) -> tuple[int, ...]:
    """1,024, 2,048, 4,096, 8,192, 131,072 and this length, in order."""
    return tuple(sorted({1024, 2048, 4096, 8192, length, 131_072}))


@checked(batch=at_least(1), precision=one_of(DTYPES))
def attention_table(
    config: TransformerConfig, lengths: Iterable[int], batch: int = 1, precision: str = "fp32"
) -> tuple[AttentionRow, ...]:
    """One layer's attention at each length, from the walk: n² against n·d. Empty if no layer has attention."""
    width = DTYPES[precision].itemsize
    single = one_layer(config)
    if single is None:
        return ()
    return tuple(attention_row(walk(single, batch, length).first_layer(), width) for length in lengths)


def attention_row(layer: Walk, width: int) -> AttentionRow:
    """The attention of one layer, with numbers of `width` bytes."""
    parts = layer.by_part()
    scores = sum(product.numbers for product in layer.products(SCORES))
    output = sum(product.numbers for product in layer.products(WEIGHTED_SUM))
    inputs = sum(product.numbers for product in layer.products(PROJECTIONS) if not product.name.endswith(".o"))
    running = sum(2 * product.rows * FP32 for product in layer.products(SCORES))
    share = (parts[SCORES] + parts[WEIGHTED_SUM]) / sum(parts.values())
    return AttentionRow(layer.length, scores * width, output * width + running, (inputs + output) * width, share)


def one_layer(config: TransformerConfig) -> TransformerConfig | None:
    """The model with one layer in each stack: under the head, the first with attention. None if no layer has attention."""
    last, stacks = config.last()[0], {}
    for name, stack in config.stacks().items():
        blocks = stack.blocks
        if name == last:
            crossing = tuple(block for block in blocks if block.cross is not None)
            blocks = tuple(block for block in crossing or blocks if attentions(block))
            if not blocks:
                return None
        stacks[name] = stack.model_copy(update={"depth": 1, "blocks": blocks[:1]})
    return config.model_copy(update=stacks)


def deck(config: TransformerConfig, batch: int, length: int) -> tuple[Line, ...]:
    """The lectures' closed forms for one layer in fp32, next to the walk."""
    single, block = one_layer(config), config.last()[1].blocks[0]
    assert single is not None
    assert isinstance(block.mixer, AttentionConfig)
    layer = walk(single, batch, length).first_layer()
    row, hidden = attention_row(layer, FP32), layer.products(FEED_FORWARD)[0].numbers
    heads, width = block.mixer.heads, block.ffn.width(config.dim)  # type: ignore[union-attr]
    return (
        Line("all scores", "B·h·n²·4", score_bytes(length, heads, batch), row.scores),
        Line("blockwise state", "B·(n·d·4 + 2·h·n·4)", flash_bytes(length, config.dim, heads, batch), row.flash),
        Line("feed-forward, numbers", "B·n·d_MLP", batch * length * width, hidden),
    )
