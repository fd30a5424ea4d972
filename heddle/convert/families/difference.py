"""In which settings two configs differ, apart from those that do not change the function."""

from math import isclose
from typing import Any

from heddle.config.embedding import EmbeddingHeadConfig
from heddle.config.layers import AttentionConfig, DropoutConfig, GatedConfig, LatentConfig, MLPConfig, MoEConfig
from heddle.config.model import BlockConfig, LanguageHeadConfig, StackConfig, TransformerConfig
from heddle.config.positions import (
    DynamicScaling,
    LinearScaling,
    LongRopeScaling,
    NTKScaling,
    RotaryConfig,
    YarnScaling,
)
from heddle.convert.families.rotary import plain_base
from heddle.nn.position import Yarn


def resolved(config: TransformerConfig) -> dict[str, Any]:
    """The config as plain data with default sizes filled in, without settings that do not change the function."""
    data = config.to_dict()
    for name, stack in config.stacks().items():
        first = _resolved_block(stack.blocks[0], config.dim)
        others = {
            str(number): _resolved_block(block, config.dim)
            for number, block in enumerate(stack.blocks)
            if block != stack.blocks[0]
        }
        data[name] |= {
            "final_norm": stack.ends_in_norm(),
            "block": first,
            "layers": {number: block for number, block in others.items() if block != first},
        }
        del data[name]["overrides"]
        factor = stack.entry.factor(config.dim)
        data[name]["entry"]["scale"] = "√dim" if isclose(factor, config.dim**0.5, rel_tol=1e-12) else factor
    if config.source_vocab_size is None:
        del data["source_vocab_size"]
    if not any(_rates(stack) for stack in config.stacks().values()):
        data["dropout"] = DropoutConfig().to_dict()  # nothing is dropped, so the convention does not matter
    if isinstance(config.head, LanguageHeadConfig) and isclose(config.head.scale, config.dim**-0.5, rel_tol=1e-12):
        data["head"]["scale"] = "1/√dim"
    if isinstance(config.head, EmbeddingHeadConfig):  # the rest of it is about texts
        data["head"] = {"kind": "embedding", "computes": config.head.computes(config.dim)}
    for name in ("pad_vocab_to", "initial", "ids", "architecture", "chat", "decoding", "prompts"):
        del data[name]
    return data


def _rates(stack: StackConfig) -> bool:
    def rates(data: Any) -> bool:
        inner = [rates(value) for value in data.values() if isinstance(value, dict)]
        return bool(data.get("dropout")) or any(inner)

    return any(rates(part.model_dump()) for part in (stack.entry, *stack.blocks))


def _resolved_block(block: BlockConfig, dim: int) -> dict[str, Any]:
    data = block.model_dump(mode="json")
    for place, attention in (("mixer", block.mixer), ("cross", block.cross)):
        if isinstance(attention, AttentionConfig):
            data[place] |= _resolved_attention(attention, dim)
            del data[place]["kernel"]
    if isinstance(block.mixer, LatentConfig):
        latent = block.mixer
        scale = latent.width(dim) ** -0.5 if latent.scale == "head_dim" else latent.scale
        data["mixer"] |= {"scale": f"{scale:.12g}", "value_dim": latent.value_dim or latent.head_dim}
        data["mixer"]["relative"] = _resolved_rotary(latent.relative, latent.rotary_dim)
        del data["mixer"]["kernel"]
    if isinstance(block.ffn, MLPConfig | GatedConfig):
        data["ffn"]["hidden"] = block.ffn.width(dim)
    elif isinstance(block.ffn, MoEConfig):
        moe = block.ffn
        data["ffn"]["expert"]["hidden"] = moe.width(dim)
        # Several shared experts are equivalent to one of their total width.
        data["ffn"] |= {"shared": min(moe.shared, 1), "shared_hidden": moe.shared * moe.shared_width(dim)}
        # How fast a bias moves matters only in training; that there is one changes the choice.
        data["ffn"]["bias_rate"] = moe.bias_rate > 0
        del data["ffn"]["dispatch"]
    return data


def _resolved_attention(mixer: AttentionConfig, dim: int) -> dict[str, Any]:
    width, biased = mixer.width(dim), mixer.biased()
    bias: Any = {0: False, 4: True}.get(len(biased), sorted(biased))
    scale = mixer.scale
    if not isinstance(scale, str) and isclose(scale, width**-0.5, rel_tol=1e-12):
        scale = "head_dim"
    sizes = {"kv_heads": mixer.key_heads(), "head_dim": width, "value_dim": mixer.value_dim or width}
    found = {**sizes, "bias": bias, "scale": scale}
    return found | (
        {"relative": _resolved_rotary(mixer.relative, width)} if isinstance(mixer.relative, RotaryConfig) else {}
    )


def _resolved_rotary(relative: RotaryConfig, head_dim: int) -> dict[str, Any]:
    scaling, data = relative.scaling, relative.model_dump(mode="json")
    if isinstance(scaling, NTKScaling | DynamicScaling) or scaling == LinearScaling(factor=1):
        data |= {"base": plain_base(relative, relative.rotated_dim(head_dim)), "scaling": None}
    elif isinstance(scaling, YarnScaling):
        data["scaling"]["magnitude"] = Yarn(scaling.factor, scaling.original, length=scaling.magnitude).magnitude
    elif isinstance(scaling, LongRopeScaling):
        used = {"factors": list(scaling.factors()), "magnitude": scaling.magnitude}
        data["scaling"] = {"kind": scaling.kind, **used}
    return data


def differences(ours: Any, theirs: Any, path: str = "") -> list[tuple[str, str, str]]:
    """(path, ours, theirs) for each difference of two plain configs; for tables of different kinds, only the kind."""
    if ours == theirs:
        return []
    kinds = [each.get("kind") if isinstance(each, dict) else None for each in (ours, theirs)]
    if kinds[0] != kinds[1]:
        both = isinstance(ours, dict) and isinstance(theirs, dict)
        return [(f"{path}.kind" if both else path, _plain(kinds[0] or ours), _plain(kinds[1] or theirs))]
    mine, other = ({} if each is None else each for each in (ours, theirs))
    if not (isinstance(mine, dict) and isinstance(other, dict)):
        return [(path, _plain(ours), _plain(theirs))]
    found = []
    for key in sorted(mine.keys() | other.keys()):
        if key != "layers":
            found += differences(mine.get(key), other.get(key), f"{path}.{key}" if path else key)
    return found + _of_layers(mine, other, path, found) if "layers" in mine else found


def _of_layers(
    ours: dict[str, Any], theirs: dict[str, Any], path: str, known: list[tuple[str, str, str]]
) -> list[tuple[str, str, str]]:
    """Differences in layers that differ from their stack's `block`, without those already known for the block."""
    found = []
    for number in sorted(ours["layers"].keys() | theirs["layers"].keys(), key=int):
        blocks = [stack["layers"].get(number, stack["block"]) for stack in (ours, theirs)]
        for place, mine, other in differences(*blocks):
            if (f"{path}.block.{place}", mine, other) not in known:
                found.append((f"{path}.layers.{number}.{place}", mine, other))
    return found


def _plain(value: Any) -> str:
    """A value in words."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    return ", ".join(map(_plain, value)) if isinstance(value, list) else str(value)
