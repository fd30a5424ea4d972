"""Memory in bytes: weights, training state, KV cache, and the activations saved for the backward pass."""

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

from heddle.account.formulas import Line
from heddle.account.forward import kernels_by_device, prefixes_for, prepared, source_for, without_values
from heddle.account.parameters import deck_applies, parameters, weights
from heddle.account.quadratic import FP32, AttentionRow, attention_table, deck, doublings
from heddle.account.repeats import measured, single_blocks, stepped
from heddle.account.trained import trained
from heddle.account.walk import check_countable, stated
from heddle.checks import at_least, between, checked, one_of
from heddle.config.model import LanguageHeadConfig, TransformerConfig
from heddle.config.train import TrainConfig
from heddle.display import displayed
from heddle.model.build import build
from heddle.model.checkpointing import checkpoint_activations
from heddle.model.device import logits_bytes
from heddle.model.groups import skeleton
from heddle.model.precision import DTYPES, cast
from heddle.model.roles import role
from heddle.model.transformer import Transformer
from heddle.nn.layout import Layout
from heddle.nn.output import EncoderOutput
from heddle.nn.state import Fixed, Growing, State

# Bytes of a process before its first tensor of training: Python, torch, compiled code, buffers of threads.
PROCESS = 400 << 20
# Heap fragmentation: bytes that the heap takes for tensors freed within a step, as multiples of their size, for activations and for
# the loss. Measured with glibc on the recipes (see docs/evidence/memory.md).
ACTIVATION_HEAP, LOSS_HEAP = 1.45, 1.15
# fp32 numbers of optimizer state per parameter: for the blocks' matrices, for everything else.
MOMENTS = {"adamw": (2, 2), "muon": (1, 2), "sgd": (1, 1)}


@displayed()
@dataclass(frozen=True)
class States:
    """Training state in bytes, without activations. Products may be in bf16; accumulators are in fp32.

    Attributes:
        weights: the fp32 weights that the optimizer updates.
        copy: the bf16 copy that linear maps use; 0 in fp32, where the weights themselves are used.
        gradients: in fp32, and in bf16 those of the copy before they are accumulated.
        moments: the optimizer's state, in fp32.
        total: all of them.
    """

    optimizer: str
    precision: str
    weights: int
    copy: int
    gradients: int
    moments: int
    total: int


@displayed()
@dataclass(frozen=True)
class CacheSize:
    """A cache with `length` tokens in each of `batch` rows, and in an encoder-decoder with a source of the same length.

    Attributes:
        per_token: bytes for one more token of one row, in layers that keep all tokens.
        bounded: bytes of one row whatever its length: windows and recurrent states.
        memory: bytes of one row for the source: its encoding, and the keys and values of each cross-attention.
        held: bytes of all rows at the cache's capacity, which is `length` rounded up.
    """

    precision: str
    per_token: int
    bounded: int
    memory: int
    held: int


@displayed()
@dataclass(frozen=True)
class SavedActivations:
    """Bytes that a forward pass saves for the backward pass, with a kernel and a precision; head and loss excluded."""

    kernel: str
    precision: str
    bytes: int


@displayed(".training, .cache, .activations, .attention, .deck")
@dataclass(frozen=True)
class Memory:
    """A model's memory for `batch` rows of `length` tokens, in bytes.

    Attributes:
        weights: for prediction, by precision.
        training: by optimizer and precision.
        cache: by precision.
        activations: saved for the backward pass, by kernel and precision.
        logits: all logits at once, by precision; a loss that applies the head in chunks never allocates them.
        attention: one row for each length in `doublings`.
        deck: the lectures' closed forms next to the walk (C-08, C-09, C-12), fp32.
    """

    batch: int
    length: int
    weights: Mapping[str, int]
    training: tuple[States, ...]
    cache: tuple[CacheSize, ...]
    activations: tuple[SavedActivations, ...]
    logits: Mapping[str, int]
    attention: tuple[AttentionRow, ...]
    deck: tuple[Line, ...]

    def _lines(self) -> Iterator[str]:
        yield f"Memory in bytes, batch {self.batch:,}, length {self.length:,}"
        yield from (f"  {size:>22,}  weights, {precision}" for precision, size in self.weights.items())
        for state in self.training[:2]:
            yield f"  {state.total:>22,}  weights, gradients and {state.optimizer}'s state, {state.precision}"
        yield from (f"  {cache.held:>22,}  a filled cache, {cache.precision}" for cache in self.cache)


