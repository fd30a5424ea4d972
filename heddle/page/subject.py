"""The model of the page, with a cache of its last texts and passes."""

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
from heddle.look.edits import Edit, ablate, edited, switch_off
from heddle.look.switches import match_switches
from heddle.look.texts import Text, is_decoder_translator, read_text
from heddle.look.trace import trace
from heddle.model.transformer import Transformer
from heddle.page.queries import TextQuery
from heddle.text.tokenizer import Tokenizer

CACHE_SIZE = 4  # texts and passes
PART = re.compile(
    r"(?P<branch>(?:encoder|decoder)\.\d+\.(?:mixer|cross|ffn))(?:\.(?P<kind>heads|experts)\.(?P<number>\d+))?"
)


class PageModel:
    """The model of a page.

    Args:
        name: the run's name.
        model: any model, in evaluation mode.
        tokenizer: its tokenizer; None: texts are ids.
        directory: the run, for its curves; None: no curves.
        others: runs whose curves to draw in the same charts.
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
        self.lock = RLock()  # hooks belong to the model, so passes take turns
        self._cache: OrderedDict[Hashable, Any] = OrderedDict()

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

    def read(self, query: TextQuery) -> Text:
        """The text as the model reads it, with the added ids.

        Raises:
            HeddleError: as in `read_text`; or an added id is out of range, or does not fit.
        """
        text: Text = self._cached(
            ("text", query.text, query.target),
            lambda: read_text(self.model, self.tokenizer, query.text, query.target),
        )
        if not query.added:
            return text
        if invalid := [id for id in query.added if id >= self.model.vocab_size]:
            raise HeddleError(f"there is no token {invalid[0]}: ids go from 0 to {self.model.vocab_size - 1}")
        added = torch.tensor([query.added], dtype=torch.long, device=self.model.device)
        longest = self.model.last_stack().longest
        if longest is not None and text.tokens.shape[1] + added.shape[1] > longest:
            raise HeddleError(f"the text is full: the model has {longest} learned positions")
        pieces = (*text.pieces, *(self.piece(id) for id in query.added))
        return Text(torch.cat((text.tokens, added), 1), pieces, text.source, text.source_pieces)

    def attention(self, query: TextQuery) -> dict[str, AttentionPass]:
        """The calls of all attention layers in the pass over a text."""
        key = ("attention", query.text, query.target, query.added, query.off)
        calls: dict[str, AttentionPass] = self._cached(key, lambda: self._attention(query))
        return calls

    def hidden(self, query: TextQuery) -> Tensor:
        """The hidden vectors of a text, Float[T D]."""
        text = self.read(query)
        return trace(self.model, text.tokens, edits=self.edits(query), **text.more).output.hidden[0]

    def without(self, query: TextQuery) -> AbstractContextManager[Transformer]:
        """A context in which the parts that are switched off do not take part in calls of the model."""
        return edited(self.model, self.edits(query))

    def edits(self, query: TextQuery) -> list[Edit]:
        """The parts that are switched off, as edits.

        Raises:
            HeddleError: there is no such part.
        """
        edits = []
        for name in query.off:
            part = PART.fullmatch(name)
            if part is None:
                match_switches(self.model, name)  # raises if there is none
                edits.append(switch_off(name))
                continue
            branch, kind, number = part["branch"], part["kind"], int(part["number"] or 0)
            if kind is None:
                edits.append(ablate(f"{branch}.added"))
            elif kind == "heads":
                edits.append(ablate(f"{branch}.heads", heads=[number]))
            else:
                edits.append(ablate(f"{branch}.gates", experts=[number]))
        return edits

    def _attention(self, query: TextQuery) -> dict[str, AttentionPass]:
        text = self.read(query)
        return trace(self.model, text.tokens, attention="*", edits=self.edits(query), **text.more).attention

    def _cached(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """The cached value of a key, or a new one."""
        if key not in self._cache:
            self._cache[key] = make()
            while len(self._cache) > CACHE_SIZE:
                self._cache.popitem(last=False)
        self._cache.move_to_end(key)
        return self._cache[key]
