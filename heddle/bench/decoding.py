"""Decoding contenders: a step of each reads prompts and appends the same number of tokens, greedily."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import nn

from heddle.bench.hugging_face import published_model
from heddle.bench.timing import Work
from heddle.config.decoding import SamplingConfig
from heddle.config.model import TransformerConfig
from heddle.generate.engine import generate
from heddle.model.build import build
from heddle.model.compiling import compile_steps
from heddle.model.device import compile_graphs
from heddle.model.precision import DTYPES, cast
from heddle.model.transformer import Transformer

Decoder = Callable[[int], Work]
"""From a number of rows to the work of decoding them together, by one model."""


@dataclass(frozen=True)
class DecodingJob:
    """What is decoded: a model, where, in which precision, and the tokens of a prompt and as many after it."""

    config: TransformerConfig
    device: torch.device
    precision: str
    tokens: int

    def prompts(self, rows: int) -> list[list[int]]:
        """Random ids."""
        ids = np.random.default_rng(0).integers(self.config.vocab_size, size=(rows, self.tokens))
        prompts: list[list[int]] = ids.tolist()
        return prompts


def heddle_decodes(job: DecodingJob, compiled: bool = False) -> Decoder:
    """Text as `heddle generate` writes it."""
    model = _model(job)
    if compiled:
        compile_steps(model)
    sampling = SamplingConfig(max_tokens=job.tokens, temperature=0)
    return lambda rows: _work(model, lambda prompts: list(generate(model, prompts, sampling)), job.prompts(rows))


def plain_loop(job: DecodingJob) -> Decoder:
    """heddle's model and its compiled step in the shortest loop: predict, take the best, append."""
    model = compile_steps(_model(job))
    assert model.steps is not None
    step = model.steps

    @torch.inference_mode()
    def decode(prompts: list[list[int]]) -> Any:
        ids = torch.tensor(prompts, device=job.device)
        cache = model.new_cache(len(ids))
        token = model.logits(model(ids, cache=cache).hidden[:, -1]).argmax(-1, keepdim=True)
        texts = [token]
        for _ in range(job.tokens - 1):
            token = step(token, cache).argmax(-1, keepdim=True)
            texts.append(token)
        return torch.cat(texts, dim=1).tolist()

    return lambda rows: _work(model, decode, job.prompts(rows))


def transformers_decodes(job: DecodingJob, compiled: bool = False) -> Decoder:
    """Hugging Face's `generate`; compiled, with a static cache, as its documentation advises."""
    from transformers import CompileConfig

    model = published_model(job.config, job.device, DTYPES[job.precision]).eval()
    model.generation_config.eos_token_id = None  # nothing ends early
    settings: dict[str, Any] = {"max_new_tokens": job.tokens, "do_sample": False, "pad_token_id": 0}
    if compiled:
        settings["cache_implementation"] = "static"
        if job.device.type == "cuda":  # `generate` compiles its steps for such a cache, with CUDA graphs
            settings["compile_config"] = CompileConfig(mode="reduce-overhead", dynamic=False)
        else:
            model.forward = compile_graphs(model.forward, fullgraph=True, dynamic=False, options={"freezing": True})

    def decode(prompts: list[list[int]]) -> Any:
        ids = torch.tensor(prompts, device=job.device)
        return model.generate(ids, attention_mask=torch.ones_like(ids), **settings).tolist()

    return lambda rows: _work(model, decode, job.prompts(rows))


def _model(job: DecodingJob) -> Transformer:
    return cast(build(job.config, job.device).eval(), job.precision)


def _work(model: nn.Module, decode: Callable[[list[list[int]]], object], prompts: list[list[int]]) -> Work:
    count = sum(each.numel() for each in model.parameters())
    return Work(partial(decode, prompts), lambda: chain(model.parameters(), model.buffers()), count)


DECODERS: dict[str, Callable[[DecodingJob], Decoder]] = {
    "heddle": heddle_decodes,
    "heddle, compiled": partial(heddle_decodes, compiled=True),
    "plain loop, compiled": plain_loop,
    "transformers, compiled": partial(transformers_decodes, compiled=True),
    "transformers": transformers_decodes,
}
