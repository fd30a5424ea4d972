"""Options that several commands share: the type and the help of each, once."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from heddle.config.decoding import WeightKind

COMPILE = (
    "Compile the decoding steps before the first text, instead of in the background if texts are long (see "
    "docs/guides/serve.md). Needs a C++ compiler."
)
ENCODING = "Encoding of files and standard input, such as cp1252."

Run = Annotated[str, Parameter(help="A run directory, or its name in runs/.")]
NewRun = Annotated[str, Parameter(help="The new run's directory, or its name in runs/.")]
Model = Annotated[str, Parameter(help="A preset, a run, or a model config (.toml or .json).")]
Text = Annotated[str | None, Parameter(allow_leading_hyphen=True)]
TextList = Annotated[list[str] | None, Parameter(allow_leading_hyphen=True)]

# The setting `device` of a run file is another place (`heddle.config.train`).
Device = Annotated[
    str, Parameter(help="auto, cpu, cuda, a card such as cuda:1, or mps; auto picks cuda or mps if available.")
]
Weights = Annotated[
    WeightKind,
    Parameter(
        help="int8 or int4: quantize the weights, which saves memory on a CPU and is faster for one text at a time. See "
        "docs/guides/serve.md for the cost in quality."
    ),
]
Precision = Annotated[
    Literal["auto", "fp32", "bf16"],
    Parameter(
        help="fp32 or bf16; auto: what the run was trained in, or imported weights were published in, where this machine computes "
        "it fast, else fp32."
    ),
]
Compile = Annotated[bool, Parameter(help=COMPILE)]
Json = Annotated[bool, Parameter(help="One JSON document on stdout.")]

AllowHost = Annotated[list[str] | None, Parameter(help="Another host name to accept in requests; may be repeated.")]

Encoding = Annotated[str, Parameter(help=ENCODING)]
SkipInvalid = Annotated[
    bool, Parameter(help="Skip malformed rows and lines, and report how many, instead of stopping at the first.")
]
TextColumn = Annotated[
    str | None, Parameter(help="Text column of tables. Defaults to the column that the run was trained on.")
]
PairColumn = Annotated[
    str | None,
    Parameter(help="Column of a pair's second text in tables. Defaults to the column that the run was trained on."),
]

RepetitionPenalty = Annotated[
    float | None, Parameter(help="Values above 1 make tokens that are already in the text less probable.")
]
NoRepeatNgram = Annotated[int | None, Parameter(help="Never repeat an n-gram of this many tokens.")]


@dataclass(frozen=True, kw_only=True)
class DecodingOptions:
    """Options that are settings of a config of `heddle.config.decoding`; None: not set."""

    def settings(self) -> dict[str, Any]:
        """The options that are set."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class SamplingOptions(DecodingOptions):
    """Settings of `SamplingConfig` that every command has which samples."""

    max_tokens: int | None = None
    """Maximum tokens per text. This and other options default to an imported model's generation config, else to 200."""
    temperature: float | None = None
    """Sampling temperature: higher is more random, 0 is greedy. Defaults to 1."""
    top_k: int | None = None
    """Sample only from the k most probable tokens."""
    top_p: float | None = None
    """Nucleus sampling: sample only from the most probable tokens with this total probability."""
    min_p: float | None = None
    """Sample only from tokens with at least this fraction of the top token's probability."""
    repetition_penalty: RepetitionPenalty = None
    seed: int = 0
    """Random seed. Equal seeds and inputs give equal texts."""
