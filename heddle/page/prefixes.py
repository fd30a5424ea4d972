"""Every prefix of a text with the token that follows: what the model predicts, how probable the truth is, and the loss (L0-02)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heddle.config.decoding import BeamConfig
from heddle.errors import HeddleError
from heddle.generate.beam import beam_search
from heddle.look.texts import Text
from heddle.nn.numeric import wide_dtype
from heddle.page.asked import CheckpointQuery, Document
from heddle.page.subject import PageModel
from heddle.predict.classify import classify
from heddle.predict.fill import check_fills

TOP = 5
SCORES = 1 << 24  # scores held at once
MASKED = 256  # positions that are masked, one at a time


def prefixes(subject: PageModel, asked: CheckpointQuery) -> Document:
    """The prefixes of a text, each with its next token; the mean of -log p is the loss.

    A masked model gets every token hidden in its turn instead, an encoder-decoder its target, beside the text that it writes by
    itself, and a classifier the text's prefixes with their classes.
    """
    if not subject.speaks:
        return _classes(subject, asked)
    if subject.model.decoder is None:
        return _hidden(subject, asked)
    if subject.model.config.last()[1].prefix:
        raise HeddleError(
            "this model reads the beginning of a text in both directions, so a prefix of a text has no prediction of its own"
        )
    text = subject.read(asked)
    rows = predictions(subject, subject.hidden(asked), text.tokens[0, 1:])
    found: Document = {"kind": "prefixes", "pieces": text.pieces, "source": text.source_pieces, "rows": rows}
    return found | _loss(rows) | (_free(subject, text, asked) if subject.paired else {})


def predictions(subject: PageModel, hidden: Float[Tensor, "N D"], follows: Int[Tensor, " M"]) -> list[Document]:
    """What each hidden vector predicts: the best tokens and, of the first M, the token that follows with its rank."""
    found: list[Document] = []
    for some in hidden.split(max(1, SCORES // subject.model.vocab_size)):
        logs = subject.model.logits(some).to(wide_dtype(some.dtype)).log_softmax(-1)
        best, ids = logs.exp().topk(min(TOP, logs.shape[-1]))
        for row, tops, probabilities in zip(logs, ids.tolist(), best.tolist(), strict=True):
            document: Document = {
                "top": [[subject.piece(id), p] for id, p in zip(tops, probabilities, strict=True)],
                "entropy": float(-torch.special.xlogy(row.exp(), row.exp()).sum()),
            }
            if len(found) < len(follows):
                wanted = int(follows[len(found)])
                document |= {
                    "next": subject.piece(wanted),
                    "probability": float(row[wanted].exp()),
                    "surprise": -float(row[wanted]),
                    "rank": 1 + int((row > row[wanted]).sum()),
                }
            found.append(document)
    return found


def _loss(rows: list[Document]) -> Document:
    known = [row["surprise"] for row in rows if "surprise" in row]
    return {"loss": sum(known) / len(known) if known else None, "known": len(known)}


def _hidden(subject: PageModel, asked: CheckpointQuery) -> Document:
    """Each token of a text in its turn replaced by the mask."""
    if subject.tokenizer is None:
        raise HeddleError("the run has no tokenizer, so there is no mask token to hide tokens with")
    mask = subject.tokenizer.special[check_fills(subject.model, subject.tokenizer)]
    text = subject.read(asked)
    special = set(subject.tokenizer.special.values())
    places = [place for place, id in enumerate(text.tokens[0].tolist()) if id not in special][:MASKED]
    rows: list[Document] = []
    for start in range(0, len(places), 16):
        some = torch.tensor(places[start : start + 16], device=text.tokens.device)
        batch = text.tokens.repeat(len(some), 1)
        each = torch.arange(len(some), device=some.device)
        batch[each, some] = mask
        with subject.without(asked):
            hidden = subject.model(batch).hidden[each, some]
        rows += predictions(subject, hidden, text.tokens[0, some])
    for place, row in zip(places, rows, strict=True):
        row["place"] = place
    return {"kind": "masked", "pieces": text.pieces, "source": (), "rows": rows} | _loss(rows)


def _classes(subject: PageModel, asked: CheckpointQuery) -> Document:
    """The classes of a text's prefixes."""
    head = subject.model.config.head
    if subject.tokenizer is None or head.kind != "classifier" or head.pooling == "none":
        raise HeddleError(
            "this model gives a vector or a class to each text or word: there is no next token to predict"
        )
    text = subject.read(asked)
    words = asked.text.split()
    texts = [" ".join(words[: count + 1]) for count in range(len(words))][-MASKED:]
    rows = []
    with subject.without(asked):
        classes = classify(subject.model, subject.tokenizer, texts)
    for written, found in zip(texts, classes, strict=True):
        shares = getattr(found, "probabilities", None)
        if shares is None:
            raise HeddleError("this model gives a number to each text: there is nothing to choose from")
        best = sorted(shares.items(), key=lambda pair: -pair[1])
        rows.append({"prefix": written, "top": [[label, share] for label, share in best[:TOP]]})
    return {"kind": "classes", "pieces": text.pieces, "source": (), "rows": rows, "loss": None, "known": 0}


def _free(subject: PageModel, text: Text, asked: CheckpointQuery) -> Document:
    """What the model writes by itself for the same source, token by token, and where each step looks (L1-80)."""
    assert text.source is not None
    ids = subject.model.config.ids
    tokenizer = subject.tokenizer
    end = tokenizer.end_of_text if ids is None and tokenizer is not None else None
    config = BeamConfig(beams=1, max_tokens=max(1, min(subject.model.config.context - 1, 200)))
    searched = beam_search(
        subject.model, [[]], config, end, None if tokenizer is None else tokenizer.vocab_size, [text.source[0].tolist()]
    )
    with subject.without(asked):
        (_, hypotheses) = next(iter(searched))
    own = hypotheses[0].ids if hypotheses else ()
    start = text.tokens[0, :1].tolist()
    whole = CheckpointQuery(text=asked.text, target="", added=tuple(own), off=asked.off)
    steps = []
    attention = subject.attention(whole)
    opened = subject.read(whole).tokens.shape[1] - len(own)
    layers = {name: layer for name, layer in attention.items() if name.endswith(".cross")}
    for number, id in enumerate(own):
        rows = {
            name: layer.weights(rows=[opened - 1 + number])[0, :, 0].mean(0).tolist() for name, layer in layers.items()
        }
        steps.append({"token": subject.piece(id), "looks": rows})
    return {"free": steps, "start": [subject.piece(id) for id in start]}
