"""Training settings: optimizer, learning rates, schedule, precision, evaluations, and which weights are published."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, PositiveInt, model_validator
from pydantic_core import PydanticCustomError

from heddle.config.base import Config
from heddle.config.sizes import Rate

NonNegativeInt = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(gt=0, le=2**40)]  # so that step x batch, in tokens, fits into int64


def _device(name: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?|mps", name, re.ASCII):
        raise PydanticCustomError("device", "must be auto, cpu, cuda, cuda:N or mps")
    return name


ProductKind = Literal["forward", "inputs", "weights", "update"]
"""A kind of matrix product: a linear layer's output, the gradient of its inputs or of its weight, or Muon's update."""


class GroupConfig(Config):
    """One row of `[[train.groups]]`: settings for the parameters whose names match a pattern."""

    parameters: Annotated[str, Field(min_length=1)]
    """A pattern of names, as of files: decoder.blocks.0.*, embedding.weight; * matches dots too."""
    rate: Positive | None = None
    """Factor on their learning rate."""
    weight_decay: NonNegative | None = None
    """Weight decay of the matrices and tables among them."""
    frozen: bool | None = None
    """Whether they are frozen: no gradient, no update, no decay, no optimizer state."""

    @model_validator(mode="after")
    def _has_settings(self) -> Self:
        if self.rate is None and self.weight_decay is None and self.frozen is None:
            raise ValueError(f"{self.parameters!r} has no setting: give it a rate, a weight_decay or frozen = true")
        if self.frozen and not (self.rate is None and self.weight_decay is None):
            raise ValueError(f"{self.parameters!r} is frozen, so rate and weight_decay have no effect: leave them out")
        return self


class LoRAConfig(Config):
    """`[train.lora]`: fine-tuning with low-rank adapters on frozen linear layers (Hu et al. 2021)."""

    rank: Annotated[int, Field(gt=0, le=2**16)] = 8
    """Rank r of each adapter: a layer from D to F numbers gets r · (D + F) parameters."""
    alpha: Positive = 16.0
    """An adapter's output is multiplied by alpha / rank, so that a rate suits several ranks."""
    dropout: Rate = 0.0
    """Rate of dropout on an adapter's input while training."""
    layers: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=1)] = ("*.q", "*.v")
    """Patterns of the names of linear layers in the encoder and the decoder, as of files: *.mixer.q, decoder.blocks.5.*."""
    head: bool | None = None
    """Whether the head is trained too, in full; by default, if it is new or scores classes."""


# Settings that some optimizers do not have.
OPTIMIZERS_OF = {
    "momentum": ("sgd",),
    "nesterov": ("sgd",),
    "betas": ("muon", "adamw"),
    "matrix_learning_rate": ("muon",),
}
LENGTHS = ("steps", "epochs", "minutes")  # settings of the length of training; at most one may be set
WEEK = 7 * 24 * 3600.0  # seconds
MINUTES = 3.0  # the default, if no length is set
WEIGHT_DECAY = {"muon": 0.1, "adamw": 0.1, "sgd": 1e-4}


