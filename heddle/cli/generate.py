"""`heddle generate`."""

import select
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from heddle.cli.models import Ready, check_writes, compile_model, open_model, strategy, tokenizer_of
from heddle.cli.output import console, find_run, pluralize, print_json, table
from heddle.cli.streams import is_piped, read_input
from heddle.config.decoding import SamplingConfig, WeightKind
from heddle.config.saved import SavedConfig
from heddle.data.record_store import open_store
from heddle.data.store import TokenStore
from heddle.errors import HeddleError
from heddle.generate.logprobs import SampledToken
from heddle.generate.speculative import DraftModel, DraftSource, PromptLookup
from heddle.generate.text import Piece, banned_runs, complete, token_text
from heddle.text.tokenizer import Tokenizer

PATIENCE = 2.0  # seconds


def generate(
    run: str,
    /,
    *,
    prompt: Annotated[list[str] | None, Parameter(allow_leading_hyphen=True)] = None,
    max_tokens: int | None = None,
    min_tokens: int | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    typical_p: float | None = None,
    repetition_penalty: float | None = None,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    no_repeat_ngram: int | None = None,
    seed: int = 0,
    stop: Annotated[list[str] | None, Parameter(allow_leading_hyphen=True)] = None,
    ban: Annotated[list[str] | None, Parameter(allow_leading_hyphen=True)] = None,
    choice: Annotated[list[str] | None, Parameter(allow_leading_hyphen=True)] = None,
    regex: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    json_schema: Path | None = None,
    logprobs: int | None = None,
    window: bool = False,
    draft: str | None = None,
    lookup: bool = False,
    weights: WeightKind = "trained",
    compile: bool = False,
    device: str = "auto",
    json: bool = False,
) -> None:
    """Generate text with a trained model.

    Parameters
    ----------
    run
        A run directory, or its name in runs/.
    prompt
        The text to continue; repeat it for several texts at once. - reads standard input, which is also read without a
        prompt if it is a pipe or a file; one final line end is dropped. Without any text, generation starts a new text:
        after the end-of-text token, else after a line break, else with the training text's first token.
    max_tokens
        Tokens to generate for each prompt. Defaults, as other settings do, to what an imported model's files say, else to 200.
    min_tokens
        Tokens to generate before a text may end.
    temperature
        Above 1 is bolder, below 1 safer; 0 always takes the most probable token. Defaults to 1.
    top_k
        Sample only from the k most probable tokens.
    top_p
        Sample only from the most probable tokens that together have this probability.
    min_p
        Sample only from tokens with at least this share of the largest probability.
    typical_p
        Sample only from the tokens whose surprise is nearest its mean, the fewest that together have this probability.
    repetition_penalty
        Above 1, tokens that are already in the text become less probable.
    presence_penalty
        Subtracted from the scores of tokens that have been generated.
    frequency_penalty
        Subtracted from the scores of tokens once for each time that they have been generated.
    no_repeat_ngram
        No run of so many tokens may occur twice in a text.
    seed
        Equal seeds generate equal texts.
    stop
        Stop before this text; may be repeated.
    ban
        Ban the tokens that spell this text, after a blank and without one; may be repeated. Other tokens may still spell it.
    choice
        The text must be one of these; repeat it for each.
    regex
        The text must match this regular expression as a whole.
    json_schema
        The text must be JSON of the schema in this file.
    logprobs
        Also show each token with the natural log of its probability, and this many of the most probable tokens at its place.
    window
        Continue a text longer than the context from its last tokens, instead of refusing it.
    draft
        A smaller run with the same tokenizer that guesses tokens, which the model confirms several at a time: the same text,
        faster if the guesses are good.
    lookup
        Guess that the text goes on as it did where its last tokens stood before: the same text, faster if it repeats itself.
    weights
        int8 or int4: round the weights, which takes less memory on a CPU, and less time with one text at once. See
        docs/serving.md for what it costs.
    compile
        Compile the decoding steps first, which takes about half a minute: then a small model answers faster on most CPUs, see
        docs/serving.md. Needs a C++ compiler. Steps with guesses are not compiled.
    device
        auto, cpu, cuda or mps.
    json
        One JSON document on stdout.
    """
    asked = {
        "max_tokens": max_tokens, "min_tokens": min_tokens, "temperature": temperature, "top_k": top_k, "top_p": top_p,
        "min_p": min_p, "typical_p": typical_p, "repetition_penalty": repetition_penalty,
        "presence_penalty": presence_penalty, "frequency_penalty": frequency_penalty,
        "no_repeat_ngram": no_repeat_ngram, "seed": seed, "stop": stop or [], "choice": choice or [], "regex": regex,
        "json_schema": None if json_schema is None else json_schema.read_text(encoding="utf-8"),
        "logprobs": logprobs, "window": window,
    }  # fmt: skip
    settings = {name: value for name, value in asked.items() if value is not None}
    SamplingConfig.of(settings, where="generate")  # before anything takes time
    ready = open_model(path := find_run(run), device, weights)
    check_writes(path, ready)
    tokenizer = tokenizer_of(ready, path)
    sampling = strategy(ready, SamplingConfig, settings)
    sampling = sampling.model_copy(update={"banned": banned_runs(tokenizer, ban or [])})
    prompts = [each or _default_prompt(path, ready.config, tokenizer) for each in _read_prompts(prompt)]
    model = compile_model(ready.model, min(len(prompts), 2)) if compile else ready.model
    pieces = complete(
        model, tokenizer, prompts, sampling, draft_source=_draft_source(draft, lookup, ready, device, weights)
    )
    texts = _collect(prompts, _shown(prompts[0], pieces) if len(prompts) == 1 and not json else pieces)
    _report(texts, tokenizer, sampling, {"run": str(path), "precision": ready.precision} if json else None)
    _note_ends(texts, sampling, model.config.context)


