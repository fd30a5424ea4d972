"""The laws, each a function of a model or a config that raises AssertionError where the law is broken.

They are functions, so that the same law can be shown to hold of every combination and to break under planted bugs.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import inf

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from heddle.config import AttentionConfig, BlockConfig, LayerNormConfig, MLPConfig, TransformerConfig
from heddle.config.model import with_kernel
from heddle.model import Stack, Transformer
from heddle.nn import KERNELS, Attention, Block, Causal, Everything, Layout, Mask, Pattern, Setting
from heddle.nn.moe import MoE
from tests.laws.models import CONTEXT, VOCABULARY, awake, distances, others_than, tokens_of

EXACT = 1e-11  # float64, sums in another order


def close(actual: Tensor, expected: Tensor, tolerance: float = EXACT, what: str = "") -> None:
    """All elements within a tolerance, which is absolute where values are of the order of 1 and grows with the largest."""
    largest = float(expected.detach().abs().max()) if expected.numel() else 1.0
    tolerance *= max(1.0, largest)
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance, msg=lambda text: f"{what}: {text}")


def identical(actual: Tensor, expected: Tensor, what: str = "") -> None:
    """Bit for bit."""
    assert torch.equal(actual, expected), f"{what}: differ by up to {(actual - expected).abs().max():.3g}"


def same(model: Transformer, actual: Tensor, expected: Tensor, what: str = "") -> None:
    """Bit for bit, or, with experts, to the last digits.

    An expert's product has as many rows as there are tokens that chose it; other tokens choose otherwise, and a product of
    another height may add in another order.
    """
    if any(isinstance(module, MoE) for module in model.modules()):
        close(actual, expected, what=what)
    else:
        identical(actual, expected, what)


def stepped(model: Transformer, tokens: Tensor, cuts: Sequence[int]) -> Tensor:
    """Hidden vectors of `tokens`, through a cache, in pieces that end at `cuts`."""
    cache = model.new_cache(tokens.shape[0])
    bounds = [0, *cuts, tokens.shape[1]]
    pieces = [model(tokens[:, start:stop], cache=cache).hidden for start, stop in pairwise(bounds) if stop > start]
    return torch.cat(pieces, dim=1)


# What a decoder sees


@torch.no_grad()
def later_tokens_change_nothing(model: Transformer, length: int = 7) -> None:
    """Changing token t leaves logits before t bit-identical, and changes those after it as far as mixers reach (L0-87)."""
    tokens, reached = tokens_of(2, length), distances(model.config, length)
    # One pass for all: copy t of the rows has another token at t.
    changed = tokens.repeat(length, 1, 1)
    for t in range(length):
        changed[t, :, t] = others_than(tokens[:, t])
    befores, afters = (model.logits(model(each).hidden) for each in (tokens.repeat(length, 1), changed.flatten(0, 1)))
    for t, (before, after) in enumerate(zip(befores.split(2), afters.split(2), strict=True)):
        same(model, after[:, :t], before[:, :t], f"logits before the changed token {t}")
        for later in range(t, length):
            what = f"token {t} and position {later}"
            if later - t in reached:
                assert not torch.equal(after[:, later], before[:, later]), what
            else:
                same(model, after[:, later], before[:, later], what)


def gradients_stay_in_the_past(model: Transformer, length: int = 7) -> None:
    """d logits[s] / d embedding[t] is 0 for t > s and beyond the mixers' reach, and not 0 within it (L0-87)."""
    reached = distances(model.config, length)
    x = model.embedding(tokens_of(2, length)).detach().requires_grad_()
    logits = model.logits(model.decoder(x, Layout.plain(2, length)).hidden)[..., :VOCABULARY]
    direction = torch.randn(VOCABULARY, dtype=x.dtype, generator=torch.Generator().manual_seed(3))
    for s in range(length):
        (gradient,) = torch.autograd.grad((logits[:, s] @ direction).sum(), x, retain_graph=True)
        assert (gradient[:, s + 1 :] == 0).all(), f"logits at {s} depend on later tokens"
        for t in range(s + 1):
            assert (gradient[:, t].abs().amax(-1) > 0).all() == (s - t in reached), f"logits at {s}, token {t}"


