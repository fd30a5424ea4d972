"""Adapters in the format of peft, Hugging Face's library: writing a run's, and merging one of either kind into a model.

peft names the modules of Hugging Face transformers, some of which hold several of heddle's layers, such as GPT-2's `c_attn` (q, k
and v). A product B A of two factors survives that: the layers' A are put below each other, their B side by side, each in its own
rows, and everything else is 0. The rank is then the sum of the layers' ranks. Back, each layer gets its rows of B and all of A.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import sqrt
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from heddle.checks import checked
from heddle.config.model import ClassifierHeadConfig, TransformerConfig
from heddle.config.saved import SavedConfig
from heddle.convert.families import Family
from heddle.convert.fitting import choose
from heddle.convert.mapping import TensorRow, rows_of
from heddle.convert.published import read_json
from heddle.errors import HeddleError
from heddle.model.lora import A, B
from heddle.text.tokenizer import load_tokenizer
from heddle.weights.adapter import METADATA, Adapter, from_metadata, read_adapter
from heddle.weights.checkpoints import ADAPTER, TOKENIZER
from heddle.weights.checkpoints import CONFIG as RUN_CONFIG
from heddle.weights.files import write_directory
from heddle.weights.run import build_empty, load, read_config, write_model
from heddle.weights.start import grown
from heddle.weights.tensors import Weights, save_tensors

CONFIG, WEIGHTS, PICKLED = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
PREFIX = "base_model.model."  # of every name
FACTOR = re.compile(r"(.+)\.lora_([AB])(?:\.default)?\.weight")
# Settings that change the function, with the values that heddle supports; without a value, the first.
SUPPORTED: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "use_dora": (False,),
    "bias": ("none",),
    "lora_bias": (False,),
    "init_lora_weights": (True, False, "gaussian", "orthogonal"),  # others change the base's weights
    "trainable_token_indices": (None,),
    "layer_replication": (None,),
    "use_qalora": (False,),
    "alora_invocation_tokens": (None,),
}
# Settings that say how an adapter was made, or that its tensors and their names show by themselves.
HARMLESS = {
    "auto_mapping", "base_model_name_or_path", "revision", "peft_version", "task_type", "inference_mode", "r", "lora_alpha",
    "lora_dropout", "target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "modules_to_save",
    "target_parameters", "rank_pattern", "alpha_pattern", "use_rslora", "fan_in_fan_out", "ensure_weight_tying", "megatron_config",
    "megatron_core", "loftq_config", "eva_config", "corda_config", "lora_ga_config", "qalora_group_size", "runtime_config",
}  # fmt: skip


@checked()
def export_adapter(run: str | Path, directory: str | Path) -> dict[str, Any]:
    """Write the adapter of a run as a directory that `peft.PeftModel.from_pretrained` loads onto the exported base.

    Args:
        run: a finished run that trained adapters.
        directory: the new directory; it must not exist.

    Returns:
        `family`; `modules`, how many have an adapter there; `rank`, the largest; `parameters`, those of the adapters.

    Raises:
        HeddleError: the run has no adapter, no family can express the model, or something other than adapters and a head that
            scores classes was trained. Nothing is left behind then.
    """
    run, config = Path(run), read_config(run)
    if not (run / ADAPTER).is_file():
        raise HeddleError(f"{run} has no {ADAPTER}: it was not trained with [train.lora], or has not finished")
    adapter = read_adapter(run / ADAPTER)
    family, _ = choose(config.model)
    tensors, said = to_peft(adapter, family, config.model)
    said["lora_dropout"] = config.train.lora.dropout if config.train is not None and config.train.lora else 0.0
    with write_directory(Path(directory)) as partial:
        (partial / CONFIG).write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")
        save_tensors(partial / WEIGHTS, tensors, {"format": "pt", METADATA: json.dumps(adapter.said())})
    modules = sum(name.endswith(".lora_A.weight") for name in tensors)
    numbers = sum(tensor.numel() for name, tensor in adapter.tensors.items() if name.endswith((A, B)))
    return {"family": family.name, "modules": modules, "rank": said["r"], "parameters": numbers}


@checked()
def merge_adapter(base: str | Path, adapter: str | Path, run: str | Path) -> dict[str, Any]:
    """Write a model with an adapter merged into its weights as a new run.

    Args:
        base: the run whose weights the adapter was trained beside.
        adapter: a run that trained one, its `adapter.safetensors`, or a directory that peft wrote. Only a run also has any chat
            template and tokens that training added, and says what it reads: its task, and the columns of its data.
        run: the new directory; it must not exist.

    Returns:
        `layers`, how many were changed; `checked`, whether the adapter says what its base is, so that others are refused.

    Raises:
        HeddleError: one of them cannot be read, or the adapter belongs to another model. Nothing is left behind then.
    """
    model, tokenizer = load(base, "cpu")
    weights, config = model.state_dict(), model.config
    found = _read(Path(adapter), config, weights)
    # A run also knows what it learned to read, and may have added a chat template, and tokens for it.
    read: dict[str, Any] = {}
    if (Path(adapter) / ADAPTER).is_file() and (Path(adapter) / RUN_CONFIG).is_file():
        trained = read_config(adapter)
        learned, known = trained.model, 0 if tokenizer is None else tokenizer.vocab_size
        read = {"data": trained.data, "task": trained.task}
        config = config.model_copy(update={"chat": learned.chat})
        if tokenizer is not None and (Path(adapter) / TOKENIZER).is_file():
            tokenizer = load_tokenizer(adapter)
            if tokenizer.vocab_size > known:
                config = config.override({"vocab_size": max(config.vocab_size, learned.vocab_size)})
                weights = grown(weights, build_empty(config, Path(base)).state_dict(), known, tokenizer.vocab_size)
    config = found.config_of(config)
    names = build_empty(config, Path(base)).state_dict()
    merged = found.merged(weights, set(names), str(adapter))
    with write_directory(Path(run)) as directory:
        tensors = {name: merged[name] for name in names}
        saved = SavedConfig(model=config, origin=f"{base} with {adapter}", **read)
        write_model(directory, tensors, saved, tokenizer, step=0, extra={"base": str(base), "adapter": str(adapter)})
    return {"layers": len(found.layers()), "checked": found.base is not None}


def _read(adapter: Path, config: TransformerConfig, weights: Mapping[str, Tensor]) -> Adapter:
    """An adapter of either kind, for a base with this config and these weights."""
    if (adapter / CONFIG).is_file():
        return from_peft(adapter, config, weights)
    if adapter.is_dir() and not (adapter / ADAPTER).is_file():
        raise HeddleError(f"{adapter}: neither a run with {ADAPTER} nor a directory of peft's with {CONFIG}")
    return read_adapter(adapter / ADAPTER if adapter.is_dir() else adapter)


def to_peft(adapter: Adapter, family: Family, config: TransformerConfig) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the `adapter_config.json` of an adapter.

    Raises:
        HeddleError: peft's format has no place for what it brings.
    """
    for name in adapter.others():
        if not (name.startswith("head.") and isinstance(adapter.head, ClassifierHeadConfig)):
            raise HeddleError(
                f"{name} was trained in full, and peft's files hold only adapters and heads that score classes: "
                "export the merged model with heddle export"
            )
    rows, config, weights = _rows(adapter.layers(), family, config)
    tensors: dict[str, Tensor] = {}
    ranks: dict[str, int] = {}
    transposed = set()
    for row in rows.values():
        layers = [name.removesuffix(".weight") for name in row.ours]
        module = row.theirs.removesuffix(".weight")
        if chosen := [layer for layer in layers if f"{layer}.{A}" in adapter.tensors]:
            below, beside = _joined(adapter, layers, chosen, [weights[name] for name in row.ours])
            flipped = _is_transposed(row, config, beside)
            transposed |= {module} if flipped else set()
            theirs = row.how.theirs(tuple(beside), config)
            tensors[f"{PREFIX}{module}.lora_A.weight"] = below
            tensors[f"{PREFIX}{module}.lora_B.weight"] = theirs.T if flipped else theirs
            ranks[module] = len(below)
        elif set(row.ours) <= set(adapter.tensors):
            value = row.how.theirs(tuple(adapter.tensors[name] for name in row.ours), config)
            tensors[PREFIX + row.theirs] = value - row.shift if row.shift else value
    largest = max(ranks.values())
    said = {
        "peft_type": "LORA",
        "task_type": _task(config),
        "base_model_name_or_path": None,
        "r": largest,
        "lora_alpha": adapter.factor * largest,
        "target_modules": _short(ranks, [name.removesuffix(".weight") for name in rows if name.endswith(".weight")]),
        "rank_pattern": {name: rank for name, rank in ranks.items() if rank != largest},
        "alpha_pattern": {name: adapter.factor * rank for name, rank in ranks.items() if rank != largest},
        "modules_to_save": sorted({_module(name) for name in tensors if ".lora_" not in name}) or None,
        "fan_in_fan_out": bool(transposed),
        "bias": "none",
        "inference_mode": True,
    }
    return tensors, said


