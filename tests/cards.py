"""Cards that are not here: what torch would say of one, for plans that ask and do not compute."""

from typing import NamedTuple

import pytest
import torch

GIB = 2**30


class Card(NamedTuple):
    """An imitated card of NVIDIA's: its memory, all of it free, and its compute capability."""

    gib: int
    capability: tuple[int, int]
    name: str


CARDS = (
    Card(8, (7, 5), "a Turing card of 8 GiB"),
    Card(8, (8, 6), "a card of 8 GiB"),
    Card(16, (8, 9), "a card of 16 GiB"),
    Card(24, (8, 9), "a card of 24 GiB"),
    Card(80, (9, 0), "a card of 80 GiB"),
)
OLD, SMALL, *_ = CARDS


def put_in(card: Card, patch: pytest.MonkeyPatch) -> None:
    """Let torch find this card and no other accelerator."""
    answers = {
        "is_available": True,
        "device_count": 1,
        "get_device_capability": card.capability,
        "get_device_name": card.name,
        "mem_get_info": (card.gib * GIB, card.gib * GIB),
    }
    for name, answer in answers.items():
        patch.setattr(torch.cuda, name, lambda *arguments, answer=answer: answer)
