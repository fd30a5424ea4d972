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
    (r"\b(query|W_q|w_q|wq|W_Q|q_proj|to_q)\b", "q"),
    (r"\b(key|W_k|w_k|wk|W_K|k_proj|to_k)\b", "k"),
    (r"\b(value|W_v|w_v|wv|W_V|v_proj|to_v)\b", "v"),
)


def homework_name(name: str) -> str:
    """A parameter's name in the homework's words: `attn.c_proj.weight` is `attention.o.weight`."""
    for pattern, word in ALIASES:
        name = re.sub(pattern, word, name)
    return name


def parts_of(name: str) -> tuple[str, ...]:
    """The parameters that a parameter holds: three for fused queries, keys and values, else itself."""
    head, fused, tail = name.rpartition("qkv.")
    return tuple(f"{head}{each}.{tail}" for each in "qkv") if fused else (name,)


@dataclass(frozen=True)
class Parameters:
    """A submission's parameters beside those of the homework.

    Attributes:
        places: for each of the submission's names, the homework's that it holds.
        missing: names of the homework that no parameter holds.
        extra: the submission's names that the homework does not have, with their shapes.
        misshapen: the submission's names whose shape is another: its own, and the expected one.
    """

    places: dict[str, tuple[str, ...]]
    missing: tuple[str, ...]
    extra: dict[str, Shape]
    misshapen: dict[str, tuple[Shape, Shape]]

    @property
    def are_right(self) -> bool:
        return not (self.missing or self.extra or self.misshapen)


def compare_parameters(shapes: Mapping[str, Shape], names: Iterable[tuple[tuple[str, ...], Shape]]) -> Parameters:
    """Compare a submission's parameters, each with all of its names and its shape, with those of the homework."""
    places: dict[str, tuple[str, ...]] = {}
    extra: dict[str, Shape] = {}
    misshapen: dict[str, tuple[Shape, Shape]] = {}
    missing = dict.fromkeys(shapes)
    for aliases, shape in names:
        fitting = [(each, parts_of(homework_name(each))) for each in aliases]
        name, parts = next((pair for pair in fitting if set(pair[1]) <= set(missing)), fitting[0])
        if not set(parts) <= set(missing):
            extra[name] = shape
            continue
        first = shapes[parts[0]]
        expected = (len(parts) * first[0], *first[1:])
        for part in parts:
            del missing[part]
        if shape == expected:
            places[name] = parts
        else:
            misshapen[name] = (shape, expected)
    return Parameters(places, tuple(missing), extra, misshapen)
