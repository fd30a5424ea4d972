"""A large model's choices at laptop size, so that they can be tried out in seconds."""

from typing import Any

from heddle.config.model import TransformerConfig

LARGE = 20_000_000  # parameters; beyond it a preset is proved at laptop size


def laptop(config: TransformerConfig) -> TransformerConfig:
    """The same choices in a model of width 64 or so: one layer of each distinct kind, at least two.

    Ratios stay where they mean something: key heads to heads, a head wider or narrower than dim / heads, experts chosen to
    experts there, a table padded or not.
    """
    data = config.to_dict()
    data |= {"vocab_size": min(config.vocab_size, 509), "context": min(config.context, 96)}
    if config.pad_vocab_to > 1:
        data["pad_vocab_to"] = 8
    if config.source_vocab_size is not None:
        data["source_vocab_size"] = min(config.source_vocab_size, 503)
    heads = [b[p]["heads"] for n in config.stacks() for b in _blocks(config, n) for p in ("mixer", "cross")
             if (b.get(p) or {}).get("kind") == "attention"]  # fmt: skip
    few = 4 if not heads or all(number % 4 == 0 or number > 4 for number in heads) else max(heads)
    dim = 16 * few
    data["dim"] = dim
    if isinstance(data["head"], dict) and "scale" in data["head"] and data["head"]["scale"] != 1.0:
        data["head"]["scale"] = dim**-0.5
    for name, stack in config.stacks().items():
        blocks = list({str(block): block for block in _blocks(config, name)}.values())[:4]
        small = [_small(block, few, config.dim) for block in blocks]
        small = small * 2 if len(small) == 1 else small
        entry = {**data[name]["entry"]}
        if entry.get("position_dim"):
            entry["position_dim"] = dim // 4
        data[name] |= {
            "depth": len(small),
            "block": small[0],
            "entry": entry,
            "final_norm": stack.ends_in_norm(),
            "overrides": [{"layers": str(i), "block": _filled(b)} for i, b in enumerate(small) if i and b != small[0]],
        }
    return TransformerConfig.of(data, where="laptop size")


def _blocks(config: TransformerConfig, stack: str) -> list[dict[str, Any]]:
    return [block.to_dict() for block in config.stacks()[stack].blocks]


def _filled(data: dict[str, Any]) -> dict[str, Any]:
    """Without what is not set, which an override cannot say."""
    return {k: _filled(v) if isinstance(v, dict) else v for k, v in data.items() if v is not None}


def _small(block: dict[str, Any], few: int, dim: int) -> dict[str, Any]:
    block = dict(block)
    for place in ("mixer", "cross"):
        part = block.get(place)
        if part is None:
            continue
        part = block[place] = dict(part)
        if part["kind"] == "attention":
            heads, kv_heads = part["heads"], part["kv_heads"] or part["heads"]
            group = heads // kv_heads
            part["kv_heads"] = None if group == 1 else max(1, few // min(group, few))
            natural = dim // heads
            for key in ("head_dim", "value_dim"):
                if part[key] is not None:
                    part[key] = 16 if part[key] == natural else 8 if part[key] < natural else 24
            part["heads"] = few
            if part["window"] is not None:
                part["window"] = 7
            relative = part["relative"]
            if relative and relative["kind"] == "buckets":
                part["relative"] = {**relative, "buckets": 8, "furthest": 20}
            if relative and (relative.get("scaling") or {}).get("original"):
                part["relative"] = {**relative, "scaling": {**relative["scaling"], "original": 24}}
        if part["kind"] == "recurrent" and part["hidden"] is not None:
            part["hidden"] = 48
        if part["kind"] in ("convolution", "linear"):
            part["taps"] = min(part["taps"], 4)
            part["dilation"] = min(part.get("dilation", 1), 4)
            if part["kind"] == "linear":
                del part["dilation"]
    ffn = block["ffn"] = dict(block["ffn"])
    if ffn["kind"] in ("mlp", "gated") and ffn["hidden"] is not None:
        ffn["hidden"] = 96
    if ffn["kind"] == "moe":
        ffn["active"] = min(ffn["active"], 3) if ffn["active"] > 1 else 1
        ffn["experts"] = max(ffn["active"], min(ffn["experts"], 8))
        ffn["expert"] = {**ffn["expert"], "hidden": 40}
        ffn["shared_hidden"] = None if ffn["shared_hidden"] is None else 24
        ffn["shared"] = min(ffn["shared"], 2)
    return block
