"""Compares an export with its model: Hugging Face transformers must compute the same from texts and from ids."""

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

TOLERANCE = 1e-5  # relative to the largest score, or to 1 if all are smaller
ROUNDING_FACTOR = 8  # a difference of so many measured rounding errors is allowed, as in `heddle prove`
LENGTH, ROWS = 64, 2  # of random ids
NEVER = -1e3  # a logit so far below the others has no probability
# Upper and lower case, accents, punctuation, numbers, other scripts, repeated spaces and line breaks.
TEXTS = (
    "The heddle lifts each 2nd warp thread, doesn't it?",
    "Größe, naïve café: 織る ½  1234 Leerzeichen\n\tneue Zeile.",
    "warp",
)
PIECES, SAMPLES = 12, 3  # pieces in a text made of the tokenizer's own pieces, and the number of such texts


@dataclass(frozen=True)
class Agreement:
    """How much two implementations of a model differ.

    Attributes:
        difference: the largest difference of two scores, relative to the largest score, or to 1 if all are smaller. Logits are
            compared up to a constant per position, which changes no probability.
        allowed: the difference that rounding explains.
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
    """One input for both models.

    Attributes:
        heddle: the arguments of heddle's model.
        hugging_face: the arguments of the model of Hugging Face transformers.
        real: Bool[B T], the positions to compare; None: all.
    """

    heddle: dict[str, Any]
    hugging_face: dict[str, Any]
    real: Tensor | None = field(default=None)


def compare(model: Transformer, tokenizer: Tokenizer | None, family: Family, folder: Path) -> Agreement | str:
    """Compare an export with its model in fp32: the ids and types of texts, and the scores or vectors of texts and random ids.

    If the scores differ by more than `TOLERANCE`, both sides also compute in fp64, which measures their rounding errors and leaves
    the model in fp64.

    Returns:
        The agreement, or why it cannot be checked here.

    Raises:
        HeddleError: a weight has no place in the Hugging Face class, or a text gets other ids.
    """
    try:
        import transformers
    except ImportError:
        return "Hugging Face transformers is not installed"
    if not hasattr(transformers, family.architecture):
        return f"Hugging Face transformers {transformers.__version__} has no {family.architecture}"
    hf_model = _load_export(transformers, family, folder)
    inputs, notes = [_random_input(model, hf_model.config.pad_token_id)], list[str]()
    if tokenizer is not None:
        hf_tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        inputs += _text_inputs(model, tokenizer, hf_tokenizer)
        notes += _compare_chat(model, tokenizer, hf_tokenizer)
    with torch.inference_mode():
        fp32 = [(_heddle_scores(model, each), _hugging_face_scores(model, family, hf_model, each)) for each in inputs]
        difference = max(_difference(*scores) for scores in fp32)
        if difference <= TOLERANCE:
            return Agreement(difference, TOLERANCE, tuple(notes))
        model.double(), hf_model.double()
        fp64 = [(_heddle_scores(model, each), _hugging_face_scores(model, family, hf_model, each)) for each in inputs]
    rounding = max(
        _difference(*pair)
        for rounded, exact in zip(fp32, fp64, strict=True)
        for pair in zip(exact, rounded, strict=True)
    )
    return Agreement(difference, max(TOLERANCE, ROUNDING_FACTOR * rounding), tuple(notes))


def _load_export(transformers: Any, family: Family, folder: Path) -> Any:
    logging: Any = transformers.utils.logging
    logging.disable_progress_bar()
    options: dict[str, Any] = {
        "dtype": torch.float32,
        "attn_implementation": family.attention,
        "local_files_only": True,
    }
    if any("{e}" in row.published for row in family.table):
        options["experts_implementation"] = "eager"  # the others do not support every width
    load: Any = getattr(transformers, family.architecture).from_pretrained
    hf_model, report = load(folder, output_loading_info=True, **options)
    missing = () if family.headless else report["missing_keys"]  # the bare class adds a head that is not used
    unplaced = [str(name) for name in (*missing, *report["unexpected_keys"], *report["mismatched_keys"])]
    if unplaced:
        raise HeddleError(
            f"Hugging Face transformers cannot place {unplaced[0]} of the exported weights ({len(unplaced)} in all)"
        )
    return hf_model.eval()


def _random_input(model: Transformer, padding: int | None) -> Input:
    """Random ids without the padding id, whose positions some classes do not count."""
    config = model.config
    length = min(config.context, LENGTH)
    random = torch.Generator().manual_seed(0)
    tokens, source = torch.randint(model.vocab_size, (2, ROWS, length), generator=random)
    if len(config.stacks()) == 1:
        tokens = tokens if padding is None else tokens.where(tokens != padding, (padding + 1) % model.vocab_size)
        return Input({"tokens": tokens}, {"input_ids": tokens})
    source = source % (config.source_vocab_size or model.vocab_size)
    return Input({"tokens": tokens, "source": source}, {"input_ids": source, "decoder_input_ids": tokens})


def _text_inputs(model: Transformer, tokenizer: Tokenizer, hf_tokenizer: Any) -> Iterator[Input]:
    """Texts for both models: single texts, pairs if the model reads pairs, padded if the Hugging Face tokenizer can pad.

    Raises:
        HeddleError: the tokenizers return different ids or types.
    """
    config = model.config
    prefix, separator, suffix = around_read(config, tokenizer)
    max_length = config.longest_text() - len(prefix) - len(suffix)
    texts = [(text, ids) for text, ids in _texts(model, tokenizer) if max_length > 0]
    rows = [([*prefix, *ids[:max_length], *suffix], 0) for _, ids in texts]
    texts_of_rows: list[tuple[str, ...]] = [(text,) for text, _ in texts]
    if config.encoder is not None and len(config.stacks()) == 1 and separator:
        for (text, ids), (other, more) in zip(texts, reversed(texts), strict=True):
            if len(ids) + len(more) <= max_length - len(separator):
                rows.append(([*prefix, *ids, *separator, *more, *suffix], len(more) + len(suffix)))
                texts_of_rows.append((text, other))
    for texts_of_row, (ids, second) in zip(texts_of_rows, rows, strict=True):
        encoding = hf_tokenizer(*texts_of_row, truncation=True, verbose=False)
        types = [0] * (len(ids) - second) + [1] * second
        if encoding["input_ids"] != ids:
            raise _mismatch(texts_of_row, "ids", encoding["input_ids"], ids)
        if typed(config) and encoding["token_type_ids"] != types:
            raise _mismatch(texts_of_row, "types", encoding["token_type_ids"], types)
    batches = [[number] for number in range(len(rows))]
    can_pad = hf_tokenizer.pad_token_id is not None
    if can_pad:
        single_texts = [number for number, each in enumerate(texts_of_rows) if len(each) == 1]
        batches = [single_texts, [number for number in range(len(rows)) if number not in single_texts]]
    for batch in filter(None, batches):
        padded = hf_tokenizer(
            *map(list, zip(*(texts_of_rows[n] for n in batch), strict=True)),
            truncation=True,
            padding=can_pad,
            return_tensors="pt",
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
        arguments = {"tokens": targets, "source": tokens, "source_layout": layout}
        return Input(arguments, {**padded, "decoder_input_ids": targets})
    type_argument = {"types": types} if typed(model.config) else {}
    pooled = getattr(model.config.head, "pooling", "none") != "none"
    return Input({"tokens": tokens, "layout": layout, **type_argument}, padded, None if pooled else layout.real)


def _texts(model: Transformer, tokenizer: Tokenizer) -> Iterator[tuple[str, list[int]]]:
    """Texts that the tokenizer can encode, with their ids: `TEXTS`, some of its own pieces, and one with a mask."""
    special = set(tokenizer.special.values())
    ordinary_ids = [id for id in range(tokenizer.vocab_size) if id not in special]
    step = max(1, len(ordinary_ids) // (PIECES * SAMPLES))
    vocabulary_texts = [tokenizer.decode(ordinary_ids[start::step][:PIECES]) for start in range(SAMPLES)]
    for text in dict.fromkeys((*TEXTS, *vocabulary_texts)):
        has_special = any(
            name in text for name in tokenizer.special
        )  # Hugging Face transformers reads them as special tokens
        try:
            ids = tokenizer.encode(text) if text.strip() and not has_special else []
        except HeddleError:  # a character outside of its alphabet
            continue
        if ids:
            yield text, ids
    mask = mask_of(tokenizer, model.config.ids) if model.config.decoder is None else None
    words = [] if mask is None else stand_ins(tokenizer)
    if mask is not None and words:
        text = f"{words[0]} {mask} {words[-1]}"
        yield text, masked_ids(tokenizer, text, mask, words)


def _mismatch(texts: Sequence[str], what: str, actual: Sequence[int], expected: Sequence[int]) -> HeddleError:
    start = next(
        (n for n, pair in enumerate(zip(actual, expected, strict=False)) if pair[0] != pair[1]),
        min(len(actual), len(expected)),
    )
    return HeddleError(
        f"Hugging Face transformers encodes {' and '.join(map(repr, texts))} with other {what} than heddle: "
        f"{list(actual[start : start + 5])} from position {start} on, not {list(expected[start : start + 5])}"
    )


def _compare_chat(model: Transformer, tokenizer: Tokenizer, hf_tokenizer: Any) -> list[str]:
    """Compare the ids of conversations. Returns a note instead if they depend on the date."""
    settings = model.config.chat
    if settings is None:
        return []
    if settings.date is not None and "strftime_now" in settings.template:
        return [
            f"the chat template writes the date of {settings.date}, and in Hugging Face transformers the present one"
        ]
    template = ChatTemplate.of(settings, tokenizer, sandboxed=True)
    for messages, prompt in ((PROBE[:1], True), (PROBE, False)):
        conversation = [dict(message) for message in messages]
        try:
            expected = template.render(conversation, add_generation_prompt=prompt)
        except HeddleError:  # the template refuses this conversation, or the tokenizer its text
            continue
        actual = hf_tokenizer.apply_chat_template(conversation, add_generation_prompt=prompt, return_dict=False)
        if list(actual) != expected:
            raise _mismatch(
                [message["content"] for message in conversation], "ids in its chat template", actual, expected
            )
    return []


def _heddle_scores(model: Transformer, inputs: Input) -> Tensor:
    """Logits [… V], or a vector or class scores per sequence or per token."""
    hidden = model(**inputs.heddle).hidden
    if isinstance(model.config.head, EmbeddingHeadConfig | ClassifierHeadConfig):
        assert model.head is not None
        scores: Tensor = model.head(hidden, inputs.heddle.get("layout"), model.embedding.weight)
    else:
        scores = hidden if model.head is None else model.logits(hidden)
    return _comparable(model, scores, inputs)


def _hugging_face_scores(model: Transformer, family: Family, hf_model: Any, inputs: Input) -> Tensor:
    """The same from Hugging Face transformers. If its class has no head, heddle's head reads its hidden vectors."""
    output = hf_model(**inputs.hugging_face)
    if family.headless:
        assert model.head is not None
        scores = model.head(output.last_hidden_state, inputs.heddle.get("layout"), model.embedding.weight)
    else:
        kinds = {EmbeddingHeadConfig: "pooler_output", NoHeadConfig: "last_hidden_state"}
        scores = output[kinds.get(type(model.config.head), "logits")]
    return _comparable(model, scores, inputs)


def _comparable(model: Transformer, scores: Tensor, inputs: Input) -> Tensor:
    """The entries to compare, in fp64. Logits are centered at each position."""
    entries = (scores if inputs.real is None else scores[inputs.real]).double()
    if not isinstance(model.config.head, LanguageHeadConfig):
        return entries
    scores, padded = entries[..., : model.vocab_size], entries[..., model.vocab_size :]
    if padded.numel() and not bool((padded.amax(-1) < scores.amin(-1) + NEVER).all()):
        raise HeddleError("Hugging Face transformers gives ids a probability that the model does not have")
    return scores - scores.mean(-1, keepdim=True)


def _difference(expected: Tensor, actual: Tensor) -> float:
    if actual.shape != expected.shape:
        raise HeddleError(
            f"Hugging Face transformers returns scores of shape {list(actual.shape)}, not {list(expected.shape)}"
        )
    return float((actual - expected).abs().max() / expected.abs().max().clamp(min=1.0))
