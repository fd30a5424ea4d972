"""Homework as students write it: right in several styles, and wrong in every known way.

A mistake is an edit of a right file. The edits are written by hand, beside and not by the table of faults, in the words of the
first style; `fused` renames a file into the words of the second.
"""

ATTENTION = """
import math

import torch
from torch import nn
from torch.nn import functional as F


class CausalSelfAttention(nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(dim, dim)
        self.k = nn.Linear(dim, dim)
        self.v = nn.Linear(dim, dim)
        self.o = nn.Linear(dim, dim)

    def forward(self, x, layout=None):
        B, T, D = x.shape
        d = D // self.heads
        q, k, v = self.q(x), self.k(x), self.v(x)
        q = q.view(B, T, self.heads, d).transpose(1, 2)
        k = k.view(B, T, self.heads, d).transpose(1, 2)
        v = v.view(B, T, self.heads, d).transpose(1, 2)
        scores = q @ k.transpose(-2, -1) / math.sqrt(d)
        later = torch.triu(torch.ones(T, T, dtype=torch.bool), diagonal=1)
        scores = scores.masked_fill(later, float("-inf"))
        weights = F.softmax(scores, dim=-1)
        y = weights @ v
        y = y.transpose(1, 2).contiguous().view(B, T, D)
        return self.o(y)
"""
BLOCK = (
    ATTENTION
    + """

class Block(nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attention = CausalSelfAttention(dim, heads)
        self.norm2 = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, 4 * dim)
        self.down = nn.Linear(4 * dim, dim)

    def forward(self, x, layout=None):
        h = x + self.attention(self.norm1(x))
        out = h + self.down(F.gelu(self.up(self.norm2(h))))
        return out
"""
)
MODEL = (
    BLOCK
    + """

class LanguageModel(nn.Module):
    def __init__(self, vocab, dim, heads, depth, context):
        super().__init__()
        self.tokens = nn.Embedding(vocab, dim)
        self.positions = nn.Embedding(context, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)

    def forward(self, ids):
        places = torch.arange(ids.shape[1])
        x = self.tokens(ids) + self.positions(places)
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.tokens.weight.T

    def loss(self, ids):
        logits = self(ids[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
"""
)
RIGHT = {"attention": ATTENTION, "block": BLOCK, "model": MODEL}

NORM = """
class Norm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        mean = x.mean({axis}, keepdim=True)
        var = x.var({axis}, keepdim=True, correction={correction})
        return {result}


class Block("""
NORMED = "(x - mean) / torch.sqrt(var + 1e-5)"

MASK = '        scores = scores.masked_fill(later, float("-inf"))\n'
LATER = "torch.triu(torch.ones(T, T, dtype=torch.bool), diagonal=1)"
SOFTMAX = "F.softmax(scores, dim=-1)"
SPLIT = ".view(B, T, self.heads, d).transpose(1, 2)"
JOIN = "y.transpose(1, 2).contiguous().view(B, T, D)"
FIRST = "h = x + self.attention(self.norm1(x))"
SECOND = "out = h + self.down(F.gelu(self.up(self.norm2(h))))"
EMBED = "x = self.tokens(ids) + self.positions(places)"
HEAD = "self.norm(x) @ self.tokens.weight.T"
CALL = "            x = block(x)"


def own_norm(
    result: str = NORMED + " * self.weight + self.bias", axis: int = -1, correction: int = 0
) -> list[tuple[str, str]]:
    """A norm that a student wrote, and both norms of a block made with it."""
    return [
        ("class Block(", NORM.format(axis=axis, correction=correction, result=result).lstrip()),
        ("self.norm1 = nn.LayerNorm", "self.norm1 = Norm"),
        ("self.norm2 = nn.LayerNorm", "self.norm2 = Norm"),
    ]


