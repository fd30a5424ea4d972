"""`heddle generate`."""

import select
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from heddle.cli.models import Ready, check_generates, compile_model, decoding_config, open_model, tokenizer_of
from heddle.cli.options import (
    COMPILE,
    Device,
    Json,
    NoRepeatNgram,
    Precision,
    Run,
    SamplingOptions,
    Text,
    TextList,
    Weights,
)
from heddle.cli.output import console, find_run, pluralize, print_json, table
from heddle.cli.streams import is_piped, read_input
from heddle.config.decoding import SamplingConfig, WeightKind
from heddle.config.saved import SavedConfig
from heddle.data.record_store import open_store
from heddle.data.store import TokenStore
from heddle.errors import HeddleError
from heddle.generate.speculative import DraftModel, DraftSource, PromptLookup
from heddle.generate.text import Piece, banned_runs, complete, token_text
from heddle.text.tokenizer import Tokenizer

PATIENCE = 2.0  # seconds


@dataclass(frozen=True, kw_only=True)
class GenerateOptions(SamplingOptions):
    """Settings of `SamplingConfig`, and texts and a file that become settings."""

    min_tokens: int | None = None
    """Minimum tokens per text."""
    typical_p: float | None = None
    """Typical sampling: sample only from tokens whose surprisal is nearest the entropy, with this total probability."""
    presence_penalty: float = 0.0
    """Subtract this from the logits of tokens that were generated."""
    frequency_penalty: float = 0.0
    """Subtract this from the logits of tokens for each time that they were generated."""
    no_repeat_ngram: NoRepeatNgram = None
    stop: TextList = None
    """Stop at this text, without including it; may be repeated."""
    ban: TextList = None
    """Ban the tokens of this text, with and without a leading space; may be repeated. Other tokens may still spell it."""
    choice: TextList = None
    """Constrain the text to one of several choices; give it once per choice."""
    regex: Text = None
    """Constrain the text to match this regular expression in full."""
    json_schema: Path | None = None
    """Constrain the text to JSON that follows the schema in this file."""
    logprobs: int | None = None
    """Also show each token's log probability and this many top alternatives."""
    window: bool = False
    """Continue a text that outgrows the context from its last tokens, instead of refusing it."""

    def settings(self) -> dict[str, Any]:
        """The settings of `SamplingConfig`, without the ids of `ban`, which need the tokenizer."""
        settings = super().settings()
        settings.pop("ban", None)
        if self.json_schema is not None:
            settings["json_schema"] = self.json_schema.read_text(encoding="utf-8")
        return settings


UNSET = GenerateOptions()


