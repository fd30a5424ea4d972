"""The token loop for one text: predict, draw, append. `heddle.generate.engine` continues many texts at once by the same rules."""

from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from heddle.checks import checked
from heddle.config.decoding import DecodingConfig, SamplingConfig
from heddle.config.ids import SpecialIds
from heddle.errors import HeddleError
from heddle.generate.constrain import constrain
from heddle.generate.logprobs import SampledToken, score_samples
from heddle.generate.processors import Ends, Forced, TokenSequence, make_processors
from heddle.generate.sampling import choose
from heddle.model.evaluating import evaluating
from heddle.model.transformer import Transformer
from heddle.nn.numeric import wide_dtype

Finish = Literal["end", "stop", "length", "context", "broken"]
WINDOW = "or set --window (in Python window=True) to continue from its last tokens"
SHORTEN = {"prompt": f"shorten it, {WINDOW}", "source": "shorten it"}


@checked()
def stream(
    model: Transformer,
    prompt: Sequence[int],
    sampling: SamplingConfig,
    end_of_text: Ends = None,
    source: Sequence[int] | None = None,
) -> Iterator[int]:
    """Yield the tokens that continue one prompt, without the end of text.

    This is the loop at its simplest. `generate` draws the same tokens for many prompts at once, and packs the weights for it.
    An encoder-decoder reads a source, and may be given the beginning of its answer as a prompt.
    """
    decoding = DecodingRules(model, sampling, end_of_text)
    text = decoding.open(0, prompt, sampling.seed, source)
    cache, new, finish = model.new_cache(1), text.visible(), None
    while finish is None:
        read = None if text.source is None or cache.encoded else torch.tensor([text.source], device=model.device)
        with torch.inference_mode(), evaluating(model):
            hidden = model(torch.tensor([new], device=model.device), source=read, cache=cache).hidden
            (found,) = decoding.draw(model.logits(hidden[:, -1]), [text])
        if found.broken:
            raise HeddleError(found.broken)
        text.ids.append(found.id)
        finish, new = decoding.finish(text), [found.id]
        if finish != "end":
            yield found.id
        if decoding.is_full(text):
            decoding.shorten(text)
            cache, new = model.new_cache(1), text.visible()


def check_generates(model: Transformer) -> None:
    """Refuse a model that cannot continue texts.

    Raises:
        HeddleError: it has no decoder or does not score tokens.
    """
    if model.decoder is None:
        raise HeddleError("this model has no decoder, so it cannot generate")
    model.language_head()


