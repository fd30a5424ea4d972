"""Architecture diagrams from a config: boxes with shapes, parameters and formulas, and ⊕ for additions (L0-12, L0-31).

They follow the figures of the lectures and of https://sebastianraschka.com/pdf/slides/2024-acm.pdf.
"""

import base64
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import Any

from torch import nn

from heddle.checks import checked
from heddle.config.layers import AttentionConfig, MoEConfig
from heddle.config.model import BlockConfig, StackConfig, TransformerConfig
from heddle.display import displayed
from heddle.errors import HeddleError, pluralize
from heddle.look.svg import PLUS, WIDTH, render
from heddle.model.build import build
from heddle.model.transformer import Transformer
from heddle.nn.block import Block, ParallelBlock, Residual
from heddle.nn.norm import LayerNorm, RMSNorm
from heddle.weights.files import write_file


@displayed()
@dataclass(frozen=True)
class Box:
    """A box of a drawing; ⊕ as its label is an addition.

    Attributes:
        name: such as `decoder.3.mixer`; unique within a drawing.
        label: the text in the box.
        shape: of its output: `T D = 1024 × 768`.
        parameters: those not counted by an earlier box, so that all boxes sum to the model's.
        formula: what it computes.
        row: of the lectures.
        reads: its input box, if that is not the previous one.
        adds: for an addition, the box at the start of the skip connection.
    """

    name: str
    label: str
    shape: str = ""
    parameters: int = 0
    formula: str = ""
    row: str = ""
    reads: str | None = None
    adds: str | None = None


@displayed(".boxes")
@dataclass(frozen=True)
class Layers:
    """Identical consecutive layers, drawn once.

    Attributes:
        first: number of the first layer, from 0.
        count: number of layers.
        boxes: of one layer.
        parameters: of all layers.
    """

    first: int
    count: int
    boxes: tuple[Box, ...]
    parameters: int


@displayed(".layers")
@dataclass(frozen=True)
class Column:
    """A stack: boxes before its layers, the layers, and boxes after them."""

    name: str
    before: tuple[Box, ...]
    layers: tuple[Layers, ...]
    after: tuple[Box, ...]


@displayed(".boxes(), or heddle.look.write_drawing(drawing, 'model.svg')")
@dataclass(frozen=True)
class Drawing:
    """A model as boxes.

    Attributes:
        title: family and sizes on one line.
        columns: the encoder, the decoder, or both.
        parameters: of the model, which is the sum over all boxes and layers.
    """

    title: str
    columns: tuple[Column, ...]
    parameters: int

    def _lines(self) -> Iterator[str]:
        yield f"Drawing: {self.parameters:,} parameters; {self.title}"
        for column in self.columns:
            yield f"  {column.name}"
            yield from (f"    {box.label}  {box.shape}" for box in column.before)
            for group in column.layers:
                labels = " → ".join(box.label for box in group.boxes)
                yield f"    {group.count} × {group.parameters // group.count:,} parameters: {labels}"
            yield from (f"    {box.label}  {box.shape}" for box in column.after)

    def boxes(self) -> Iterator[tuple[Box, int]]:
        """Every box with its number of occurrences."""
        for column in self.columns:
            yield from ((box, 1) for box in (*column.before, *column.after))
            for group in column.layers:
                yield from ((box, group.count) for box in group.boxes)

    def _repr_html_(self) -> str:
        # A picture, so that the styles inside the SVG do not reach the notebook's own.
        data = base64.b64encode(render(self).encode()).decode()
        title = escape(f"{self.title}: {self.parameters:,} parameters")
        width = WIDTH * len(self.columns)
        return f'<img style="max-width:100%" width="{width}" alt="{title}" src="data:image/svg+xml;base64,{data}">'


@checked()
def to_svg(drawing: Drawing) -> str:
    """Render a drawing as a self-contained SVG file.

    Each box is a group with its name in `data-box` and a title with its shape, parameters and formula.
    """
    return render(drawing)


@checked()
def write_drawing(drawing: Drawing, path: str | Path) -> None:
    """Write a drawing as an .svg file.

    Raises:
        HeddleError: the file name does not end in .svg, or the file cannot be written.
    """
    path = Path(path)
    if path.suffix.lower() != ".svg":
        raise HeddleError(f"{path}: must end in .svg")
    write_file(path, to_svg(drawing).encode(), replace=True)


