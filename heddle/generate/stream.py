"""The token loop for one text: predict, sample, append. `heddle.generate.engine` runs many texts at once by the same rules."""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from heddle.checks import checked
from heddle.config.decoding import DecodingConfig, SamplingConfig
from heddle.config.ids import SpecialIds
from heddle.errors import HeddleError
from heddle.generate.constrain import constrain
from heddle.generate.logprobs import Event, Finish, score_samples
from heddle.generate.processors import Ends, ForcedIds, TokenSequence, make_processors
from heddle.generate.sampling import choose
from heddle.model.device import has_float64
from heddle.model.evaluating import evaluating
from heddle.model.transformer import Transformer
from heddle.nn.numeric import wide_dtype

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
    """Yield the tokens after one prompt, without the end of text.

    This is the loop at its simplest. `generate` yields the same tokens for many prompts at once, with prepacked weights. An
    encoder-decoder reads a source; its prompt is the beginning of the answer, usually empty.
    """
    rules = DecodingRules(model, sampling, end_of_text)
    sequence = rules.new_sequence(0, prompt, sampling.seed, source)
    cache, new, finish = model.new_cache(1), sequence.visible(), None
    while finish is None:
        encoder_input = None
        if sequence.source is not None and not cache.encoded:
            encoder_input = torch.tensor([sequence.source], device=model.device)
        with torch.inference_mode(), evaluating(model):
            hidden = model(torch.tensor([new], device=model.device), source=encoder_input, cache=cache).hidden
            (event,) = rules.sample(model.logits(hidden[:, -1]), [sequence])
        if event.error:
            raise HeddleError(event.error)
        sequence.ids.append(event.token)
        finish, new = rules.finish(sequence), [event.token]
        if finish != "end":
            yield event.token
        if rules.is_full(sequence):
            rules.shorten(sequence)
            cache, new = model.new_cache(1), sequence.visible()


def check_generates(model: Transformer) -> None:
    """Raise if a model cannot generate text.

    Raises:
        HeddleError: the model has no decoder, or its head does not predict tokens.
    """
    if model.decoder is None:
        raise HeddleError("this model has no decoder, so it cannot generate")
    model.language_head()


