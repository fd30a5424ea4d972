"""Directories as sentence-transformers writes them, made without it, and their vectors by definition."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece

WORDS = ("the", "warp", "weft", "is", "held", "Held", "thrown", "query", ":", "lifts", "threads", "it", "##s", "own")
VOCABULARY = {word: id for id, word in enumerate(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS))}
DIM, CONTEXT = 24, 20  # of the models
TEXTS = ["the warp is held", "Held", "the weft lifts threads it owns", "threads " * 40]
SIZES = {
    "vocab_size": len(VOCABULARY), "hidden_size": DIM, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 40, "max_position_embeddings": CONTEXT, "pad_token_id": 0,
}  # fmt: skip
MORE = {
    "LlamaForCausalLM": {"bos_token_id": None, "eos_token_id": None, "tie_word_embeddings": False},
    "ModernBertModel": {
        "local_attention": 8,
        "global_attn_every_n_layers": 2,
        **dict.fromkeys(f"{role}_token_id" for role in ("bos", "eos", "cls", "sep")),
    },
}

MEAN = {"word_embedding_dimension": DIM, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
NORMAL = ("Normalize", {})


def mode(name: str, **more: Any) -> dict[str, Any]:
    """Pooling as newer versions write it."""
    return {"embedding_dimension": DIM, "pooling_mode": name, "include_prompt": True, **more}


def dense(inputs: int, outputs: int, activation: str = "torch.nn.modules.activation.Tanh", **more: Any) -> Any:
    """A dense layer of these widths."""
    fields = {"in_features": inputs, "out_features": outputs, "bias": True, "activation_function": activation}
    return "Dense", {**fields, **more}


def write(
    folder: Path,
    pooling: dict[str, Any],
    *after: tuple[str, dict[str, Any]],
    length: dict[str, Any] | None = None,
    prompts: dict[str, Any] | None = None,
    body: str = "",
    owner: str = "sentence_transformers.models.",
    kind: str = "BertModel",
) -> Path:
    """A tiny model of one of transformers' classes with these modules behind it."""
    torch.manual_seed(0)
    made: Any = getattr(transformers, kind)
    place = folder / body
    made(made.config_class(**SIZES, initializer_range=0.3, **MORE.get(kind, {}))).save_pretrained(place)
    tokenizer = Tokenizer(WordPiece(VOCABULARY, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ends = [(name, VOCABULARY[name]) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", ends)
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    tokenizer.save(str(place / "tokenizer.json"))
    roles = {f"{role}_token": f"[{role.upper()}]" for role in ("pad", "unk", "cls", "sep", "mask")}
    save_json(place / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **roles})
    modules = [("Transformer", body), ("Pooling", "1_Pooling")]
    modules += [(kind, f"{number}_{kind}") for number, (kind, _) in enumerate(after, start=2)]
    listed = [
        {"idx": number, "name": str(number), "path": path, "type": owner + kind}
        for number, (kind, path) in enumerate(modules)
    ]
    save_json(folder / "modules.json", listed)
    save_json(place / "sentence_bert_config.json", {"max_seq_length": None, "do_lower_case": False, **(length or {})})
    if prompts is not None:
        save_json(folder / "config_sentence_transformers.json", prompts)
    for (_, path), config in zip(modules[1:], (pooling, *(each for _, each in after)), strict=True):
        save_json(folder / path / "config.json", config)
        if "in_features" in config:
            sizes = {
                "linear.weight": (config["out_features"], config["in_features"]),
                "linear.bias": (config["out_features"],),
            }
            sizes = {name: size for name, size in sizes.items() if config["bias"] or name.endswith("weight")}
            weights = {name: torch.randn(size) * 0.2 for name, size in sizes.items()}
            save_file(weights, folder / path / "model.safetensors", {"format": "pt"})
    return folder


def save_json(file: Path, data: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(data))


ACTIVATIONS = {"Tanh": np.tanh, "Identity": lambda x: x, "ReLU": lambda x: np.maximum(x, 0)}


def vectors(folder: Path, body: str = "", prompt: str = "", lower: bool = False) -> np.ndarray[Any, Any]:
    """The vectors of `TEXTS` from the hidden vectors of transformers in fp64, one text at a time."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / body)
    model = transformers.AutoModel.from_pretrained(folder / body).double().eval()
    data = json.loads((folder / body / "sentence_bert_config.json").read_text())
    length = min(data["max_seq_length"] or CONTEXT, CONTEXT)
    pooling = json.loads((folder / "1_Pooling" / "config.json").read_text())
    rows = []
    for text in TEXTS:
        whole = (prompt + text).lower() if lower else prompt + text
        ids = tokenizer(whole, truncation=True, max_length=length, return_tensors="pt")
        with torch.no_grad():
            hidden = model(**ids).last_hidden_state[0].numpy().copy()
        if not pooling.get("include_prompt", True):
            hidden[: len(tokenizer(prompt)["input_ids"]) - 1] = np.nan
        x = np.concatenate([pooled(hidden, each) for each in modes(pooling)])
        rows.append(behind(folder, x))
    return np.stack(rows)


def behind(folder: Path, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What the modules behind the pooling make of a vector."""
    for module in json.loads((folder / "modules.json").read_text())[2:]:
        kind, place = module["type"].rsplit(".", 1)[-1], folder / module["path"]
        if kind == "Normalize":
            x = x / np.linalg.norm(x)
        if kind == "Dense":
            weights = {name: each.double().numpy() for name, each in load_file(place / "model.safetensors").items()}
            name = json.loads((place / "config.json").read_text())["activation_function"].rsplit(".", 1)[-1]
            x = ACTIVATIONS[name](weights["linear.weight"] @ x + weights.get("linear.bias", 0))
    return x


def modes(config: dict[str, Any]) -> list[str]:
    """The names of poolings, in the order of their vectors."""
    if "pooling_mode" in config:
        return [config["pooling_mode"]] if isinstance(config["pooling_mode"], str) else config["pooling_mode"]
    older = {
        "pooling_mode_cls_token": "cls", "pooling_mode_max_tokens": "max", "pooling_mode_mean_tokens": "mean",
        "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
        "pooling_mode_weightedmean_tokens": "weightedmean", "pooling_mode_lasttoken": "lasttoken",
    }  # fmt: skip
    return [name for field, name in older.items() if config.get(field)] or ["mean"]


def pooled(hidden: np.ndarray[Any, Any], how: str) -> np.ndarray[Any, Any]:
    """One vector of those of a text; tokens of NaN are not there."""
    places = np.flatnonzero(~np.isnan(hidden[:, 0]))
    there = hidden[places]
    weights = (places + 1)[:, None]
    return {
        "cls": lambda: there[0],
        "lasttoken": lambda: there[-1],
        "max": lambda: there.max(0),
        "mean": lambda: there.mean(0),
        "mean_sqrt_len_tokens": lambda: there.sum(0) / np.sqrt(len(there)),
        "weightedmean": lambda: (there * weights).sum(0) / weights.sum(),
    }[how]()