def _draft_source(
    draft: str | None, lookup: bool, ready: Ready, device: str, weights: WeightKind
) -> DraftSource | None:
    """Who guesses tokens, if anyone.

    Raises:
        HeddleError: both are asked for, or the draft run has another tokenizer.
    """
    if draft is None:
        return PromptLookup() if lookup else None
    if lookup:
        raise HeddleError("give --draft or --lookup, not both")
    smaller = open_model(find_run(draft), device, weights)
    mine, theirs = (each.tokenizer for each in (ready, smaller))
    if mine is None or theirs is None or mine.fingerprint() != theirs.fingerprint():
        raise HeddleError(
            f"{draft} has another tokenizer than the run, so it cannot guess its tokens; train both with one tokenizer"
        )
    return DraftModel(smaller.model)


@dataclass
class _Text:
    """A prompt and its continuation."""

    prompt: str
    text: str = ""
    end: Piece | None = None
    drawn: list[SampledToken] = field(default_factory=list)

    def to_dict(self, tokenizer: Tokenizer, logprobs: int | None) -> dict[str, Any]:
        """What programs are told; with `logprobs`, also of each token."""
        tokens, finish = (self.end.tokens, self.end.finish) if self.end else (0, None)
        told = {"prompt": self.prompt, "text": self.text, "tokens": tokens, "finish": finish}

        def entry(id: int, logprob: float) -> dict[str, Any]:
            return {"id": id, "token": token_text(tokenizer, id), "logprob": logprob}

        if logprobs is None:
            return told
        each = [{**entry(one.id, one.logprob), "top": [entry(*pair) for pair in one.top]} for one in self.drawn]
        return {**told, "logprobs": each}


def _collect(prompts: list[str], pieces: Iterable[Piece]) -> list[_Text]:
    """Each prompt with its whole continuation."""
    texts = [_Text(prompt) for prompt in prompts]
    for piece in pieces:
        texts[piece.row].text += piece.text
        texts[piece.row].end = piece
        texts[piece.row].drawn += piece.samples
    return texts


