"""What the layers do: the lens, norms, a score divided among the parts, activations exchanged, experts' loads."""

from typing import Any

import torch

from heddle.errors import HeddleError
from heddle.look.attribution import attribute
from heddle.look.lens import lens
from heddle.look.patching import patch
from heddle.look.sites import sites
from heddle.look.trace import trace
from heddle.page.asked import CheckpointQuery, Divided, Document, TwoTexts
from heddle.page.subject import PageModel
from heddle.page.write import position

TOP = 3
SHOWN = 12  # neurons of a layer
COUNTED = {"heads": "heads", "gates": "experts", "hidden": "neurons"}  # by the ends of sites' names


def layers(subject: PageModel, asked: CheckpointQuery) -> Document:
    """What the model would predict after each layer, how long its vectors are there, and where its experts' tokens go."""
    _check_speaks(subject)
    text = subject.read(asked)
    found = lens(subject.model, text.tokens, top=TOP, edits=subject.edits(asked), **text.more)
    known = found.target_probabilities.numel() > 0
    return {
        "pieces": text.pieces,
        "source": text.source_pieces,
        "places": found.places,
        "top": [[[subject.piece(id) for id in ids] for ids in row] for row in found.tokens.tolist()],
        "probabilities": found.probabilities.tolist(),
        "entropy": found.entropy.tolist(),
        "ranks": (1 + found.target_ranks).tolist() if known else None,
        "target_probabilities": found.target_probabilities.tolist() if known else None,
        "losses": found.losses().tolist() if known else None,
        "norms": found.norms.tolist(),
        "loads": _loads(subject, asked),
    }


def divided(subject: PageModel, asked: Divided) -> Document:
    """A token's score as the sum of what each part adds to it directly."""
    _check_speaks(subject)
    if asked.off:
        raise HeddleError("a score is divided for the whole model: switch all parts on")
    text = subject.read(asked)
    place = position(asked.at, text.tokens.shape[1])
    if asked.token is not None and asked.token >= subject.model.vocab_size:
        raise HeddleError(f"there is no token {asked.token}: ids go from 0 to {subject.model.vocab_size - 1}")
    targets = None if asked.token is None else torch.tensor([[asked.token]], device=text.tokens.device)
    found = attribute(subject.model, text.tokens, targets, positions=[place], **text.more)
    neurons = []
    for name, values in found.neurons.items():
        best = values[0, 0].abs().topk(min(SHOWN, values.shape[-1])).indices.tolist()
        neurons.append({"part": name, "best": [[unit, float(values[0, 0, unit])] for unit in best]})
    return {
        "pieces": text.pieces,
        "at": place,
        "token": subject.piece(int(found.targets[0, 0])),
        "id": int(found.targets[0, 0]),
        "score": float(found.score[0, 0]),
        "parts": [[name, float(value[0, 0])] for name, value in found.parts.items()],
        "layers": [[name, float(value[0, 0])] for name, value in found.by_layer().items()],
        "neurons": neurons,
    }


def exchanged(subject: PageModel, asked: TwoTexts) -> Document:
    """What each activation of one text restores in the pass over another.

    The number is how much more probable, as a difference of scores, the first text's best next token is than the second's.
    """
    _check_speaks(subject)
    if subject.paired or subject.model.decoder is None:
        raise HeddleError("two prompts are compared by their next tokens, which a decoder alone has")
    clean = subject.read(CheckpointQuery(text=asked.text))
    corrupted = subject.read(CheckpointQuery(text=asked.other))
    if clean.tokens.shape != corrupted.tokens.shape:
        raise HeddleError(
            f"the first text has {clean.tokens.shape[1]} tokens and the second {corrupted.tokens.shape[1]}: "
            "activations can only be exchanged between texts of one length"
        )
    first, second = (_best(subject, text.tokens) for text in (clean, corrupted))
    if first == second:
        raise HeddleError(
            f"both texts are continued by {subject.piece(first)!r}, so there is no difference to explain: change one of them"
        )
    names = "decoder.*.residual_after" if asked.by == "positions" else _heads(subject)
    found = patch(
        subject.model,
        clean.tokens,
        corrupted.tokens,
        lambda scores: float(scores[0, -1, first] - scores[0, -1, second]),
        names,
        asked.by,
    )
    return {
        "pieces": clean.pieces,
        "other": corrupted.pieces,
        "first": subject.piece(first),
        "second": subject.piece(second),
        "names": found.names,
        "parts": found.parts,
        "by": asked.by,
        "restored": found.restored().nan_to_num(0.0).tolist(),
        "clean": found.clean,
        "corrupted": found.corrupted,
    }


def parts(subject: PageModel) -> list[Document]:
    """What can be switched off: each layer's branches, with how many heads, experts and neurons they have."""
    model = subject.model
    counted = {name: kind for name in sites(model) if (kind := COUNTED.get(name.rpartition(".")[2])) is not None}
    token = torch.zeros(1, 1, dtype=torch.long, device=model.device)
    more: dict[str, Any] = {"source": token} if subject.paired else {}
    shapes = trace(model, token, list(counted), **more)  # modules of any kind say how many they have by their shapes
    found: dict[str, Document] = {}
    for name in sites(model):
        branch, _, end = name.rpartition(".")
        if end == "added":
            found[branch] = {"part": branch, "heads": 0, "experts": 0, "neurons": 0}
    for name, kind in counted.items():
        branch = name.rpartition(".")[0]
        if name in shapes and branch in found:
            found[branch][kind] = shapes[name].shape[1 if kind == "heads" else -1]
    return list(found.values())


def _loads(subject: PageModel, asked: CheckpointQuery) -> list[Document]:
    """For each layer with experts, how many of the text's tokens chose each, and what part of the output they had."""
    gates = [name for name in sites(subject.model) if name.endswith(".gates")]
    if not gates:
        return []
    text = subject.read(asked)
    found = trace(subject.model, text.tokens, gates, edits=subject.edits(asked), **text.more)
    return [
        {
            "part": name.removesuffix(".gates"),
            "tokens": (values[0] > 0).sum(0).tolist(),
            "gates": values[0].float().sum(0).tolist(),
            "chosen": [row.topk(min(2, len(row))).indices.tolist() for row in values[0]],
        }
        for name, values in found.items()
    ]


def _heads(subject: PageModel) -> list[str]:
    found = [name for name in sites(subject.model) if name.endswith(".mixer.heads")]
    if not found:
        raise HeddleError("this model has no attention, so it has no heads")
    return found


def _best(subject: PageModel, tokens: torch.Tensor) -> int:
    return int(trace(subject.model, tokens).logits[0, -1].argmax())


def _check_speaks(subject: PageModel) -> None:
    if not subject.speaks:
        raise HeddleError(f"this model's head is of kind {subject.model.config.head.kind!r}, which scores no tokens")
