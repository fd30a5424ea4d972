"""A run on trial: its model, and that a prompt reaches it as the ids it was trained on."""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from heddle.checks import SEED, checked
from heddle.data.store import META, TokenStore
from heddle.generate.text import prompt_ids
from heddle.prove.proof import Progress, Proof, prove
from heddle.prove.verdict import Verdict
from heddle.text import Tokenizer
from heddle.weights import load
from heddle.weights.files import write_file

PROOF = "proof.json"
READ = 1 << 15  # ids of the training text that are looked at
WORD = "served ids"


@checked(seed=SEED)
def prove_run(
    run: str | Path, name: str = "", compile: bool = False, progress: Progress | None = None, seed: int = 0
) -> Proof:
    """Prove the newest model of a run with the weights it has, and its ids; `proof.json` is kept in its directory.

    Raises:
        HeddleError: as `load` does, or `proof.json` cannot be written.
    """
    run = Path(run)
    model, tokenizer = load(run, "cpu")
    found = prove(model, name, compile, progress, seed)
    proof = replace(found, verdicts=(*found.verdicts, served_ids(tokenizer, run / "data")))
    write_file(run / PROOF, (json.dumps(proof.to_dict(), indent=2) + "\n").encode(), replace=True)
    return proof


@checked()
def served_ids(tokenizer: Tokenizer | None, data: str | Path) -> Verdict:
    """The text that a run was trained on, given as prompts, becomes the ids that it was trained on (L2-49).

    The ids kept in `data` are made text again, document by document, and that text goes the way a prompt goes.
    """
    data = Path(data)
    if tokenizer is None or not (data / META).is_file():
        return Verdict(
            WORD, "NOT CHECKED", detail="no tokenizer" if tokenizer is None else "no training text is kept here"
        )
    store = TokenStore.open(data)
    if store.tokenizer != tokenizer.fingerprint():
        return _different("tokenizer.json is not the one that made the ids in data/")
    compared = 0
    for number, (ids, whole) in enumerate(documents(store, tokenizer)):
        served = prompt_ids(tokenizer, tokenizer.decode(ids))
        # Where a text is cut, what follows may have had a say in its last ids: half of it must do then.
        sure = len(ids) if whole else len(ids) // 2
        if served != ids if whole else served[:sure] != ids[:sure]:
            pairs = zip([*served, None], [*ids, None], strict=False)
            place = next(i for i, (one, other) in enumerate(pairs) if one != other)
            return _different(f"document {number}: id {place} of it as a prompt is not the one of training")
        compared += sure
    if not compared:
        return Verdict(
            WORD, "NOT CHECKED", detail="every id of the training text that was looked at is the unknown one"
        )
    return Verdict(WORD, "EXACT", detail=f"{compared:,} ids of the training text")


def documents(store: TokenStore, tokenizer: Tokenizer) -> Iterator[tuple[list[int], bool]]:
    """The first documents of the training part as ids, and whether each is whole.

    One ends before an id that stands for an unknown word, since its text is lost.
    """
    unknown, part = getattr(tokenizer, "unknown", None), store.train
    for number, (start, end) in enumerate(pairwise(part.starts.tolist())):
        if start >= READ:
            return
        end -= store.separator is not None and number < part.documents - 1
        piece, whole = part.tokens[start : min(end, READ)].tolist(), end <= READ
        if unknown in piece:
            piece, whole = piece[: piece.index(unknown)], False
        yield piece, whole


def _different(detail: str) -> Verdict:
    return Verdict(WORD, "DIFFERENT", float("inf"), 0.0, "", detail)
