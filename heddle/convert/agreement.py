"""Whether Hugging Face transformers computes with an export what heddle does: from text on, as its users do, and from ids."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from heddle.config.embedding import EmbeddingHeadConfig
from heddle.config.model import ClassifierHeadConfig, LanguageHeadConfig, NoHeadConfig
from heddle.convert.families import Family
from heddle.errors import HeddleError
from heddle.model.transformer import Transformer
from heddle.nn.layout import Layout
from heddle.text.chat_template import PROBE, ChatTemplate
from heddle.text.masking import masked_ids, stand_ins
from heddle.text.tokenizer import Tokenizer
from heddle.weights.special_tokens import around_read, mask_of, typed

TOLERANCE = 1e-5  # of the largest score, or of 1 if all are smaller
ALLOWED = 8  # times the rounding error that was measured, if that is more; as in `heddle prove`
LENGTH, ROWS = 64, 2  # of random ids
NEVER = -1e3  # a logit below the others by that much has no probability
# Letters of each case, accents, marks, numbers, other scripts, several blanks and line breaks.
TEXTS = (
    "The heddle lifts each 2nd warp thread, doesn't it?",
    "Größe, naïve café: 織る ½  1234 Leerzeichen\n\tneue Zeile.",
    "warp",
)
PIECES, SAMPLES = 12, 3  # ids of texts that are made of a tokenizer's own pieces; and how many such texts


@dataclass(frozen=True)
class Agreement:
    """How far two implementations of a model are apart.

    Attributes:
        difference: the largest of two scores, over the largest score, or over 1 if all are smaller. Scores of tokens are compared
            up to a number per position, which changes no probability.
        allowed: what rounding explains.
        notes: what was not compared.
    """

    difference: float
    allowed: float
    notes: tuple[str, ...] = ()

    def measured(self) -> dict[str, float]:
        """The two numbers by name."""
        return {"difference": self.difference, "allowed": self.allowed}


@dataclass(frozen=True)
class Input:
    """What both sides read, and the places that are compared; None: all.

    Attributes:
        ours: arguments of heddle's model.
        theirs: arguments of Hugging Face transformers'.
        real: Bool[B T].
    """

    ours: dict[str, Any]
    theirs: dict[str, Any]
    real: Tensor | None = field(default=None)


def compare(model: Transformer, tokenizer: Tokenizer | None, family: Family, folder: Path) -> Agreement | None:
    """Compare an export with its model, in fp32: ids and types of texts, and scores or vectors of these and of random ids.

    If the scores differ by more than `TOLERANCE`, the rounding error of both sides is measured by computing in fp64. The model is
    in fp64 then.

    Returns:
        The agreement; None if Hugging Face transformers is not installed.

    Raises:
        HeddleError: weights have no place there, or a text has other ids.
    """
    try:
        import transformers
    except ImportError:
        return None
    theirs = _loaded(transformers, family, folder)
    inputs, notes = [_random(model, theirs.config.pad_token_id)], list[str]()
    if tokenizer is not None:
        cut = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        inputs += _of_texts(model, tokenizer, cut)
        notes += _compare_chat(model, tokenizer, cut)
    with torch.inference_mode():
        sides = [(_ours(model, each), _theirs(model, family, theirs, each)) for each in inputs]
        difference = max(_apart(*side) for side in sides)
        if difference <= TOLERANCE:
            return Agreement(difference, TOLERANCE, tuple(notes))
        model.double(), theirs.double()
        exact = [(_ours(model, each), _theirs(model, family, theirs, each)) for each in inputs]
    rounding = max(
        _apart(*pair) for rough, fine in zip(sides, exact, strict=True) for pair in zip(fine, rough, strict=True)
    )
    return Agreement(difference, max(TOLERANCE, ALLOWED * rounding), tuple(notes))


def _loaded(transformers: Any, family: Family, folder: Path) -> Any:
    logging: Any = transformers.utils.logging
    logging.disable_progress_bar()
    how: dict[str, Any] = {"dtype": torch.float32, "attn_implementation": family.attention, "local_files_only": True}
    if any("{e}" in row.theirs for row in family.table):
        how["experts_implementation"] = "eager"  # the others do not support every width
    read: Any = getattr(transformers, family.architecture).from_pretrained
    theirs, report = read(folder, output_loading_info=True, **how)
    absent = () if family.headless else report["missing_keys"]  # a head of the bare class, which nobody reads
    unset = [str(name) for name in (*absent, *report["unexpected_keys"], *report["mismatched_keys"])]
    if unset:
        raise HeddleError(
            f"Hugging Face transformers cannot place {unset[0]} of the exported weights ({len(unset)} in all)"
        )
    return theirs.eval()


def _random(model: Transformer, padding: int | None) -> Input:
    """Random ids, without the one that pads rows: some classes do not count its positions."""
    config = model.config
    length = min(config.context, LENGTH)
    draw = torch.Generator().manual_seed(0)
    tokens, source = torch.randint(model.vocab_size, (2, ROWS, length), generator=draw)
    if len(config.stacks()) == 1:
        tokens = tokens if padding is None else tokens.where(tokens != padding, (padding + 1) % model.vocab_size)
        return Input({"tokens": tokens}, {"input_ids": tokens})
    source = source % (config.source_vocab_size or model.vocab_size)
    return Input({"tokens": tokens, "source": source}, {"input_ids": source, "decoder_input_ids": tokens})


def _of_texts(model: Transformer, tokenizer: Tokenizer, theirs: Any) -> Iterator[Input]:
    """Texts as both sides read them: one by one, as pairs if the model reads pairs, and padded where their tokenizer can pad.

    Raises:
        HeddleError: ids or types differ.
    """
    config = model.config
    before, between, after = around_read(config, tokenizer)
    room = config.longest_text() - len(before) - len(after)
    texts = [(text, ids) for text, ids in _texts(model, tokenizer) if room > 0]
    rows = [([*before, *ids[:room], *after], 0) for _, ids in texts]
    given: list[tuple[str, ...]] = [(text,) for text, _ in texts]
    if config.encoder is not None and len(config.stacks()) == 1 and between:
        for (text, ids), (other, more) in zip(texts, reversed(texts), strict=True):
            if len(ids) + len(more) <= room - len(between):
                rows.append(([*before, *ids, *between, *more, *after], len(more) + len(after)))
                given.append((text, other))
    for texts_of_row, (ids, second) in zip(given, rows, strict=True):
        read = theirs(*texts_of_row, truncation=True, verbose=False)
        types = [0] * (len(ids) - second) + [1] * second
        if read["input_ids"] != ids:
            raise _unlike(texts_of_row, "ids", read["input_ids"], ids)
        if typed(config) and read["token_type_ids"] != types:
            raise _unlike(texts_of_row, "types", read["token_type_ids"], types)
    batches = [[number] for number in range(len(rows))]
    pads = theirs.pad_token_id is not None
    if pads:
        singles = [number for number, each in enumerate(given) if len(each) == 1]
        batches = [singles, [number for number in range(len(rows)) if number not in singles]]
    for batch in filter(None, batches):
        padded = theirs(
            *map(list, zip(*(given[n] for n in batch), strict=True)), truncation=True, padding=pads, return_tensors="pt"
        )
        yield _input(model, [rows[number] for number in batch], dict(padded))


def _input(model: Transformer, rows: Sequence[tuple[list[int], int]], padded: dict[str, Any]) -> Input:
    lengths, width = [len(ids) for ids, _ in rows], max(len(ids) for ids, _ in rows)
    tokens = torch.zeros(len(rows), width, dtype=torch.long)
    types = torch.zeros_like(tokens)
    for row, (ids, second) in enumerate(rows):
        tokens[row, : len(ids)] = torch.tensor(ids)
        types[row, len(ids) - second : len(ids)] = 1
    layout = Layout.whole(*tokens.shape) if min(lengths) == width else Layout.padded(lengths, width)
    if len(model.config.stacks()) == 2:
        targets = tokens[:, :LENGTH] % model.vocab_size
        ours = {"tokens": targets, "source": tokens, "source_layout": layout}
        return Input(ours, {**padded, "decoder_input_ids": targets})
    more = {"types": types} if typed(model.config) else {}
    pooled = getattr(model.config.head, "pooling", "none") != "none"
    return Input({"tokens": tokens, "layout": layout, **more}, padded, None if pooled else layout.real)


def _texts(model: Transformer, tokenizer: Tokenizer) -> Iterator[tuple[str, list[int]]]:
    """Texts that the tokenizer knows, and their ids: some of everyone's, some of its own pieces, and one with masks."""
    special = set(tokenizer.special.values())
    ordinary = [id for id in range(tokenizer.vocab_size) if id not in special]
    step = max(1, len(ordinary) // (PIECES * SAMPLES))
    own = [tokenizer.decode(ordinary[start::step][:PIECES]) for start in range(SAMPLES)]
    for text in dict.fromkeys((*TEXTS, *own)):
        written_out = any(name in text for name in tokenizer.special)  # which is text here, and special there
        try:
            ids = tokenizer.encode(text) if text.strip() and not written_out else []
        except HeddleError:  # a character that its alphabet lacks
            continue
        if ids:
            yield text, ids
    mask = mask_of(tokenizer, model.config.ids) if model.config.decoder is None else None
    words = [] if mask is None else stand_ins(tokenizer)
    if mask is not None and words:
        text = f"{words[0]} {mask} {words[-1]}"
        yield text, masked_ids(tokenizer, text, mask, words)


def _unlike(texts: Sequence[str], what: str, found: Sequence[int], wanted: Sequence[int]) -> HeddleError:
    place = next(
        (n for n, pair in enumerate(zip(found, wanted, strict=False)) if pair[0] != pair[1]),
        min(len(found), len(wanted)),
    )
    return HeddleError(
        f"Hugging Face transformers reads {' and '.join(map(repr, texts))} with other {what} than heddle: "
        f"{list(found[place : place + 5])} from place {place} on, not {list(wanted[place : place + 5])}"
    )


def _compare_chat(model: Transformer, tokenizer: Tokenizer, theirs: Any) -> list[str]:
    """Compare the ids of a conversation; a note if they depend on the day.

    Raises:
        HeddleError: they differ.
    """
    settings = model.config.chat
    if settings is None:
        return []
    if settings.date is not None and "strftime_now" in settings.template:
        return [
            f"the chat template writes the date of {settings.date}, and in Hugging Face transformers the present one"
        ]
    template = ChatTemplate.of(settings, tokenizer, sandboxed=True)
    for messages, prompt in ((PROBE[:1], True), (PROBE, False)):
        asked = [dict(message) for message in messages]
        try:
            wanted = template.render(asked, add_generation_prompt=prompt)
        except HeddleError:  # it refuses such a conversation, or its tokenizer such a text
            continue
        read = theirs.apply_chat_template(asked, add_generation_prompt=prompt, return_dict=False)
        if list(read) != wanted:
            raise _unlike([message["content"] for message in asked], "ids in its chat template", read, wanted)
    return []


def _ours(model: Transformer, given: Input) -> Tensor:
    """Scores [… V], or a vector or scores of classes per sequence or per token."""
    hidden = model(**given.ours).hidden
    if isinstance(model.config.head, EmbeddingHeadConfig | ClassifierHeadConfig):
        assert model.head is not None
        found: Tensor = model.head(hidden, given.ours.get("layout"), model.embedding.weight)
    else:
        found = hidden if model.head is None else model.logits(hidden)
    return _compared(model, found, given)


def _theirs(model: Transformer, family: Family, theirs: Any, given: Input) -> Tensor:
    """The same of Hugging Face transformers; where its class has no head, heddle's is put on its hidden vectors."""
    answer = theirs(**given.theirs)
    if family.headless:
        assert model.head is not None
        found = model.head(answer.last_hidden_state, given.ours.get("layout"), model.embedding.weight)
    else:
        kinds = {EmbeddingHeadConfig: "pooler_output", NoHeadConfig: "last_hidden_state"}
        found = answer[kinds.get(type(model.config.head), "logits")]
    return _compared(model, found, given)


def _compared(model: Transformer, scores: Tensor, given: Input) -> Tensor:
    """The entries that are compared."""
    found = (scores if given.real is None else scores[given.real]).double()
    if not isinstance(model.config.head, LanguageHeadConfig):
        return found
    scores, others = found[..., : model.vocab_size], found[..., model.vocab_size :]
    if others.numel() and not bool((others.amax(-1) < scores.amin(-1) + NEVER).all()):
        raise HeddleError("Hugging Face transformers gives ids a probability that the model does not have")
    return scores - scores.mean(-1, keepdim=True)


def _apart(expected: Tensor, found: Tensor) -> float:
    if found.shape != expected.shape:
        raise HeddleError(
            f"Hugging Face transformers answers with {list(found.shape)} scores, not {list(expected.shape)}"
        )
    return float((found - expected).abs().max() / expected.abs().max().clamp(min=1.0))
