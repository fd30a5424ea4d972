"""A run as the page sees it: its model, the texts that it has read, and the last pass over one of them."""

import re
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from threading import RLock
from typing import Any

import torch
from torch import Tensor

from heddle.errors import HeddleError
from heddle.look.attention import AttentionPass
from heddle.look.edits import Edit, ablate, edited
from heddle.look.texts import Text, is_decoder_translator, read_text
from heddle.look.trace import trace
from heddle.model.transformer import Transformer
from heddle.page.asked import CheckpointQuery
from heddle.text.tokenizer import Tokenizer

KEPT = 4  # texts and passes that are remembered
PART = re.compile(
    r"(?P<branch>(?:encoder|decoder)\.\d+\.(?:mixer|cross|ffn))(?:\.(?P<kind>heads|experts)\.(?P<number>\d+))?"
)


class PageModel:
    """A model that is looked at.

    Args:
        name: of the run.
        model: any model, in evaluation mode.
        tokenizer: its tokenizer; None: texts are ids.
        directory: the run, for its curves; None: there are none.
        others: runs whose curves are drawn over it.
    """

    def __init__(
        self,
        name: str,
        model: Transformer,
        tokenizer: Tokenizer | None = None,
        directory: Path | None = None,
        others: Sequence[Path] = (),
    ) -> None:
        self.name, self.model, self.tokenizer = name, model, tokenizer
        self.directory, self.others = directory, tuple(others)
        self.lock = RLock()  # hooks are the model's, so passes take turns
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()

    @property
    def stack(self) -> str:
        """The stack whose output the head reads."""
        return "encoder" if self.model.decoder is None else "decoder"

    @property
    def paired(self) -> bool:
        """Whether it is an encoder-decoder."""
        return self.model.encoder is not None and self.model.decoder is not None

    @property
    def translates(self) -> bool:
        """Whether it reads a source and writes a target, in a decoder alone or in two stacks."""
        return self.paired or is_decoder_translator(self.model, self.tokenizer)

    @property
    def speaks(self) -> bool:
        """Whether its head scores tokens."""
        return self.model.config.head.kind == "language"

    def piece(self, id: int) -> str:
        """A token's text."""
        return str(id) if self.tokenizer is None or id >= self.tokenizer.vocab_size else self.tokenizer.piece(id)

    def read(self, asked: CheckpointQuery) -> Text:
        """The text as the model reads it, with what was added to it.

        Raises:
            HeddleError: see `read_text`; or an added id is not in the vocabulary.
        """
        text: Text = self._once(
            ("text", asked.text, asked.target),
            lambda: read_text(self.model, self.tokenizer, asked.text, asked.target),
        )
        if not asked.added:
            return text
        if odd := [id for id in asked.added if id >= self.model.vocab_size]:
            raise HeddleError(f"there is no token {odd[0]}: ids go from 0 to {self.model.vocab_size - 1}")
        more = torch.tensor([asked.added], dtype=torch.long, device=self.model.device)
        longest = self.model.last_stack().longest
        if longest is not None and text.tokens.shape[1] + more.shape[1] > longest:
            raise HeddleError(f"the text is full: the model has {longest} learned positions")
        pieces = (*text.pieces, *(self.piece(id) for id in asked.added))
        return Text(torch.cat((text.tokens, more), 1), pieces, text.source, text.source_pieces)

    def attention(self, asked: CheckpointQuery) -> dict[str, AttentionPass]:
        """Every attention layer's call in the pass over a text."""
        key = ("attention", asked.text, asked.target, asked.added, asked.off)
        found: dict[str, AttentionPass] = self._once(key, lambda: self._attention(asked))
        return found

    def hidden(self, asked: CheckpointQuery) -> Tensor:
        """The hidden vectors of a text, Float[T D]."""
        text = self.read(asked)
        return trace(self.model, text.tokens, edits=self.edits(asked), **text.more).output.hidden[0]

    def without(self, asked: CheckpointQuery) -> AbstractContextManager[Transformer]:
        """While entered, every call of the model is without the parts that are switched off."""
        return edited(self.model, self.edits(asked))

    def edits(self, asked: CheckpointQuery) -> list[Edit]:
        """The parts that are switched off, as edits.

        Raises:
            HeddleError: a name is not that of a part.
        """
        found = []
        for name in asked.off:
            part = PART.fullmatch(name)
            if part is None:
                raise HeddleError(
                    f"{name!r} is not a part that can be switched off; parts are decoder.3.mixer, decoder.3.ffn, "
                    "decoder.3.mixer.heads.2 and decoder.3.ffn.experts.2"
                )
            branch, kind, number = part["branch"], part["kind"], int(part["number"] or 0)
            if kind is None:
                found.append(ablate(f"{branch}.added"))
            elif kind == "heads":
                found.append(ablate(f"{branch}.heads", heads=[number]))
            else:
                found.append(ablate(f"{branch}.gates", experts=[number]))
        return found

    def _attention(self, asked: CheckpointQuery) -> dict[str, AttentionPass]:
        text = self.read(asked)
        return trace(self.model, text.tokens, attention="*", edits=self.edits(asked), **text.more).attention

    def _once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """What was made for this key, unless it is long ago."""
        if key not in self._kept:
            self._kept[key] = make()
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]
