"""The settings in which two configs differ, without those that do not change what the model computes."""

from collections.abc import Iterable
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
    """The config as plain data with default sizes filled in, without settings that do not change what the model computes."""
    data = config.to_dict()
    for name, stack in config.stacks().items():
        by_block = {id(block): _resolved_block(block, config.dim) for block in distinct(stack.blocks)}
        first, *others = (by_block[id(block)] for block in stack.blocks)
        data[name] |= {
            "final_norm": stack.ends_in_norm(),
            "block": first,
            "layers": {str(number): block for number, block in enumerate(others, start=1) if block != first},
        }
        del data[name]["overrides"]
        factor = stack.entry.factor(config.dim)
        data[name]["entry"]["scale"] = "√dim" if isclose(factor, config.dim**0.5, rel_tol=1e-12) else factor
    if config.source_vocab_size is None:
        del data["source_vocab_size"]
    if not any(_rates(stack) for stack in config.stacks().values()):
        data["dropout"] = DropoutConfig().to_dict()  # without dropout, its convention does not matter
    if isinstance(config.head, LanguageHeadConfig) and isclose(config.head.scale, config.dim**-0.5, rel_tol=1e-12):
        data["head"]["scale"] = "1/√dim"
    if isinstance(config.head, EmbeddingHeadConfig):  # its other settings are about texts
        data["head"] = {"kind": "embedding", "computes": config.head.computes(config.dim)}
    for name in ("pad_vocab_to", "initial", "ids", "architecture", "chat", "decoding", "prompts"):
        del data[name]
    return data


def distinct(blocks: Iterable[BlockConfig]) -> list[BlockConfig]:
    """Each block once; equal layers of a stack are one object."""
    return list({id(block): block for block in blocks}.values())


def _rates(stack: StackConfig) -> bool:
    def rates(data: Any) -> bool:
        inner = [rates(value) for value in data.values() if isinstance(value, dict)]
        return bool(data.get("dropout")) or any(inner)

    return any(rates(part.model_dump()) for part in (stack.entry, *distinct(stack.blocks)))


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
        # The rate of the bias matters only in training, but its presence changes the routing.
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
    data = {**sizes, "bias": bias, "scale": scale}
    return data | (
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


def differences(left: Any, right: Any, path: str = "") -> list[tuple[str, str, str]]:
    """(path, left value, right value) for each difference of two plain configs; for tables of different kinds, only the kind."""
    if left == right:
        return []
    kinds = [each.get("kind") if isinstance(each, dict) else None for each in (left, right)]
    if kinds[0] != kinds[1]:
        both = isinstance(left, dict) and isinstance(right, dict)
        return [(f"{path}.kind" if both else path, _plain(kinds[0] or left), _plain(kinds[1] or right))]
    left_table, right_table = ({} if each is None else each for each in (left, right))
    if not (isinstance(left_table, dict) and isinstance(right_table, dict)):
        return [(path, _plain(left), _plain(right))]
    rows = []
    for key in sorted(left_table.keys() | right_table.keys()):
        if key != "layers":
            rows += differences(left_table.get(key), right_table.get(key), f"{path}.{key}" if path else key)
    return rows + _of_layers(left_table, right_table, path, rows) if "layers" in left_table else rows


def _of_layers(
    left: dict[str, Any], right: dict[str, Any], path: str, block_differences: list[tuple[str, str, str]]
) -> list[tuple[str, str, str]]:
    """Differences in layers that differ from their stack's `block`, without those already listed for the block."""
    rows = []
    for number in sorted(left["layers"].keys() | right["layers"].keys(), key=int):
        blocks = [stack["layers"].get(number, stack["block"]) for stack in (left, right)]
        for place, left_value, right_value in differences(*blocks):
            if (f"{path}.block.{place}", left_value, right_value) not in block_differences:
                rows.append((f"{path}.layers.{number}.{place}", left_value, right_value))
    return rows


def _plain(value: Any) -> str:
    """A value as text."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    return ", ".join(map(_plain, value)) if isinstance(value, list) else str(value)
