"""The table of the laws of training, and the verdicts on a run."""

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
    """Check one law; if it holds, the detail says what was covered."""
    remarks: list[str] = []

    def comparisons(subject: TrainingSubject) -> Iterator[Comparison]:
        for item in LAWS[word](subject):
            if isinstance(item, str):
                remarks.append(item)
            else:
                yield item

    verdict = run_check(word, comparisons, training)
    passed = verdict.word in ("EXACT", "ROUNDING")
    return replace(verdict, detail="; ".join(remarks)) if passed else verdict


def not_checked(reason: str) -> list[Verdict]:
    """`NOT CHECKED` verdicts for all laws, with a reason."""
    return [Verdict(word, "NOT CHECKED", detail=reason) for word in (*LAWS, RESUME)]
