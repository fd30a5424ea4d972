"""Directories of sentence-transformers: the modules after a published model, the length of texts, and prompts."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from heddle.config.embedding import DenseConfig, EmbeddingHeadConfig, Pooling
from heddle.config.layers import ActivationName
from heddle.config.model import TransformerConfig
from heddle.convert.mapping import EXACT_IN_FP32
from heddle.convert.published import SETTINGS, open_weights, read_json, write_json
from heddle.errors import HeddleError
from heddle.weights.tensors import check_finite, save_tensors

MODULES, PROMPTS, LENGTH = "modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"
OWNER = "sentence_transformers."
# Poolings by sentence-transformers' name, heddle's name and the older field. Several older fields pool in this order.
POOLINGS: tuple[tuple[str, Pooling, str], ...] = (
    ("cls", "first", "pooling_mode_cls_token"),
    ("max", "max", "pooling_mode_max_tokens"),
    ("mean", "mean", "pooling_mode_mean_tokens"),
    ("mean_sqrt_len_tokens", "mean_sqrt", "pooling_mode_mean_sqrt_len_tokens"),
    ("weightedmean", "weighted_mean", "pooling_mode_weightedmean_tokens"),
    ("lasttoken", "last", "pooling_mode_lasttoken"),
)
WIDTHS = ("embedding_dimension", "word_embedding_dimension")  # newer, older
# torch's classes of activations, by the last part of their names, and heddle's names.
ACTIVATIONS: dict[str, ActivationName] = {
    "Tanh": "tanh", "Identity": "linear", "ReLU": "relu", "ReLU6": "relu6", "GELU": "gelu", "SiLU": "silu", "Mish": "mish",
    "Sigmoid": "sigmoid", "LeakyReLU": "leaky_relu",
}  # fmt: skip
PADS_WITH = ("pad_token", "eos_token", "sep_token", "bos_token", "unk_token")  # the first that exists pads
IN_TRAINING = ("Dropout",)
SIMILARITIES = {
    "cosine": "cosine",
    "dot": "dot",
    "dot_score": "dot",
    "euclidean": "euclidean",
    "manhattan": "manhattan",
}


@dataclass(frozen=True)
class Sentences:
    """A model as described by the files of sentence-transformers.

    Attributes:
        body: the directory of the published model below the pooling.
        head: the head that computes one vector per text.
        lower: whether texts are lowercased before its tokenizer reads them.
        dense: the directories of its dense layers.
        notes: what is left out, for the user.
    """

    body: Path
    head: EmbeddingHeadConfig
    lower: bool
    dense: tuple[Path, ...]
    notes: tuple[str, ...]

    def tensors(self) -> dict[str, Tensor]:
        """The weights of the dense layers as tensors of heddle's head, in fp32.

        Raises:
            HeddleError: a file is missing, or has other tensors than a dense layer.
        """
        tensors: dict[str, Tensor] = {}
        for number, (folder, dense) in enumerate(zip(self.dense, self.head.dense, strict=True)):
            weights = open_weights(folder)
            expected = {"linear.weight", *(["linear.bias"] if dense.bias else [])}
            if set(weights) != expected:
                raise HeddleError(
                    f"{folder}: its weights are {', '.join(weights)}, must be {', '.join(sorted(expected))}"
                )
            for name in sorted(expected):
                if weights.specs[name].dtype not in EXACT_IN_FP32:
                    raise HeddleError(f"{folder}: {name} is {weights.specs[name].dtype}; heddle reads F32, F16 or BF16")
                tensors[f"head.dense.{number}.{name}"] = weights[name].float()
                check_finite(name, tensors[f"head.dense.{number}.{name}"], folder)
        return tensors


def read_sentences(folder: Path) -> Sentences | None:
    """Read the files of sentence-transformers in a directory; None if there is no `modules.json`.

    Raises:
        HeddleError: a file is damaged, or has a setting that heddle does not support.
    """
    file = folder / MODULES
    if not file.is_file():
        return None
    modules = _modules(file)
    kinds = [kind for kind, _ in modules]
    if kinds[:2] != ["Transformer", "Pooling"]:
        raise HeddleError(
            f"{file}: begins with {' and '.join(kinds[:2]) or 'nothing'}; must begin with Transformer and Pooling"
        )
    (_, body), (_, pooling), *rest = modules
    notes = [f"{path}: {kind} matters only in training: left out" for kind, path in rest if kind in IN_TRAINING]
    rest = [(kind, path) for kind, path in rest if kind not in IN_TRAINING]
    dense = tuple(path for kind, path in rest if kind == "Dense")
    after = [kind for kind, _ in rest[len(dense) :]]
    if [kind for kind, _ in rest[: len(dense)]] != ["Dense"] * len(dense) or set(after) - {"Normalize"}:
        raise HeddleError(
            f"{file}: {', '.join(kinds[2:])} after the pooling; heddle supports dense layers, then a normalisation"
        )
    for _, path in rest[len(dense) :]:
        _check(path / "config.json", _read_optional(path / "config.json"), _features("sentence_embedding"))
    length, lower = _length(body)
    head = {
        **_pooling(pooling / "config.json"),
        "dense": [_dense(path / "config.json") for path in dense],
        "normalise": bool(after),
        "length": length,
        **_prompts(folder / PROMPTS),
    }
    head_config = EmbeddingHeadConfig.of(head, where=f"{folder} in heddle's terms")
    return Sentences(body, head_config, lower, dense, tuple(notes))


def _modules(file: Path) -> list[tuple[str, Path]]:
    """The class and the directory of each module, in order."""
    try:
        entries = json.loads(file.read_bytes())
        modules = [(str(each["type"]), str(each["path"])) for each in entries]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        raise HeddleError(f"{file}: not a list of modules with type and path") from None
    for kind, path in modules:
        if not kind.startswith(OWNER):
            raise HeddleError(f"{file}: {kind} is the model's own code, which heddle does not run")
        if not (file.parent / path).resolve().is_relative_to(file.parent.resolve()):
            raise HeddleError(f"{file}: {path!r} is outside the directory")
    return [(kind.rsplit(".", 1)[-1], file.parent / path) for kind, path in modules]


def _read_optional(file: Path) -> dict[str, Any]:
    return read_json(file) if file.is_file() else {}


def _features(name: str) -> dict[str, tuple[Any, ...]]:
    """The fields for the vectors that a module reads and writes, with their only supported values."""
    return {"module_input_name": (name,), "module_output_name": (name, None)}


def _check(
    file: Path, fields: Mapping[str, Any], supported: Mapping[str, tuple[Any, ...]], ignored: Sequence[str] = ()
) -> None:
    """Refuse fields that heddle does not know, and values that it does not support."""
    for name, value in fields.items():
        if name in supported and value not in supported[name]:
            raise HeddleError(f"{file}: {name} = {value!r}; heddle supports only {supported[name][0]!r}")
        if name not in supported and name not in ignored and value not in (None, [], {}):
            raise HeddleError(f"{file}: {name} = {value!r}; heddle does not know what this field changes")


def _pooling(file: Path) -> dict[str, Any]:
    fields = read_json(file)
    older_fields = {field: heddle for _, heddle, field in POOLINGS}
    _check(file, fields, {}, (*WIDTHS, *older_fields, "pooling_mode", "include_prompt"))
    mode = fields.get("pooling_mode")
    if mode is None:
        names = [heddle for field, heddle in older_fields.items() if fields.get(field)] or ["mean"]
    else:
        table = {published: heddle for published, heddle, _ in POOLINGS}
        modes = [mode] if isinstance(mode, str) else mode
        if not isinstance(modes, list) or not modes or not all(each in table for each in modes):
            raise HeddleError(f"{file}: pooling_mode = {mode!r}; heddle supports {', '.join(table)}")
        names = [table[mode] for mode in modes]
    return {"pooling": names[0] if len(names) == 1 else names, "pool_prompt": fields.get("include_prompt", True)}


def _dense(file: Path) -> dict[str, Any]:
    fields = read_json(file)
    supported = {**_features("sentence_embedding"), "use_residual": (False,)}
    _check(file, fields, supported, ("in_features", "out_features", "bias", "activation_function"))
    activation = fields.get("activation_function", "torch.nn.modules.activation.Tanh")
    owner, _, name = str(activation).rpartition(".")
    if not owner.startswith("torch.") or name not in ACTIVATIONS:
        raise HeddleError(
            f"{file}: activation_function = {activation!r}; heddle supports torch's {', '.join(ACTIVATIONS)}"
        )
    return {"outputs": fields.get("out_features"), "activation": ACTIVATIONS[name], "bias": fields.get("bias", True)}


def _length(body: Path) -> tuple[int | None, bool]:
    """The maximum number of ids in a text, and whether texts are lowercased."""
    file = body / LENGTH
    if not file.is_file():
        file = next(iter(sorted(body.glob("sentence_*_config.json"))), file)
    fields = _read_optional(file)
    text = {"method": "forward", "method_output_name": "last_hidden_state"}
    supported = {
        "transformer_task": ("feature-extraction",),
        "module_output_name": ("token_embeddings",),
        "modality_config": ({"text": text},),
        **{
            f"{part}_{end}": ({},)
            for part in ("model", "tokenizer", "processor", "config")
            for end in ("args", "kwargs")
        },
    }
    _check(file, fields, supported, ("max_seq_length", "do_lower_case", "unpad_inputs"))
    length = fields.get("max_seq_length") or _read_optional(body / SETTINGS).get("model_max_length")
    # The limit of a tokenizer without one is 10^30.
    return (length if isinstance(length, int) and 0 < length < 2**31 else None), bool(fields.get("do_lower_case"))


def _prompts(file: Path) -> dict[str, Any]:
    fields = _read_optional(file)
    supported = {"model_type": ("SentenceTransformer",)}
    ignored = ("__version__", "prompts", "default_prompt_name", "similarity_fn_name", "requirements")
    _check(file, fields, supported, ignored)
    similarity = fields.get("similarity_fn_name") or "cosine"
    if similarity not in SIMILARITIES:
        raise HeddleError(f"{file}: similarity_fn_name = {similarity!r}; heddle supports {', '.join(SIMILARITIES)}")
    return {
        "prompts": {name: text or "" for name, text in (fields.get("prompts") or {}).items()},
        "prompt": fields.get("default_prompt_name"),
        "similarity": SIMILARITIES[similarity],
    }


def write_sentences(folder: Path, config: TransformerConfig, tensors: Mapping[str, Tensor]) -> None:
    """Add the files of sentence-transformers to the directory of a published model, with older names, which all versions read.

    Args:
        folder: the directory.
        config: a model with an embedding head.
        tensors: the tensors of the model; only those of the dense layers are written.
    """
    head = config.head
    assert isinstance(head, EmbeddingHeadConfig)
    widths = head.widths(config.dim)
    kinds = ["Transformer", "Pooling", *["Dense"] * len(head.dense), *["Normalize"] * head.normalise]
    paths = ["", *(f"{number}_{kind}" for number, kind in enumerate(kinds) if number)]
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"{OWNER}models.{kind}"}
        for number, (kind, path) in enumerate(zip(kinds, paths, strict=True))
    ]
    (folder / MODULES).write_text(json.dumps(modules, indent=2) + "\n", encoding="utf-8")
    write_json(folder / LENGTH, {"max_seq_length": config.longest_text(), "do_lower_case": False})
    if (folder / SETTINGS).exists():
        settings = read_json(folder / SETTINGS)
        # Batches of texts need a padding token. Any will do, since the attention mask hides it.
        padding = next((settings[role] for role in PADS_WITH if settings.get(role)), None)
        if padding is not None:
            write_json(folder / SETTINGS, {**settings, "pad_token": padding})
    prompt_fields = {"prompts": head.prompts, "default_prompt_name": head.prompt, "similarity_fn_name": head.similarity}
    write_json(folder / PROMPTS, prompt_fields)
    for path in paths[1:]:
        (folder / path).mkdir()
    write_json(folder / paths[1] / "config.json", _pooling_fields(head, config.dim))
    for number, dense in enumerate(head.dense):
        dense_folder = folder / paths[2 + number]
        write_json(dense_folder / "config.json", _dense_fields(dense, widths[number], widths[number + 1]))
        start = f"head.dense.{number}."
        dense_tensors = {name.removeprefix(start): each for name, each in tensors.items() if name.startswith(start)}
        save_tensors(dense_folder / "model.safetensors", dense_tensors, {"format": "pt"})
    if head.normalise:
        write_json(folder / paths[-1] / "config.json", {})


def _pooling_fields(head: EmbeddingHeadConfig, dim: int) -> dict[str, Any]:
    ordered = [heddle for _, heddle, _ in POOLINGS if heddle in head.poolings()]
    if list(head.poolings()) == ordered:
        modes: dict[str, Any] = {field: heddle in head.poolings() for _, heddle, field in POOLINGS}
        return {WIDTHS[1]: dim, **modes, "include_prompt": head.pool_prompt}
    names = {heddle: published for published, heddle, _ in POOLINGS}
    return {
        WIDTHS[0]: dim,
        "pooling_mode": [names[each] for each in head.poolings()],
        "include_prompt": head.pool_prompt,
    }


def lacking(head: EmbeddingHeadConfig) -> list[str]:
    """The settings of a head that files of sentence-transformers cannot store."""
    names = ", ".join(ACTIVATIONS.values())
    return [
        f"head.dense.{number}.activation is {dense.activation}, sentence-transformers has {names}"
        for number, dense in enumerate(head.dense)
        if dense.activation not in ACTIVATIONS.values()
    ]


def _dense_fields(dense: DenseConfig, inputs: int, outputs: int) -> dict[str, Any]:
    name = next(published for published, heddle in ACTIVATIONS.items() if heddle == dense.activation)
    module = "linear" if name == "Identity" else "activation"
    activation = f"torch.nn.modules.{module}.{name}"
    return {"in_features": inputs, "out_features": outputs, "bias": dense.bias, "activation_function": activation}
