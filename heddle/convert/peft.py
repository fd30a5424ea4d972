"""Adapters in the format of peft: writing those of a run, and merging an adapter of either kind into a model.

peft names the modules of Hugging Face transformers. Some of them combine several of heddle's layers, such as GPT-2's `c_attn` (q, k
and v). A product B A of two factors survives that: the A of the layers are stacked, each layer's B gets its own rows and columns of
one B, and the rest is 0. The rank is then the sum of the layers' ranks. On import, each layer gets its rows of B and all of A.
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
from heddle.errors import HeddleError, problems_of, together
from heddle.model.lora import A, B
from heddle.text.tokenizer import load_tokenizer
from heddle.weights.adapter import METADATA, Adapter, from_metadata, read_adapter
from heddle.weights.checkpoints import ADAPTER, TOKENIZER
from heddle.weights.checkpoints import CONFIG as RUN_CONFIG
from heddle.weights.files import refuse_unwritable, write_directory
from heddle.weights.run import build_empty, load, read_config, write_model
from heddle.weights.start import grown
from heddle.weights.tensors import Weights, save_tensors

CONFIG, WEIGHTS, PICKLED = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
PREFIX = "base_model.model."  # of every name
FACTOR = re.compile(r"(.+)\.lora_([AB])(?:\.default)?\.weight")
# Settings that change the function, with the values that heddle supports. The first is the default.
SUPPORTED: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "use_dora": (False,),
    "bias": ("none",),
    "lora_bias": (False,),
    "init_lora_weights": (True, False, "gaussian", "orthogonal"),  # other methods change the weights of the base
    "trainable_token_indices": (None,),
    "layer_replication": (None,),
    "use_qalora": (False,),
    "alora_invocation_tokens": (None,),
}
# Settings about training, and those that follow from the tensors and their names.
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
        `family`; `modules`, the number with an adapter; `rank`, the largest; `parameters`, the number in the adapters.

    Raises:
        HeddleError: the run has no adapter, no family can express the model, or training changed something other than adapters
            and a classifier. Nothing is left behind then.
    """
    run, config = Path(run), read_config(run)
    if not (run / ADAPTER).is_file():
        raise HeddleError(f"{run} has no {ADAPTER}: it was not trained with [train.lora], or has not finished")
    adapter = read_adapter(run / ADAPTER)
    target_problems = problems_of(lambda: refuse_unwritable(Path(directory)))
    tensors, peft_config, family = together(target_problems, lambda: _exported(adapter, config.model))
    peft_config["lora_dropout"] = config.train.lora.dropout if config.train is not None and config.train.lora else 0.0
    with write_directory(Path(directory)) as partial:
        (partial / CONFIG).write_text(json.dumps(peft_config, indent=2) + "\n", encoding="utf-8")
        save_tensors(partial / WEIGHTS, tensors, {"format": "pt", METADATA: json.dumps(adapter.metadata())})
    modules = sum(name.endswith(".lora_A.weight") for name in tensors)
    parameters = sum(tensor.numel() for name, tensor in adapter.tensors.items() if name.endswith((A, B)))
    return {"family": family.name, "modules": modules, "rank": peft_config["r"], "parameters": parameters}


def _exported(adapter: Adapter, config: TransformerConfig) -> tuple[dict[str, Tensor], dict[str, Any], Family]:
    """The tensors and the `adapter_config.json` of an adapter, and the family of its base.

    Raises:
        HeddleError: no family can express the base, or peft's format has no place for some tensors.
    """
    try:
        family, _ = choose(config)
    except HeddleError as error:
        raise HeddleError(*_in_full(adapter), *error.problems) from None
    return *to_peft(adapter, family, config), family


