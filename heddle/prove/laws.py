"""The laws of training as a table, and the verdicts on a run, from its own data."""

from collections.abc import Iterator
from dataclasses import replace

from heddle.prove.arrangement import cut_of_a_batch, order_of_rows, packing_of_rows, padding_of_rows
from heddle.prove.coverage import epoch, parts, same_batches, targets_scored_once
from heddle.prove.kills import WORD as RESUME
from heddle.prove.proof import run_check
from heddle.prove.starts import started_texts
from heddle.prove.targets import future_of_targets, stepwise_losses
from heddle.prove.training import Law, TrainingSubject
from heddle.prove.verdict import Comparison, Verdict

LAWS: dict[str, Law] = {
    "batches": same_batches,
    "cut of a batch": cut_of_a_batch,
    "order of rows": order_of_rows,
    "padding of rows": padding_of_rows,
    "packing of rows": packing_of_rows,
    "future of targets": future_of_targets,
    "stepwise losses": stepwise_losses,
    "targets scored once": targets_scored_once,
    "epoch": epoch,
    "started texts": started_texts,
    "parts": parts,
}


def check_law(word: str, training: TrainingSubject) -> Verdict:
    """The verdict on one law; where it holds, its detail says what was looked at."""
    remarks: list[str] = []

    def comparisons(tried: TrainingSubject) -> Iterator[Comparison]:
        for each in LAWS[word](tried):
            if isinstance(each, str):
                remarks.append(each)
            else:
                yield each

    verdict = run_check(word, comparisons, training)
    held = verdict.word in ("EXACT", "ROUNDING")
    return replace(verdict, detail="; ".join(remarks)) if held else verdict


def not_checked(reason: str) -> list[Verdict]:
    """That nothing can be said of any law, and why."""
    return [Verdict(word, "NOT CHECKED", detail=reason) for word in (*LAWS, RESUME)]
