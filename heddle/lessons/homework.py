"""What a student writes for each part of the homework: a class, its parameters, and the file to start from."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Shape = tuple[int, ...]
DIM, HEADS, VOCABULARY, DEPTH, CONTEXT = 12, 3, 11, 2, 8  # sizes with which homework is graded

ATTENTION = '''import torch
from torch import nn
from torch.nn import functional as F


class CausalSelfAttention(nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = heads
        # Make self.q, self.k, self.v and self.o: each nn.Linear(dim, dim).

    def forward(self, x, layout=None):
        """x is [B, T, dim]: B texts of T tokens. Return [B, T, dim]. `layout` is for the last exercise: leave it alone."""
        raise NotImplementedError
'''
BLOCK = (
    ATTENTION
    + '''

class Block(nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        # Make self.norm1 and self.norm2 (nn.LayerNorm), self.attention (the class above),
        # self.up (nn.Linear from dim to 4 dim) and self.down (back).

    def forward(self, x, layout=None):
        """Pre-norm: what a branch reads is normed, what it returns is added. GELU stands between up and down."""
        raise NotImplementedError
'''
)
MODEL = (
    BLOCK
    + '''

class LanguageModel(nn.Module):
    def __init__(self, vocab, dim, heads, depth, context):
        super().__init__()
        # Make self.tokens and self.positions (nn.Embedding), self.blocks (nn.ModuleList of `depth` blocks)
        # and self.norm (nn.LayerNorm). The head has no matrix of its own: it is the table of tokens.

    def forward(self, ids):
        """ids is [B, T]. Return logits [B, T, vocab]."""
        raise NotImplementedError

    def loss(self, ids):
        """The mean surprise of each next token of ids [B, T], a number."""
        raise NotImplementedError
'''
)


def _linear(name: str, rows: int, columns: int) -> dict[str, Shape]:
    return {f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)}


def _norm(name: str) -> dict[str, Shape]:
    return {f"{name}.weight": (DIM,), f"{name}.bias": (DIM,)}


def _attention(prefix: str = "") -> dict[str, Shape]:
    shapes: dict[str, Shape] = {}
    for name in "qkvo":
        shapes |= _linear(prefix + name, DIM, DIM)
    return shapes


def _block(prefix: str = "") -> dict[str, Shape]:
    return {
        **_norm(prefix + "norm1"),
        **_attention(prefix + "attention."),
        **_norm(prefix + "norm2"),
        **_linear(prefix + "up", 4 * DIM, DIM),
        **_linear(prefix + "down", DIM, 4 * DIM),
    }


def _model() -> dict[str, Shape]:
    shapes: dict[str, Shape] = {"tokens.weight": (VOCABULARY, DIM), "positions.weight": (CONTEXT, DIM)}
    for index in range(DEPTH):
        shapes |= _block(f"blocks.{index}.")
    return shapes | _norm("norm")


@dataclass(frozen=True)
class Homework:
    """A part of the homework.

    Attributes:
        name: of the class that a student writes.
        arguments: what its constructor is called with.
        shapes: its parameters, by the names of the homework.
        template: the file to start from.
        rows: rows of the lectures that ask for it.
    """

    name: str
    arguments: Mapping[str, int]
    shapes: Mapping[str, Shape]
    template: str
    rows: tuple[str, ...]

    @property
    def call(self) -> str:
        """The constructor's call."""
        return f"{self.name}({', '.join(f'{name}={value}' for name, value in self.arguments.items())})"


SIZES = {"dim": DIM, "heads": HEADS}
HOMEWORK: dict[str, Homework] = {
    "attention": Homework("CausalSelfAttention", SIZES, _attention(), ATTENTION, ("L1-90",)),
    "block": Homework("Block", SIZES, _block(), BLOCK, ("L1-91",)),
    "model": Homework(
        "LanguageModel", {"vocab": VOCABULARY, **SIZES, "depth": DEPTH, "context": CONTEXT}, _model(), MODEL, ("L1-92",)
    ),
}

