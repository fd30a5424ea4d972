"""Direct logit attribution: how much each part of a model adds to the score of a token.

The residual stream is a sum, so a score is one: of what the token's vector, the positions, every head, every feed-forward and every
shift gives. The parts add up to the score (Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits").
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
    """A score of some tokens, divided among the parts of the model that add to it directly.

    Attributes:
        parts: what each part adds, Float[B P], in the order of a pass: `token`, `position`, `type`; `decoder.3.mixer.heads.2`,
            `decoder.3.ffn`; `decoder.3.shift` for biases and shifts of norms; `head`. They sum to `score`.
        neurons: by feed-forward (`decoder.3.ffn`), what each hidden unit adds, Float[B P F].
        score: Float[B P], the score itself, or the difference of two.
        positions: the position in each row that each score is of.
        targets: Int[B P], whose score it is.
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
        """The same with a mixer's heads added up: `decoder.3.mixer`, `decoder.3.cross`."""
        found: Parts = {}
        for name, value in self.parts.items():
            name = name.split(".heads.")[0]
            found[name] = found[name] + value if name in found else value
        return found

    def _repr_html_(self) -> str:
        shares = sorted(
            ((float(value[0, -1]), name) for name, value in self.parts.items()), key=lambda row: -abs(row[0])
        )
        rows = "".join(f"<tr><td>{escape(name)}</td><td>{value:+.4f}</td></tr>" for value, name in shares[:20])
        said = f"position {self.positions[-1]}, token {int(self.targets[0, -1])}: score {float(self.score[0, -1]):.4f}"
        return f"<table><caption>{said}</caption><tr><th>part</th><th>adds</th></tr>{rows}</table>"


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
    """Divide the scores at some positions among the parts of the last stack.

    Args:
        model: any model whose head scores tokens.
        tokens: ids.
        targets: whose scores; None: of the most probable token at each position.
        against: other ids, to divide the difference of two scores; None: none.
        positions: P positions in each row; negative ones count from the end.
        more: other arguments of the model: layout, source, source_layout, types, source_types.

    Raises:
        HeddleError: the head does not score tokens, a position is not in the text, or a norm is not one of heddle's.
    """
    head, stack = model.language_head(), model.last_stack()
    width = tokens.shape[1]
    if odd := [place for place in positions if not -width <= place < width]:
        raise HeddleError(f"there is no position {odd[0]}: the text has {width} tokens")
    places = tuple(place % width for place in positions)
    for name, ids in (("targets", targets), ("against", against)):
        if ids is not None:
            check_ids(name, ids, model.vocab_size, (len(tokens), len(places)), function="attribute")
    with evaluating(model), _Recorder(stack, list(places), width) as kept:
        output: Output = model(tokens, **more)
    hidden = output.hidden[:, list(places)]
    logits = model.logits(hidden.to(wide_dtype(hidden.dtype)))
    targets = logits.argmax(-1) if targets is None else targets
    direction, parts = _behind(head, model, kept, targets, against)
    gathered = logits.gather(-1, targets[..., None])[..., 0]
    score = gathered if against is None else gathered - logits.gather(-1, against[..., None])[..., 0]
    name = "encoder" if model.decoder is None else "decoder"
    neurons: dict[str, Tensor] = {}
    u, shift = kept.norm(stack.final_norm).pull(direction)
    groups = [{f"{name}.final_shift": shift} | parts]
    for number, block in reversed(list(enumerate(stack.layers()))):
        u, added = _of_block(f"{name}.{number}", block, kept, u, neurons)
        groups.append(added)
    groups.append(_of_entry(stack, kept, u))
    ordered = {each: value for group in reversed(groups) for each, value in group.items()}
    return Attribution(ordered, dict(reversed(neurons.items())), score, places, targets)


class _Recorder(ExitStack):
    """The inputs and outputs of a stack's parts in one pass, in fp32 or wider, at some positions."""

    def __init__(self, stack: Stack, places: list[int], width: int) -> None:
        super().__init__()
        self.inputs: dict[nn.Module, Tensor] = {}
        self.outputs: dict[nn.Module, Tensor] = {}
        for module in stack.modules():
            self.enter_context(_removed(module.register_forward_hook(self._keep(places, width))))

    def _keep(self, places: list[int], width: int) -> Any:
        def keep(module: nn.Module, given: tuple[Any, ...], output: Any) -> None:
            output = output.hidden if isinstance(output, Output) else output
            for kept, tensor in ((self.inputs, given[0] if given else None), (self.outputs, output)):
                # Cross-attention's keys and values are of another width.
                if isinstance(tensor, Tensor) and tensor.is_floating_point() and tensor.shape[1:-1] == (width,):
                    kept[module] = tensor[:, places].to(wide_dtype(tensor.dtype))

        return keep

    def norm(self, module: nn.Module) -> Affine:
        """A norm as it was."""
        return identity() if isinstance(module, nn.Identity) else norm_at(module, self.inputs[module])