class DecodingRules:
    """How the texts of a model start, which ids they get, and when they end, whatever chooses the ids.

    Without `sampling.window`, a prompt longer than the context is refused, and a text ends when the context is full. This
    applies to rotary positions too, since the model was never trained beyond the context. With it, a longer prompt is cut to
    its last `context` tokens, and a text that has filled the context continues from its last `context // 2` tokens, which are
    recomputed: about one extra token per drawn token, many in one pass.

    Args:
        model: a decoder that scores tokens, with or without an encoder.
        config: when to end, and penalties.
        end_of_text: an id that ends a text, and starts one whose prompt is empty (D-24), as it does every text of an
            encoder-decoder's decoder; of several, all end a text, and the first one starts it. The special ids in an imported
            model's config apply without being passed here.
        vocabulary: how many ids have text, if the model has more; other ids are not drawn, except those that end a text.

    Raises:
        HeddleError: the model has no decoder or does not score tokens, or has no id that may be drawn.
    """

    def __init__(
        self, model: Transformer, config: DecodingConfig, end_of_text: Ends = None, vocabulary: int | None = None
    ) -> None:
        check_generates(model)
        given = () if end_of_text is None else (end_of_text,) if isinstance(end_of_text, int) else tuple(end_of_text)
        ids = model.config.ids or SpecialIds()
        self.config, self.context, self.vocab_size = config, model.config.context, model.vocab_size
        self.reads_source = model.encoder is not None
        self.window, self.alternatives = False, 0
        if isinstance(config, SamplingConfig):
            # Entries that only fill up the vocabulary are no alternatives.
            self.window, self.alternatives = config.window, min(config.logprobs or 0, self.vocab_size)
        self.source_vocab_size = model.config.source_vocab_size or model.vocab_size
        begin = ids.decoder_start if self.reads_source else ids.begin
        self.begin = next(iter(given), None) if begin is None else begin
        self.answers_only = model.config.prompts == "needed" and not self.reads_source
        # What a published tokenizer would put before ids is the caller's to add.
        self.starts_all = self.reads_source or (model.config.prompts == "beginning" and model.config.ids is None)
        self.ends = {*ids.ends(), *given}
        self.forced_begin = ids.forced_begin
        self.processors = make_processors(config, ids, self.ends, vocabulary, model.vocab_size)

    def open(
        self, number: int, prompt: Sequence[int], seed: int = 0, source: Sequence[int] | None = None, most: int = 0
    ) -> TokenSequence:
        """A text that starts with a prompt, which follows the first id of an encoder-decoder's decoder, or the id that starts a
        text where every prompt is the beginning of one (`TransformerConfig.prompts`).

        `most` is how many tokens to add at most; 0: as many as the config says.

        Raises:
            HeddleError: there is no id to start from; the prompt or the source is too long, or has ids that the model does not
                have; or there is a source that the model cannot read, or none that it needs.
        """
        if self.reads_source != bool(source):
            said = ("has no encoder for a source", "reads a source: pass one, or use heddle translate")[
                self.reads_source
            ]
            raise HeddleError(f"this model {said}")
        if self.answers_only and not prompt:
            raise HeddleError(f"prompt {number} is empty, but this model has only learned to answer one: give a prompt")
        begun = not self.reads_source and tuple(prompt[:1]) == (self.begin,)
        starts = self.begin is not None and (not prompt or (self.starts_all and not begun))
        ids = [*((self.begin,) if starts else ()), *prompt]
        if not ids:
            raise HeddleError(f"prompt {number} is empty, and there is no end-of-text token to start from")
        for what, given, count in (("prompt", ids, self.vocab_size), ("source", source or (), self.source_vocab_size)):
            wrong = next((token for token in given if not 0 <= token < count), None)
            if wrong is not None:
                raise HeddleError(f"{what} {number} has the id {wrong}; ids must be from 0 to {count - 1}")
            if len(given) > self.context and not (self.window and what == "prompt"):
                said = f"{what} {number} has {len(given)} tokens, but the model's context is {self.context}"
                raise HeddleError(f"{said}; {SHORTEN[what]}")
        most, start = most or self.config.max_tokens, max(0, len(ids) - self.context)
        last = len(ids) + most if self.window else min(len(ids) + most, self.context + 1)
        opened = int(self.forced_begin is not None and len(ids) == 1)
        return TokenSequence(
            number, ids, len(ids), last, seed, start, list(source) if source else None, None, most, opened
        )

    def process(self, scores: Float[Tensor, "B V"], texts: Sequence[TokenSequence]) -> Float[Tensor, "B V"]:
        """Scores of the next ids after the model's rules about special ids, and the penalties."""
        for processor in self.processors:
            scores = processor(scores, texts)
        return scores

    def draw(self, logits: Float[Tensor, "B V"], texts: Sequence[TokenSequence]) -> list[SampledToken]:
        """The next id of each text. Needs a `SamplingConfig`.

        Raises:
            HeddleError: the sampling is constrained, and a text has no guide.
        """
        assert isinstance(self.config, SamplingConfig)
        # Draws need float64, which mps does not have; and bf16 would lose small penalties, and finds its largest six times slower.
        logits = (logits.cpu() if logits.device.type == "mps" else logits).to(wide_dtype(logits.dtype))
        scores = self.process(logits, texts)
        if self.config.constrained:
            forcing = [each for each in self.processors if isinstance(each, Forced)]
            free = [not any(each.here(text) for each in forcing) for text in texts]
            scores = constrain(scores, texts, free, self.ends)
        ids = choose(scores, self.config, [(text.seed, len(text.ids)) for text in texts])
        return score_samples(logits, scores, ids, texts, self.alternatives)

    def finish(self, text: TokenSequence) -> Finish | None:
        """Why the text ends with its last id; None: it continues."""
        if text.ids[-1] in self.ends:
            return "end"
        if text.guide is not None and text.guide.complete(text.written()):
            return "stop"
        if len(text.ids) - text.given == text.most:
            return "length"
        return "context" if self.is_full(text) and not self.window else None

    def room(self, text: TokenSequence) -> int:
        """How many ids can be guessed after the text: the model reads them, and draws one more than it confirms."""
        in_context = self.context - (len(text.ids) - text.start)
        return max(0, min(in_context, text.last - len(text.ids) - 1))

    def is_full(self, text: TokenSequence) -> bool:
        """Whether the text's last id does not fit into the context."""
        return len(text.ids) - text.start > self.context

    def shorten(self, text: TokenSequence) -> None:
        """Leave only the last half of the context visible."""
        text.start = len(text.ids) - max(1, self.context // 2)
