"""Check a run: its model, its training, and that prompts are tokenized as in training."""

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
from heddle.prove.kills import check_resume
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
MAX_IDS = 1 << 15  # training ids to check
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
    """Check the latest model of a run, its training and its tokenization; save `proof.json` in the run.

    Args:
        run: a run directory.
        name: of the run in the proof.
        compile: also check the model under torch.compile.
        progress: called with a line before each check.
        seed: of the test inputs.
        kills: number of times to kill a short copy of the run during training (see `heddle.prove.kills`).

    Raises:
        HeddleError: the run cannot be loaded, or `proof.json` cannot be written.
    """
    run = Path(run)
    model, tokenizer = load(run, "cpu")
    proof_of_model = prove(model, name, compile, progress, seed)
    training_verdicts = training_laws(run, model, proof_of_model.rounding, progress, seed, kills)
    proof = replace(
        proof_of_model,
        verdicts=(*proof_of_model.verdicts, *training_verdicts, served_ids(tokenizer, run / "data", model.config.chat)),
    )
    write_file(run / PROOF, (json.dumps(proof.to_dict(), indent=2) + "\n").encode(), replace=True)
    return proof


def training_laws(
    run: Path, model: Transformer, rounding: float, progress: Progress | None, seed: int, kills: int
) -> list[Verdict]:
    """Check the laws of training on the run's data, task and model; NOT CHECKED if it has no data or was not trained here."""
    config = read_config(run)
    if config.train is None or config.chosen is None:
        return not_checked(
            "the run was imported, not trained" if config.origin else "the run was saved without its training settings"
        )
    if not (run / "data" / META).is_file():
        return not_checked("the run has no training data")
    run_data = read_run(run)
    training = TrainingSubject(run_data.task, model, rounding, run_data.store, seed, run_data.train)
    verdicts = []
    for word in LAWS:
        if progress is not None:
            progress(word)
        verdicts.append(check_law(word, training))
    return [*verdicts, check_resume(run, kills, seed, (lambda line: None) if progress is None else progress)]


@checked()
def served_ids(tokenizer: Tokenizer | None, data: str | Path, chat: ChatTemplateConfig | None = None) -> Verdict:
    """Check that training text used as a prompt is tokenized to the ids of training (L2-49).

    Stored ids are decoded document by document and encoded again like a prompt. For conversations, the messages before each answer
    are rendered, and the answer must follow.

    Args:
        tokenizer: of the run.
        data: directory of the token store.
        chat: the chat template, if there is one.
    """
    data = Path(data)
    if tokenizer is None or not (data / META).is_file():
        return Verdict(
            WORD, "NOT CHECKED", detail="no tokenizer" if tokenizer is None else "the run has no training data"
        )
    store = open_store(data)
    if store.tokenizer != tokenizer.fingerprint():
        return _different("tokenizer.json is not the one that made the ids in data/")
    if isinstance(store, RecordStore) and store.labels == "roles":
        return served_conversations(store, tokenizer, chat)
    compared = 0
    for number, (ids, is_complete) in enumerate(documents(store, tokenizer)):
        served = prompt_ids(tokenizer, tokenizer.decode(ids))
        # The last ids of a truncated text may depend on what follows, so only the first half is compared.
        comparable = len(ids) if is_complete else len(ids) // 2
        if served != ids if is_complete else served[:comparable] != ids[:comparable]:
            pairs = zip([*served, None], [*ids, None], strict=False)
            place = next(i for i, (actual, expected) in enumerate(pairs) if actual != expected)
            return _different(f"document {number}: id {place} differs between prompt and training")
        compared += comparable
    if not compared:
        return Verdict(WORD, "NOT CHECKED", detail="every checked training id is the unknown token")
    return Verdict(WORD, "EXACT", detail=f"{compared:,} ids of the training text")


def served_conversations(store: RecordStore, tokenizer: Tokenizer, chat: ChatTemplateConfig | None) -> Verdict:
    """Check that each answer of the first conversations follows exactly the prompt that generation renders."""
    if chat is None:
        return _different("the model was trained on conversations, but its config has no chat template")
    template, compared, answers = ChatTemplate.of(chat, tokenizer), 0, 0
    ids, labels = store.train.columns[MESSAGES], store.train.columns[LABEL]
    for record in range(len(store.train)):
        messages, record_ids, numbers = messages_of(store.train, record), ids[record], labels[record]
        places = [place for place, message in enumerate(messages) if message["role"] == ANSWERS]
        for number, place in enumerate(places, start=1):
            answer_places = np.flatnonzero(numbers == number)
            if len(answer_places):
                served = template.render(messages[:place], add_generation_prompt=True)
                if len(served) != answer_places[0] or served != record_ids[: answer_places[0]].tolist():
                    return _different(
                        f"conversation {record}: the prompt of answer {number} differs from the training ids before it"
                    )
                if record_ids[answer_places[-1]] not in template.ends:
                    return _different(
                        f"conversation {record}: answer {number} does not end with an end token of the chat template"
                    )
                compared, answers = compared + len(served), answers + 1
        if compared >= MAX_IDS:
            break
    return Verdict(WORD, "EXACT", detail=f"{compared:,} ids before {pluralize(answers, 'answer')}")


def documents(store: Store, tokenizer: Tokenizer) -> Iterator[tuple[list[int], bool]]:
    """The ids of the first training documents, or texts of records, and whether each is complete.

    A document is truncated before an unknown token, whose text is lost.
    """
    unknown = getattr(tokenizer, "unknown", None)
    for piece, is_complete in _texts(store) if isinstance(store, RecordStore) else _documents(store):
        if unknown in piece:
            piece, is_complete = piece[: piece.index(unknown)], False
        yield piece, is_complete


def _texts(store: RecordStore) -> Iterator[tuple[list[int], bool]]:
    """The texts of the first records."""
    texts = list(store.train.texts.values())
    ids_read = 0
    for record in range(len(store.train)):
        for column in texts:
            yield column[record].tolist(), True
            ids_read += len(column[record])
        if ids_read >= MAX_IDS:
            return


def _documents(store: TokenStore) -> Iterator[tuple[list[int], bool]]:
    """The first documents; the last may be truncated."""
    part = store.train
    for number, (start, end) in enumerate(pairwise(part.starts.tolist())):
        if start >= MAX_IDS:
            return
        end -= store.separator is not None and number < part.documents - 1
        piece, is_complete = part.tokens[start : min(end, MAX_IDS)].tolist(), end <= MAX_IDS
        yield piece, is_complete


def _different(detail: str) -> Verdict:
    return Verdict(WORD, "DIFFERENT", float("inf"), 0.0, "", detail)