@torch.no_grad()
def prefixes_are_prefixes(model: Transformer, length: int = 8) -> None:
    """f(x[:t]) = f(x)[:t]: training predicts what generation will (L0-01)."""
    tokens = tokens_of(2, length)
    whole = model(tokens).hidden
    for t in (1, 2, 5, 7):
        close(model(tokens[:, :t]).hidden, whole[:, :t], what=f"prefix of {t}")


# The cache


@torch.no_grad()
def cached_is_uncached(model: Transformer, length: int, cuts: Sequence[int], tolerance: float = EXACT) -> None:
    """Hidden vectors through a cache are those of one pass, wherever the text is cut (L2-08)."""
    tokens = tokens_of(2, length)
    close(stepped(model, tokens, cuts), model(tokens).hidden, tolerance, f"cut at {list(cuts)}")


@torch.no_grad()
def rows_together_are_rows_alone(model: Transformer, steps: Sequence[Sequence[int]]) -> None:
    """`steps[i][b]` new tokens of row b in call i: each row gives what it gives alone, in one pass, whatever fills it up."""
    rows = len(steps[0])
    totals = [sum(step[row] for step in steps) for row in range(rows)]
    texts = [tokens_of(1, max(total, 1), seed=50 + row)[0] for row, total in enumerate(totals)]
    cache, done, found = model.new_cache(rows), [0] * rows, [[] for _ in range(rows)]
    for number, counts in enumerate(steps):
        fed = tokens_of(rows, max(counts), seed=number)  # what is not overwritten is padding
        for row, count in enumerate(counts):
            fed[row, :count] = texts[row][done[row] : done[row] + count]
        hidden = model(fed, cache.advance(counts), cache=cache).hidden
        for row, count in enumerate(counts):
            found[row].append(hidden[row, :count])
            done[row] += count
    assert cache.lengths == totals
    for row, total in enumerate(totals):
        if total:
            close(torch.cat(found[row]), model(texts[row][None, :total]).hidden[0], what=f"row {row} of {steps}")


@torch.no_grad()
def forks_are_independent(model: Transformer) -> None:
    """Rows of a cache can be dropped, reordered and doubled; each goes on as if alone, and the old cache is untouched."""
    tokens, rows = tokens_of(3, 6), [2, 0, 2]
    cache = model.new_cache(3)
    model(tokens, cache=cache)
    chosen = cache.select(rows)
    more = tokens_of(3, 3, seed=9)
    found = model(more, cache=chosen).hidden
    close(found, model(torch.cat((tokens[rows], more), dim=1)).hidden[:, 6:], what="the fork")
    last = tokens_of(3, 1, seed=10)
    close(model(last, cache=cache).hidden, model(torch.cat((tokens, last), dim=1)).hidden[:, 6:], what="the old cache")
    assert (cache.lengths, chosen.lengths) == ([7, 7, 7], [9, 9, 9])


@torch.no_grad()
def joined_rows_are_rows_alone(model: Transformer) -> None:
    """Rows that come in later stand beside older ones of another length and capacity."""
    old, new, more = tokens_of(1, 70), tokens_of(2, 5, seed=5), tokens_of(3, 2, seed=6)
    first, second = model.new_cache(1), model.new_cache(2)
    model(old, cache=first)
    model(new, cache=second)
    both = second.join(first)
    found = model(more, cache=both).hidden
    close(found[:2], model(torch.cat((new, more[:2]), dim=1)).hidden[:, 5:], what="the new rows")
    close(found[2:], model(torch.cat((old, more[2:]), dim=1)).hidden[:, 70:], what="the old row")


# Padding and packing


@torch.no_grad()
def padding_changes_nothing(model: Transformer, side: str, lengths: Sequence[int] = (4, 7, 0)) -> None:
    """Rows filled up give what they give alone; which ids fill them changes no bit (L0-19, L0-20)."""
    width = max(lengths)
    tokens = tokens_of(len(lengths), width)
    layout = Layout.padded(lengths, width, side)
    real = layout.segment >= 0
    hidden = model(tokens, layout).hidden
    for row, length in enumerate(lengths):
        if length:
            close(
                hidden[row, real[row]], model(tokens[row, real[row]][None]).hidden[0], what=f"row of {length}, {side}"
            )
    refilled = torch.where(real, tokens, others_than(tokens))
    same(model, model(refilled, layout).hidden[real], hidden[real], "other padding")


