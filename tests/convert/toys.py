"""Tiny models of transformers and what heddle makes of them, each made once in a process: tests only read them."""

import json
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from heddle.convert import export_gguf, export_model, import_model
from heddle.model import Transformer
from heddle.weights import load


class Toy:
    """A model of transformers, its import and its exports, each made when it is first needed.

    Attributes:
        published: the model itself.
    """

    def __init__(self, published: PreTrainedModel, folder: Path) -> None:
        self.published, self.folder = published, folder

    @cached_property
    def saved(self) -> Path:
        """The directory that transformers writes."""
        self.published.save_pretrained(self.folder / "published")
        return self.folder / "published"

    @cached_property
    def run(self) -> Path:
        """What import makes of it."""
        import_model(self.saved, self.folder / "run")
        return self.folder / "run"

    @cached_property
    def model(self) -> Transformer:
        """The imported model."""
        return load(self.run, "cpu").model

    @cached_property
    def report(self) -> dict[str, Any]:
        """What the export of the run says; the directory is `exported`."""
        return export_model(self.run, self.folder / "exported")

    @cached_property
    def exported(self) -> Path:
        """The export of the run for transformers."""
        assert self.report
        return self.folder / "exported"

    @cached_property
    def gguf_report(self) -> dict[str, Any]:
        """What the export of the run for llama.cpp says; the file is `gguf`."""
        return export_gguf(self.run, self.folder / "model.gguf")

    @cached_property
    def gguf(self) -> Path:
        """The export of the run for llama.cpp."""
        assert self.gguf_report
        return self.folder / "model.gguf"


class Toys:
    """The toys that were made in this process, by variant and changes."""

    def __init__(self, folder: Path, make: Callable[..., PreTrainedModel]) -> None:
        self.folder, self.make = folder, make
        self.made: dict[str, Toy] = {}

    def __call__(self, variant: str, **changes: Any) -> Toy:
        name = json.dumps([variant, changes], sort_keys=True)
        if name not in self.made:
            self.made[name] = Toy(self.make(variant, **changes), self.folder / str(len(self.made)))
        return self.made[name]