class TrainConfig(Config):
    """Training settings. The defaults are those of `heddle train` without arguments."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Equal seeds, settings and texts give equal runs."""
    # Next to the seed, since both determine the initial weights.
    vectors: str | None = None
    """A file of word vectors, in word2vec's or GloVe's format, to start the token table from."""
    steps: Count | None = None
    """Optimizer steps; defaults to as many as fit into `minutes` on this machine."""
    epochs: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """Number of passes over the training data, instead of `steps`; rounded up to whole steps."""
    minutes: Annotated[float, Field(gt=0, le=1e7)] | None = None
    """How long to train, instead of `steps` or `epochs`; defaults to 3 if no length is set."""
    batch: Annotated[int, Field(gt=0, le=2**20)] | None = None
    """Sequences, packed rows or groups of pairs per step; defaults to batch_tokens divided by the context."""
    batch_tokens: Count | None = None  # (D-18)
    """Tokens per step, rounded to whole sequences; defaults to 4,096 on a CPU, 65,536 on CUDA."""
    accumulate: Annotated[int, Field(gt=0, le=2**20)] = 1
    """Split each step into this many micro-batches, which need less memory; the gradient is the same. On CUDA, 1: as many as it
    takes to fit the card."""
    optimizer: Literal["muon", "adamw", "sgd"] = "muon"
    """muon updates the blocks' matrices with Muon and the rest with AdamW; adamw and sgd update all parameters. With from=, the
    default is adamw."""
    learning_rate: Positive | None = None
    """The peak learning rate, except for Muon's; defaults to 6e-3 (adamw: 3e-3, sgd: 0.07) at width 256, less for wider models.
    With from=, to 3e-4 (sgd: 0.007) and 6e-5 at width 768; with lora, to 3e-3 (sgd: 0.07) and 1e-3."""
    matrix_learning_rate: Positive = 0.02
    """Muon's peak learning rate."""
    weight_decay: NonNegative | None = None
    """Weight decay, of matrices and tables only; defaults to 0.1. sgd adds it to the gradient and defaults to 1e-4."""
    betas: tuple[Rate, Rate] = (0.9, 0.99)
    """Decay rates of AdamW's averages of the gradient and its square."""
    momentum: Rate = 0.9
    """Momentum of sgd; 0: none."""
    nesterov: bool = False
    """Whether sgd uses Nesterov momentum."""
    groups: tuple[GroupConfig, ...] = ()
    """Other settings for parameters by name, as tables [[train.groups]]: a pattern, parameters = "decoder.blocks.0.*", with a
    rate (factor on the learning rate), a weight_decay, or frozen = true; later tables override earlier ones."""
    lora: LoRAConfig | None = None
    """Train low-rank adapters on the linear layers of the run from=, and a head that is new or scores classes, as a table
    [train.lora]: rank (8), alpha (16), dropout (0), layers (["*.q", "*.v"]), head. The default optimizer is then adamw."""
    schedule: Literal["cosine", "linear", "constant", "wsd", "inverse_sqrt"] = "linear"
    """How learning rates decay after the warmup; wsd: constant, then linear; inverse_sqrt: as one over the root of the step."""
    decay: Annotated[float, Field(gt=0, le=1)] = 0.2
    """Share of all steps over which schedule=wsd decays."""
    warmup: NonNegativeInt | None = None
    """Steps over which learning rates rise; defaults to 2 % of all steps, with from= to 10 %."""
    final: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The final learning rate, as a share of the peak."""
    clip: Annotated[float, Field(ge=0)] = 1.0
    """Maximum norm of the gradient; 0: no clipping."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of each target's probability that is spread evenly over all tokens or classes; the loss is reported without it."""
    z_loss: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Weight of the z-loss, the squared logsumexp of the scores, which keeps them small; PaLM has 1e-4."""
    loss: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")] | None = None
    """A function of your own to minimise instead of the task's, as "module:function"; it gets scores and a batch and returns the
    sum over the batch's targets. Evaluations report the task's own loss."""
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """Precision to compute in; auto: the one that trains faster on this machine, on CUDA bf16 where the card has units for it."""
    tf32: bool = False
    """Whether a CUDA card multiplies fp32 matrices in TF32: faster, with 10 bits of mantissa instead of 23; with precision=fp32."""
    products: Literal["auto", "torch", "onednn"] = "auto"
    """Library that multiplies fp32 matrices on a CPU; auto: the one measured to be faster for each kind of product."""
    checkpoint_activations: bool = False
    """Gradient checkpointing: save only each block's input and recompute the rest in the backward pass; less memory, more time, the
    same result. On CUDA also where a step does not fit otherwise."""
    compile: Literal["auto", "on", "off"] = "auto"
    """torch.compile; auto: if the run is long and compiling was measured to be faster."""
    deterministic: bool = False
    """Whether a run on cuda repeats its bits, as one on a CPU does, by kernels that are slower."""
    device: Annotated[str, AfterValidator(_device)] = "auto"
    """Where to compute: cpu, cuda, a card such as cuda:1, or mps; auto: cuda or mps if available, else cpu. Same as --device."""
    start_timeout: Annotated[float, Field(gt=0, le=WEEK)] = 3600.0
    """Seconds that one of several processes waits for the others to start, and for rank 0 while it prepares, evaluates or saves."""
    step_timeout: Annotated[float, Field(gt=0, le=WEEK)] = 100.0
    """Seconds that one of several processes waits for another in a step, before the run ends and names it."""
    threads: PositiveInt | None = None
    """Number of threads; defaults to all cores."""
    evaluate_every: Count | None = None
    """Steps between evaluations; defaults to twenty evaluations per run."""
    save_every: Count | None = None
    """Steps between checkpoints; defaults to one with every evaluation."""
    keep: PositiveInt = 2
    """How many of the newest checkpoints to keep."""
    ema: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Evaluate and publish a moving average of the weights that keeps this share of itself at each step, such as 0.999."""
    average: Annotated[int, Field(ge=2)] | None = None
    """Publish the mean of the weights of this many last checkpoints, which are kept."""
    patience: PositiveInt | None = None
    """Stop after this many evaluations without a lower validation loss, and publish the weights with the lowest."""

    @model_validator(mode="before")
    @classmethod
    def _adapters_by_adamw(cls, data: Any) -> Any:
        """AdamW is the default optimizer for adapters."""
        has_adapters = isinstance(data, Mapping) and data.get("lora") is not None
        return {"optimizer": "adamw", **data} if has_adapters else data

    @model_validator(mode="after")
    def _single_length(self) -> Self:
        lengths = [f"{name} = {getattr(self, name):g}" for name in LENGTHS if getattr(self, name) is not None]
        if len(lengths) > 1:
            raise ValueError(
                f"{' and '.join(lengths)} all set the length of training: leave one out, or set it to none"
            )
        return self

    @model_validator(mode="after")
    def _no_muon_for_adapters(self) -> Self:
        # Muon makes all singular values of an update equal, but an adapter's weight is a product of two factors.
        if self.lora is not None and self.optimizer == "muon":
            raise ValueError("optimizer = muon does not suit the factors of lora: leave it out, or set adamw or sgd")
        return self

    @model_validator(mode="after")
    def _single_loss(self) -> Self:
        for name in ("label_smoothing", "z_loss"):
            if self.loss is not None and getattr(self, name):
                raise ValueError(f"{name} = {getattr(self, name)} has no effect with loss = {self.loss}: leave one out")
        return self

    @model_validator(mode="after")
    def _single_publication(self) -> Self:
        if self.average is not None:
            for name, value in (("ema", self.ema), ("patience", self.patience)):
                if value is not None:
                    both = f"average = {self.average} and {name} = {value}"
                    raise ValueError(f"{both} both decide which weights are published: leave one out")
        return self

    @model_validator(mode="after")
    def _of_the_optimizer(self) -> Self:
        for name, optimizers in OPTIMIZERS_OF.items():
            value, fields = getattr(self, name), TrainConfig.model_fields
            if self.optimizer not in optimizers and value != fields[name].default:
                text = str(value).lower() if isinstance(value, bool) else value
                raise ValueError(
                    f"{name} = {text} has no effect with optimizer = {self.optimizer}: leave it out, "
                    f"or set {' or '.join(optimizers)}"
                )
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov = true needs a momentum: leave it out, or leave out momentum = 0")
        return self

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.batch is not None and self.batch_tokens is not None:
            both = f"batch = {self.batch} and batch_tokens = {self.batch_tokens}"
            raise ValueError(f"{both} both set the batch size; leave one out")
        if self.batch is not None and self.batch % self.accumulate:
            raise ValueError(
                f"batch = {self.batch} cannot be split into accumulate = {self.accumulate} equal micro-batches"
            )
        if self.tf32 and self.precision != "fp32":
            raise ValueError(f"tf32 = true has no effect with precision = {self.precision}: leave it out, or set fp32")
        if self.compile == "on" and self.deterministic:
            raise ValueError(
                "compile = on measures which kernels to use, which deterministic = true excludes: leave one out"
            )
        if self.compile == "on" and self.products == "onednn":
            raise ValueError("products = onednn has no effect with compile = on: leave one out")
        # Compared with the defaults, since a saved config states every field.
        if self.schedule != "wsd" and self.decay != TrainConfig.model_fields["decay"].default:
            raise ValueError(
                f"decay = {self.decay} has no effect with schedule = {self.schedule}: leave it out, or set wsd"
            )
        if self.schedule in ("constant", "inverse_sqrt") and self.final:
            raise ValueError(f"final = {self.final} has no effect with schedule = {self.schedule}: leave it out")
        return self