@checked()
def merge_adapter(base: str | Path, adapter: str | Path, run: str | Path) -> dict[str, Any]:
    """Write a model with an adapter merged into its weights as a new run.

    Args:
        base: the run with the weights that the adapter was trained on.
        adapter: a run that trained an adapter, its `adapter.safetensors`, or a directory that peft wrote. Only a run brings its
            task, the columns of its data, and any chat template and tokens that training added.
        run: the new directory; it must not exist.

    Returns:
        `layers`, the number that changed; `checked`, whether the adapter identifies its base, so that other models are refused.

    Raises:
        HeddleError: a file cannot be read, or the adapter belongs to another model. Nothing is left behind then.
    """
    model, tokenizer = load(base, "cpu")
    weights, config = model.state_dict(), model.config
    update = _read_any(Path(adapter), config, weights)
    # A run also records its task and data, and may have added a chat template with its tokens.
    run_settings: dict[str, Any] = {}
    if (Path(adapter) / ADAPTER).is_file() and (Path(adapter) / RUN_CONFIG).is_file():
        trained = read_config(adapter)
        trained_model, old_count = trained.model, 0 if tokenizer is None else tokenizer.vocab_size
        run_settings = {"data": trained.data, "task": trained.task}
        config = config.model_copy(update={"chat": trained_model.chat})
        if tokenizer is not None and (Path(adapter) / TOKENIZER).is_file():
            tokenizer = load_tokenizer(adapter)
            if tokenizer.vocab_size > old_count:
                config = config.override({"vocab_size": max(config.vocab_size, trained_model.vocab_size)})
                weights = grown(weights, build_empty(config, Path(base)).state_dict(), old_count, tokenizer.vocab_size)
    config = update.config_of(config)
    names = build_empty(config, Path(base)).state_dict()
    merged_weights = update.merged(weights, set(names), str(adapter))
    with write_directory(Path(run)) as directory:
        tensors = {name: merged_weights[name] for name in names}
        saved = SavedConfig(model=config, origin=f"{base} with {adapter}", **run_settings)
        write_model(directory, tensors, saved, tokenizer, step=0, extra={"base": str(base), "adapter": str(adapter)})
    return {"layers": len(update.layers()), "checked": update.base is not None}


def _read_any(adapter: Path, config: TransformerConfig, weights: Mapping[str, Tensor]) -> Adapter:
    """An adapter of heddle or peft, for a base with this config and these weights."""
    if (adapter / CONFIG).is_file():
        return from_peft(adapter, config, weights)
    if adapter.is_dir() and not (adapter / ADAPTER).is_file():
        raise HeddleError(f"{adapter}: neither a run with {ADAPTER} nor a peft directory with {CONFIG}")
    return read_adapter(adapter / ADAPTER if adapter.is_dir() else adapter)


