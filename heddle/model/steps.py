"""Decoding steps on a CPU by compiled parts, once they are there; until then, operation by operation.

On a CPU, a step of a small model spends more time on calling its operations than on reading its weights. Parts compiled ahead of
time make few calls (`heddle.model.parts`). If plain steps have taken a while, another process compiles the parts, at the lowest
priority, while plain steps answer. It continues when this process ends, so the next one starts with compiled steps.
"""

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from heddle.model.graphs import Eager, identity_of
from heddle.model.lora import AdaptedLinear
from heddle.model.packages import Library, Undescribed, steps_folder
from heddle.model.parts import SHORT, Kind, Sizes, parts_of, sizes_of
from heddle.model.quantize import weights_of
from heddle.model.transformer import Transformer
from heddle.native.library import operators
from heddle.nn.cache import Cache
from heddle.nn.custom import Custom
from heddle.nn.numeric import on_device
from heddle.nn.state import Carry

LOOK, PATIENCE = 0.1, 1.0  # seconds of plain steps after which to look for compiled parts, and to have them compiled
AGAIN = 2.0  # seconds after which to look again
VARIABLE = "HEDDLE_STEPS"  # "plain": steps are never compiled

Libraries = list[Library]


class PackagedSteps:
    """The decoding steps of a model in evaluation mode on a CPU.

    Not compiled, but computed as usual, are steps of a model with hooks, adapters or modules of the user's own, and of a source of
    one token or of more than `SHORT`.

    Args:
        model: in the precision it predicts in.
    """

    def __init__(self, model: Transformer) -> None:
        self.model, self.plain = model, Eager(model)
        self.libraries: dict[Kind, Libraries | None] = {}  # None: not there yet
        self.checked = 0.0  # when they were last looked for
        self.seconds = 0.0  # of plain steps
        self.requested: set[Kind] = set()
        self.modules: tuple[nn.Module, ...] = ()
        self.weights: list[Tensor] = []
        self.addresses: list[int] = []
        self.identity: list[object] = []
        self.packs = False
        self.origin: object = None  # of the cache that was last used

    def __call__(self, tokens: Int[Tensor, "B 1"], cache: Cache) -> Float[Tensor, "B V"]:
        """Scores of the tokens that follow the next token of each row."""
        libraries = self._libraries(cache)
        if libraries is None:
            begin = time.perf_counter()
            scores = self.plain(tokens, cache)
            self.seconds += time.perf_counter() - begin
            return scores
        cache.reserve_step(ahead=False)
        start = on_device(cache.lengths, tokens.device, torch.long)
        # A part takes its inputs as they lie in memory, and was compiled for contiguous ones.
        source = [] if cache.encoded is None else [each.contiguous() for each in cache.encoded.layout.tensors()]
        (x,) = libraries[0]([tokens.contiguous(), start])
        for library, state in zip(libraries[1:-1], cache.states, strict=True):
            for each in state:
                each.buffers = tuple(buffer.contiguous() for buffer in each.buffers)
            tensors = [buffer for each in state for buffer in each.buffers]
            x, *changed = library([x.contiguous(), start, *tensors, *(source if state.cross.buffers else ())])
            for each in state:
                if isinstance(each, Carry):
                    each.buffers, changed = tuple(changed[: len(each.buffers)]), changed[len(each.buffers) :]
        cache.count_step()
        return libraries[-1]([x.contiguous()])[0]

    def _libraries(self, cache: Cache) -> Libraries | None:
        """The compiled parts of this cache's next step; None: take a plain one."""
        self._check(cache)
        if not self.packs or torch.is_grad_enabled() or not any(cache.lengths) or not _source_fits(cache):
            return None
        if any(module._forward_hooks or module._forward_pre_hooks for module in self.modules) or _has_any_global_hook():
            return None
        kind = Kind.of(cache)
        libraries = self.libraries.get(kind)
        due = kind not in self.libraries or time.perf_counter() - self.checked > AGAIN
        if libraries is None and due and self.seconds >= LOOK:
            libraries = self.libraries[kind] = self._load(cache, kind)
            self.checked = time.perf_counter()
        return libraries

    def _load(self, cache: Cache, kind: Kind) -> Libraries | None:
        """Load the parts; if they are not there, have them compiled once plain steps have taken long enough."""
        try:
            parts = parts_of(self.model, sizes_of(cache), kind)
            files = [part.file for part in parts]
        except Undescribed:
            self.packs = False
            return None
        if all(file.exists() for file in files):
            try:
                return [Library(file, part.module) for file, part in zip(files, parts, strict=True)]
            except RuntimeError:  # damaged: they are compiled again
                for file in files:
                    file.unlink(missing_ok=True)
        failed = any(file.with_suffix(".failed").exists() for file in files)
        if self.seconds >= PATIENCE and kind not in self.requested and not failed:
            self.requested.add(kind)
            request(self.model, sizes_of(cache), kind)
        return None

    def _check(self, cache: Cache) -> None:
        """Drop the libraries if the model has changed.

        Modules are checked once for caches of one origin, and addresses of weights in each step.
        """
        if cache.origin is self.origin and [tensor.data_ptr() for tensor in self.weights] == self.addresses:
            return
        self.origin, identity = cache.origin, identity_of(self.model)
        if identity != self.identity:
            self.libraries.clear()
            self.identity, self.modules = identity, tuple(self.model.modules())
            self.weights = [*self.model.parameters(), *self.model.buffers()]
            self.addresses = [tensor.data_ptr() for tensor in self.weights]
            own = any(isinstance(module, Custom | AdaptedLinear) or module.training for module in self.modules)
            self.packs = not own and operators() is not None

    def __reduce__(self) -> tuple[type, tuple[()]]:
        # A copy of the model has its own weights.
        return type(None), ()


def package_steps(model: Transformer) -> None:
    """Use compiled parts for the decoding steps of a model on a CPU from now on, unless $HEDDLE_STEPS is `plain`."""
    decodes = model.decoder is not None and not model.training
    if decodes and model.steps is None and model.device.type == "cpu" and os.environ.get(VARIABLE) != "plain":
        model.steps = PackagedSteps(model)


def described_for_compiling(model: Transformer, sizes: Sizes, kind: Kind) -> dict[str, Any]:
    """What another process needs to know to compile the parts of a model's steps, as plain data."""
    return {
        "config": model.config.model_dump(mode="json"),
        "dtype": str(model.working_dtype()),
        "tables": str(model.embedding.weight.dtype),
        "weights": weights_of(model),
        "sizes": sizes,
        "kind": asdict(kind),
    }


def _source_fits(cache: Cache) -> bool:
    """Whether parts can be compiled for the sources of a cache, if it has any."""
    layout = None if cache.encoded is None else cache.encoded.layout
    return layout is None or (layout.form in ("whole", "padded") and 1 < layout.width <= SHORT)


def request(model: Transformer, sizes: Sizes, kind: Kind) -> None:
    """Have the parts of a model's steps compiled by another process, which may outlive this one."""
    folder = steps_folder()
    with suppress(OSError):  # without a cache there is nowhere to put them
        folder.mkdir(parents=True, exist_ok=True)
        about = json.dumps(described_for_compiling(model, sizes, kind))
        words = [sys.executable, "-m", "heddle.model.compile_steps", about]
        with (folder / "compile.log").open("a") as log:
            settings: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            subprocess.Popen(words, start_new_session=True, **settings)