def padding_sees_nothing(model: Transformer, layout: Layout) -> None:
    """What attention gives a padded query is exactly 0, and every gradient is finite (D-10, L2-07)."""
    outputs: list[Tensor] = []
    kernels = [block.mixer.kernel for block in model.decoder.layers() if isinstance(block.mixer, Attention)]
    hooks = [kernel.register_forward_hook(lambda module, inputs, output: outputs.append(output)) for kernel in kernels]
    x = model.embedding(tokens_of(layout.rows, layout.width)).detach().requires_grad_()
    hidden = model.decoder(x, layout).hidden
    for hook in hooks:
        hook.remove()
    padded = layout.segment < 0
    assert len(outputs) == len(kernels)
    for output in outputs:
        seen = output.transpose(1, 2)
        assert (seen[padded] == 0).all(), "attention gives a padded query something"
        assert (seen[~padded] != 0).any(-1).any(-1).all(), "attention gives a real query nothing"
    assert hidden.isfinite().all()
    hidden.square().sum().backward()
    gradients = [x.grad, *(parameter.grad for name, parameter in model.decoder.named_parameters())]
    assert all(gradient is None or gradient.isfinite().all() for gradient in gradients), "a gradient is not finite"
    model.zero_grad()


def gradients_pass_padding_by(model: Transformer, side: str) -> None:
    """Real tokens' outputs have exactly no gradient to padded embeddings."""
    layout = Layout.padded((3, 6), 6, side)
    x = model.embedding(tokens_of(2, 6)).detach().requires_grad_()
    real = layout.segment >= 0
    model.decoder(x, layout).hidden[real].square().sum().backward()
    assert x.grad is not None
    assert (x.grad[~real] == 0).all()
    assert (x.grad[real].abs().amax(-1) > 0).all()
    model.zero_grad()


@torch.no_grad()
def packed_is_separate(model: Transformer) -> None:
    """Documents side by side give what each gives alone; changing one leaves every bit of the others."""
    lengths = [[3, 5], [2, 2, 4], [8], []]
    tokens = tokens_of(4, 9)
    layout = Layout.packed(lengths, 9)
    hidden = model(tokens, layout).hidden
    for row, documents in enumerate(lengths):
        for number in range(len(documents)):
            place = layout.segment[row] == number
            close(hidden[row, place], model(tokens[row, place][None]).hidden[0], what=f"document {number} of row {row}")
    for number in range(max(map(len, lengths))):
        changed = layout.segment == number
        again = model(torch.where(changed, others_than(tokens), tokens), layout).hidden
        same(model, again[~changed], hidden[~changed], f"beside document {number} of every row")


# Equal models


def gradients_of(model: Transformer, layout: Layout) -> tuple[Tensor, dict[str, Tensor]]:
    """Hidden vectors of the real tokens, and a gradient for every parameter."""
    model.zero_grad()
    hidden = model(tokens_of(layout.rows, layout.width), layout).hidden[layout.segment >= 0]
    weights = torch.randn(hidden.shape, dtype=hidden.dtype, generator=torch.Generator().manual_seed(4))
    (hidden * weights).sum().backward()
    found = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    return hidden.detach(), found


def kernels_agree(config: TransformerConfig, layout: Layout) -> None:
    """The same weights give the same hidden vectors and gradients with every kernel."""
    wanted_hidden, wanted = gradients_of(awake(with_kernel(config, "reference")), layout)
    capped = config.decoder.block.mixer.cap is not None
    config = config.override({"decoder.block.mixer.dropout": 0.0})  # some kernels refuse it; here it is off anyway
    for kernel in KERNELS:
        if kernel == "sdpa" and capped:  # it says that it cannot
            continue
        hidden, found = gradients_of(awake(with_kernel(config, kernel)), layout)
        close(hidden, wanted_hidden, what=kernel)
        assert found.keys() == wanted.keys()
        for name, gradient in found.items():
            scale = max(1.0, float(wanted[name].abs().max()))
            close(gradient / scale, wanted[name] / scale, what=f"{kernel}: gradient of {name}")