# Other names of the same things, the first that fits: those of nanoGPT, of torch, and of many courses.
ALIASES = (
    (r"^(transformer|model)\.", ""),
    (r"\bin_proj_(weight|bias)$", r"qkv.\1"),
    (r"\b(mlp|ffn|feed_forward|feedforward|ff)\.(net\.)?(c_fc|fc1|fc_in|linear1|w1|up|0)\b", "up"),
    (r"\b(mlp|ffn|feed_forward|feedforward|ff)\.(net\.)?(c_proj|fc2|fc_out|linear2|w2|down|2|3)\b", "down"),
    (r"\b(fc1|linear1|c_fc)\b", "up"),
    (r"\b(fc2|linear2)\b", "down"),
    (r"\b(attn|self_attn|self_attention|mha)\b", "attention"),
    (r"\b(ln_1|ln1|layer_norm1|norm_1)\b", "norm1"),
    (r"\b(ln_2|ln2|layer_norm2|norm_2)\b", "norm2"),
    (r"\b(ln_f|final_norm|norm_f|ln)\b", "norm"),
    (r"\b(h|layers)\.(?=\d)", "blocks."),
    (r"\b(wte|token_embedding|tok_emb|embedding)\b", "tokens"),
    (r"\b(wpe|position_embedding|pos_emb|position)\b", "positions"),
    (r"\b(c_attn|in_proj|to_qkv|Wqkv|W_qkv|w_qkv)\b", "qkv"),
    (r"\b(c_proj|out_proj|to_out|proj|out|W_o|w_o|wo|W_O|o_proj|output)\b", "o"),
    (r"\b(query|queries|W_q|w_q|wq|W_Q|q_proj|to_q)\b", "q"),
    (r"\b(key|keys|W_k|w_k|wk|W_K|k_proj|to_k)\b", "k"),
    (r"\b(value|values|W_v|w_v|wv|W_V|v_proj|to_v)\b", "v"),
)


def homework_name(name: str) -> str:
    """A parameter's name in the homework's words: `attn.c_proj.weight` is `attention.o.weight`."""
    for pattern, word in ALIASES:
        name = re.sub(pattern, word, name)
    return name


# A head's own matrix: `heads.0.q.weight`, or `q.0.weight`.
_OF_HEAD = re.compile(
    r"^(?P<head>.*?)(?:heads?\.(?P<index>\d+)\.(?P<name>[qkv])|(?P<list>[qkv])\.(?P<place>\d+))(?P<tail>\.\w+)$"
)


@dataclass(frozen=True)
class Place:
    """What a parameter, or a third of a fused one, holds: a parameter of the homework, or one head's rows of it."""

    name: str
    head: int | None = None

    def rows(self, count: int) -> slice:
        """Its rows, of `count`."""
        if self.head is None:
            return slice(0, count)
        return slice(self.head * count // HEADS, (self.head + 1) * count // HEADS)


def places_of(name: str) -> tuple[Place, ...]:
    """What a parameter holds, by its name in the homework's words: three for fused queries, keys and values."""
    if match := _OF_HEAD.match(name):
        letter, index = match["name"] or match["list"], match["index"] or match["place"]
        return (Place(f"{match['head']}{letter}{match['tail']}", int(index)),)
    head, fused, tail = name.rpartition("qkv.")
    return tuple(Place(f"{head}{each}.{tail}") for each in "qkv") if fused else (Place(name),)


@dataclass(frozen=True)
class Parameters:
    """A submission's parameters beside those of the homework.

    Attributes:
        places: for each of the submission's names, what it holds.
        missing: names of the homework that no parameter holds.
        extra: the submission's names that the homework does not have, with their shapes.
        misshapen: the submission's names whose shape is another: its own, and the expected one.
    """

    places: dict[str, tuple[Place, ...]]
    missing: tuple[str, ...]
    extra: dict[str, Shape]
    misshapen: dict[str, tuple[Shape, Shape]]


def compare_parameters(shapes: Mapping[str, Shape], names: Iterable[tuple[tuple[str, ...], Shape]]) -> Parameters:
    """Compare a submission's parameters, each with all of its names and its shape, with those of the homework."""
    places: dict[str, tuple[Place, ...]] = {}
    extra: dict[str, Shape] = {}
    misshapen: dict[str, tuple[Shape, Shape]] = {}
    missing = {name: set(range(shape[0])) for name, shape in shapes.items()}  # rows that no parameter holds yet

    def rows(place: Place) -> set[int]:
        count = shapes[place.name][0]
        return set(range(count)[place.rows(count)])

    def fits(parts: tuple[Place, ...]) -> bool:
        return all(part.name in shapes and rows(part) and rows(part) <= missing[part.name] for part in parts)

    is_inside = any(name.startswith("attention.") for name in shapes)
    for aliases, shape in names:
        own = {each: homework_name(each) for each in aliases}
        fitting = [
            (each, places_of(word if is_inside else word.removeprefix("attention."))) for each, word in own.items()
        ]
        name, parts = next((pair for pair in fitting if fits(pair[1])), fitting[0])
        if not fits(parts):
            extra[name] = shape
            continue
        expected = (sum(len(rows(part)) for part in parts), *shapes[parts[0].name][1:])
        for part in parts:
            missing[part.name] -= rows(part)
        if shape == expected:
            places[name] = parts
        else:
            misshapen[name] = (shape, expected)
    return Parameters(places, tuple(name for name, left in missing.items() if left), extra, misshapen)
