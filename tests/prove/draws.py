"""Random models out of every choice there is, small: what the config refuses is drawn again.

python -m tests.prove.draws [HOW_MANY]      proves as many, and counts the alarms
"""

import random
import sys
from collections.abc import Iterator
from typing import Any

from heddle.config import TransformerConfig
from heddle.errors import HeddleError


def drawn(seed: int) -> TransformerConfig:
    """A model that validates; the same for the same seed."""
    draw = random.Random(seed)
    while True:
        try:
            return TransformerConfig.of(model(draw))
        except HeddleError:
            continue


def model(draw: random.Random) -> dict[str, Any]:
    """Plain data, often but not always of a possible model."""
    family = draw.choice(["decoder", "decoder", "decoder", "encoder", "both"])
    dim = draw.choice([16, 24, 32])
    names = {"decoder": ["decoder"], "encoder": ["encoder"], "both": ["encoder", "decoder"]}[family]
    data: dict[str, Any] = {
        "vocab_size": draw.choice([7, 31]), "pad_vocab_to": draw.choice([1, 8]), "dim": dim, "context": draw.choice([12, 40]),
        "head": draw.choice([{"tied": True}, {"tied": False, "bias": True}, {"cap": 3.0}, {"scale": 0.3}, {"transform": True}]),
        "dropout": draw.choice([{}, {"style": "classic"}, {"mask": "batch"}]),
        "initial": {"rule": draw.choice(["normal", "xavier"])},
    }  # fmt: skip
    for name in names:
        data[name] = stack(draw, dim, crossing=family == "both" and name == "decoder")
    if family == "both" and draw.random() < 0.3:
        data["source_vocab_size"] = 13
    return data


def stack(draw: random.Random, dim: int, crossing: bool) -> dict[str, Any]:
    first, other = block(draw, crossing), block(draw, crossing)
    entry = draw.choice([
        {}, {"positions": "learned"}, {"positions": "sinusoidal"}, {"positions": "sinusoidal_halves", "scale": True},
        {"positions": "learned", "combine": "concat", "position_dim": 4}, {"norm": norm(draw)}, {"types": 2},
    ])  # fmt: skip
    overrides = [{"layers": draw.choice(["0", "-1", "::2"]), "block": other}] if draw.random() < 0.5 else []
    final = draw.choice([None, True, False])
    return {
        "depth": draw.choice([1, 2, 3]),
        "block": first,
        "entry": entry,
        "overrides": overrides,
        "final_norm": final,
    }


def block(draw: random.Random, crossing: bool) -> dict[str, Any]:
    made: dict[str, Any] = {
        "mixer": mixer(draw), "ffn": feed_forward(draw), "norm": norm(draw), "dropout": draw.choice([0.0, 0.2]),
        "placement": draw.choice(["pre", "pre", "post", "sandwich", "output", "literal", "bare"]),
        "wiring": draw.choice(["serial", "serial", "parallel", "parallel_one_norm"]),
    }  # fmt: skip
    if crossing:
        made |= {"cross": {"kind": "attention", "heads": 2, "head_dim": 8}, "wiring": "serial"}
    return made


def norm(draw: random.Random) -> dict[str, Any]:
    return draw.choice([
        {"kind": "layer"}, {"kind": "layer", "bias": False}, {"kind": "layer", "unbiased": True, "eps": 1e-3},
        {"kind": "layer", "eps_outside": True}, {"kind": "rms"}, {"kind": "rms", "eps": 1e-3}, {"kind": "none"},
    ])  # fmt: skip


def mixer(draw: random.Random) -> dict[str, Any]:
    kind = draw.choice(["attention"] * 5 + ["convolution", "linear", "recurrent"])
    if kind == "convolution":
        return {"kind": kind, "taps": draw.choice([1, 3, 5]), "dilation": draw.choice([1, 2])}
    if kind == "linear":
        return {"kind": kind, "taps": draw.choice([1, 3])}
    if kind == "recurrent":
        return {"kind": kind, "cell": draw.choice(["gru", "lstm"]), "hidden": draw.choice([9, 16])}
    heads, kv_heads = draw.choice([(4, None), (4, 2), (4, 1), (2, None)])
    made: dict[str, Any] = {
        "kind": kind, "heads": heads, "head_dim": draw.choice([6, 8]), "scale": draw.choice(["head_dim", "dim", 0.4]),
        "bias": draw.choice([True, False, ["q", "k", "v"]]), "dropout": draw.choice([0.0, 0.0, 0.3]),
        "kernel": draw.choice(["auto", "auto", "reference", "plain", "sdpa", "blockwise"]),
        "relative": draw.choice([
            {"kind": "rotary"}, {"kind": "rotary", "pairing": "neighbours"}, {"kind": "rotary", "fraction": 0.5},
            {"kind": "rotary", "scaling": {"kind": "yarn", "factor": 4.0, "original": 16}}, {"kind": "alibi"},
            {"kind": "buckets", "buckets": 8, "furthest": 20},
        ]),
    }  # fmt: skip
    optional = {"kv_heads": kv_heads, "window": draw.choice([None, None, 4]), "cap": draw.choice([None, None, 5.0]),
                "qk_norm": draw.choice([None, {"kind": "rms"}]), "value_dim": draw.choice([None, 5])}  # fmt: skip
    return made | {key: value for key, value in optional.items() if value is not None}


def feed_forward(draw: random.Random) -> dict[str, Any]:
    return draw.choice([
        {"kind": "mlp"}, {"kind": "mlp", "activation": "relu", "hidden": 7}, {"kind": "gated", "hidden": 12},
        {"kind": "none"}, {"kind": "moe", "experts": 4, "expert": {"kind": "gated", "hidden": 8}},
        {"kind": "moe", "experts": 3, "active": 1, "gate": "sigmoid", "shared": 1, "expert": {"kind": "mlp", "hidden": 6}},
        {"kind": "moe", "experts": 4, "renormalise": True, "skip": "internal", "dispatch": "loop",
         "expert": {"kind": "gated", "hidden": 8}},
    ])  # fmt: skip


def alarms(many: int) -> Iterator[tuple[int, str]]:
    """Seeds and checks of what a sound heddle is blamed for; there should be none."""
    from heddle.model import build
    from heddle.prove import prove
    from heddle.prove.subject import awaken

    for seed in range(many):
        for verdict in prove(awaken(build(drawn(seed), seed=seed), seed), seed=seed).verdicts:
            if not verdict.holds:
                yield (
                    seed,
                    f"{verdict.check}: {verdict.error:.1e} beside {verdict.bound:.1e} {verdict.layer} {verdict.detail}",
                )


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    found = list(alarms(count))
    for seed, text in found:
        print(seed, text)
    print(f"{count} random models, {len(found)} alarms")
    sys.exit(bool(found))
