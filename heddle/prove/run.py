"""A run on trial: its model, and that a prompt reaches it as the ids it was trained on."""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from heddle.checks import SEED, at_least, checked
from heddle.config.chat_template import ChatTemplateConfig
from heddle.data.base import META
from heddle.data.record_store import RecordStore, Store, open_store
from heddle.data.sources.examples import LABEL, MESSAGES
from heddle.data.store import TokenStore
from heddle.errors import pluralize
from heddle.generate.text import prompt_ids
from heddle.model.transformer import Transformer
from heddle.prove.kills import resumed
from heddle.prove.laws import LAWS, check_law, not_checked
from heddle.prove.proof import Progress, Proof, prove
from heddle.prove.training import TrainingSubject
from heddle.prove.verdict import Verdict
from heddle.runs.session import read_run
from heddle.tasks.chat import messages_of
from heddle.text import Tokenizer
from heddle.text.chat_template import ANSWERS, ChatTemplate
from heddle.weights import load
from heddle.weights.files import write_file
from heddle.weights.run import read_config

PROOF = "proof.json"
READ = 1 << 15  # ids of the training text that are looked at
WORD = "served ids"


@checked(seed=SEED, kills=at_least(0))
def prove_run(
    run: str | Path,
    name: str = "",
    compile: bool = False,
    progress: Progress | None = None,
    seed: int = 0,
    kills: int = 0,
) -> Proof:
    """Prove the newest model of a run with the weights it has, its training and its ids; `proof.json` is kept in its directory.

    Args:
        run: a run directory.
        name: what to call it.
        compile: whether to check the model under torch.compile, too.
        progress: called with a line before each check.
        seed: of what is tried.
        kills: how often to kill a short copy of the run while it trains (see `heddle.prove.kills`).

    Raises:
        HeddleError: as `load` does, or `proof.json` cannot be written.
    """
    run = Path(run)
    model, tokenizer = load(run, "cpu")
    found = prove(model, name, compile, progress, seed)
    learned = training_laws(run, model, found.rounding, progress, seed, kills)
    proof = replace(found, verdicts=(*found.verdicts, *learned, served_ids(tokenizer, run / "data", model.config.chat)))
    write_file(run / PROOF, (json.dumps(proof.to_dict(), indent=2) + "\n").encode(), replace=True)
    return proof


def training_laws(
    run: Path, model: Transformer, rounding: float, progress: Progress | None, seed: int, kills: int
) -> list[Verdict]:
    """The laws of training, on the run's own data, task and model; NOT CHECKED where it has no data or was not trained here."""
    config = read_config(run)
    if config.train is None or config.chosen is None:
        return not_checked(
            "it was imported, not trained here" if config.origin else "it was saved without its training"
        )
    if not (run / "data" / META).is_file():
        return not_checked("no training text is kept here")
    opened = read_run(run)
    training = TrainingSubject(opened.task, model, rounding, opened.store, seed, opened.train)
    verdicts = []
    for word in LAWS:
        if progress is not None:
            progress(word)
        verdicts.append(check_law(word, training))
    return [*verdicts, resumed(run, kills, seed, (lambda line: None) if progress is None else progress)]


@checked()
def served_ids(tokenizer: Tokenizer | None, data: str | Path, chat: ChatTemplateConfig | None = None) -> Verdict:
    """The text that a run was trained on, given as prompts, becomes the ids that it was trained on (L2-49).

    The ids kept in `data` are made text again, document by document, and that text goes the way a prompt goes. Of
    conversations, the messages before each answer go that way, and the answer must follow.

    Args:
        tokenizer: the run's.
        data: its store.
        chat: its chat template, if it has one.
    """
    data = Path(data)
    if tokenizer is None or not (data / META).is_file():
        return Verdict(
            WORD, "NOT CHECKED", detail="no tokenizer" if tokenizer is None else "no training text is kept here"
        )
    store = open_store(data)
    if store.tokenizer != tokenizer.fingerprint():
        return _different("tokenizer.json is not the one that made the ids in data/")
    if isinstance(store, RecordStore) and store.labels == "roles":
        return served_conversations(store, tokenizer, chat)
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


def served_conversations(store: RecordStore, tokenizer: Tokenizer, chat: ChatTemplateConfig | None) -> Verdict:
    """Each answer of the first conversations follows just what generation would be prompted with."""
    if chat is None:
        return _different("the model's config has no chat template, though it was trained on conversations")
    template, compared, answers = ChatTemplate.of(chat, tokenizer), 0, 0
    ids, labels = store.train.columns[MESSAGES], store.train.columns[LABEL]
    for record in range(len(store.train)):
        messages, read, numbers = messages_of(store.train, record), ids[record], labels[record]
        places = [place for place, message in enumerate(messages) if message["role"] == ANSWERS]
        for number, place in enumerate(places, start=1):
            own = np.flatnonzero(numbers == number)
            if len(own):
                served = template.render(messages[:place], add_generation_prompt=True)
                if len(served) != own[0] or served != read[: own[0]].tolist():
                    return _different(
                        f"conversation {record}: the prompt of answer {number} is not what training read before it"
                    )
                if read[own[-1]] not in template.ends:
                    return _different(f"conversation {record}: answer {number} does not end as generation would end it")
                compared, answers = compared + len(served), answers + 1
        if compared >= READ:
            break
    return Verdict(WORD, "EXACT", detail=f"{compared:,} ids before {pluralize(answers, 'answer')}")


def documents(store: Store, tokenizer: Tokenizer) -> Iterator[tuple[list[int], bool]]:
    """The first documents, or texts of records, of the training part as ids, and whether each is whole.

    One ends before an id that stands for an unknown word, since its text is lost.
    """
    unknown = getattr(tokenizer, "unknown", None)
    for piece, whole in _texts(store) if isinstance(store, RecordStore) else _documents(store):
        if unknown in piece:
            piece, whole = piece[: piece.index(unknown)], False
        yield piece, whole


def _texts(store: RecordStore) -> Iterator[tuple[list[int], bool]]:
    """The texts of the first records."""
    texts = list(store.train.texts.values())
    read = 0
    for record in range(len(store.train)):
        for column in texts:
            yield column[record].tolist(), True
            read += len(column[record])
        if read >= READ:
            return


def _documents(store: TokenStore) -> Iterator[tuple[list[int], bool]]:
    """The first documents; the last may be cut short."""
    part = store.train
    for number, (start, end) in enumerate(pairwise(part.starts.tolist())):
        if start >= READ:
            return
        end -= store.separator is not None and number < part.documents - 1
        piece, whole = part.tokens[start : min(end, READ)].tolist(), end <= READ
        yield piece, whole


def _different(detail: str) -> Verdict:
    return Verdict(WORD, "DIFFERENT", float("inf"), 0.0, "", detail)