class _removed:
    """A hook that is removed on leaving."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: object) -> None:
        self.handle.remove()


def _behind(
    head: LanguageHead, model: Transformer, kept: _Recorder, targets: Tensor, against: Tensor | None
) -> tuple[Tensor, Parts]:
    """The direction of a score among hidden vectors, and what the head adds by itself."""
    hidden = kept.outputs[model.last_stack()]
    scores = head.scoring(model.embedding.weight).to(hidden.dtype)
    features = head.features(hidden, None)

    def of(ids: Tensor) -> tuple[Tensor, Tensor]:
        rows, shift = scores.table[ids], features.new_zeros(ids.shape)
        shift = shift if scores.bias is None else scores.bias[ids]
        if scores.cap is not None:  # as the factor that it was: cap · tanh(s / cap) / s
            product = (features * rows).sum(-1) + shift
            factor = scores.cap * (product / scores.cap).tanh() / torch.where(product == 0, 1.0, product)
            rows, shift = rows * factor[..., None], shift * factor
        return rows, shift

    u, added = of(targets)
    if against is not None:
        less, minus = of(against)
        u, added = u - less, added - minus
    u = u * head.scale
    if head.dense is not None and head.norm is not None:
        inner = head.dense(hidden)
        active = head.activation(inner)
        for each in (norm_at(head.norm, active), activation_at(head.activation, inner), linear(head.dense)):
            u, shift = each.pull(u)
            added = added + shift
    return u, {"head": added}


def _of_block(name: str, block: Block, kept: _Recorder, u: Tensor, neurons: dict[str, Tensor]) -> tuple[Tensor, Parts]:
    """The direction before a block, and what its parts add."""
    shifts, found = u.new_zeros(u.shape[:-1]), []
    branches = (("mixer", block.mixer, block.mixer_residual), ("cross", block.cross, block.cross_residual))
    for end, module, residual in reversed([*branches, ("ffn", block.ffn, block.ffn_residual)]):
        if module is None or residual is None or module not in kept.outputs:
            continue
        u, shift = kept.norm(residual.outside).pull(u)
        branch, more = kept.norm(residual.after).pull(u * residual.scale)
        found.append(dict(_of_branch(f"{name}.{end}", module, kept, branch, neurons)))
        u, last = _skipped(residual, kept, u)
        shifts = shifts + shift + more + last
    parts = {each: value for group in reversed(found) for each, value in group.items()}
    return u, parts | {f"{name}.shift": shifts}


def _skipped(residual: Residual, kept: _Recorder, u: Tensor) -> tuple[Tensor, Tensor]:
    """The direction in front of a residual, along its skip."""
    if residual.skip is None:
        return torch.zeros_like(u), u.new_zeros(u.shape[:-1])
    return (identity() if residual.skip == "x" else kept.norm(residual.before)).pull(u)


def _of_branch(
    name: str, module: nn.Module, kept: _Recorder, u: Tensor, neurons: dict[str, Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """What a branch adds: an attention layer by heads, with its bias; any other as a whole."""
    whole = (kept.outputs[module] * u).sum(-1)
    if isinstance(module, MLP | Gated):
        neurons[name] = kept.inputs[module.down] * _pulled(module.down, u, kept.inputs[module.down])
    if not isinstance(module, Attention):
        yield name, whole
        return
    merged = kept.inputs[module.o]
    by_head = (merged * _pulled(module.o, u, merged)).unflatten(-1, (-1, module.value_dim)).sum(-1)
    for head in range(by_head.shape[-1]):
        yield f"{name}.heads.{head}", by_head[..., head]
    yield f"{name}.bias", whole - by_head.sum(-1)


def _pulled(layer: nn.Module, u: Tensor, x: Tensor) -> Tensor:
    """Wᵀ u of a layer W x + b, which may have an adapter beside its matrix.

    Raises:
        HeddleError: its weights are rounded, so that it has no gradient.
    """
    if not any(True for _ in layer.parameters()):
        raise HeddleError(
            "a score is divided among trained weights: load the run without rounding them to int8 or int4"
        )
    wide = {each: parameter.detach().to(x.dtype) for each, parameter in layer.named_parameters()}
    pull: Any = torch.func.vjp(lambda given: torch.func.functional_call(layer, wide, given), x)[1]
    found: Tensor = pull(u)[0]
    return found


def _of_entry(stack: Stack, kept: _Recorder, u: Tensor) -> Parts:
    """What the token's vector, its position and its type add."""
    entry = stack.entry
    shift = u.new_zeros(u.shape[:-1])
    maps = () if entry.project is None else (linear(entry.project),)
    for each in (*maps, *(() if entry.norm is None else (kept.norm(entry.norm),))):
        u, more = each.pull(u)
        shift = shift + more
    token = kept.inputs[entry] * entry.scale
    own = u[..., : token.shape[-1]] if entry.concat else u
    parts = {"token": (token * own).sum(-1)}
    if entry.positions is not None:
        place = kept.outputs[entry.positions]
        parts["position"] = (place * (u[..., token.shape[-1] :] if entry.concat else u)).sum(-1)
    if entry.types is not None:
        parts["type"] = (kept.outputs[entry.types] * u).sum(-1)
    return parts | {"entry.shift": shift}