@checked(batch=at_least(1), length=at_least(1))
def memory(config: TransformerConfig, batch: int = 1, length: int | None = None) -> Memory:
    """The memory of the model that a config describes, measured on shapes alone."""
    length = config.context if length is None else length
    scores = isinstance(config.head, LanguageHeadConfig)
    rows = batch * length * config.table_rows()
    return Memory(
        batch=batch,
        length=length,
        weights={name: parameter_bytes(config, name) for name in DTYPES},
        training=tuple(states(config, optimizer, name) for optimizer in MOMENTS for name in DTYPES),
        cache=() if config.decoder is None else tuple(cache_size(config, batch, length, name) for name in DTYPES),
        activations=_activations_by_kernel(config, batch, length),
        logits={name: rows * dtype.itemsize for name, dtype in DTYPES.items()} if scores else {},
        attention=attention_table(config, doublings(length), batch),
        deck=deck(config, batch, length) if deck_applies(config) else (),
    )


def _activations_by_kernel(config: TransformerConfig, batch: int, length: int) -> tuple[SavedActivations, ...]:
    """Saved activations with the kernel for a CPU, then with the one for an accelerator."""
    kernels: list[str | None] = [*dict.fromkeys(kernels_by_device(config, length).values())] or [None]
    return tuple(saved_activations(config, batch, length, name, kernel) for kernel in kernels for name in DTYPES)


def parameter_bytes(config: TransformerConfig, precision: str) -> int:
    """Bytes of the weights for inference; norms stay in fp32."""

    def measure(variant: TransformerConfig) -> dict[str, int]:
        return {"bytes": _parameter_bytes(cast(build(variant, "meta"), precision))}

    return measured(config, measure)["bytes"]


@checked(optimizer=one_of(MOMENTS), precision=one_of(DTYPES))
def states(config: TransformerConfig, optimizer: str, precision: str) -> States:
    """Training state without activations.

    Muon updates the layers' matrices, including those of experts, with one number of state per parameter; AdamW updates everything
    else with two. SGD has one, its momentum.
    """
    train = TrainConfig.of({"optimizer": optimizer})
    return States(optimizer, precision, **measured(config, lambda variant: _states(variant, train, precision)))


def _states(config: TransformerConfig, train: TrainConfig, precision: str) -> dict[str, int]:
    model = skeleton(config, train)
    master = _parameter_bytes(model)
    trained_weights = [weight for weight in weights(model) if weight.trained]
    total = sum(weight.count for weight in trained_weights)
    matrices = sum(weight.count for weight in trained_weights if role(weight.name, len(weight.shape)) == "matrix")
    of_matrices, of_others = MOMENTS[train.optimizer] if train.momentum else (0, 0)
    moments = FP32 * (of_matrices * matrices + of_others * (total - matrices))
    cast(model, precision, tables=False)
    copies = [parameter for parameter in model.parameters() if parameter.dtype != torch.float32]
    copy = sum(parameter.nbytes for parameter in copies)
    gradients = FP32 * total + sum(parameter.nbytes for parameter in copies if parameter.requires_grad)
    sizes = {"weights": master, "copy": copy, "gradients": gradients, "moments": moments}
    return sizes | {"total": sum(sizes.values())}