@torch.no_grad()
def grouped_is_copied(config: TransformerConfig) -> None:
    """Grouped-query attention is multi-head attention whose key and value heads are copies (Ainslie et al. 2023)."""
    grouped = awake(config)
    mixer = config.decoder.block.mixer
    full = awake(config.override({"decoder.block.mixer.kv_heads": None}))
    weights = grouped.state_dict()
    for name, weight in weights.items():
        for letter in ("k", "v"):
            if f".mixer.{letter}." in name:
                heads = weight.unflatten(0, (mixer.key_heads(), -1))
                weights[name] = heads.repeat_interleave(mixer.heads // mixer.key_heads(), dim=0).flatten(0, 1)
    full.load_state_dict(weights)
    tokens = tokens_of(2, 6)
    close(grouped(tokens).hidden, full(tokens).hidden, what="copied heads")


@torch.no_grad()
def only_distances_count(model: Transformer) -> None:
    """Without absolute positions, moving a whole text along changes nothing."""
    tokens = tokens_of(2, 8)
    here = Layout.plain(2, 8)
    there = Layout(here.position + 13, here.segment, "packed")
    close(model(tokens, there).hidden, model(tokens).hidden, 1e-3, "moved by 13")  # angles are fp32


@torch.no_grad()
def order_matters(config: TransformerConfig) -> None:
    """Positions alone tell 'dog bites man' from 'man bites dog' (L1-05, L2-54).

    Every token sees every other, so no mask says what came first; yet no vector of the one text is among those of the other.
    """
    stack, table, layout = open_stack(config), awake(config).embedding, Layout.plain(1, 4)
    first, second = (stack(table(torch.tensor([ids])), layout).hidden[0] for ids in ([1, 2, 3, 4], [3, 2, 1, 4]))
    assert (first[:, None] - second).abs().amax(-1).min() > 1e-3


@torch.no_grad()
def evaluation_repeats(model: Transformer) -> None:
    """Nothing is drawn in evaluation: two passes are bit-identical (L0-66)."""
    tokens = tokens_of(2, 8)
    identical(model(tokens).hidden, model(tokens).hidden, "a second pass")


@torch.no_grad()
def stack_is_its_blocks(model: Transformer) -> None:
    """Entry, blocks one by one and final norm give the model's own output; all keep the shape [B T D] (L0-24, L0-25).

    Of a model with one stack. Only the first block is given embeddings, also in an encoder (L3-26).
    """
    tokens = tokens_of(2, 6)
    layout = Layout.plain(2, 6)
    (config,) = model.config.stacks().values()
    stack = model.encoder if model.decoder is None else model.decoder
    states = [stack.entry(model.embedding(tokens), layout)]
    for block, scope in zip(stack.layers(), stack.scopes(layout), strict=True):
        states.append(block(states[-1], scope).hidden)
        assert not torch.equal(states[-1], states[-2])
    assert [state.shape for state in states] == [(2, 6, model.config.dim)] * (config.depth + 1)
    identical(stack.final_norm(states[-1]), model(tokens).hidden, "block by block")
    for number, (kept, state) in enumerate(zip(model.states(tokens), states, strict=True)):
        identical(kept, state, f"state {number} of {config.depth + 1}")


# The head


def extra_entries_do_not_exist(config: TransformerConfig) -> None:
    """A padded table gives the same loss as a cut one; its extra rows are never likely and never learn (L0-86, D-13)."""
    wide = awake(config)
    rows = config.table_rows()
    assert rows > config.vocab_size
    # As many tokens as the vocabulary has: the two must not be taken for each other.
    tokens, targets = tokens_of(2, VOCABULARY), tokens_of(2, VOCABULARY, seed=2)
    logits = wide.logits(wide(tokens).hidden)
    assert logits.shape[-1] == rows
    assert (logits[..., VOCABULARY:] == -inf).all()
    assert logits[..., :VOCABULARY].isfinite().all()
    assert (logits.softmax(-1)[..., VOCABULARY:] == 0).all()
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    loss.backward()
    bias = wide.language_head().bias
    for table in (wide.embedding.weight, wide.head_weight(), *([] if bias is None else [bias])):
        assert table.grad is not None
        assert (table.grad[VOCABULARY:] == 0).all()
        assert (table.grad[:VOCABULARY] != 0).any()
    narrow = awake(config.override({"pad_vocab_to": 1}))
    weights = wide.state_dict()
    for name in weights.keys() & {"embedding.weight", "head.weight", "head.bias"}:
        weights[name] = weights[name][:VOCABULARY]
    narrow.load_state_dict(weights)
    close(F.cross_entropy(narrow.logits(narrow(tokens).hidden).flatten(0, 1), targets.flatten()), loss, what="loss")


# Masks and states by themselves


def mask_is_its_questions(mask: Mask) -> None:
    """`dense` is what `__call__` answers for every pair of slots."""
    rows, queries, keys = mask.queries.rows, mask.queries.width, mask.keys.width
    dense = mask.dense().expand(rows, 1, queries, keys)
    for row in range(rows):
        for query in range(queries):
            for key in range(keys):
                answer = mask(torch.tensor(row), torch.tensor(query), torch.tensor(key))
                assert bool(answer) == bool(dense[row, 0, query, key]), (row, query, key)


def kernel_keeps_to_the_mask(
    kernel: str, rule: Causal | Everything, queries: Layout, keys: Layout, dtype: torch.dtype
) -> None:
    """One kernel against the plain definition in float64: outputs and gradients, for these layouts."""
    generator = torch.Generator().manual_seed(6)
    shapes = ((4, queries.width, 6), (2, keys.width, 6), (2, keys.width, 3))
    exact = [torch.randn(queries.rows, *shape, generator=generator, dtype=torch.float64) for shape in shapes]
    inputs = [tensor.to(dtype) for tensor in exact]
    mask = Mask(rule, queries, keys)
    weights = torch.randn(queries.rows, 4, queries.width, 3, generator=generator, dtype=torch.float64)

    def run(name: str, tensors: Sequence[Tensor]) -> list[Tensor]:
        leaves = [tensor.detach().requires_grad_() for tensor in tensors]
        module = KERNELS[name](0.4)
        output = module(*leaves, module.lower(mask))
        assert output.dtype == leaves[0].dtype
        return [output.detach(), *torch.autograd.grad((output * weights.to(output.dtype)).sum(), leaves)]

    # Stated tolerances. The definition gets the same rounded inputs; what is left is rounding inside.
    tolerance = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 6e-2}[dtype]
    wanted = definition([tensor.double() for tensor in inputs], mask, weights)
    for what, found, right in zip(("output", "dq", "dk", "dv"), run(kernel, inputs), wanted, strict=True):
        scale = max(1.0, float(right.abs().max()))
        close(found.double() / scale, right / scale, tolerance, f"{kernel} {what}")