# By the name of a fault: the edits of a right file.
EDITS: dict[str, list[tuple[str, str]]] = {
    "no mask": [(MASK, "")],
    "mask upside down": [(LATER, "torch.tril(torch.ones(T, T, dtype=torch.bool), diagonal=-1)")],
    "mask multiplied": [("scores.masked_fill(later, float(\"-inf\"))", "scores * torch.tril(torch.ones(T, T))")],
    "zeros masked": [
        (MASK, "        scores = scores * torch.tril(torch.ones(T, T))\n" + MASK.replace("later", "scores == 0")),
    ],
    "mask after the softmax": [(MASK, ""), (SOFTMAX, SOFTMAX + " * torch.tril(torch.ones(T, T))")],
    "one token too many": [(LATER, LATER.replace("diagonal=1", "diagonal=2"))],
    "blind to itself": [(LATER, LATER.replace("diagonal=1", "diagonal=0"))],
    "softmax over the queries": [(SOFTMAX, "F.softmax(scores, dim=-2)")],
    "softmax that overflows": [(SOFTMAX, "torch.exp(scores) / torch.exp(scores).sum(-1, keepdim=True)")],
    "scale √D": [("math.sqrt(d)", "math.sqrt(D)")],
    "no scale": [(" / math.sqrt(d)", "")],
    "scale upside down": [(" / math.sqrt(d)", " * math.sqrt(d)")],
    "no W_O": [("return self.o(y)", "return y")],
    "heads interleaved": [(SPLIT, ".view(B, T, d, self.heads).permute(0, 3, 1, 2)")],
    "heads by view": [(SPLIT, ".reshape(B, self.heads, T, d)")],
    "heads joined by view": [(JOIN, "y.reshape(B, T, D)")],
    "values not projected": [("        q = q.view", "        v = x\n        q = q.view")],
    "queries and keys exchanged": [("q @ k.transpose(-2, -1)", "k @ q.transpose(-2, -1)")],
    "keys as values": [("weights @ v", "weights @ k")],
    "bias left out": [("self.o(y)", "y @ self.o.weight.T")],
    "dropout in evaluation": [("y = weights @ v", "y = F.dropout(weights, 0.1) @ v")],
    "batch and length exchanged": [
        ("        B, T, D = x.shape\n", "        x = x.transpose(0, 1)\n        B, T, D = x.shape\n"),
        ("return self.o(y)", "return self.o(y).transpose(0, 1)"),
    ],
    "norms after the sums": [
        (FIRST, "h = self.norm1(x + self.attention(x))"),
        (SECOND, "out = self.norm2(h + self.down(F.gelu(self.up(h))))"),
    ],
    "skip from the normed tensor": [
        (FIRST, "n = self.norm1(x)\n        h = n + self.attention(n)"),
        (SECOND, "m = self.norm2(h)\n        out = m + self.down(F.gelu(self.up(m)))"),
    ],
    "no skip around attention": [(FIRST, FIRST.replace("x + ", ""))],
    "no skip around the MLP": [(SECOND, SECOND.replace("h + ", ""))],
    "no norm before attention": [(FIRST, "h = x + self.attention(x)")],
    "no norm before the MLP": [("self.norm2(h)", "h")],
    "one norm twice": [("self.norm2(h)", "self.norm1(h)")],
    "no activation": [("F.gelu(self.up(self.norm2(h)))", "self.up(self.norm2(h))")],
    "ReLU for GELU": [("F.gelu(", "torch.relu(")],
    "tanh form of GELU": [("self.norm2(h)))", "self.norm2(h)), approximate=\"tanh\")")],
    "MLP before attention": [
        (FIRST, "h = x + self.down(F.gelu(self.up(self.norm1(x))))"),
        (SECOND, "out = h + self.attention(self.norm2(h))"),
    ],
    "branches side by side": [("self.norm2(h)", "self.norm2(x)")],
    "input added twice": [("out = h + ", "out = x + h + ")],
    "variance over d - 1": own_norm(correction=1),
    "norm over the length": own_norm(axis=-2),
    "norm without gain and shift": own_norm(NORMED),
    "dropout after the sum": [("return out", "return F.dropout(out, 0.1)")],
    "positions left out": [(EMBED, "x = self.tokens(ids)")],
    "positions start at 1": [("torch.arange(ids.shape[1])", "torch.arange(1, ids.shape[1] + 1)")],
    "embedding times √D": [("self.tokens(ids) +", "self.tokens(ids) * math.sqrt(self.tokens.weight.shape[1]) +")],
    "no last norm": [(HEAD, HEAD.replace("self.norm(x)", "x"))],
    "a head of its own": [
        ("        self.norm = nn.L", "        self.head = nn.Linear(dim, vocab, bias=False)\n        self.norm = nn.L"),
        (HEAD, "self.head(self.norm(x))"),
    ],
    "softmax inside": [(HEAD, f"F.softmax({HEAD}, dim=-1)")],
    "only the last row": [(HEAD, HEAD.replace("(x)", "(x[:, -1])"))],
    "one block for all layers": [(CALL, "            x = self.blocks[0](x)")],
    "positions in every block": [(EMBED, "x = self.tokens(ids)"), (CALL, "            x = block(x + self.positions(places))")],
    "last block left out": [("for block in self.blocks:", "for block in self.blocks[:-1]:")],
    "target is the input": [("self(ids[:, :-1])", "self(ids)[:, :-1]"), ("ids[:, 1:].flatten()", "ids[:, :-1].flatten()")],
    "target two ahead": [("self(ids[:, :-1])", "self(ids[:, :-2])"), ("ids[:, 1:].flatten()", "ids[:, 2:].flatten()")],
    "sum instead of mean": [("ids[:, 1:].flatten())", "ids[:, 1:].flatten(), reduction=\"sum\")")],
    "softmax twice": [("logits.flatten(0, 1)", "logits.flatten(0, 1).softmax(-1)")],
}  # fmt: skip

# The same file in the words of nanoGPT, with fused queries, keys and values.
FUSED = (
    (
        "        self.q = nn.Linear(dim, dim)\n        self.k = nn.Linear(dim, dim)\n        self.v = nn.Linear(dim, dim)\n",
        "        self.c_attn = nn.Linear(dim, 3 * dim)\n",
    ),
    ("q, k, v = self.q(x), self.k(x), self.v(x)", "q, k, v = self.c_attn(x).split(D, dim=2)"),
    ("self.o", "self.c_proj"),
    ("        self.up = nn.Linear(dim, 4 * dim)\n", ""),
    (
        "        self.down = nn.Linear(4 * dim, dim)\n",
        "        self.mlp = nn.ModuleDict({'c_fc': nn.Linear(dim, 4 * dim), 'c_proj': nn.Linear(4 * dim, dim)})\n",
    ),
    ("self.up", "self.mlp.c_fc"),
    ("self.down", "self.mlp.c_proj"),
    ("self.norm1", "self.ln_1"),
    ("self.norm2", "self.ln_2"),
    ("self.attention", "self.attn"),
    ("self.blocks", "self.h"),
    ("self.tokens", "self.wte"),
    ("self.positions", "self.wpe"),
    ("self.norm", "self.ln_f"),
)


def edited(source: str, edits: list[tuple[str, str]]) -> str:
    """A source with edits, each of which must change something."""
    for old, new in edits:
        assert old in source, old
        source = source.replace(old, new)
    return source


def fused(source: str) -> str:
    """The same in the words of the second style."""
    for old, new in FUSED:
        source = source.replace(old, new)
    return source