def from_peft(folder: Path, base: TransformerConfig, base_weights: Mapping[str, Tensor]) -> Adapter:
    """Read a directory that peft wrote, as an adapter for a model with the config `base` and these weights.

    Raises:
        HeddleError: it has a setting that heddle does not support, or names what the model does not have.
    """
    said = read_json(folder / CONFIG)
    for key, value in said.items():
        values = SUPPORTED.get(key, () if value and key not in HARMLESS else (value,))
        if value and value not in values:
            only = f", only {values[0]!r}" if values else ""
            raise HeddleError(f"{folder / CONFIG}: {key} = {value!r} is not supported{only}")
    if not (folder / WEIGHTS).is_file() and (folder / PICKLED).is_file():
        raise HeddleError(
            f"{folder / PICKLED}: a pickle, which can run code when read; save it as safetensors with peft"
        )
    weights = Weights([folder / WEIGHTS])
    known = from_metadata(weights) or Adapter({}, 1.0)
    family, _ = choose(known.config_of(base))
    names = {name: name.removeprefix(PREFIX).replace(".modules_to_save", "") for name in weights}
    factors = {name: match for name, short in names.items() if (match := FACTOR.fullmatch(short))}
    full = {_spelt(names[name], family): weights[name].float() for name in weights.keys() - factors.keys()}
    try:
        full, apart = _tables(full, said, family, known.config_of(base), base_weights)
    except HeddleError as error:
        raise HeddleError(f"{folder / WEIGHTS}: {error}") from None
    known = replace(known, head=base.head.model_copy(update={"tied": False})) if apart else known
    rows, config, ours = _rows((), family, known.config_of(base))

    def row_of(theirs: str) -> TensorRow:
        row = rows.get(_spelt(theirs, family))
        if row is None:
            raise HeddleError(f"{folder} belongs to another model: {family.architecture} has no {theirs} of this size")
        return row

    found: dict[str, Tensor] = {}
    for name, match in factors.items():
        other = name.replace(f".lora_{match[2]}", f".lora_{'B' if match[2] == 'A' else 'A'}")
        if other not in weights:
            raise HeddleError(f"{folder / WEIGHTS}: {name} without {other}; it is damaged")
        if match[2] == "A":
            row = row_of(f"{match[1]}.weight")
            a, b = weights[name].float(), weights[other].float()
            sizes = [ours[each].shape for each in row.ours]
            if any(len(size) != 2 for size in sizes) or a.shape[1] != sizes[0][1] or len(b) != sum(n for n, _ in sizes):
                raise HeddleError(f"{folder} belongs to another model: {match[1]} is not of the same size")
            flipped = _is_transposed(row, config, [torch.zeros(size[0], 1) for size in sizes])
            scaled = b * _factor(said, match[1], len(a), folder / CONFIG)
            for each, part in zip(row.ours, row.how.ours(scaled.T if flipped else scaled, config), strict=True):
                layer = each.removesuffix(".weight")
                found |= {f"{layer}.{A}": a, f"{layer}.{B}": part.contiguous()}
    for theirs, value in full.items():
        row = row_of(theirs)
        parts = [part + row.shift for part in row.how.ours(value, config)]
        if [part.shape for part in parts] != [ours[each].shape for each in row.ours]:
            raise HeddleError(f"{folder} belongs to another model: {theirs} is not of the same size")
        found |= dict(zip(row.ours, parts, strict=True))
    return Adapter(found, 1.0, known.base, known.head)


