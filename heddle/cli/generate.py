"""`heddle generate`."""

import sys
from typing import Annotated

from cyclopts import Parameter

from heddle.cli.models import open_model
from heddle.cli.say import counted, document, find_run
from heddle.config.sampling import SamplingConfig
from heddle.errors import HeddleError
from heddle.generate.text import Piece, complete


def generate(
    run: str,
    /,
    *,
    prompt: Annotated[list[str] | None, Parameter(negative=())] = None,
    max_tokens: int = 200,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    stop: Annotated[list[str] | None, Parameter(negative=())] = None,
    window: bool = False,
    device: str = "auto",
    json: bool = False,
) -> None:
    """Let a trained model write.

    Parameters
    ----------
    run
        A run directory, or its name in runs/.
    prompt
        What it goes on from; give it several times for several texts at once. Without one it begins from nothing.
    max_tokens
        Tokens to write for each prompt.
    temperature
        Above 1 bolder, below 1 safer, 0 always the most probable token.
    top_k
        Only the k most probable tokens.
    top_p
        Only the most probable tokens that hold this share together.
    seed
        Equal seeds write equal texts.
    stop
        End before this text; may be given several times.
    window
        Let what is longer than the context go on from its last tokens, instead of refusing it.
    device
        auto, cpu, cuda or mps.
    json
        One JSON document on stdout.
    """
    settings = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "seed": seed,
        "stop": stop or [],
        "window": window,
    }
    sampling = SamplingConfig.of(settings, where="generate")
    path = find_run(run)
    ready = open_model(path, device)
    model, tokenizer = ready.model, ready.tokenizer
    if tokenizer is None:
        raise HeddleError(f"{path} has no tokenizer.json; import the weights with their tokenizer, or copy one there")
    prompts = prompt or [""]
    texts = [""] * len(prompts)
    ends: list[Piece | None] = [None] * len(prompts)
    live = len(prompts) == 1 and not json
    before = prompts[0] if live else ""
    for piece in complete(model, tokenizer, prompts, sampling):
        texts[piece.row] += piece.text
        ends[piece.row] = piece
        if live:
            sys.stdout.write(before + piece.text)
            before = ""
            sys.stdout.flush()
    if live:
        print()
    elif not json:
        print(("\n" + "-" * 40 + "\n").join(prompt + text for prompt, text in zip(prompts, texts, strict=True)))
    else:
        rows = zip(prompts, texts, ends, strict=True)
        document(
            {
                "run": str(path),
                "precision": ready.precision,
                "sampling": sampling.to_dict(),
                "texts": [
                    {
                        "prompt": prompt,
                        "text": text,
                        "tokens": end.tokens if end else 0,
                        "finish": end.finish if end else None,
                    }
                    for prompt, text, end in rows
                ],
            }
        )
    full = [end.tokens for end in ends if end is not None and end.finish == "context"]
    if full:
        # On stderr, so that what is piped on is the text alone.
        which = f"{len(full)} of {len(prompts)} texts stopped" if len(prompts) > 1 else "the text stopped"
        after = f"after {counted(full[0], 'token')}" if len(prompts) == 1 else "before --max-tokens"
        reason = f"the model's context of {counted(model.config.context, 'token')} is full"
        print(f"{which} {after}: {reason}; --window goes on from its last tokens", file=sys.stderr)