def _report(texts: list[_Text], tokenizer: Tokenizer, sampling: SamplingConfig, about: dict[str, Any] | None) -> None:
    """Print a JSON document that begins with `about`; without it, several texts, since one has been shown as it came.

    If the sampling reports log probabilities, a table of each text's tokens follows.
    """
    if about is not None:
        told = [each.to_dict(tokenizer, sampling.logprobs) for each in texts]
        print_json({**about, "sampling": sampling.to_dict(), "texts": told})
        return
    if len(texts) > 1:
        print(("\n" + "-" * 40 + "\n").join(each.prompt + each.text for each in texts))

    def words(id: int) -> str:
        return repr(token_text(tokenizer, id))

    for text in texts if sampling.logprobs is not None else ():
        rows = [
            [words(one.id), f"{one.logprob:.4f}", "  ".join(f"{words(id)} {score:.4f}" for id, score in one.top)]
            for one in text.drawn
        ]
        console().print(table(["token", "log probability", "most probable"], rows), "")


def _shown(prompt: str, pieces: Iterable[Piece]) -> Iterator[Piece]:
    """The same pieces, printed as they come, after their prompt."""
    before = prompt
    for piece in pieces:
        sys.stdout.write(before + piece.text)
        sys.stdout.flush()
        before = ""
        yield piece
    print()


def _note_ends(texts: list[_Text], sampling: SamplingConfig, context: int) -> None:
    """Say on standard error, so that only the text is piped on, which texts are not what was asked for: those that stopped because
    the context was full, and constrained ones that were cut off.
    """
    if full := [text.end.tokens for text in texts if text.end is not None and text.end.finish == "context"]:
        which = f"{len(full)} of {len(texts)} texts stopped" if len(texts) > 1 else "the text stopped"
        after = f"after {pluralize(full[0], 'token')}" if len(texts) == 1 else "before --max-tokens"
        reason = f"the model's context of {pluralize(context, 'token')} is full"
        print(f"{which} {after}: {reason}; --window continues from its last tokens", file=sys.stderr)
    cut = sum(text.end is not None and text.end.finish == "length" for text in texts)
    if sampling.constrained and cut:
        which = f"{cut} of {len(texts)} texts are" if len(texts) > 1 else "the text is"
        print(f"{which} cut off at --max-tokens and may not match", file=sys.stderr)


def _read_prompts(given: list[str] | None) -> list[str]:
    """The texts to continue; an empty string starts a new text.

    Raises:
        HeddleError: standard input is requested twice or is not UTF-8, or a prompt is not UTF-8.
    """
    if given is None:
        return [_read_piped(PATIENCE) if is_piped() else ""]
    if given.count("-") > 1:
        raise HeddleError("--prompt - is given twice, and standard input can be read only once")
    for number, prompt in enumerate(given):
        if any("\ud800" <= character <= "\udfff" for character in prompt):  # Python's escapes for undecodable bytes
            raise HeddleError(f"prompt {number} is not UTF-8")
    return [_read_piped() if prompt == "-" else prompt for prompt in given]


def _read_piped(patience: float | None = None) -> str:
    """Standard input without the line end that a shell appends.

    Args:
        patience: seconds until a message says that the command is waiting: a program may have left a pipe open.
    """
    if patience is not None:
        with suppress(OSError, ValueError):  # not a file of the operating system
            if not select.select([sys.stdin], [], [], patience)[0]:
                print("reading the prompt from standard input; --prompt gives it directly", file=sys.stderr)
    return read_input().removesuffix("\n").removesuffix("\r")


def _default_prompt(run: Path, saved: SavedConfig, tokenizer: Tokenizer) -> str:
    """The start of a text when there is no prompt and the model has no token for it."""
    if tokenizer.end_of_text is not None or saved.origin is not None:
        return ""
    try:
        tokenizer.encode("\n")
        return "\n"
    except HeddleError:  # its text had no line breaks
        pass
    store = open_store(run / "data") if (run / "data").is_dir() else None
    if not isinstance(store, TokenStore):
        raise HeddleError(f"{run} has no token that starts a text; give a --prompt")
    return tokenizer.decode(store.train.tokens[:1].tolist())