def _spelt(name: str, family: Family) -> str:
    """A published name with the beginning that the family's table has; a head's has none."""
    prefix = family.names.prefix
    heads = {row.theirs for row in family.table if not row.theirs.startswith(prefix)}
    return name if name in heads or name.startswith(prefix) else prefix + name


def _tables(
    full: Mapping[str, Tensor],
    said: Mapping[str, Any],
    family: Family,
    config: TransformerConfig,
    base: Mapping[str, Tensor],
) -> tuple[dict[str, Tensor], bool]:
    """What an adapter brings in full, with a tied model's table and head as peft leaves them; and whether these are two then.

    A module of `modules_to_save` is a copy that was trained alone, so a head that was tied to it keeps the base's numbers, unless
    peft was told to tie them. Embedding layers that were saved without being named there are put into the one table of both.

    Args:
        full: tensors by the family's names.
        said: peft's config.
        family: the base's.
        config: the base's, with the adapter's own head.
        base: the base's weights.
    """
    found = dict(full)
    by_ours = {row.ours: row for row in reversed(family.table)}
    table, head = by_ours[("embedding.weight",)], by_ours.get(("head.weight",))
    tables = [row.theirs for row in family.table if row.ours[0] in ("embedding.weight", "source_embedding.weight")]
    if head is None or not getattr(config.head, "tied", False) or not found.keys() & {*tables, head.theirs}:
        return found, False
    if len(config.stacks()) == 2:
        raise HeddleError(
            f"it brings {', '.join(found.keys() & {*tables, head.theirs})}, which several parts of the base share"
        )
    both = [found.get(row.theirs) for row in (table, head)]
    modules = [row.theirs.removesuffix(".weight") for row in (table, head)]
    copied = any(f".{module}".endswith(f".{name}") for module in modules for name in said.get("modules_to_save") or [])
    same = both[0] is not None and both[1] is not None and torch.equal(both[0], both[1])
    if same or not copied or said.get("ensure_weight_tying"):
        value = found.pop(head.theirs, None)
        return found if value is None else {table.theirs: value, **found}, False
    old = table.how.theirs((base["embedding.weight"].float(),), config)
    return {table.theirs: old, head.theirs: old.clone(), **found}, True


