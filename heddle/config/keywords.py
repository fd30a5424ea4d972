"""The keywords of `fit`, `generate_text` and their like, for editors and type checkers: the fields of a config, all optional.

The configs check the values; `tests/config/test_keywords.py` compares these names and types with theirs.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from heddle.config.train import GroupConfig, LoRAConfig


class TrainSettings(TypedDict, total=False):
    """Fields of `TrainConfig` that `fit` accepts as keywords; `steps` and `loss` are parameters of `fit`."""

    seed: int
    epochs: float | None
    batch: int | None
    batch_tokens: int | None
    accumulate: int
    optimizer: Literal["muon", "adamw", "sgd"]
    learning_rate: float | None
    matrix_learning_rate: float
    weight_decay: float | None
    betas: tuple[float, float]
    momentum: float
    nesterov: bool
    groups: Sequence[GroupConfig | Mapping[str, Any]]
    lora: LoRAConfig | Mapping[str, Any] | None
    schedule: Literal["cosine", "linear", "constant", "wsd", "inverse_sqrt"]
    decay: float
    warmup: int | None
    final: float
    clip: float
    label_smoothing: float
    z_loss: float
    precision: Literal["auto", "bf16", "fp32"]
    products: Literal["auto", "torch", "onednn"]
    checkpoint_activations: bool
    compile: Literal["auto", "on", "off"]
    deterministic: bool
    device: str
    threads: int | None
    evaluate_every: int | None
    ema: float | None
    patience: int | None


class DecodingSettings(TypedDict, total=False):
    """Settings of both sampling and beam search."""

    max_tokens: int
    min_tokens: int
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    no_repeat_ngram: int | None
    logit_bias: Sequence[tuple[int, float]]
    banned: Sequence[Sequence[int]]


class SamplingSettings(DecodingSettings, total=False):
    """Fields of `SamplingConfig`."""

    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    typical_p: float | None
    seed: int
    stop: Sequence[str]
    logprobs: int | None
    choice: Sequence[str]
    regex: str | None
    json_schema: str | Mapping[str, Any] | None
    window: bool


class BeamSettings(DecodingSettings, total=False):
    """Fields of `BeamConfig`."""

    beams: int
    length_penalty: float
    early_stopping: bool | Literal["never"]
    best: int


class ModelSettings(TypedDict, total=False):
    """Fields of `ModelChoice` that `model_for` accepts as keywords; `depth` and `context` are parameters of `model_for`."""

    family: Literal["encoder", "decoder", "encoder-decoder"] | None
    dim: int | None
    heads: int | None
    kv_heads: int | None
    pad_vocab_to: int | None
    dropout: float | Mapping[str, Any] | None
    encoder: Mapping[str, Any]
    decoder: Mapping[str, Any]
    head: Mapping[str, Any]
    initial: Mapping[str, Any]
