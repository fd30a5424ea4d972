"""Every prefix of a text with the token that follows: the predictions, the probability of the true token, and the loss (L0-02)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heddle.config.decoding import BeamConfig
from heddle.errors import HeddleError
from heddle.generate.beam import beam_search
from heddle.look.texts import Text
from heddle.nn.numeric import wide_dtype
from heddle.page.queries import Document, TextQuery
from heddle.page.subject import PageModel
from heddle.predict.classify import classify
from heddle.predict.fill import check_fills

TOP = 5
SCORES = 1 << 24  # scores in memory at once
MASKED = 256  # maximum number of positions to mask, one at a time


def prefixes(subject: PageModel, query: TextQuery) -> Document:
    """The prefixes of a text, each with its next token. The mean of -log p is the loss.

    For a masked language model, every token is masked in turn instead. For an encoder-decoder the text is the target, shown with
    the model's own translation. For a classifier, each prefix has its classes.
    """
    if not subject.speaks:
        return _classes(subject, query)
    if subject.model.decoder is None:
        return _masked(subject, query)
    if subject.model.config.last()[1].prefix:
        raise HeddleError(
            "this model reads the beginning of a text in both directions, so the prefixes of a text have no predictions"
        )
    text = subject.read(query)
    rows = predictions(subject, subject.hidden(query), text.tokens[0, 1:])
    document: Document = {"kind": "prefixes", "pieces": text.pieces, "source": text.source_pieces, "rows": rows}
    document |= _loss(rows)
    if subject.paired and query.lacks_mask:
        return document | {
            "unwritten": "The model's own translation needs the mask, since it is written with a KV cache."
        }
    return document | (_free_running(subject, text, query) if subject.paired else {})


def predictions(subject: PageModel, hidden: Float[Tensor, "N D"], follows: Int[Tensor, " M"]) -> list[Document]:
    """The most probable tokens after each hidden vector and, for the first M, the token that follows with its rank."""
    documents: list[Document] = []
    for chunk in hidden.split(max(1, SCORES // subject.model.vocab_size)):
        logprobs = subject.model.logits(chunk).to(wide_dtype(chunk.dtype)).log_softmax(-1)
        best, ids = logprobs.exp().topk(min(TOP, logprobs.shape[-1]))
        for row, tops, probabilities in zip(logprobs, ids.tolist(), best.tolist(), strict=True):
            document: Document = {
                "top": [[subject.piece(id), p] for id, p in zip(tops, probabilities, strict=True)],
                "entropy": float(-torch.special.xlogy(row.exp(), row.exp()).sum()),
            }
            if len(documents) < len(follows):
                target = int(follows[len(documents)])
                document |= {
                    "next": subject.piece(target),
                    "probability": float(row[target].exp()),
                    "surprise": -float(row[target]),
                    "rank": 1 + int((row > row[target]).sum()),
                }
            documents.append(document)
    return documents


def _loss(rows: list[Document]) -> Document:
    losses = [row["surprise"] for row in rows if "surprise" in row]
    return {"loss": sum(losses) / len(losses) if losses else None, "known": len(losses)}


def _masked(subject: PageModel, query: TextQuery) -> Document:
    """Predictions of each token of a text while it is masked."""
    if subject.tokenizer is None:
        raise HeddleError("the run has no tokenizer, so it has no mask token")
    mask = subject.tokenizer.special[check_fills(subject.model, subject.tokenizer)]
    text = subject.read(query)
    special = set(subject.tokenizer.special.values())
    places = [place for place, id in enumerate(text.tokens[0].tolist()) if id not in special][:MASKED]
    rows: list[Document] = []
    for start in range(0, len(places), 16):
        positions = torch.tensor(places[start : start + 16], device=text.tokens.device)
        batch = text.tokens.repeat(len(positions), 1)
        batch_rows = torch.arange(len(positions), device=positions.device)
        batch[batch_rows, positions] = mask
        with subject.without(query):
            hidden = subject.model(batch).hidden[batch_rows, positions]
        rows += predictions(subject, hidden, text.tokens[0, positions])
    for place, row in zip(places, rows, strict=True):
        row["place"] = place
    return {"kind": "masked", "pieces": text.pieces, "source": (), "rows": rows} | _loss(rows)


def _classes(subject: PageModel, query: TextQuery) -> Document:
    """The classes of a text's prefixes."""
    head = subject.model.config.head
    if subject.tokenizer is None or head.kind != "classifier" or head.pooling == "none":
        raise HeddleError(
            "this model returns a vector or a class for each text or word, so it cannot predict the next token"
        )
    text = subject.read(query)
    words = query.text.split()
    texts = [" ".join(words[: count + 1]) for count in range(len(words))][-MASKED:]
    rows = []
    with subject.without(query):
        classes = classify(subject.model, subject.tokenizer, texts)
    for prefix, prediction in zip(texts, classes, strict=True):
        probabilities = getattr(prediction, "probabilities", None)
        if probabilities is None:
            raise HeddleError("this model returns a number for each text, so there are no classes")
        best = sorted(probabilities.items(), key=lambda pair: -pair[1])
        rows.append({"prefix": prefix, "top": [[label, probability] for label, probability in best[:TOP]]})
    return {"kind": "classes", "pieces": text.pieces, "source": (), "rows": rows, "loss": None, "known": 0}


def _free_running(subject: PageModel, text: Text, query: TextQuery) -> Document:
    """The model's own translation of the source, token by token, with the cross-attention of each step (L1-80)."""
    assert text.source is not None
    ids = subject.model.config.ids
    tokenizer = subject.tokenizer
    end = tokenizer.end_of_text if ids is None and tokenizer is not None else None
    config = BeamConfig(beams=1, max_tokens=max(1, min(subject.model.config.context - 1, 200)))
    searched = beam_search(
        subject.model, [[]], config, end, None if tokenizer is None else tokenizer.vocab_size, [text.source[0].tolist()]
    )
    with subject.without(query):
        (_, hypotheses) = next(iter(searched))
    generated = hypotheses[0].ids if hypotheses else ()
    start = text.tokens[0, :1].tolist()
    generated_query = TextQuery(text=query.text, target="", added=tuple(generated), off=query.off)
    steps = []
    attention = subject.attention(generated_query)
    prefix_length = subject.read(generated_query).tokens.shape[1] - len(generated)
    layers = {name: layer for name, layer in attention.items() if name.endswith(".cross")}
    for number, id in enumerate(generated):
        rows = {
            name: layer.weights(rows=[prefix_length - 1 + number])[0, :, 0].mean(0).tolist()
            for name, layer in layers.items()
        }
        steps.append({"token": subject.piece(id), "looks": rows})
    return {"free": steps, "start": [subject.piece(id) for id in start]}