@checked(
    rows=at_least(1),
    precision=one_of(DTYPES),
    length=at_least(1),
    targets=between(0, 1),
    device=one_of(("cpu", "cuda")),
)
def training_bytes(
    config: TransformerConfig,
    rows: int,
    precision: str,
    train: TrainConfig,
    length: int | None = None,
    targets: float = 1.0,
    device: str = "cpu",
    parts: int = 1,
) -> int:
    """Peak bytes of a training's tensors on one device.

    The sum of training state, saved activations, the allocations of the loss (gradients of the head's table and of the hidden
    vectors, a few copies of one chunk of logits), and a second gradient of the table. On a CPU, all but the state fragment the heap
    and take more than their own bytes (`ACTIVATION_HEAP`, `LOSS_HEAP`). On CUDA they do not, but gradients come as activations go:
    the peak is where the backward pass begins, or where it ends. Gradients of earlier micro-batches are held throughout.

    Args:
        rows: rows of a micro-batch.
        length: tokens of a row; None: the context.
        targets: share of the tokens that are scored.
        train: the optimizer, which parameters are frozen, whether activations are checkpointed, and whether there is a moving
            average of the weights.
        device: `cpu` or `cuda`: its attention kernel and its allocator.
        parts: devices that divide the state, and gather it for two blocks and the tables at a time.

    Raises:
        HeddleError: the groups or the adapters do not fit the model.
    """
    length = config.context if length is None else length
    scored = ceil(rows * length * targets)
    loss = scored * config.dim * DTYPES[precision].itemsize + FP32 * config.table_rows() * config.dim
    if isinstance(config.head, LanguageHeadConfig):
        chunk = min(FP32 * scored * config.table_rows(), logits_bytes(device))
        loss += FP32 * config.table_rows() * config.dim + 4 * chunk
    state = {name: -(-size // parts) for name, size in training_state(config, precision, train).items()}
    gathered = 0
    if parts > 1:
        layers = sum(stack.depth for stack in config.stacks().values())
        tables = FP32 * config.table_rows() * config.dim
        gathered = tables + min(2, layers) * DTYPES[precision].itemsize * parameters(config).total // layers
    kernel = None if device == "cpu" else kernels_by_device(config, length).get(device, "none")
    saved = saved_activations(config, rows, length, precision, kernel, checkpointed=train.checkpoint_activations)
    activations = saved.bytes
    if device == "cuda":
        gradients = state["gradients"]
        earlier = FP32 * trained(config, train).total if train.accumulate > 1 else 0
        return state["total"] - gradients + gathered + max(earlier + activations + loss, gradients)
    return state["total"] + gathered + ceil(ACTIVATION_HEAP * activations) + ceil(LOSS_HEAP * loss)


def training_state(config: TransformerConfig, precision: str, train: TrainConfig) -> dict[str, int]:
    """Bytes that a training holds whatever its rows are, by part; `total` includes the moving average of the weights."""
    # Equal layers may be in different groups, so `measured` must not leave any out.
    sizes = (
        _states(config, train, precision)
        if train.groups or train.lora is not None
        else measured(config, lambda variant: _states(variant, train, precision))
    )
    average = 0 if train.ema is None else FP32 * trained(config, train).total
    return sizes | {"total": sizes["total"] + average}


@checked(batch=at_least(1), length=at_least(1), precision=one_of(DTYPES))
def cache_size(config: TransformerConfig, batch: int, length: int, precision: str = "fp32") -> CacheSize:
    """The size of a cache with `length` tokens in each of `batch` rows, measured on a real cache on the meta device.

    Raises:
        HeddleError: the model has no decoder, or the cache has more numbers than fit on any machine.
    """
    check_countable(batch, length)
    config = prepared(config, length, "reference")
    return CacheSize(precision, **measured(config, lambda variant: _cache_size(variant, batch, length, precision)))


def _cache_size(config: TransformerConfig, batch: int, length: int, precision: str) -> dict[str, int]:
    model = cast(build(without_values(config, None), "meta"), precision).eval()
    cache, encoded = model.new_cache(batch), 0
    if config.encoder is not None:  # set, so that the encoder need not run
        hidden = torch.empty(batch, length, config.dim, dtype=model.working_dtype(), device="meta")
        cache.encoded, encoded = EncoderOutput(hidden, Layout.whole(batch, length, "meta")), hidden.nbytes
    with torch.no_grad():
        model(torch.zeros(batch, 1, dtype=torch.long, device="meta"), cache=cache)
    cache.advance([length - 1] * batch, "meta")  # makes room for the other tokens
    states: list[State] = tree_leaves(cache.states)

    def row(kinds: type[State] | tuple[type[State], ...], exclude: bool = False) -> int:
        return sum(state.bytes() for state in states if isinstance(state, kinds) != exclude) // batch

    # The bytes of one token of one row in every buffer [B K capacity d].
    growing = [buffer for state in states if isinstance(state, Growing) for buffer in state.buffers]
    per_token = sum(buffer[0, :, 0].numel() * buffer.element_size() for buffer in growing)
    sizes = {"per_token": per_token, "bounded": row((Growing, Fixed), exclude=True)}
    return sizes | {"memory": row(Fixed) + encoded // batch, "held": cache.bytes()}


@checked(batch=at_least(1), length=at_least(1), precision=one_of(DTYPES))
def saved_activations(
    config: TransformerConfig,
    batch: int,
    length: int,
    precision: str = "fp32",
    kernel: str | None = None,
    checkpointed: bool = False,
) -> SavedActivations:
    """Run a forward pass on tensors without memory and add up what autograd saves, each storage once, without the weights.

    The tensors pretend to be on a CPU rather than on the meta device, where `sdpa` would save its whole score matrix.

    Args:
        kernel: None: the one that the config uses on a CPU.
        checkpointed: whether blocks save only their input (see `heddle.model.checkpointing`). The largest block, which the
            backward pass computes again, is added.
    """
    name = kernels_by_device(config, length).get("cpu", "none") if kernel is None else kernel

    def saved(variant: TransformerConfig, checkpointed: bool) -> int:
        def measure(variant: TransformerConfig, tokens: int) -> dict[str, int]:
            return {"bytes": _saved_bytes(variant, batch, tokens, precision, checkpointed)}

        return measured(variant, lambda variant: stepped(variant, length, measure))["bytes"]

    config = prepared(config, length, None if name == "none" else name)
    recomputed = (
        max(saved(single, False) - saved(single, True) for single in single_blocks(config)) if checkpointed else 0
    )
    return SavedActivations(name, precision, saved(config, checkpointed) + recomputed)


def _saved_bytes(config: TransformerConfig, batch: int, length: int, precision: str, checkpointed: bool = False) -> int:
    mode = FakeTensorMode()
    model = _faked(config, (), precision, mode)
    with mode:
        unknown = stated(model, batch, length).unknown()
    if unknown:
        model = _faked(config, unknown, precision, mode)
    if checkpointed:
        checkpoint_activations(model)
    weight_storages = {tensor.untyped_storage()._cdata for module in model.modules() for _, tensor in _tensors(module)}
    sizes: dict[int, int] = {}

    def record(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weight_storages:
            sizes[storage._cdata] = storage.nbytes()
        return tensor

    with mode:
        tokens = torch.zeros(batch, length, dtype=torch.long)
        with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
            output = model(tokens, prefixes_for(model, tokens), source_for(model, tokens))
        del output  # until here its graph keeps every saved storage alive, so no address is used twice
    return sum(sizes.values())


def _faked(config: TransformerConfig, skipped: Container[str], precision: str, mode: FakeTensorMode) -> Transformer:
    """A model for training with fake CPU tensors, which have no memory."""
    return fake(cast(build(without_values(config, skipped), "meta"), precision, tables=False), mode)


def fake(model: Transformer, mode: FakeTensorMode) -> Transformer:
    """Give a model on the meta device fake CPU tensors, which have no memory, and return it."""
    with mode:
        for module in model.modules():
            for name, old in _tensors(module):
                new = torch.empty(old.shape, dtype=old.dtype)
                setattr(module, name, nn.Parameter(new, old.requires_grad) if isinstance(old, nn.Parameter) else new)
    return model


def _tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    """A module's own tensors, including those that custom modules store in ordinary attributes."""
    plain = [(name, value) for name, value in vars(module).items() if isinstance(value, Tensor)]
    return [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False), *plain]


def _parameter_bytes(model: nn.Module) -> int:
    return sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