@checked()
def draw(config: TransformerConfig) -> Drawing:
    """Draw a model from its config. The model is built on the meta device, without weights."""
    model = build(config, device="meta")
    counted: set[int] = set()
    columns = []
    for name, last_stack in config.stacks().items():
        columns.append(_Column(model, name, last_stack, counted).draw(last=name == config.last()[0]))
    last_stack = config.last()[1]
    depths = [f"{pluralize(stack_config.depth, 'layer')} ({name})" for name, stack_config in config.stacks().items()]
    family = "encoder-decoder" if len(columns) == 2 else f"{columns[0].name}-only"
    depth_text = " and ".join(depths) if len(columns) == 2 else pluralize(last_stack.depth, "layer")
    title = f"{family}, {depth_text}, D = {config.dim}, V = {config.vocab_size}, T = {config.context}"
    return Drawing(title, tuple(columns), sum(parameter.numel() for parameter in model.parameters()))


@dataclass
class _Column:
    """The drawing of one stack."""

    model: Transformer
    name: str
    config: StackConfig
    counted: set[int]  # ids of parameters that a box has counted
    sizes: dict[str, int] = field(default_factory=dict)

    def draw(self, last: bool) -> Column:
        stack, config = getattr(self.model, self.name), self.model.config
        self.sizes = {"T": config.context, "D": config.dim, "V": config.vocab_size}
        before = tuple(self._entry(stack))
        groups: list[Layers] = []
        block_configs = list(self.config.blocks)
        for number, (block, module) in enumerate(zip(block_configs, stack.layers(), strict=True)):
            boxes = tuple(self._block(f"{self.name}.{number}", block, module))
            parameters = sum(box.parameters for box in boxes)
            if groups and block_configs[number - 1] == block and groups[-1].parameters == parameters * groups[-1].count:
                groups[-1] = replace(
                    groups[-1], count=groups[-1].count + 1, parameters=groups[-1].parameters + parameters
                )
            else:
                groups.append(Layers(number, 1, boxes, parameters))
        after = [self._norm(f"{self.name}.final_norm", stack.final_norm)] if _is_norm(stack.final_norm) else []
        if shared := self._count(stack):
            after.append(
                Box(f"{self.name}.shared", "Shared by layers", "", shared, "distances, or what else all layers read")
            )
        if last:
            after.append(self._head())
            after.append(Box(f"{self.name}.out", self._tokens_label(out=True), "", 0, "", "L2-42"))
        return Column(self.name, before, tuple(groups), tuple(after))

    def _entry(self, stack: Any) -> Iterator[Box]:
        model, entry = self.model, self.config.entry
        source = self.name == "encoder" and model.source_embedding is not None
        table = model.source_embedding if source and model.source_embedding is not None else model.embedding
        tokens = (
            "source tokens" if self.name == "encoder" and model.decoder is not None else self._tokens_label(out=False)
        )
        yield Box(f"{self.name}.tokens", tokens, f"T = {self.sizes['T']}", 0, "ids", "L2-42")
        shared = " (shared)" if id(table.weight) in self.counted else ""
        rows, width = table.weight.shape
        yield Box(
            f"{self.name}.embedding", f"Token embedding{shared}", self._shape("T D"), self._count(table),
            f"row t of E, {rows:,} × {width}", "L0-22",
        )  # fmt: skip
        if entry.positions != "none":
            kind, combined = (
                str(entry.positions).capitalize(),
                "concatenated with" if stack.entry.concat else "added to",
            )
            learned = 0 if stack.entry.positions is None else self._count(stack.entry.positions)
            formula = f"{combined} the tokens' vectors"
            yield Box(f"{self.name}.positions", f"{kind} positions", self._shape("T D"), learned, formula, "L0-22")
        other = self._count(stack.entry)
        if other or _is_norm(stack.entry.norm):
            yield Box(f"{self.name}.entry", "Types, norm, projection", self._shape("T D"), other, "of the entry")

    def _block(self, name: str, config: BlockConfig, block: Block) -> Iterator[Box]:
        x = mixer_input = f"{name}.input"
        yield Box(x, "layer input", self._shape("T D"), 0, "the residual stream")
        branches: list[tuple[str, nn.Module, Residual, Any]] = [
            ("mixer", block.mixer, block.mixer_residual, config.mixer)
        ]
        if block.cross is not None and block.cross_residual is not None:
            branches.append(("cross", block.cross, block.cross_residual, config.cross))
        if block.ffn is not None and block.ffn_residual is not None:
            branches.append(("ffn", block.ffn, block.ffn_residual, config.ffn))
        block_input = x
        for end, module, residual, settings in branches:
            start, reads = f"{name}.{end}", None
            if isinstance(block, ParallelBlock) and end == "ffn":
                reads = mixer_input if block.one_norm else block_input
            if _is_norm(residual.before):
                yield replace(self._norm(f"{start}.before", residual.before), reads=reads)
                reads, normed = None, f"{start}.before"
            else:
                normed = x
            mixer_input = normed if end == "mixer" else mixer_input
            yield replace(self._branch(start, end, module, settings), reads=reads)
            yield from self._residual(start, residual, x, normed)
            x = f"{start}.outside" if _is_norm(residual.outside) else f"{start}.add"
        if other := self._count(block):
            yield Box(f"{name}.rest", "Other weights", "", other, "of the layer's own")

    def _residual(self, name: str, residual: Residual, x: str, normed: str) -> Iterator[Box]:
        """The boxes after a branch: norm, dropout, addition, norm."""
        shape, rate = self._shape("T D"), residual.dropout.rate
        if _is_norm(residual.after):
            yield self._norm(f"{name}.after", residual.after)
        if rate > 0:
            yield Box(f"{name}.dropout", f"Dropout {rate:g}", shape, 0, "in training alone", "L0-57")
        formula, adds = "x + branch(x)", x
        if residual.skip == "normed":
            formula, adds = "norm(x) + branch(norm(x)), D-01", normed
        if residual.skip is None:
            yield Box(f"{name}.add", "no residual", shape, 0, "no skip", "L0-53")
        else:
            yield Box(f"{name}.add", PLUS, shape, 0, formula, "L0-53", adds=adds)
        if _is_norm(residual.outside):
            yield self._norm(f"{name}.outside", residual.outside)

    def _branch(self, name: str, end: str, module: nn.Module, settings: Any) -> Box:
        kind, row, formula = getattr(settings, "kind", "custom"), "", ""
        if isinstance(settings, AttentionConfig):
            title = "Attention" if self.name == "encoder" else "Masked attention"
            row, formula = "L0-40", "softmax(scale · Q Kᵀ + mask) V Wₒ"
            if end == "cross":
                title, row = "Cross-attention", "L1-78"
                formula += ", Q of the decoder, K and V of the encoder"
            keys = f", {settings.key_heads()} KV" if settings.key_heads() != settings.heads else ""
            label = f"{title}, {settings.heads} heads{keys}"
        elif isinstance(settings, MoEConfig):
            label, row = f"{settings.active} of {settings.experts} experts", "L2-74"
            formula = "Σ gate · expert(x) over the chosen experts"
        elif kind == "mlp":
            label, row, formula = f"MLP, {settings.activation}", "L0-67", "W₂ f(W₁ x), with W₁ up and W₂ down"
        elif kind == "gated":
            label, row, formula = (
                f"Gated MLP, {settings.activation}",
                "L1-21",
                "W₂ (f(W₁ x) ⊙ W₃ x), with W₁ gate, W₃ up and W₂ down",
            )
        else:
            label = f"{kind.capitalize()} {'mixer' if end == 'mixer' else 'feed-forward'}"
        return Box(name, label, self._shape("T D"), self._count(module), formula, row)

    def _norm(self, name: str, module: nn.Module) -> Box:
        row = {LayerNorm: "L0-48", RMSNorm: "L2-31"}.get(type(module), "")
        return Box(name, type(module).__name__, self._shape("T D"), self._count(module), "normed over D", row)

    def _head(self) -> Box:
        head, kind = self.model.head, self.model.config.head.kind
        parameters = 0 if head is None else self._count(head)
        if kind == "language":
            tied = "" if parameters else " (tied)"
            return Box(
                "head",
                f"Language head{tied}",
                self._shape("T V"),
                parameters,
                "scores = hidden Eᵀ, then a softmax",
                "L0-73",
            )
        return Box("head", f"Head: {kind}", "", parameters, "of the hidden vectors")

    def _tokens_label(self, out: bool) -> str:
        """Labels of inputs and outputs; outputs are shifted by one if texts start with a begin token (L2-42)."""
        config = self.model.config
        if config.decoder is None:
            return "what the head predicts" if out else "tokens x₁ … xₙ"
        starts = config.encoder is not None or (config.ids is not None and config.ids.begin is not None)
        if starts:
            return "n+1 outputs: x₁ … xₙ, <end>" if out else "n+1 inputs: <start>, x₁ … xₙ"
        return "next tokens x₂ … xₙ₊₁" if out else "n inputs: x₁ … xₙ"

    def _shape(self, letters: str) -> str:
        return f"{letters} = " + " × ".join(f"{self.sizes[letter]}" for letter in letters.split())

    def _count(self, module: nn.Module) -> int:
        """Count the parameters of a module that were not counted yet."""
        new = {id(parameter): parameter for parameter in module.parameters() if id(parameter) not in self.counted}
        self.counted |= set(new)
        return sum(parameter.numel() for parameter in new.values())


def _is_norm(module: nn.Module | None) -> bool:
    return module is not None and not isinstance(module, nn.Identity)
