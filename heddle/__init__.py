"""heddle: the transformer of the lectures; the function that predicts is the function that was trained."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heddle.config import preset, sized
    from heddle.errors import HeddleError
    from heddle.generate import generate_text, translate
    from heddle.model import build
    from heddle.predict import classify, embed, fill
    from heddle.runs import model_for, tokenizer_for
    from heddle.text import load_tokenizer, train_tokenizer
    from heddle.train import fit
    from heddle.vectors import train_vectors
    from heddle.weights import load, save

__version__ = "0.1.0"
__all__ = [
    "HeddleError",
    "build",
    "classify",
    "embed",
    "fill",
    "fit",
    "generate_text",
    "load",
    "load_tokenizer",
    "model_for",
    "preset",
    "save",
    "sized",
    "tokenizer_for",
    "train_tokenizer",
    "train_vectors",
    "translate",
]

# Names are imported on first use, so that `import heddle` is light and torch is loaded only when it is needed.
_HOMES = {
    "HeddleError": "heddle.errors",
    "build": "heddle.model",
    "classify": "heddle.predict",
    "embed": "heddle.predict",
    "fill": "heddle.predict",
    "fit": "heddle.train",
    "generate_text": "heddle.generate",
    "load": "heddle.weights",
    "load_tokenizer": "heddle.text",
    "model_for": "heddle.runs",
    "preset": "heddle.config",
    "save": "heddle.weights",
    "sized": "heddle.config",
    "tokenizer_for": "heddle.runs",
    "train_tokenizer": "heddle.text",
    "train_vectors": "heddle.vectors",
    "translate": "heddle.generate",
}


_PACKAGES = (
    "account",
    "bench",
    "config",
    "convert",
    "data",
    "errors",
    "generate",
    "lessons",
    "look",
    "model",
    "nn",
    "page",
    "predict",
    "prove",
    "runs",
    "serve",
    "tasks",
    "text",
    "train",
    "vectors",
    "weights",
)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in _PACKAGES:
        return importlib.import_module(f"heddle.{name}")
    raise AttributeError(f"module 'heddle' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_PACKAGES, *(name for name in globals() if name.startswith("__"))])