def definition(inputs: Sequence[Tensor], mask: Mask, weights: Tensor) -> list[Tensor]:
    """Attention as a sum written out query by query: the output, and its gradients weighted by `weights`."""
    q, k, v = (tensor.detach().requires_grad_() for tensor in inputs)
    allowed = mask.dense().expand(q.shape[0], 1, q.shape[2], k.shape[2])
    group = q.shape[1] // k.shape[1]
    rows = []
    for row in range(q.shape[0]):
        heads = []
        for head in range(q.shape[1]):
            shared = head // group
            # exp of the score where the key is allowed, 0 elsewhere; scores are small enough not to need a maximum.
            power = (0.4 * q[row, head] @ k[row, shared].T).exp() * allowed[row, 0]
            total = power.sum(-1, keepdim=True)
            heads.append((power / torch.where(total == 0, 1.0, total)) @ v[row, shared])
        rows.append(torch.stack(heads))
    output = torch.stack(rows)
    return [output.detach(), *torch.autograd.grad((output * weights).sum(), (q, k, v))]


# Witnesses from outside


@torch.no_grad()
def attention_is_torchs(rule: Causal | Everything, kernel: str, dim: int = 12, heads: int = 3) -> None:
    """The same numbers as `torch.nn.MultiheadAttention`, with its weights."""
    theirs = torch.nn.MultiheadAttention(dim, heads, batch_first=True, dtype=torch.float64)
    torch.nn.init.normal_(theirs.in_proj_bias)
    torch.nn.init.normal_(theirs.out_proj.bias)
    ours = Attention(AttentionConfig(heads=heads, kernel=kernel), Setting(dim)).double()
    load_torchs_attention(ours, theirs)
    x = torch.randn(2, 5, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    layout = Layout.plain(2, 5)
    found = ours(x, Pattern(rule, kernel=kernel).scope(layout, layout))
    blocked = ~torch.ones(5, 5, dtype=torch.bool).tril() if rule == Causal() else None
    close(found, theirs(x, x, x, attn_mask=blocked, need_weights=False)[0], what="torch.nn.MultiheadAttention")


def load_torchs_attention(ours: nn.Module, theirs: nn.MultiheadAttention) -> None:
    """Torch keeps queries, keys and values in one matrix."""
    for letter, weight, bias in zip("qkv", theirs.in_proj_weight.chunk(3), theirs.in_proj_bias.chunk(3), strict=True):
        getattr(ours, letter).load_state_dict({"weight": weight, "bias": bias})
    ours.o.load_state_dict(theirs.out_proj.state_dict())


@torch.no_grad()
def block_is_torchs(placement: str, activation: str, rule: Causal | Everything) -> None:
    """The same numbers as `torch.nn.TransformerEncoderLayer`, with its weights and `norm_first` as the placement says."""
    dim, heads, hidden = 12, 3, 20
    theirs = torch.nn.TransformerEncoderLayer(
        dim, heads, hidden, 0.0, activation, batch_first=True, norm_first=placement == "pre", dtype=torch.float64
    )
    for parameter in theirs.parameters():  # training mode, so that torch takes no fused path; nothing is dropped
        torch.nn.init.normal_(parameter, std=0.4)
    config = BlockConfig(
        mixer=AttentionConfig(heads=heads, kernel="reference"),
        ffn=MLPConfig.of({"hidden": hidden, "activation": activation}),
        norm=LayerNormConfig(),
        placement=placement,
    )
    ours = Block(config, Setting(dim)).double()
    load_torchs_attention(ours.mixer, theirs.self_attn)
    ours.ffn.up.load_state_dict(theirs.linear1.state_dict())
    ours.ffn.down.load_state_dict(theirs.linear2.state_dict())
    for residual, norm in ((ours.mixer_residual, theirs.norm1), (ours.ffn_residual, theirs.norm2)):
        (residual.before if placement == "pre" else residual.outside).load_state_dict(norm.state_dict())
    x = torch.randn(2, 5, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(8))
    layout = Layout.plain(2, 5)
    blocked = ~torch.ones(5, 5, dtype=torch.bool).tril() if rule == Causal() else None
    found = ours(x, Pattern(rule, kernel="reference").scope(layout, layout)).hidden
    close(found, theirs(x, src_mask=blocked), what="torch's layer")


@torch.no_grad()
def cross_block_is_torchs(placement: str, activation: str) -> None:
    """The same numbers as `torch.nn.TransformerDecoderLayer`: causal in the target, all of the source in sight."""
    dim, heads, hidden = 12, 3, 20
    theirs = torch.nn.TransformerDecoderLayer(
        dim, heads, hidden, 0.0, activation, batch_first=True, norm_first=placement == "pre", dtype=torch.float64
    )
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    attention = AttentionConfig(heads=heads, kernel="reference")
    ffn = MLPConfig.of({"hidden": hidden, "activation": activation})
    config = BlockConfig(mixer=attention, cross=attention, ffn=ffn, placement=placement)
    ours = Block(config, Setting(dim)).double()
    load_torchs_attention(ours.mixer, theirs.self_attn)
    load_torchs_attention(ours.cross, theirs.multihead_attn)
    ours.ffn.up.load_state_dict(theirs.linear1.state_dict())
    ours.ffn.down.load_state_dict(theirs.linear2.state_dict())
    residuals = (ours.mixer_residual, ours.cross_residual, ours.ffn_residual)
    for residual, norm in zip(residuals, (theirs.norm1, theirs.norm2, theirs.norm3), strict=True):
        (residual.before if placement == "pre" else residual.outside).load_state_dict(norm.state_dict())
    generator = torch.Generator().manual_seed(8)
    x, memory = (torch.randn(2, length, dim, dtype=torch.float64, generator=generator) for length in (5, 7))
    target, source = Layout.plain(2, 5), Layout.plain(2, 7)
    across = Pattern(Everything(), kernel="reference").scope(target, source, source=memory)
    found = ours(x, Pattern(Causal(), kernel="reference").scope(target, target), source=across).hidden
    blocked = ~torch.ones(5, 5, dtype=torch.bool).tril()
    close(found, theirs(x, memory, tgt_mask=blocked), what="torch's layer")


def open_stack(config: TransformerConfig) -> Stack:
    """The decoder of a config as if it were an encoder, which sees everything, awake."""
    stack = Stack(config.decoder, config.dim, CONTEXT, causal=False).double()
    stack.load_state_dict(awake(config).decoder.state_dict())
    return stack.eval()
