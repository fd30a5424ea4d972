"""The layers: logit lens, norms, attribution of a score to parts, activation patching, expert loads."""

from typing import Any

import torch

from heddle.errors import HeddleError
from heddle.look.attribution import attribute
from heddle.look.lens import lens
from heddle.look.patching import patch
from heddle.look.sites import sites
from heddle.look.trace import trace
from heddle.model.transformer import Transformer
from heddle.page.queries import AttributionQuery, Document, PatchingQuery, TextQuery
from heddle.page.subject import PageModel
from heddle.page.write import position

TOP = 3
NEURONS = 12  # to show of a layer
WORDS = {  # for the kinds of mixers and feed-forwards
    **{"attention": "attention", "latent": "latent attention", "convolution": "convolution", "linear": "linear mixer"},
    **{"recurrent": "recurrence", "mlp": "MLP", "gated": "gated MLP", "moe": "experts", "custom": "custom part"},
}
COUNTED = {"heads": "heads", "gates": "experts", "hidden": "neurons"}  # by the ends of tensor names


def layers(subject: PageModel, query: TextQuery) -> Document:
    """The logit lens and the norms of the residual stream after each layer, and the loads of experts."""
    _check_language_head(subject)
    text = subject.read(query)
    result = lens(subject.model, text.tokens, top=TOP, edits=subject.edits(query), **text.more)
    has_targets = result.target_probabilities.numel() > 0
    return {
        "pieces": text.pieces,
        "source": text.source_pieces,
        "places": result.places,
        "top": [[[subject.piece(id) for id in ids] for ids in row] for row in result.tokens.tolist()],
        "probabilities": result.probabilities.tolist(),
        "entropy": result.entropy.tolist(),
        "ranks": (1 + result.target_ranks).tolist() if has_targets else None,
        "target_probabilities": result.target_probabilities.tolist() if has_targets else None,
        "losses": result.losses().tolist() if has_targets else None,
        "norms": result.norms.tolist(),
        "loads": _loads(subject, query),
    }


def attribution(subject: PageModel, query: AttributionQuery) -> Document:
    """A token's score as the sum of the direct contributions of all parts."""
    _check_language_head(subject)
    if query.off:
        raise HeddleError("a score is divided for the whole model: switch all parts on")
    text = subject.read(query)
    place = position(query.at, text.tokens.shape[1])
    if query.token is not None and query.token >= subject.model.vocab_size:
        raise HeddleError(f"there is no token {query.token}: ids go from 0 to {subject.model.vocab_size - 1}")
    targets = None if query.token is None else torch.tensor([[query.token]], device=text.tokens.device)
    result = attribute(subject.model, text.tokens, targets, positions=[place], **text.more)
    neurons = []
    for name, values in result.neurons.items():
        best = values[0, 0].abs().topk(min(NEURONS, values.shape[-1])).indices.tolist()
        neurons.append({"part": name, "best": [[unit, float(values[0, 0, unit])] for unit in best]})
    return {
        "pieces": text.pieces,
        "at": place,
        "token": subject.piece(int(result.targets[0, 0])),
        "id": int(result.targets[0, 0]),
        "score": float(result.score[0, 0]),
        "parts": [[name, float(value[0, 0])] for name, value in result.parts.items()],
        "layers": [[name, float(value[0, 0])] for name, value in result.by_layer().items()],
        "neurons": neurons,
    }


def patching(subject: PageModel, query: PatchingQuery) -> Document:
    """How much each activation of the first text, patched into the second, restores the first text's prediction.

    The prediction is measured as the difference of the scores of the two texts' best next tokens.
    """
    _check_language_head(subject)
    if subject.paired or subject.model.decoder is None:
        raise HeddleError("activation patching compares the next tokens of two prompts, so it needs a decoder alone")
    clean = subject.read(TextQuery(text=query.text, added=query.added))
    corrupted = subject.read(TextQuery(text=query.other))
    if clean.tokens.shape != corrupted.tokens.shape:
        raise HeddleError(
            f"the first text has {clean.tokens.shape[1]} tokens and the second {corrupted.tokens.shape[1]}: "
            "activations can only be exchanged between texts of the same length"
        )
    first, second = (_best(subject, text.tokens) for text in (clean, corrupted))
    if first == second:
        raise HeddleError(
            f"both texts are continued by {subject.piece(first)!r}, so there is no difference to explain: change one of them"
        )
    names = "decoder.*.residual_after" if query.by == "positions" else _heads(subject)
    result = patch(
        subject.model,
        clean.tokens,
        corrupted.tokens,
        lambda scores: float(scores[0, -1, first] - scores[0, -1, second]),
        names,
        query.by,
    )
    return {
        "pieces": clean.pieces,
        "other": corrupted.pieces,
        "first": subject.piece(first),
        "second": subject.piece(second),
        "names": result.names,
        "parts": result.parts,
        "by": query.by,
        "restored": result.restored().nan_to_num(0.0).tolist(),
        "clean": result.clean,
        "corrupted": result.corrupted,
    }


def parts(subject: PageModel) -> list[Document]:
    """The parts that can be switched off: each layer's branches, with their numbers of heads, experts and neurons."""
    model = subject.model
    kinds = {name: kind for name in sites(model) if (kind := COUNTED.get(name.rpartition(".")[2])) is not None}
    token = torch.zeros(1, 1, dtype=torch.long, device=model.device)
    source: dict[str, Any] = {"source": token} if subject.paired else {}
    # The shapes of one pass have the counts, for custom modules too.
    shapes = trace(model, token, list(kinds), **source)
    branches: dict[str, Document] = {}
    for name in sites(model):
        branch, _, end = name.rpartition(".")
        if end == "added":
            branches[branch] = {"part": branch, "label": _word(model, branch), "heads": 0, "experts": 0, "neurons": 0}
    for name, kind in kinds.items():
        branch = name.rpartition(".")[0]
        if name in shapes and branch in branches:
            branches[branch][kind] = shapes[name].shape[1 if kind == "heads" else -1]
    return list(branches.values())


def _word(model: Transformer, branch: str) -> str:
    """What computes in a branch."""
    stack, layer, end = branch.split(".")
    if end == "cross":
        return "cross-attention"
    kind: str = getattr(model.config.stacks()[stack].blocks[int(layer)], end).kind
    return WORDS.get(kind, kind)


def _loads(subject: PageModel, query: TextQuery) -> list[Document]:
    """For each layer with experts, the number of tokens routed to each, and the sums of their gates."""
    gates = [name for name in sites(subject.model) if name.endswith(".gates")]
    if not gates:
        return []
    text = subject.read(query)
    traced = trace(subject.model, text.tokens, gates, edits=subject.edits(query), **text.more)
    return [
        {
            "part": name.removesuffix(".gates"),
            "tokens": (values[0] > 0).sum(0).tolist(),
            "gates": values[0].float().sum(0).tolist(),
            "chosen": [row.topk(min(2, len(row))).indices.tolist() for row in values[0]],
        }
        for name, values in traced.items()
    ]


def _heads(subject: PageModel) -> list[str]:
    names = [name for name in sites(subject.model) if name.endswith(".mixer.heads")]
    if not names:
        raise HeddleError("this model has no attention, so it has no heads")
    return names


def _best(subject: PageModel, tokens: torch.Tensor) -> int:
    return int(trace(subject.model, tokens).logits[0, -1].argmax())


def _check_language_head(subject: PageModel) -> None:
    if not subject.speaks:
        raise HeddleError(
            f"this model's head is of kind {subject.model.config.head.kind!r}, which does not predict tokens"
        )
