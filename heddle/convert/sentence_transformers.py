"""Directories of sentence-transformers: which modules follow a published model, how texts are read, and what comes before them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from heddle.config.embedding import DenseConfig, EmbeddingHeadConfig, Pooling
from heddle.config.layers import ActivationName
from heddle.config.model import TransformerConfig
from heddle.convert.mapping import HALVES
from heddle.convert.published import SETTINGS, open_weights, read_json, write_json
from heddle.errors import HeddleError
from heddle.weights.tensors import check_finite, save_tensors

MODULES, PROMPTS, LENGTH = "modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"
OWNER = "sentence_transformers."
# Their names of poolings and heddle's, with the older field of each. Several older fields pool in this order.
POOLINGS: tuple[tuple[str, Pooling, str], ...] = (
    ("cls", "first", "pooling_mode_cls_token"),
    ("max", "max", "pooling_mode_max_tokens"),
    ("mean", "mean", "pooling_mode_mean_tokens"),
    ("mean_sqrt_len_tokens", "mean_sqrt", "pooling_mode_mean_sqrt_len_tokens"),
    ("weightedmean", "weighted_mean", "pooling_mode_weightedmean_tokens"),
    ("lasttoken", "last", "pooling_mode_lasttoken"),
)
WIDTHS = ("embedding_dimension", "word_embedding_dimension")  # newer, older
# torch's classes of activations, by the last part of their names.
ACTIVATIONS: dict[str, ActivationName] = {
    "Tanh": "tanh", "Identity": "linear", "ReLU": "relu", "ReLU6": "relu6", "GELU": "gelu", "SiLU": "silu", "Mish": "mish",
    "Sigmoid": "sigmoid", "LeakyReLU": "leaky_relu",
}  # fmt: skip
PADS_WITH = ("pad_token", "eos_token", "sep_token", "bos_token", "unk_token")  # the first there is
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
    """What the files of sentence-transformers say of a model.

    Attributes:
        body: the directory of the published model below the pooling.
        head: how its hidden vectors become one for each text.
        lower: whether texts are put in lower case before its tokenizer reads them.
        dense: the directories of its dense layers.
        notes: what is left out, for the user.
    """

    body: Path
    head: EmbeddingHeadConfig
    lower: bool
    dense: tuple[Path, ...]
    notes: tuple[str, ...]

    def tensors(self) -> dict[str, Tensor]:
        """The weights of the dense layers as heddle's tensors of the head, in fp32.

        Raises:
            HeddleError: a file is missing, or holds other tensors than such a layer has.
        """
        found: dict[str, Tensor] = {}
        for number, (folder, dense) in enumerate(zip(self.dense, self.head.dense, strict=True)):
            weights = open_weights(folder)
            wanted = {"linear.weight", *(["linear.bias"] if dense.bias else [])}
            if set(weights) != wanted:
                raise HeddleError(
                    f"{folder}: its weights are {', '.join(weights)}, must be {', '.join(sorted(wanted))}"
                )
            for name in sorted(wanted):
                if weights.specs[name].dtype not in HALVES:
                    raise HeddleError(f"{folder}: {name} is {weights.specs[name].dtype}; heddle reads F32, F16 or BF16")
                found[f"head.dense.{number}.{name}"] = weights[name].float()
                check_finite(name, found[f"head.dense.{number}.{name}"], folder)
        return found


def read_sentences(folder: Path) -> Sentences | None:
    """What a directory's files of sentence-transformers say; None if there is no `modules.json`.

    Raises:
        HeddleError: a file is damaged, or says something that heddle cannot compute.
    """
    file = folder / MODULES
    if not file.is_file():
        return None
    modules = _modules(file)
    kinds = [kind for kind, _ in modules]
    if kinds[:2] != ["Transformer", "Pooling"]:
        raise HeddleError(
            f"{file}: begins with {' and '.join(kinds[:2]) or 'nothing'}, must with Transformer and Pooling"
        )
    (_, body), (_, pooling), *rest = modules
    notes = [f"{place}: {kind} matters only in training: left out" for kind, place in rest if kind in IN_TRAINING]
    rest = [(kind, place) for kind, place in rest if kind not in IN_TRAINING]
    dense = tuple(place for kind, place in rest if kind == "Dense")
    after = [kind for kind, _ in rest[len(dense) :]]
    if [kind for kind, _ in rest[: len(dense)]] != ["Dense"] * len(dense) or set(after) - {"Normalize"}:
        raise HeddleError(
            f"{file}: {', '.join(kinds[2:])} after the pooling; heddle has dense layers, then a normalisation"
        )
    for _, place in rest[len(dense) :]:
        _check(place / "config.json", _optional(place / "config.json"), _features("sentence_embedding"))
    length, lower = _length(body)
    head = {
        **_pooling(pooling / "config.json"),
        "dense": [_dense(place / "config.json") for place in dense],
        "normalise": bool(after),
        "length": length,
        **_prompts(folder / PROMPTS),
    }
    made = EmbeddingHeadConfig.of(head, where=f"{folder} in heddle's terms")
    return Sentences(body, made, lower, dense, tuple(notes))


def _modules(file: Path) -> list[tuple[str, Path]]:
    """The class and the directory of each module, in order."""
    try:
        listed = json.loads(file.read_bytes())
        modules = [(str(each["type"]), str(each["path"])) for each in listed]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        raise HeddleError(f"{file}: is not a list of modules with type and path") from None
    for kind, path in modules:
        if not kind.startswith(OWNER):
            raise HeddleError(f"{file}: {kind} is the model's own code, which heddle does not run")
        if not (file.parent / path).resolve().is_relative_to(file.parent.resolve()):
            raise HeddleError(f"{file}: {path!r} is outside the directory")
    return [(kind.rsplit(".", 1)[-1], file.parent / path) for kind, path in modules]


def _optional(file: Path) -> dict[str, Any]:
    return read_json(file) if file.is_file() else {}


def _features(name: str) -> dict[str, tuple[Any, ...]]:
    """The fields that say which vectors a module reads and writes, with their only values."""
    return {"module_input_name": (name,), "module_output_name": (name, None)}


def _check(
    file: Path, fields: Mapping[str, Any], only: Mapping[str, tuple[Any, ...]], known: Sequence[str] = ()
) -> None:
    """Refuse fields that heddle does not know, and values that it does not have.

    Raises:
        HeddleError: there is one.
    """
    for name, value in fields.items():
        if name in only and value not in only[name]:
            raise HeddleError(f"{file}: {name} = {value!r}; heddle has only {only[name][0]!r}")
        if name not in only and name not in known and value not in (None, [], {}):
            raise HeddleError(f"{file}: {name} = {value!r}; heddle does not know what this field changes")


def _pooling(file: Path) -> dict[str, Any]:
    fields = read_json(file)
    older = {field: ours for _, ours, field in POOLINGS}
    _check(file, fields, {}, (*WIDTHS, *older, "pooling_mode", "include_prompt"))
    said = fields.get("pooling_mode")
    if said is None:
        names = [ours for field, ours in older.items() if fields.get(field)] or ["mean"]
    else:
        table = {theirs: ours for theirs, ours, _ in POOLINGS}
        modes = [said] if isinstance(said, str) else said
        if not isinstance(modes, list) or not modes or not all(mode in table for mode in modes):
            raise HeddleError(f"{file}: pooling_mode = {said!r}; heddle has {', '.join(table)}")
        names = [table[mode] for mode in modes]
    return {"pooling": names[0] if len(names) == 1 else names, "pool_prompt": fields.get("include_prompt", True)}


def _dense(file: Path) -> dict[str, Any]:
    fields = read_json(file)
    only = {**_features("sentence_embedding"), "use_residual": (False,)}
    _check(file, fields, only, ("in_features", "out_features", "bias", "activation_function"))
    said = fields.get("activation_function", "torch.nn.modules.activation.Tanh")
    owner, _, name = str(said).rpartition(".")
    if not owner.startswith("torch.") or name not in ACTIVATIONS:
        raise HeddleError(f"{file}: activation_function = {said!r}; heddle has torch's {', '.join(ACTIVATIONS)}")
    return {"outputs": fields.get("out_features"), "activation": ACTIVATIONS[name], "bias": fields.get("bias", True)}


def _length(body: Path) -> tuple[int | None, bool]:
    """The most ids of a text, and whether it is put in lower case."""
    file = body / LENGTH
    if not file.is_file():
        file = next(iter(sorted(body.glob("sentence_*_config.json"))), file)
    fields = _optional(file)
    text = {"method": "forward", "method_output_name": "last_hidden_state"}
    only = {
        "transformer_task": ("feature-extraction",),
        "module_output_name": ("token_embeddings",),
        "modality_config": ({"text": text},),
        **{
            f"{part}_{end}": ({},)
            for part in ("model", "tokenizer", "processor", "config")
            for end in ("args", "kwargs")
        },
    }
    _check(file, fields, only, ("max_seq_length", "do_lower_case", "unpad_inputs"))
    length = fields.get("max_seq_length") or _optional(body / SETTINGS).get("model_max_length")
    # Tokenizers without a limit say 10^30.
    return (length if isinstance(length, int) and 0 < length < 2**31 else None), bool(fields.get("do_lower_case"))


def _prompts(file: Path) -> dict[str, Any]:
    fields = _optional(file)
    only = {"model_type": ("SentenceTransformer",)}
    known = ("__version__", "prompts", "default_prompt_name", "similarity_fn_name", "requirements")
    _check(file, fields, only, known)
    said = fields.get("similarity_fn_name") or "cosine"
    if said not in SIMILARITIES:
        raise HeddleError(f"{file}: similarity_fn_name = {said!r}; heddle has {', '.join(SIMILARITIES)}")
    return {
        "prompts": {name: text or "" for name, text in (fields.get("prompts") or {}).items()},
        "prompt": fields.get("default_prompt_name"),
        "similarity": SIMILARITIES[said],
    }


def write_sentences(folder: Path, config: TransformerConfig, tensors: Mapping[str, Tensor]) -> None:
    """Add what sentence-transformers reads to the directory of a published model. Its versions all read the older names.

    Args:
        folder: the directory.
        config: a model with an embedding head.
        tensors: the model's, of which the dense layers' are written.

    Raises:
        HeddleError: there is no such activation.
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
        # Texts are encoded in batches, which takes a token to pad with; the attention mask hides it, whichever it is.
        padding = next((settings[role] for role in PADS_WITH if settings.get(role)), None)
        if padding is not None:
            write_json(folder / SETTINGS, {**settings, "pad_token": padding})
    said = {"prompts": head.prompts, "default_prompt_name": head.prompt, "similarity_fn_name": head.similarity}
    write_json(folder / PROMPTS, said)
    for path in paths[1:]:
        (folder / path).mkdir()
    write_json(folder / paths[1] / "config.json", _written_pooling(head, config.dim))
    for number, dense in enumerate(head.dense):
        place = folder / paths[2 + number]
        write_json(place / "config.json", _written_dense(dense, widths[number], widths[number + 1]))
        start = f"head.dense.{number}."
        own = {name.removeprefix(start): each for name, each in tensors.items() if name.startswith(start)}
        save_tensors(place / "model.safetensors", own, {"format": "pt"})
    if head.normalise:
        write_json(folder / paths[-1] / "config.json", {})


def _written_pooling(head: EmbeddingHeadConfig, dim: int) -> dict[str, Any]:
    ordered = [ours for _, ours, _ in POOLINGS if ours in head.poolings()]
    if list(head.poolings()) == ordered:
        modes: dict[str, Any] = {field: ours in head.poolings() for _, ours, field in POOLINGS}
        return {WIDTHS[1]: dim, **modes, "include_prompt": head.pool_prompt}
    names = {ours: theirs for theirs, ours, _ in POOLINGS}
    return {
        WIDTHS[0]: dim,
        "pooling_mode": [names[each] for each in head.poolings()],
        "include_prompt": head.pool_prompt,
    }


def _written_dense(dense: DenseConfig, inputs: int, outputs: int) -> dict[str, Any]:
    name = next((theirs for theirs, ours in ACTIVATIONS.items() if ours == dense.activation), None)
    if name is None:
        raise HeddleError(f"sentence-transformers has no activation {dense.activation!r} behind a dense layer")
    module = "linear" if name == "Identity" else "activation"
    activation = f"torch.nn.modules.{module}.{name}"
    return {"in_features": inputs, "out_features": outputs, "bias": dense.bias, "activation_function": activation}
