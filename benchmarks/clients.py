"""Sixteen clients of `heddle serve`, compared with a loop over `generate` of Hugging Face transformers: GPT-2 124M, greedy.

    python benchmarks/clients.py [--clients 16 --requests 3 --precision bf16 --rounds 3 --compiled] [--json FILE]

Each client sends its next request when the last one is answered; prompts and answers have from 16 to 128 tokens. The loop takes
the next request of every client, pads them to one batch, and generates until the longest answer is complete; it has no HTTP to do.
Both have the same weights, are processes of their own and take turns; the first round of each is not timed. Tokens that nobody
asked for do not count.
"""

import argparse
import asyncio
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

LENGTHS = (16, 128)
VOCABULARY = 50257

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
Request = tuple[list[int], int]


def workload(clients: int, requests: int) -> list[list[Request]]:
    """What each client asks for: ids, and how many tokens to add."""
    chance = random.Random(0)

    def one() -> Request:
        return [chance.randrange(1000) for _ in range(chance.randint(*LENGTHS))], chance.randint(*LENGTHS)

    return [[one() for _ in range(requests)] for _ in range(clients)]


async def ask_all(url: str, work: list[list[Request]]) -> None:
    """Send the requests of all clients, of each one after another."""
    import openai

    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0, timeout=900) as client:

        async def one(requests: list[Request]) -> None:
            for ids, tokens in requests:
                answer = await client.completions.create(
                    model="served", prompt=ids, max_tokens=tokens, temperature=0, logit_bias={"0": -100}
                )
                assert answer.usage is not None
                assert answer.usage.completion_tokens == tokens

        await asyncio.gather(*map(one, work))


def looping(arguments: argparse.Namespace) -> None:
    """A process that answers the workload by transformers on request: a line in, a line of JSON out."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "TQDM_DISABLE": "1"}
    import torch
    from transformers import AutoModelForCausalLM

    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[arguments.precision]
    model = AutoModelForCausalLM.from_pretrained(arguments.weights, dtype=dtype, attn_implementation="sdpa").eval()
    model.generation_config.eos_token_id = None  # nothing ends early
    work = workload(arguments.clients, arguments.requests)
    print("ready", flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        for turn in range(arguments.requests):
            batch = [requests[turn] for requests in work]
            width = max(len(ids) for ids, _ in batch)
            ids = torch.tensor([[0] * (width - len(ids)) + ids for ids, _ in batch])
            mask = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids, _ in batch])
            longest = max(tokens for _, tokens in batch)
            with torch.inference_mode():
                model.generate(ids, attention_mask=mask, max_new_tokens=longest, do_sample=False, pad_token_id=0)
        print(json.dumps(time.perf_counter() - began), flush=True)


def serving(arguments: argparse.Namespace) -> None:
    """A process that serves the run over HTTP, as `heddle serve` does, in a precision that a trained run would name itself."""
    import torch

    from heddle.config.serve import ServeConfig
    from heddle.model.compiling import compile_steps, warm_up
    from heddle.model.precision import cast
    from heddle.serve import ServedRun
    from heddle.weights import load
    from tests.serve.conftest import Server

    torch.set_num_threads(os.cpu_count() or 1)
    model, tokenizer = load(Path(arguments.weights), "cpu")
    assert tokenizer is not None
    cast(model.eval(), arguments.precision)
    if arguments.compiled:
        warm_up(compile_steps(model), (1, 2))
    server = Server(ServeConfig(), [ServedRun("served", model, tokenizer)])
    print(f"ready {server.url}", flush=True)
    sys.stdin.read()
    server.stop()


def started(words: list[str], ready: str) -> tuple[subprocess.Popen[str], str]:
    """A process, and the line in which it says that it is ready."""
    process = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        if re.search(ready, line):
            return process, line
    raise SystemExit(f"{' '.join(words)} ended before it was ready")


def race(arguments: argparse.Namespace) -> dict[str, Any]:
    """Time both in turns."""
    import heddle
    from heddle.convert import export_model
    from heddle.text import train_tokenizer

    chance, letters = random.Random(0), "abcdefghijklmnopqrstuvwxyz"
    text = " ".join("".join(chance.choices(letters, k=8)) for _ in range(100_000))
    with tempfile.TemporaryDirectory() as folder:
        ours, reference = Path(folder) / "served", Path(folder) / "transformers"
        tokenizer = train_tokenizer("bpe", [text], vocab_size=VOCABULARY)
        model = heddle.build(heddle.preset("gpt2-small").override({"vocab_size": tokenizer.vocab_size}), seed=1)
        heddle.save(model, ours, tokenizer)
        export_model(ours, reference)
        work = workload(arguments.clients, arguments.requests)
        options = [f"--{name}={getattr(arguments, name)}" for name in ("clients", "requests", "precision")]
        served = [*options, "--serve", *(["--compiled"] if arguments.compiled else [])]
        server, line = started([sys.executable, __file__, "--weights", str(ours), *served], "^ready")
        looped, _ = started([sys.executable, __file__, "--weights", str(reference), *options], "^ready")
        assert looped.stdin is not None
        assert looped.stdout is not None
        url = line.split()[1]
        seconds: dict[str, list[float]] = {"heddle serve": [], "transformers": []}
        for number in range(arguments.rounds + 1):
            began = time.perf_counter()
            asyncio.run(ask_all(url, work))
            own = time.perf_counter() - began
            looped.stdin.write("go\n")
            looped.stdin.flush()
            other = json.loads(looped.stdout.readline())
            print(f"round {number}: heddle serve {own:.1f} s, transformers {other:.1f} s", file=sys.stderr)
            if number:
                seconds["heddle serve"].append(own)
                seconds["transformers"].append(other)
        for process in (server, looped):
            process.terminate()
            process.wait()
    tokens = sum(count for requests in work for _, count in requests)
    ratios = [other / own for own, other in zip(*seconds.values(), strict=True)]
    return {
        **{name: getattr(arguments, name) for name in ("clients", "requests", "precision", "compiled", "rounds")},
        "tokens": tokens,
        "tokens_per_second": {name: tokens / median(each) for name, each in seconds.items()},
        "ratio": median(ratios),
        "least_ratio": min(ratios),
        "largest_ratio": max(ratios),
        "seconds": seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--requests", type=int, default=3, help="of each client in a round")
    parser.add_argument("--precision", default="bf16", choices=["fp32", "bf16"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compiled", action="store_true", help="serve with --compile")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--weights", help=argparse.SUPPRESS)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.weights:
        (serving if arguments.serve else looping)(arguments)
        return
    result = race(arguments)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