class DecodingRules:
    """How the sequences of a model start, which ids are valid, and when they end; the same for every decoding strategy.

    Without `sampling.window`, a prompt longer than the context is an error, and a sequence ends when the context is full. This
    applies to rotary positions too, since the model was never trained beyond the context. With it, a longer prompt is cut to
    its last `context` tokens. A sequence that has filled the context continues from its last `context // 2` tokens, which are
    recomputed: about one extra token per sampled token, many in one pass.

    Args:
        model: a decoder with a language head, with or without an encoder.
        config: when to end, and penalties.
        end_of_text: an id that ends a text. It also starts a text whose prompt is empty (D-24), and every text of an
            encoder-decoder's decoder. Each of several ids ends a text, and the first one starts it. The special ids in an imported
            model's config apply in addition.
        vocabulary: number of ids that have text, if the model has more. Other ids are not valid, except those that end a text.

    Raises:
        HeddleError: the model cannot generate text, or no id is valid.
    """

    def __init__(
        self, model: Transformer, config: DecodingConfig, end_of_text: Ends = None, vocabulary: int | None = None
    ) -> None:
        check_generates(model)
        extra_ends = (end_of_text,) if isinstance(end_of_text, int) else tuple(end_of_text or ())
        ids = model.config.ids or SpecialIds()
        self.config, self.context, self.vocab_size = config, model.config.context, model.vocab_size
        self.reads_source = model.encoder is not None
        self.window, self.alternatives = False, 0
        if isinstance(config, SamplingConfig):
            self.window, self.alternatives = config.window, min(config.logprobs or 0, self.vocab_size)
        self.source_vocab_size = model.config.source_vocab_size or model.vocab_size
        begin = ids.decoder_start if self.reads_source else ids.begin
        self.begin = next(iter(extra_ends), None) if begin is None else begin
        self.needs_prompt = model.config.prompts == "needed" and not self.reads_source
        # The caller adds the ids that a published tokenizer puts before a text.
        self.always_begins = self.reads_source or (model.config.prompts == "beginning" and model.config.ids is None)
        self.ends = {*ids.ends(), *extra_ends}
        self.forced_begin = ids.forced_begin
        self.processors = make_processors(config, ids, self.ends, vocabulary, model.vocab_size)

    def new_sequence(
        self, row: int, prompt: Sequence[int], seed: int = 0, source: Sequence[int] | None = None, max_tokens: int = 0
    ) -> TokenSequence:
        """A sequence that starts with a prompt. The id that begins a text is added where the model needs it.

        That is before every prompt of an encoder-decoder's decoder, before an empty prompt, and where every prompt is the
        beginning of a text (`TransformerConfig.prompts`). `max_tokens` = 0 means the config's.

        Raises:
            HeddleError: there is no id to start from; the prompt or the source is too long or has an id out of range; or a source
                is missing or not supported.
        """
        if self.reads_source != bool(source):
            if self.reads_source:
                raise HeddleError("this model reads a source: pass one, or use heddle translate")
            raise HeddleError("this model has no encoder for a source")
        if self.needs_prompt and not prompt:
            raise HeddleError(f"prompt {row} is empty, but this model has only learned to answer one: give a prompt")
        has_begin = not self.reads_source and tuple(prompt[:1]) == (self.begin,)
        adds_begin = self.begin is not None and (not prompt or (self.always_begins and not has_begin))
        ids = [*((self.begin,) if adds_begin else ()), *prompt]
        if not ids:
            raise HeddleError(f"prompt {row} is empty, and there is no end-of-text token to start from")
        self._check(f"prompt {row}", ids, self.vocab_size, SHORTEN["prompt"], too_long=not self.window)
        self._check(f"source {row}", source or (), self.source_vocab_size, SHORTEN["source"])
        max_tokens = max_tokens or self.config.max_tokens
        max_length = len(ids) + max_tokens if self.window else min(len(ids) + max_tokens, self.context + 1)
        return TokenSequence(
            row,
            ids,
            prompt_length=len(ids),
            max_length=max_length,
            seed=seed,
            rules=self,
            start=max(0, len(ids) - self.context),
            source=list(source) if source else None,
            max_tokens=max_tokens,
            forced=int(self.forced_begin is not None and len(ids) == 1),
        )

    def _check(self, name: str, ids: Sequence[int], count: int, advice: str, too_long: bool = True) -> None:
        """Raise if an id is out of range or, with `too_long`, if there are more ids than the context has room for."""
        wrong = next((id for id in ids if not 0 <= id < count), None)
        if wrong is not None:
            raise HeddleError(f"{name} has the id {wrong}; ids must be from 0 to {count - 1}")
        if too_long and len(ids) > self.context:
            raise HeddleError(f"{name} has {len(ids)} tokens, but the model's context is {self.context}; {advice}")

    def process(self, scores: Float[Tensor, "B V"], sequences: Sequence[TokenSequence]) -> Float[Tensor, "B V"]:
        """Apply the logits processors: the model's rules about special ids, and the penalties."""
        for processor in self.processors:
            scores = processor(scores, sequences)
        return scores

    def sample(self, logits: Float[Tensor, "B V"], sequences: Sequence[TokenSequence]) -> list[Event]:
        """Sample the next id of each sequence. Needs a `SamplingConfig`.

        Raises:
            HeddleError: the sampling is constrained, and a sequence has no guide.
        """
        assert isinstance(self.config, SamplingConfig)
        # Sampling needs float64, which mps does not have. bf16 would lose small penalties, and its argmax is six times slower.
        logits = (logits if has_float64(logits.device) else logits.cpu()).to(wide_dtype(logits.dtype))
        scores = self.process(logits, sequences)
        if self.config.constrained:
            forcing = [processor for processor in self.processors if isinstance(processor, ForcedIds)]
            free = [not any(processor.applies(sequence) for processor in forcing) for sequence in sequences]
            scores = constrain(scores, sequences, free, self.ends)
        ids = choose(scores, self.config, [(sequence.seed, len(sequence.ids)) for sequence in sequences])
        return score_samples(logits, scores, ids, sequences, self.alternatives)

    def finish(self, sequence: TokenSequence) -> Finish | None:
        """Why the sequence ends with its last id, or None if it continues."""
        if sequence.ids[-1] in self.ends:
            return "end"
        if sequence.guide is not None and sequence.guide.complete(sequence.generated()):
            return "stop"
        if len(sequence.ids) - sequence.prompt_length == sequence.max_tokens:
            return "length"
        return "context" if self.is_full(sequence) and not self.window else None

    def room(self, sequence: TokenSequence) -> int:
        """Maximum number of draft tokens: the model reads them, and samples one more token than it accepts."""
        in_context = self.context - (len(sequence.ids) - sequence.start)
        return max(0, min(in_context, sequence.max_length - len(sequence.ids) - 1))

    def is_full(self, sequence: TokenSequence) -> bool:
        """Whether the last id no longer fits into the context."""
        return len(sequence.ids) - sequence.start > self.context

    def shorten(self, sequence: TokenSequence) -> None:
        """Leave only the last half of the context visible."""
        sequence.start = len(sequence.ids) - max(1, self.context // 2)