def to_peft(adapter: Adapter, family: Family, config: TransformerConfig) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the `adapter_config.json` of an adapter.

    Raises:
        HeddleError: peft's format has no place for some of its tensors.
    """
    rows, config, weights = together(_in_full(adapter), lambda: _rows(adapter.layers(), family, config))
    tensors: dict[str, Tensor] = {}
    ranks: dict[str, int] = {}
    transposed = set()
    for row in rows.values():
        layers = [name.removesuffix(".weight") for name in row.heddle]
        module = row.published.removesuffix(".weight")
        if adapted := [layer for layer in layers if f"{layer}.{A}" in adapter.tensors]:
            a, b_parts = _joined(adapter, layers, adapted, [weights[name] for name in row.heddle])
            transposed_row = _is_transposed(row, config, b_parts)
            transposed |= {module} if transposed_row else set()
            b = row.transform.to_published(tuple(b_parts), config)
            tensors[f"{PREFIX}{module}.lora_A.weight"] = a
            tensors[f"{PREFIX}{module}.lora_B.weight"] = b.T if transposed_row else b
            ranks[module] = len(a)
        elif set(row.heddle) <= set(adapter.tensors):
            value = row.transform.to_published(tuple(adapter.tensors[name] for name in row.heddle), config)
            tensors[PREFIX + row.published] = value - row.shift if row.shift else value
    largest = max(ranks.values())
    peft_config = {
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
    return tensors, peft_config


def _in_full(adapter: Adapter) -> list[str]:
    """The problem with tensors that were trained in full and that peft does not store; empty if there are none."""
    is_classifier = isinstance(adapter.head, ClassifierHeadConfig)
    names = sorted(name for name in adapter.others() if not (is_classifier and name.startswith("head.")))
    line = (
        f"{', '.join(names)} {'was' if len(names) == 1 else 'were'} trained in full, but peft stores only adapters and "
        "classifiers: export the merged model with heddle export"
    )
    return [line] if names else []


def from_peft(folder: Path, base: TransformerConfig, base_weights: Mapping[str, Tensor]) -> Adapter:
    """Read a directory that peft wrote, as an adapter for a model with the config `base` and these weights.

    Raises:
        HeddleError: it has a setting that heddle does not support, or does not fit the model.
    """
    peft_config = read_json(folder / CONFIG)
    for key, value in peft_config.items():
        values = SUPPORTED.get(key, () if value and key not in HARMLESS else (value,))
        if value and value not in values:
            only = f", only {values[0]!r}" if values else ""
            raise HeddleError(f"{folder / CONFIG}: {key} = {value!r} is not supported{only}")
    if not (folder / WEIGHTS).is_file() and (folder / PICKLED).is_file():
        raise HeddleError(
            f"{folder / PICKLED}: a pickle, which can run code when read; save it as safetensors with peft"
        )
    weights = Weights([folder / WEIGHTS])
    metadata = from_metadata(weights) or Adapter({}, 1.0)
    family, _ = choose(metadata.config_of(base))
    short_names = {name: name.removeprefix(PREFIX).replace(".modules_to_save", "") for name in weights}
    factors = {name: match for name, short_name in short_names.items() if (match := FACTOR.fullmatch(short_name))}
    full_tensors = {
        _table_name(short_names[name], family): weights[name].float() for name in weights.keys() - factors.keys()
    }
    try:
        full_tensors, untied = _split_tied(full_tensors, peft_config, family, metadata.config_of(base), base_weights)
    except HeddleError as error:
        raise HeddleError(f"{folder / WEIGHTS}: {error}") from None
    metadata = replace(metadata, head=base.head.model_copy(update={"tied": False})) if untied else metadata
    rows, config, model_tensors = _rows((), family, metadata.config_of(base))

    def row_of(published: str) -> TensorRow:
        row = rows.get(_table_name(published, family))
        if row is None:
            raise HeddleError(
                f"{folder} belongs to another model: {family.architecture} has no {published} of this size"
            )
        return row

    tensors: dict[str, Tensor] = {}
    for name, match in factors.items():
        other = name.replace(f".lora_{match[2]}", f".lora_{'B' if match[2] == 'A' else 'A'}")
        if other not in weights:
            raise HeddleError(f"{folder / WEIGHTS}: {name} without {other}; it is damaged")
        if match[2] == "A":
            row = row_of(f"{match[1]}.weight")
            a, b = weights[name].float(), weights[other].float()
            sizes = [model_tensors[each].shape for each in row.heddle]
            if any(len(size) != 2 for size in sizes) or a.shape[1] != sizes[0][1] or len(b) != sum(n for n, _ in sizes):
                raise HeddleError(f"{folder} belongs to another model: {match[1]} is not of the same size")
            transposed = _is_transposed(row, config, [torch.zeros(size[0], 1) for size in sizes])
            b = b * _factor(peft_config, match[1], len(a), folder / CONFIG)
            b_parts = row.transform.to_heddle(b.T if transposed else b, config)
            for each, b_part in zip(row.heddle, b_parts, strict=True):
                layer = each.removesuffix(".weight")
                tensors |= {f"{layer}.{A}": a, f"{layer}.{B}": b_part.contiguous()}
    for name, value in full_tensors.items():
        row = row_of(name)
        parts = [part + row.shift for part in row.transform.to_heddle(value, config)]
        if [part.shape for part in parts] != [model_tensors[each].shape for each in row.heddle]:
            raise HeddleError(f"{folder} belongs to another model: {name} is not of the same size")
        tensors |= dict(zip(row.heddle, parts, strict=True))
    return Adapter(tensors, 1.0, metadata.base, metadata.head)


def _table_name(name: str, family: Family) -> str:
    """A published name with the prefix that the family's table has. The tensors of a head have none."""
    prefix = family.names.prefix
    heads = {row.published for row in family.table if not row.published.startswith(prefix)}
    return name if name in heads or name.startswith(prefix) else prefix + name


def _split_tied(
    full: Mapping[str, Tensor],
    peft_config: Mapping[str, Any],
    family: Family,
    config: TransformerConfig,
    base: Mapping[str, Tensor],
) -> tuple[dict[str, Tensor], bool]:
    """The full tensors of an adapter, with a tied table and head as peft leaves them, and whether it unties them.

    A module in `modules_to_save` is a copy that was trained separately, so a head tied to it keeps the base's values, unless
    `ensure_weight_tying` is set. Embedding layers that were saved without being listed there stay tied.

    Args:
        full: full tensors by the family's names.
        peft_config: the `adapter_config.json`.
        family: the family of the base.
        config: the config of the base, with the adapter's own head.
        base: the weights of the base.
    """
    tensors = dict(full)
    rows = {row.heddle: row for row in reversed(family.table)}
    table, head = rows[("embedding.weight",)], rows.get(("head.weight",))
    tables = [row.published for row in family.table if row.heddle[0] in ("embedding.weight", "source_embedding.weight")]
    if head is None or not getattr(config.head, "tied", False) or not tensors.keys() & {*tables, head.published}:
        return tensors, False
    if len(config.stacks()) == 2:
        raise HeddleError(
            f"it brings {', '.join(tensors.keys() & {*tables, head.published})}, which several parts of the base share"
        )
    values = [tensors.get(row.published) for row in (table, head)]
    modules = [row.published.removesuffix(".weight") for row in (table, head)]
    saved_alone = any(
        f".{module}".endswith(f".{name}") for module in modules for name in peft_config.get("modules_to_save") or []
    )
    equal = values[0] is not None and values[1] is not None and torch.equal(values[0], values[1])
    if equal or not saved_alone or peft_config.get("ensure_weight_tying"):
        value = tensors.pop(head.published, None)
        return tensors if value is None else {table.published: value, **tensors}, False
    base_table = table.transform.to_published((base["embedding.weight"].float(),), config)
    return {table.published: base_table, head.published: base_table.clone(), **tensors}, True


