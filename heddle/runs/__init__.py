"""The life of a run directory: prepared, trained, resumed, extended, compared.

In reading order:

- `resolve`: from settings to what a run will be, before its text is read, with every refusal that needs no text (`Resolved`).
  `start` is the run that another one starts from.
- `tokenizers`, `token_cache`: the tokenizer of a run; tokens of an earlier run that fit this one.
- `tokenize`: makes a store of tokens ahead, in `pieces`.
- `plan`: sizes, steps and precision, chosen by measurement before a run; `need`: the memory that it takes;
  `plan_text`: a plan in words.
- `prepare`: makes a run directory: resolve, tokens, plan, write.
- `session`: opens a run directory, new or at its newest checkpoint (`Session`); `initial` has the weights of a new one.
- `trainer`: the loop over steps, evaluations and checkpoints (`Trainer`); `journal` writes what it reports.
- `extend`: continues a run for longer than planned; `changeable` has the settings that may then differ.
- `sweep`: several runs, one at a time; `seed_statistics`: how much their results differ.
- `compare`: runs side by side; `export` and `plot` read their metrics for other programs and for people.
- `show`: what a step reads, to look at (`show_step`); `lint`: what goes wrong in practice.
- `factories`: a tokenizer and a model for a task and its data.

`prepare(config, run)` and then `Trainer(run).run()` train a run, as `heddle train` does.
"""

from heddle.runs.compare import compare_runs as compare_runs
from heddle.runs.compare import runs_in as runs_in
from heddle.runs.export import write_csv as write_csv
from heddle.runs.export import write_events as write_events
from heddle.runs.extend import extend as extend
from heddle.runs.factories import model_for as model_for
from heddle.runs.factories import tokenizer_for as tokenizer_for
from heddle.runs.plan import Plan as Plan
from heddle.runs.plan import plan as plan
from heddle.runs.plot import plot_runs as plot_runs
from heddle.runs.prepare import prepare as prepare
from heddle.runs.resolve import Resolved as Resolved
from heddle.runs.resolve import resolve as resolve
from heddle.runs.seed_statistics import SeedStatistics as SeedStatistics
from heddle.runs.seed_statistics import seed_statistics as seed_statistics
from heddle.runs.session import Session as Session
from heddle.runs.session import open_session as open_session
from heddle.runs.show import show_step as show_step
from heddle.runs.sweep import Member as Member
from heddle.runs.sweep import statistics_by_variant as statistics_by_variant
from heddle.runs.sweep import sweep as sweep
from heddle.runs.tokenize import Tokenized as Tokenized
from heddle.runs.tokenize import tokenize as tokenize
from heddle.runs.trainer import Interrupted as Interrupted
from heddle.runs.trainer import Trainer as Trainer

__all__ = [
    "Interrupted",
    "Member",
    "Plan",
    "Resolved",
    "SeedStatistics",
    "Session",
    "Tokenized",
    "Trainer",
    "compare_runs",
    "extend",
    "model_for",
    "open_session",
    "plan",
    "plot_runs",
    "prepare",
    "resolve",
    "runs_in",
    "seed_statistics",
    "show_step",
    "statistics_by_variant",
    "sweep",
    "tokenize",
    "tokenizer_for",
    "write_csv",
    "write_events",
]