def _rows(
    layers: Iterable[str], family: Family, config: TransformerConfig
) -> tuple[dict[str, TensorRow], TransformerConfig, Mapping[str, Tensor]]:
    """The family's rows by its names, with the config and the tensors (without values) that they are for."""
    own = build_empty(config, Path(family.name)).state_dict()
    config, tensors = family.rewrite(config, own)
    for layer in layers:
        if tensors[f"{layer}.weight"] is not own[f"{layer}.weight"]:
            raise HeddleError(
                f"{family.architecture} scales {layer}, which an adapter cannot: use heddle export instead"
            )
    return {row.theirs: row for row in rows_of(family.table, config, list(tensors))}, config, tensors


def _joined(
    adapter: Adapter, layers: list[str], chosen: list[str], weights: list[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """The factors of several layers as those of one: all A below each other, and for each layer its B beside zeros."""
    below = torch.cat([adapter.tensors[f"{layer}.{A}"] for layer in chosen])
    beside, start = [], 0
    for layer, weight in zip(layers, weights, strict=True):
        wide = torch.zeros(len(weight), len(below))
        if layer in chosen:
            b = adapter.tensors[f"{layer}.{B}"]
            wide[:, start : start + b.shape[1]] = b
            start += b.shape[1]
        beside.append(wide)
    return below, beside


def _is_transposed(row: TensorRow, config: TransformerConfig, outputs: list[Tensor]) -> bool:
    """Whether the family stores the layer's weight input first."""
    columns = row.how.theirs(tuple(each[:, :1] for each in outputs), config)
    return len(columns) == 1 and columns.shape[1] > 1


def _factor(said: Mapping[str, Any], module: str, rank: int, where: Path) -> float:
    """What peft multiplies a module's product by.

    Args:
        where: the file that says so, in errors.

    Raises:
        HeddleError: a setting is not of its type.
    """
    patterns = said.get("alpha_pattern") or {}
    if not isinstance(patterns, Mapping):
        raise HeddleError(f"{where}: alpha_pattern = {patterns!r} must be a table of numbers by module")
    try:
        key = next((key for key in patterns if re.fullmatch(rf"(.*\.)?({key})", module)), None)
    except re.error as error:
        raise HeddleError(f"{where}: a name in alpha_pattern is no regular expression ({error})") from None
    name, alpha = ("lora_alpha", said.get("lora_alpha", 8)) if key is None else (f"alpha_pattern.{key}", patterns[key])
    if isinstance(alpha, bool) or not isinstance(alpha, int | float):
        raise HeddleError(f"{where}: {name} = {alpha!r} must be a number")
    return alpha / (sqrt(rank) if said.get("use_rslora") else rank)


def _short(modules: Iterable[str], every: Iterable[str]) -> list[str]:
    """Names for `target_modules`: the last parts of the modules' names if they name no other module, else whole names."""
    modules = set(modules)
    last = {name.rpartition(".")[2] for name in modules}
    short = {name for name in every if name.rpartition(".")[2] in last} == modules
    return sorted(last if short else modules)


def _module(name: str) -> str:
    return name.removeprefix(PREFIX).rpartition(".")[0]


def _task(config: TransformerConfig) -> str | None:
    """peft's name for what a model does."""
    if isinstance(config.head, ClassifierHeadConfig):
        return "TOKEN_CLS" if config.head.pooling == "none" else "SEQ_CLS"
    if len(config.stacks()) == 2:
        return "SEQ_2_SEQ_LM"
    return "CAUSAL_LM" if config.decoder is not None else None
