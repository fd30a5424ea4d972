"""How many numbers a model has, by closed forms alone: a second count, which no module takes part in."""

from typing import Any

from heddle.config import Config, TransformerConfig


def numbers_of(config: TransformerConfig) -> int:
    """Every number that a model of this config learns."""
    dim, head = config.dim, config.head
    total = config.table_rows() * config.last()[1].entry.tokens_dim(dim)
    if config.source_vocab_size is not None:
        total += config.source_rows() * config.encoder.entry.tokens_dim(dim)
    for stack in config.stacks().values():
        entry = stack.entry
        if entry.positions == "learned":
            total += (config.context + entry.offset) * entry.positions_dim(dim)
        inner = entry.token_dim or dim
        total += entry.types * inner + (norm(entry.norm, inner) if entry.norm else 0)
        total += 0 if inner == dim else linear(inner, dim, True)
        total += sum(block_numbers(block, dim) for block in stack.blocks) + stack.ends_in_norm() * norm(
            stack.block.norm, dim
        )
        # Layers that see alike share one table of distances, unless each has its own.
        seen = {
            (
                m.window,
                m.relative,
                m.kernel,
                m.width(dim),
                m.heads,
                m.cap,
                m.dropout,
                None if m.relative.shared else layer,
            )
            for layer, m in enumerate(block.mixer for block in stack.blocks)
            if getattr(getattr(m, "relative", None), "kind", "") == "buckets"
        }
        total += sum(relative.buckets * heads for _, relative, _, _, heads, *_ in seen)
    if head.kind == "language":
        rows = config.table_rows()
        scored = config.last()[1].entry.token_dim or dim if head.transform else dim
        transform = linear(dim, scored, head.transform_bias) + (1 + head.transform_bias) * scored
        total += (not head.tied) * rows * scored + head.bias * rows + head.transform * transform
    else:
        widths = head.widths(dim) if head.kind == "embedding" else [dim] * (1 + getattr(head, "dense", False))
        biased = [each.bias for each in head.dense] if head.kind == "embedding" else [True]
        total += sum(map(linear, widths, widths[1:], biased))
        total += linear(dim, head.classes, True) if head.kind == "classifier" else 0
    return total


def block_numbers(block: Any, dim: int) -> int:
    """One layer: its branches, and as many norms as its placement asks for."""
    branches = 1 + (block.cross is not None) + (block.ffn.kind != "none")
    norms = 2 * branches if block.placement == "sandwich" else branches
    if block.placement == "sandwich" and getattr(block.ffn, "skip", "") == "internal":
        norms -= 1  # it has a residual of its own, with one norm before it
    norms -= block.wiring == "parallel_one_norm"
    total = norms * norm(block.norm, dim) + mixer(block.mixer, dim) + feed_forward(block.ffn, dim)
    return total + (0 if block.cross is None else mixer(block.cross, dim))


def linear(inputs: int, outputs: int, bias: bool) -> int:
    return inputs * outputs + bias * outputs


def norm(config: Any, dim: int) -> int:
    return {"layer": dim * (1 + getattr(config, "bias", False)), "rms": dim, "none": 0}[config.kind]


def mixer(config: Any, dim: int) -> int:
    if config.kind == "attention":
        keys, width = config.kv_heads or config.heads, config.head_dim or dim // config.heads
        value = config.value_dim or width
        biased = ("q", "k", "v", "o") if config.bias is True else config.bias or ()
        sizes = {"q": config.heads * width, "k": keys * width, "v": keys * value}
        total = sum(linear(dim, size, letter in biased) for letter, size in sizes.items())
        return (
            total
            + linear(config.heads * value, dim, "o" in biased)
            + config.sinks * config.heads
            + sum(
                norm(config.qk_norm, width * (count if config.qk_norm_over == "all" else 1)) if config.qk_norm else 0
                for count in (config.heads, keys)
            )
        )
    if config.kind == "latent":
        value, source = config.value_dim or config.head_dim, config.q_rank or dim
        total = linear(source, config.heads * (config.head_dim + config.rotary_dim), False)
        total += linear(dim, config.q_rank, config.bias) + config.q_rank if config.q_rank else 0
        total += linear(dim, config.rank + config.rotary_dim, config.bias) + config.rank
        return (
            total
            + config.rank * config.heads * (config.head_dim + value)
            + linear(config.heads * value, dim, config.bias)
        )
    if config.kind == "recurrent":
        width, gates = config.hidden or dim, {"gru": 3, "lstm": 4}[config.cell] * (config.hidden or dim)
        return linear(dim, gates, config.bias) + linear(width, gates, config.bias) + linear(width, dim, config.bias)
    if config.kind == "custom":
        return linear(dim, dim, bool(config.options.get("bias", True)))
    return config.taps * dim * dim + (config.kind == "convolution" and config.bias) * dim


def feed_forward(config: Any, dim: int) -> int:
    if config.kind == "moe":
        one, wide = feed_forward(config.expert, dim), config.expert.hidden or config.expert.width(dim)
        beside: Config = config.expert.model_copy(update={"hidden": config.shared * (config.shared_hidden or wide)})
        total = config.experts * (one + dim + config.router_bias + (config.bias_rate > 0))
        return total + (feed_forward(beside, dim) if config.shared else 0) + config.shared_gate * dim
    if config.kind == "none":
        return 0
    if config.kind == "custom":
        return linear(dim, dim, bool(config.options.get("bias", True)))
    hidden = config.hidden or config.width(dim)
    return (1 + (config.kind == "gated")) * linear(dim, hidden, config.bias) + linear(hidden, dim, config.bias)
