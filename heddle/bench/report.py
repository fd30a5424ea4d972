"""What a benchmark measured, as data, as Markdown to paste into an issue, and as HTML."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from statistics import median
from typing import Any

from heddle.display import displayed, html_table, size

Table = tuple[str, Sequence[str], list[list[str]]]


@displayed()
@dataclass(frozen=True)
class Rounds:
    """One number, measured in several rounds."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Rounds":
        """Of these values."""
        return cls(median(values), min(values), max(values))


@displayed()
@dataclass(frozen=True)
class Ceiling:
    """What the device reaches in the simplest case.

    Attributes:
        what: a matrix product in one dtype, or a copy.
        rate: FLOP/s of a product; bytes per second of a copy, read and written.
    """

    what: str
    rate: float


@displayed()
@dataclass(frozen=True)
class Speed:
    """How fast one contender is in one case.

    Attributes:
        model: the model's name.
        contender: what trains or decodes.
        rows: that it trains on, or decodes together.
        tokens: of a row: those of a training step, or those that are decoded after as many of a prompt.
        parameters: of the contender's model.
        rate: tokens per second; None if there is a problem.
        times_heddle: its time as a multiple of that of heddle's fastest contender, by round.
        share: of the matrix products' ceiling in training, of the copy's in decoding.
        predicted: bytes that heddle's account predicts for its own contender.
        measured: bytes of its weights and its optimizer, and the most that a step allocates beside them.
        problem: why it was not measured; empty if it was.
    """

    model: str
    contender: str
    rows: int
    tokens: int
    parameters: int = 0
    rate: Rounds | None = None
    times_heddle: Rounds | None = None
    share: float | None = None
    predicted: int | None = None
    measured: int | None = None
    problem: str = ""

    def speed(self) -> str:
        """The rate, or the problem."""
        return self.problem if self.rate is None else f"{self.rate.median:,.1f} tokens/s"

    def cells(self) -> list[str]:
        """The row of a table."""
        case = (self.model, f"{self.rows} × {self.tokens}", self.contender)
        if self.rate is None:
            return [*case, self.problem, "", "", "", ""]
        return [
            *case,
            _rounds(self.rate, ",.0f" if self.rate.median >= 100 else ".1f"),
            "" if self.times_heddle is None else _rounds(self.times_heddle, ".2f"),
            "" if self.share is None else f"{self.share:.0%}",
            "" if self.predicted is None else size(self.predicted),
            "" if self.measured is None else size(self.measured),
        ]


@displayed(".markdown(), .to_dict()")
@dataclass(frozen=True)
class Bench:
    """A benchmark of heddle beside other programs, on one device.

    Attributes:
        machine: the device, the processor and the versions, by name.
        settings: precision, device and sizes.
        ceilings: what the device reaches.
        training: a row for each model and contender.
        decoding: a row for each model, number of rows and contender.
        left_out: what was not measured, and how to have it.
        complete: whether everything was measured; False in what `bench` saves on the way.
    """

    machine: Mapping[str, str]
    settings: Mapping[str, Any]
    ceilings: tuple[Ceiling, ...]
    training: tuple[Speed, ...] = ()
    decoding: tuple[Speed, ...] = ()
    left_out: tuple[str, ...] = ()
    complete: bool = False

    def head(self) -> str:
        """The machine and the settings in one line each."""
        settings = {"precision": self.settings["precision"], "rounds": str(self.settings["rounds"])}
        return ", ".join(f"{name} {value}" for name, value in {**self.machine, **settings}.items())

    def tables(self) -> Iterator[Table]:
        """The tables: a caption, the columns, the rows."""
        if self.ceilings:
            rows = [[each.what, _rate(each)] for each in self.ceilings]
            yield "Ceilings", ("of the device", "rate"), rows
        case = ("model", "rows × tokens", "contender")
        speed = ("tokens/s, median (min to max)", "× heddle's time, median (min to max)")
        memory = ("predicted", "measured")
        if self.training:
            columns = (*case, *speed, "of the matmul peak", *memory)
            yield "Training, AdamW, clipping", columns, [each.cells() for each in self.training]
        if self.decoding:
            columns = (*case, *speed, "of the bandwidth", *memory)
            yield "Decoding, greedy", columns, [each.cells() for each in self.decoding]

    def markdown(self) -> str:
        """Everything, ready to paste into an issue."""
        parts = [self.head()]
        for caption, columns, rows in self.tables():
            lines = [f"| {' | '.join(row)} |" for row in (columns, ["---"] * len(columns), *rows)]
            parts.append("\n".join([f"**{caption}**", "", *lines]))
        parts += [f"Left out: {'; '.join(self.left_out)}."] if self.left_out else []
        parts += [] if self.complete else ["Not complete: stopped before everything was measured."]
        return "\n\n".join(parts) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data."""
        return asdict(self)

    def _lines(self) -> Iterator[str]:
        yield self.head()
        for each in self.ceilings:
            yield f"  {each.what}: {_rate(each)}"
        for part, speeds in (("training", self.training), ("decoding", self.decoding)):
            for speed in speeds:
                yield f"  {part} {speed.model}, {speed.rows} × {speed.tokens}, {speed.contender}: {speed.speed()}"

    def _repr_html_(self) -> str:
        left_out = "".join(f"<p>Left out: {escape(each)}.</p>" for each in self.left_out)
        return f"<p>{escape(self.head())}</p>{''.join(html_table(*table) for table in self.tables())}{left_out}"


def _rounds(spread: Rounds, form: str) -> str:
    return f"{spread.median:{form}} ({spread.least:{form}} to {spread.most:{form}})"


def _rate(ceiling: Ceiling) -> str:
    if ceiling.what == "copy":
        return f"{ceiling.rate / 1e9:,.0f} GB/s"
    return f"{ceiling.rate / 1e12:,.2f} TFLOP/s"
