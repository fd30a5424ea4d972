"""Direct logit attribution: how much each part of a model contributes to the score of a token.

The residual stream is a sum, so a score is the sum of the contributions of embeddings, positions, heads, feed-forwards and biases
(Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits").
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from html import escape
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from heddle.checks import checked
from heddle.display import displayed
from heddle.errors import HeddleError, pluralize
from heddle.look.affine import Affine, activation_at, identity, linear, norm_at
from heddle.model.evaluating import evaluating
from heddle.model.head import LanguageHead
from heddle.model.stack import Stack
from heddle.model.transformer import Transformer
from heddle.nn.attention import Attention
from heddle.nn.block import Block, Residual
from heddle.nn.embedding import check_ids
from heddle.nn.feedforward import MLP, Gated
from heddle.nn.numeric import wide_dtype
from heddle.nn.output import Output

Parts = dict[str, Float[Tensor, "B P"]]


@displayed(".parts, .by_layer(), .neurons")
@dataclass(frozen=True, eq=False)
class Attribution:
    """The score of some tokens, decomposed into direct contributions of the model's parts.

    Attributes:
        parts: the contribution of each part, Float[B P], in forward order: `token`, `position`, `type`; `decoder.3.mixer.heads.2`,
            `decoder.3.ffn`; `decoder.3.shift` for biases of layers and norms; `head`. They sum to `score`.
        neurons: the contribution of each hidden unit by feed-forward (`decoder.3.ffn`), Float[B P F].
        score: Float[B P], the score, or the difference of two scores.
        positions: the position of each score.
        targets: Int[B P], the token ids that are scored.
    """

    parts: Parts
    neurons: dict[str, Float[Tensor, "B P F"]]
    score: Float[Tensor, "B P"]
    positions: tuple[int, ...]
    targets: Int[Tensor, "B P"]

    def _lines(self) -> Iterator[str]:
        scores = pluralize(self.score.numel(), "score")
        yield f"Attribution of {scores}, mean {float(self.score.mean()):.4f}; the largest parts first"
        means = {name: float(value.mean()) for name, value in self.parts.items()}
        yield from (f"  {mean:>+10.4f}  {name}" for name, mean in sorted(means.items(), key=lambda pair: -abs(pair[1])))

    def error(self) -> float:
        """The largest difference between the sum of the parts and the score, relative to the largest score."""
        total = torch.stack(list(self.parts.values())).sum(0)
        return float((total - self.score).abs().max() / self.score.abs().max().clamp(min=1e-30))

    def by_layer(self) -> Parts:
        """The parts with heads summed up by layer: `decoder.3.mixer`, `decoder.3.cross`."""
        totals: Parts = {}
        for name, value in self.parts.items():
            name = name.split(".heads.")[0]
            totals[name] = totals[name] + value if name in totals else value
        return totals

    def _repr_html_(self) -> str:
        shares = sorted(
            ((float(value[0, -1]), name) for name, value in self.parts.items()), key=lambda row: -abs(row[0])
        )
        rows = "".join(f"<tr><td>{escape(name)}</td><td>{value:+.4f}</td></tr>" for value, name in shares[:20])
        caption = (
            f"position {self.positions[-1]}, token {int(self.targets[0, -1])}: score {float(self.score[0, -1]):.4f}"
        )
        return f"<table><caption>{caption}</caption><tr><th>part</th><th>adds</th></tr>{rows}</table>"


@torch.no_grad()
@checked()
def attribute(
    model: Transformer,
    tokens: Int[Tensor, "B T"],
    targets: Int[Tensor, "B P"] | None = None,
    against: Int[Tensor, "B P"] | None = None,
    positions: Sequence[int] = (-1,),
    **more: Any,
) -> Attribution:
    """Attribute the scores at some positions to the parts of the last stack.

    Args:
        model: any model whose head scores tokens.
        tokens: ids.
        targets: ids to score; None: the most probable token at each position.
        against: ids to subtract the scores of; None: none.
        positions: P positions in each row; negative ones count from the end.
        more: further model arguments: layout, source, source_layout, types, source_types.

    Raises:
        HeddleError: the head does not score tokens, a position is out of range, or a norm is not one of heddle's.
    """
    head, stack = model.language_head(), model.last_stack()
    width = tokens.shape[1]
    if invalid := [place for place in positions if not -width <= place < width]:
        raise HeddleError(f"position {invalid[0]} is out of range: the text has {width} tokens")
    places = tuple(place % width for place in positions)
    for name, ids in (("targets", targets), ("against", against)):
        if ids is not None:
            check_ids(name, ids, model.vocab_size, (len(tokens), len(places)), function="attribute")
    with evaluating(model), _Recorder(stack, list(places), width) as recorder:
        output: Output = model(tokens, **more)
    hidden = output.hidden[:, list(places)]
    logits = model.logits(hidden.to(wide_dtype(hidden.dtype)))
    targets = logits.argmax(-1) if targets is None else targets
    direction, parts = _head_direction(head, model, recorder, targets, against)
    gathered = logits.gather(-1, targets[..., None])[..., 0]
    score = gathered if against is None else gathered - logits.gather(-1, against[..., None])[..., 0]
    name = "encoder" if model.decoder is None else "decoder"
    neurons: dict[str, Tensor] = {}
    u, shift = recorder.norm(stack.final_norm).pull(direction)
    groups = [{f"{name}.final_shift": shift} | parts]
    for number, block in reversed(list(enumerate(stack.layers()))):
        u, contributions = _attribute_block(f"{name}.{number}", block, recorder, u, neurons)
        groups.append(contributions)
    groups.append(_attribute_entry(stack, recorder, u))
    ordered = {part: value for group in reversed(groups) for part, value in group.items()}
    return Attribution(ordered, dict(reversed(neurons.items())), score, places, targets)


class _Recorder(ExitStack):
    """Records inputs and outputs of a stack's modules at some positions, in fp32 or wider."""

    def __init__(self, stack: Stack, places: list[int], width: int) -> None:
        super().__init__()
        self.inputs: dict[nn.Module, Tensor] = {}
        self.outputs: dict[nn.Module, Tensor] = {}
        for module in stack.modules():
            self.enter_context(_RemovableHook(module.register_forward_hook(self._keep(places, width))))

    def _keep(self, places: list[int], width: int) -> Any:
        def keep(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            output = output.hidden if isinstance(output, Output) else output
            for store, tensor in ((self.inputs, args[0] if args else None), (self.outputs, output)):
                # The keys and values of cross-attention have another length.
                if isinstance(tensor, Tensor) and tensor.is_floating_point() and tensor.shape[1:-1] == (width,):
                    store[module] = tensor[:, places].to(wide_dtype(tensor.dtype))

        return keep

    def norm(self, module: nn.Module) -> Affine:
        """A norm linearized at its recorded input."""
        return identity() if isinstance(module, nn.Identity) else norm_at(module, self.inputs[module])


class _RemovableHook:
    """Removes a hook on exit."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: object) -> None:
        self.handle.remove()


def _head_direction(
    head: LanguageHead, model: Transformer, recorder: _Recorder, targets: Tensor, against: Tensor | None
) -> tuple[Tensor, Parts]:
    """The direction of the score in the space of hidden vectors, and the contribution of the head's biases."""
    hidden = recorder.outputs[model.last_stack()]
    scores = head.scoring(model.embedding.weight).to(hidden.dtype)
    features = head.features(hidden, None)

    def direction_of(ids: Tensor) -> tuple[Tensor, Tensor]:
        rows, shift = scores.table[ids], features.new_zeros(ids.shape)
        shift = shift if scores.bias is None else scores.bias[ids]
        if scores.cap is not None:  # frozen as a factor: cap · tanh(s / cap) / s
            product = (features * rows).sum(-1) + shift
            factor = scores.cap * (product / scores.cap).tanh() / torch.where(product == 0, 1.0, product)
            rows, shift = rows * factor[..., None], shift * factor
        return rows, shift

    u, bias = direction_of(targets)
    if against is not None:
        against_direction, against_bias = direction_of(against)
        u, bias = u - against_direction, bias - against_bias
    u = u * head.scale
    if head.dense is not None and head.norm is not None:
        inner = head.dense(hidden)
        active = head.activation(inner)
        for affine in (norm_at(head.norm, active), activation_at(head.activation, inner), linear(head.dense)):
            u, shift = affine.pull(u)
            bias = bias + shift
    return u, {"head": bias}


def _attribute_block(
    name: str, block: Block, recorder: _Recorder, u: Tensor, neurons: dict[str, Tensor]
) -> tuple[Tensor, Parts]:
    """Pull the direction back through a block; return it with the contributions of the block's parts."""
    shifts, branch_parts = u.new_zeros(u.shape[:-1]), []
    branches = (("mixer", block.mixer, block.mixer_residual), ("cross", block.cross, block.cross_residual))
    for end, module, residual in reversed([*branches, ("ffn", block.ffn, block.ffn_residual)]):
        if module is None or residual is None or module not in recorder.outputs:
            continue
        u, shift = recorder.norm(residual.outside).pull(u)
        branch, norm_shift = recorder.norm(residual.after).pull(u * residual.scale)
        branch_parts.append(dict(_attribute_branch(f"{name}.{end}", module, recorder, branch, neurons)))
        u, skip_shift = _pull_skip(residual, recorder, u)
        shifts = shifts + shift + norm_shift + skip_shift
    parts = {part: value for group in reversed(branch_parts) for part, value in group.items()}
    return u, parts | {f"{name}.shift": shifts}


def _pull_skip(residual: Residual, recorder: _Recorder, u: Tensor) -> tuple[Tensor, Tensor]:
    """Pull the direction back along a residual's skip connection."""
    if residual.skip is None:
        return torch.zeros_like(u), u.new_zeros(u.shape[:-1])
    return (identity() if residual.skip == "x" else recorder.norm(residual.before)).pull(u)


def _attribute_branch(
    name: str, module: nn.Module, recorder: _Recorder, u: Tensor, neurons: dict[str, Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """The contribution of a branch: by head and bias for attention, as one number for others."""
    total = (recorder.outputs[module] * u).sum(-1)
    if isinstance(module, MLP | Gated):
        neurons[name] = recorder.inputs[module.down] * _pull_linear(module.down, u, recorder.inputs[module.down])
    if not isinstance(module, Attention):
        yield name, total
        return
    merged = recorder.inputs[module.o]
    by_head = (merged * _pull_linear(module.o, u, merged)).unflatten(-1, (-1, module.value_dim)).sum(-1)
    for head in range(by_head.shape[-1]):
        yield f"{name}.heads.{head}", by_head[..., head]
    yield f"{name}.bias", total - by_head.sum(-1)


def _pull_linear(layer: nn.Module, u: Tensor, x: Tensor) -> Tensor:
    """Wᵀ u of a linear layer, including its adapter if there is one.

    Raises:
        HeddleError: the weights are quantized, so there is no gradient.
    """
    if not any(True for _ in layer.parameters()):
        raise HeddleError("attribution needs unquantized weights: load the run without int8 or int4")
    parameters = {name: parameter.detach().to(x.dtype) for name, parameter in layer.named_parameters()}
    pull: Any = torch.func.vjp(lambda input: torch.func.functional_call(layer, parameters, input), x)[1]
    pulled: Tensor = pull(u)[0]
    return pulled


def _attribute_entry(stack: Stack, recorder: _Recorder, u: Tensor) -> Parts:
    """The contributions of the token embedding, its position and its type."""
    entry = stack.entry
    shift = u.new_zeros(u.shape[:-1])
    maps = () if entry.project is None else (linear(entry.project),)
    for affine in (*maps, *(() if entry.norm is None else (recorder.norm(entry.norm),))):
        u, bias = affine.pull(u)
        shift = shift + bias
    token = recorder.inputs[entry] * entry.scale
    token_direction = u[..., : token.shape[-1]] if entry.concat else u
    parts = {"token": (token * token_direction).sum(-1)}
    if entry.positions is not None:
        position = recorder.outputs[entry.positions]
        parts["position"] = (position * (u[..., token.shape[-1] :] if entry.concat else u)).sum(-1)
    if entry.types is not None:
        parts["type"] = (recorder.outputs[entry.types] * u).sum(-1)
    return parts | {"entry.shift": shift}