def generate(
    run: Run,
    /,
    *,
    prompt: TextList = None,
    sampling: Annotated[GenerateOptions, Parameter(name="*")] = UNSET,
    draft: str | None = None,
    lookup: bool = False,
    weights: Weights = "trained",
    precision: Precision = "auto",
    compile: Annotated[bool, Parameter(help=f"{COMPILE} Speculative steps are not compiled.")] = False,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Generate text with a trained model.

    Parameters
    ----------
    prompt
        The text to continue; repeat it to generate a batch. - reads standard input, which is also the default if it is a pipe or a
        file; one final newline is dropped. Without a prompt, generation starts after the end-of-text token, else after a newline,
        else with the training text's first token.
    draft
        Speculative decoding with this smaller run, which needs the same tokenizer. The text stays the same.
    lookup
        Speculative decoding with prompt lookup, which is faster for repetitive text. The text stays the same.
    """
    settings = sampling.settings()
    SamplingConfig.of(settings, where="generate")  # before anything takes time
    ready = open_model(path := find_run(run), device, weights, precision)
    check_generates(path, ready)
    tokenizer = tokenizer_of(ready, path)
    config = decoding_config(ready, SamplingConfig, settings)
    config = config.model_copy(update={"banned": banned_runs(tokenizer, sampling.ban or [])})
    prompts = [text_prompt or _default_prompt(path, ready.config, tokenizer) for text_prompt in _read_prompts(prompt)]
    model = compile_model(ready.model, min(len(prompts), 2)) if compile else ready.model
    pieces = complete(
        model, tokenizer, prompts, config, draft_source=_draft_source(draft, lookup, ready, device, weights, precision)
    )
    texts = _collect(len(prompts), _stream(prompts[0], pieces) if len(prompts) == 1 and not json else pieces)
    _print_completions(
        prompts, texts, tokenizer, config, {"run": str(path), "precision": ready.precision} if json else None
    )
    _warn_truncated(texts, config, model.config.context)


def _draft_source(
    draft: str | None, lookup: bool, ready: Ready, device: str, weights: WeightKind, precision: str
) -> DraftSource | None:
    """The draft source of speculative decoding, if any."""
    if draft is None:
        return PromptLookup() if lookup else None
    if lookup:
        raise HeddleError("give --draft or --lookup, not both")
    draft_model = open_model(find_run(draft), device, weights, precision)
    tokenizer, draft_tokenizer = (loaded.tokenizer for loaded in (ready, draft_model))
    if tokenizer is None or draft_tokenizer is None or tokenizer.fingerprint() != draft_tokenizer.fingerprint():
        raise HeddleError(f"{draft} has another tokenizer than the run; train both with the same tokenizer")
    return DraftModel(draft_model.model)


def _collect(count: int, pieces: Iterable[Piece]) -> list[Piece]:
    """The whole text after each prompt, as one piece."""
    rows: list[list[Piece]] = [[] for _ in range(count)]
    for piece in pieces:
        rows[piece.row].append(piece)
    return [
        Piece(
            number,
            "".join(piece.text for piece in row),
            row[-1].tokens if row else 0,
            row[-1].finish if row else None,
            tuple(event for piece in row for event in piece.samples),
        )
        for number, row in enumerate(rows)
    ]


def _completion_json(prompt: str, text: Piece, tokenizer: Tokenizer, logprobs: int | None) -> dict[str, Any]:
    """JSON data of a prompt and its text; with `logprobs`, including each token."""
    data = {"prompt": prompt, "text": text.text, "tokens": text.tokens, "finish": text.finish}

    def token_json(id: int, logprob: float) -> dict[str, Any]:
        return {"id": id, "token": token_text(tokenizer, id), "logprob": logprob}

    if logprobs is None:
        return data
    entries = [
        {**token_json(event.token, event.logprob), "top": [token_json(*pair) for pair in event.top]}
        for event in text.samples
    ]
    return {**data, "logprobs": entries}


def _print_completions(
    prompts: Sequence[str],
    texts: Sequence[Piece],
    tokenizer: Tokenizer,
    sampling: SamplingConfig,
    header: dict[str, Any] | None,
) -> None:
    """Print completions as a JSON document after `header`; without a header, as text. A single text was streamed already.

    With log probabilities, a table of each text's tokens follows.
    """
    if header is not None:
        entries = [
            _completion_json(prompt, text, tokenizer, sampling.logprobs)
            for prompt, text in zip(prompts, texts, strict=True)
        ]
        print_json({**header, "sampling": sampling.to_dict(), "texts": entries})
        return
    if len(texts) > 1:
        print(("\n" + "-" * 40 + "\n").join(prompt + text.text for prompt, text in zip(prompts, texts, strict=True)))

    def quoted(id: int) -> str:
        return repr(token_text(tokenizer, id))

    for text in texts if sampling.logprobs is not None else ():
        rows = [
            [
                quoted(event.token),
                f"{event.logprob:.4f}",
                "  ".join(f"{quoted(id)} {score:.4f}" for id, score in event.top),
            ]
            for event in text.samples
        ]
        console().print(table(["token", "log probability", "most probable"], rows), "")


def _stream(prompt: str, pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Print the prompt and each piece as it arrives, and pass the pieces on."""
    prefix = prompt
    for piece in pieces:
        sys.stdout.write(prefix + piece.text)
        sys.stdout.flush()
        prefix = ""
        yield piece
    print()


def _warn_truncated(texts: Sequence[Piece], sampling: SamplingConfig, context: int) -> None:
    """Warn on stderr about texts that stopped at the end of the context, and constrained texts that were truncated."""
    if context_full := [text.tokens for text in texts if text.finish == "context"]:
        subject = f"{len(context_full)} of {len(texts)} texts stopped" if len(texts) > 1 else "the text stopped"
        position = f"after {pluralize(context_full[0], 'token')}" if len(texts) == 1 else "before --max-tokens"
        reason = f"the model's context of {pluralize(context, 'token')} is full"
        print(f"{subject} {position}: {reason}; --window continues from its last tokens", file=sys.stderr)
    truncated = sum(text.finish == "length" for text in texts)
    if sampling.constrained and truncated:
        subject = f"{truncated} of {len(texts)} texts are" if len(texts) > 1 else "the text is"
        print(f"{subject} truncated at --max-tokens and may not match", file=sys.stderr)


def _read_prompts(prompts: list[str] | None) -> list[str]:
    """The texts to continue; an empty string starts a new text.

    Raises:
        HeddleError: standard input is requested twice, or a prompt is not UTF-8.
    """
    if prompts is None:
        return [_read_piped(PATIENCE) if is_piped() else ""]
    if prompts.count("-") > 1:
        raise HeddleError("--prompt - is given twice, and standard input can be read only once")
    for number, prompt in enumerate(prompts):
        if any("\ud800" <= character <= "\udfff" for character in prompt):  # Python's escapes for undecodable bytes
            raise HeddleError(f"prompt {number} is not UTF-8")
    return [_read_piped() if prompt == "-" else prompt for prompt in prompts]


def _read_piped(patience: float | None = None) -> str:
    """Standard input without its final newline.

    Args:
        patience: seconds to wait before a message says that the command is waiting, since a pipe may never close.
    """
    if patience is not None:
        with suppress(OSError, ValueError):  # not a file of the operating system
            if not select.select([sys.stdin], [], [], patience)[0]:
                print("reading the prompt from standard input; use --prompt to give it directly", file=sys.stderr)
    return read_input().removesuffix("\n").removesuffix("\r")


def _default_prompt(run: Path, saved: SavedConfig, tokenizer: Tokenizer) -> str:
    """The prompt to start a new text with, for a model without an end-of-text token."""
    if tokenizer.end_of_text is not None or saved.origin is not None:
        return ""
    try:
        tokenizer.encode("\n")
        return "\n"
    except HeddleError:  # the vocabulary has no newline
        pass
    store = open_store(run / "data") if (run / "data").is_dir() else None
    if not isinstance(store, TokenStore):
        raise HeddleError(f"{run} has no token to start a text with; give a --prompt")
    return tokenizer.decode(store.train.tokens[:1].tolist())