def _rows(
    layers: Iterable[str], family: Family, config: TransformerConfig
) -> tuple[dict[str, TensorRow], TransformerConfig, Mapping[str, Tensor]]:
    """The family's rows by published name, with the config and the tensors (on the meta device) that they are for."""
    state = build_empty(config, Path(family.name)).state_dict()
    config, tensors = family.rewrite(config, state)
    scaled = [layer for layer in layers if tensors[f"{layer}.weight"] is not state[f"{layer}.weight"]]
    if scaled:
        raise HeddleError(
            f"{family.architecture} scales {', '.join(scaled)}, which an adapter cannot: use heddle export instead"
        )
    return {row.published: row for row in rows_of(family.table, config, list(tensors))}, config, tensors


def _joined(
    adapter: Adapter, layers: list[str], adapted: list[str], weights: list[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """The factors of several layers as those of one layer: all A stacked, and for each layer its B between zeros."""
    a = torch.cat([adapter.tensors[f"{layer}.{A}"] for layer in adapted])
    b_parts, start = [], 0
    for layer, weight in zip(layers, weights, strict=True):
        b_part = torch.zeros(len(weight), len(a))
        if layer in adapted:
            factor = adapter.tensors[f"{layer}.{B}"]
            b_part[:, start : start + factor.shape[1]] = factor
            start += factor.shape[1]
        b_parts.append(b_part)
    return a, b_parts


def _is_transposed(row: TensorRow, config: TransformerConfig, outputs: list[Tensor]) -> bool:
    """Whether the family stores the layer's weight input first."""
    columns = row.transform.to_published(tuple(each[:, :1] for each in outputs), config)
    return len(columns) == 1 and columns.shape[1] > 1


def _factor(peft_config: Mapping[str, Any], module: str, rank: int, where: Path) -> float:
    """The factor by which peft scales a module's product. `where` names the file in errors."""
    patterns = peft_config.get("alpha_pattern") or {}
    if not isinstance(patterns, Mapping):
        raise HeddleError(f"{where}: alpha_pattern = {patterns!r} must be a table of numbers by module")
    try:
        key = next((key for key in patterns if re.fullmatch(rf"(.*\.)?({key})", module)), None)
    except re.error as error:
        raise HeddleError(f"{where}: a name in alpha_pattern is not a regular expression ({error})") from None
    name, alpha = (
        ("lora_alpha", peft_config.get("lora_alpha", 8)) if key is None else (f"alpha_pattern.{key}", patterns[key])
    )
    if isinstance(alpha, bool) or not isinstance(alpha, int | float):
        raise HeddleError(f"{where}: {name} = {alpha!r} must be a number")
    return alpha / (sqrt(rank) if peft_config.get("use_rslora") else rank)


def _short(modules: Iterable[str], all_modules: Iterable[str]) -> list[str]:
    """Names for `target_modules`: the last parts of the modules' names if no other module has them, else full names."""
    modules = set(modules)
    last_parts = {name.rpartition(".")[2] for name in modules}
    unambiguous = {name for name in all_modules if name.rpartition(".")[2] in last_parts} == modules
    return sorted(last_parts if unambiguous else modules)


def _module(name: str) -> str:
    return name.removeprefix(PREFIX).rpartition(".")[0]


def _task(config: TransformerConfig) -> str | None:
    """peft's name for the task of a model."""
    if isinstance(config.head, ClassifierHeadConfig):
        return "TOKEN_CLS" if config.head.pooling == "none" else "SEQ_CLS"
    if len(config.stacks()) == 2:
        return "SEQ_2_SEQ_LM"
    return "CAUSAL_LM" if config.decoder is not None else None
