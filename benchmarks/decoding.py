"""Decoding speed compared with `generate` of Hugging Face transformers: GPT-2, equal weights and prompts, greedy, interleaved.

    python benchmarks/decoding.py [--batch 1 8 --prompt 64 --tokens 64 --precision bf16 --rounds 7] [--json FILE]

Every contender is a separate process with the same threads; they take turns, one whole call each, including the prompt. The first
call of each is not timed: it loads libraries or compiles, which is reported separately. The ids must
agree: where a row first differs, the logits of the two ids in Hugging Face transformers must be within rounding of each other.

heddle's steps are compiled before they are timed. `--plain` adds heddle with plain steps, `--rounded int8 int4` heddle with rounded
weights, whose ids differ.
`--compiled` adds heddle with compiled steps, with each kind of weights, and Hugging Face's model under torch.compile with a
static cache and frozen weights, the fastest that was found for it. `--llama` adds llama.cpp (the package xllamacpp) with the
same weights as GGUF files. `--tree DIRECTORY` adds another checkout of heddle. `heddle bench` measures decoding on a GPU.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

NEAR = {"fp32": 1e-3, "bf16": 0.25}  # logits this near to the largest may be the largest with different rounding
ROUNDED = {"int8": "Q8_0", "int4": "Q4_0"}  # heddle's kinds of weights, and llama.cpp's of as many bits
PLAIN = {"fp32": "F32", "bf16": "BF16"}
LLAMA = "llama.cpp"
COMPILED = ", compiled"
Ids = list[list[int]]


def prompts(vocabulary: int, batch: int, length: int) -> Ids:
    """The same text-like ids for everyone, with a skewed distribution."""
    import numpy as np

    return ((np.random.default_rng(batch).zipf(1.3, (batch, length)) - 1) % vocabulary).tolist()


def compile_at_once() -> None:
    """Compile decoding steps in this process when they are first needed, instead of in another one meanwhile."""
    from heddle.model import steps
    from heddle.model.compile_steps import compile_all

    steps.LOOK = steps.PATIENCE = steps.AGAIN = 0.0
    steps.request = lambda *about: compile_all(steps.described_for_compiling(*about))


def heddle_decodes(arguments: argparse.Namespace) -> tuple[Callable[[Ids], Ids], int]:
    """heddle's token loop, and the bytes of weights that a step reads."""
    from heddle.config import SamplingConfig
    from heddle.generate import generate
    from heddle.model.precision import cast
    from heddle.model.quantize import QuantizedHead, weight_bytes
    from heddle.weights import load

    if arguments.library == "plain":
        os.environ["HEDDLE_STEPS"] = "plain"
    else:
        compile_at_once()
    model, _ = load(Path(arguments.weights), "cpu")
    cast(model, arguments.precision)
    kind = arguments.library.removesuffix(COMPILED)
    if kind in ROUNDED:
        from heddle.model.quantize import quantize

        quantize(model, kind)
    if arguments.library.endswith(COMPILED):
        from heddle.model.compiling import compile_steps

        compile_steps(model.eval())
    sampling = SamplingConfig(max_tokens=arguments.tokens, temperature=0)

    def decode(texts: Ids) -> Ids:
        drawn: Ids = [[] for _ in texts]
        for event in generate(model, texts, sampling):
            drawn[event.row].append(event.token)
        return drawn

    head = model.head.weights if isinstance(model.head, QuantizedHead) else model.embedding
    return decode, weight_bytes(model.decoder.blocks) + weight_bytes(head)


def transformers_decodes(arguments: argparse.Namespace) -> tuple[Callable[[Ids], Ids], Callable[[Ids, Ids], float]]:
    """Hugging Face's `generate`, and how far below the best logit another contender's ids are where they first differ."""
    import torch
    from transformers import AutoModelForCausalLM

    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[arguments.precision]
    model = AutoModelForCausalLM.from_pretrained(arguments.weights, dtype=dtype, attn_implementation="sdpa")
    model = model.eval()
    model.generation_config.eos_token_id = None  # nothing ends early
    settings = {"max_new_tokens": arguments.tokens, "do_sample": False, "use_cache": True, "pad_token_id": 0}
    if arguments.library.endswith(COMPILED):
        from torch._inductor import config

        config.freezing = True
        model.forward = torch.compile(model.forward, fullgraph=True)
        settings["cache_implementation"] = "static"

    def decode(texts: Ids, **more: Any) -> Any:
        ids = torch.tensor(texts)
        with torch.inference_mode():
            output = model.generate(ids, attention_mask=torch.ones_like(ids), **settings, **more)
        return output if more else output[:, ids.shape[1] :].tolist()

    def gap(texts: Ids, others: Ids) -> float:
        output = decode(texts, output_logits=True, return_dict_in_generate=True)
        worst = 0.0
        for row, (own, other) in enumerate(zip(output.sequences[:, arguments.prompt :].tolist(), others, strict=True)):
            place = next((i for i, pair in enumerate(zip(own, other, strict=True)) if pair[0] != pair[1]), None)
            if place is not None:
                logits = output.logits[place][row]
                worst = max(worst, (logits.max() - logits[other[place]]).item())
        return worst

    return decode, gap


def llama_decodes(arguments: argparse.Namespace) -> Callable[[Ids], Ids]:
    """llama.cpp's server, with a slot for each text; ids of tokens are only known where their log probabilities are asked for."""
    from benchmarks.gguf_files import serve

    context = arguments.prompt + arguments.tokens
    servers = {rows: serve(Path(arguments.weights), context, arguments.threads, rows) for rows in arguments.batch}
    request = {"n_predict": arguments.tokens, "temperature": 0.0, "cache_prompt": False, "ignore_eos": True}

    def decode(texts: Ids, probabilities: int = 0) -> Ids:
        answer = servers[len(texts)].handle_completions({**request, "prompt": texts, "n_probs": probabilities})
        choices = sorted(answer["choices"], key=lambda choice: choice["index"])
        return [[step["id"] for step in (choice["logprobs"] or {"content": []})["content"]] for choice in choices]

    return decode


def contender(arguments: argparse.Namespace) -> None:
    """A process that decodes on request: lines of JSON in, lines of JSON out."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "TQDM_DISABLE": "1"}
    import torch

    from heddle.account import copy_rate, matmul_rate

    torch.set_num_threads(arguments.threads)
    decode: Callable[..., Ids] | None = None
    gap: Any = None
    read = 0
    if arguments.library.startswith("transformers"):
        decode, gap = transformers_decodes(arguments)
    elif arguments.library == LLAMA:
        decode = llama_decodes(arguments)
    elif arguments.library != "peak":
        decode, read = heddle_decodes(arguments)
    print(json.dumps({"bytes": read}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if decode is None:
            answer: dict[str, Any] = {"fp32": matmul_rate(torch.float32), "memory": copy_rate()}
            answer["bf16"] = matmul_rate(torch.bfloat16, size=512)
        elif "others" in request:
            answer = {"gap": gap(request["texts"], request["others"])}
        else:
            began = time.perf_counter()
            ids = decode(**request)
            answer = {"seconds": time.perf_counter() - began, "ids": ids}
        print(json.dumps(answer), flush=True)


class Process:
    """A contender, from the parent process."""

    def __init__(self, arguments: argparse.Namespace, library: str, weights: Path, tree: Path | None = None) -> None:
        words = [sys.executable, __file__, "--contender", "--library", library, "--weights", str(weights)]
        for name in ("precision", "threads", "prompt", "tokens"):
            words += [f"--{name}", str(getattr(arguments, name))]
        words += ["--batch", *map(str, arguments.batch)]
        # Waiting threads must not spin while another contender has the cores.
        environment = {**os.environ, "OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "10000"}
        if tree is not None:
            environment["PYTHONPATH"] = str(tree.resolve())
        self.words = words
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.bytes = self.answer()["bytes"]

    def answer(self) -> dict[str, Any]:
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a contender died: {' '.join(self.words[2:7])}")
        return json.loads(line)

    def ask(self, **request: Any) -> dict[str, Any]:
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def race(arguments: argparse.Namespace) -> dict[str, Any]:
    """Check that all generate the same ids, then time them in turns."""
    import heddle
    from benchmarks.gguf_files import ascii_tokenizer, rounded
    from heddle.convert import export_gguf, export_model
    from heddle.weights import save

    with tempfile.TemporaryDirectory() as folder:
        ours, reference = Path(folder) / "heddle", Path(folder) / "transformers"
        model = heddle.build(heddle.preset(arguments.preset), seed=1)
        vocabulary = model.vocab_size
        save(model, ours)
        export_model(ours, reference)
        del model
        running = {
            "transformers": Process(arguments, "transformers", reference),
            "heddle": Process(arguments, "heddle", ours),
        }
        if arguments.plain:
            running["heddle, plain steps"] = Process(arguments, "plain", ours)
        for kind in arguments.rounded:
            running[f"heddle, {kind}"] = Process(arguments, kind, ours)
        if arguments.compiled:
            running[f"transformers{COMPILED}"] = Process(arguments, f"transformers{COMPILED}", reference)
            for kind in ("heddle", *arguments.rounded):
                name = kind if kind == "heddle" else f"heddle, {kind}"
                running[f"{name}{COMPILED}"] = Process(arguments, f"{kind}{COMPILED}", ours)
        if arguments.llama:
            ascii_tokenizer(vocabulary, ours)
            export_gguf(ours, Path(folder) / "F32.gguf")
            for kind in dict.fromkeys((PLAIN[arguments.precision], *(ROUNDED[each] for each in arguments.rounded))):
                file = Path(folder) / f"{kind}.gguf"
                file = file if file.exists() else rounded(Path(folder) / "F32.gguf", file, kind)
                running[f"{LLAMA}, {kind}"] = Process(arguments, LLAMA, file)
        if arguments.tree is not None:
            running[f"heddle of {arguments.tree.name}"] = Process(arguments, "heddle", ours, arguments.tree)
        ceiling = Process(arguments, "peak", ours)
        texts = {batch: prompts(vocabulary, batch, arguments.prompt) for batch in arguments.batch}
        first: dict[str, float] = {}
        gaps: dict[str, float] = {}
        for name, process in running.items():
            answers = {batch: process.ask(texts=each) for batch, each in texts.items()}
            first[name] = answers[arguments.batch[0]]["seconds"]
            if name == f"{LLAMA}, {PLAIN[arguments.precision]}":
                answers = {batch: process.ask(texts=each, probabilities=1) for batch, each in texts.items()}
            if not name.startswith("transformers") and not _is_rounded(name):
                judged = [running["transformers"].ask(texts=texts[b], others=answers[b]["ids"])["gap"] for b in answers]
                gaps[name] = max(judged)
            print(f"{name}: ready", file=sys.stderr)
        seconds: dict[int, dict[str, list[float]]] = {b: {name: [] for name in running} for b in texts}
        peaks = []
        for number in range(arguments.rounds):
            peaks.append(ceiling.ask())
            for batch, each in texts.items():
                for name, process in running.items():
                    seconds[batch][name].append(process.ask(texts=each)["seconds"])
                rates = {name: batch * arguments.tokens / times[-1] for name, times in seconds[batch].items()}
                summary = ", ".join(f"{name} {rate:.1f}" for name, rate in rates.items())
                print(f"round {number + 1}, batch {batch}: {summary} tokens/s", file=sys.stderr)
        for process in [*running.values(), ceiling]:
            process.close()
    return report(arguments, seconds, first, gaps, peaks, running)


def report(
    arguments: argparse.Namespace,
    seconds: dict[int, dict[str, list[float]]],
    first: dict[str, float],
    gaps: dict[str, float],
    peaks: list[dict[str, float]],
    running: dict[str, Process],
) -> dict[str, Any]:
    """The results. A ratio is the median of the rounds' ratios, since a round's contenders share its disturbances.

    The share of the bandwidth is what one step of heddle reads of its weights, times the steps, by the time of whole calls.
    """
    import torch

    rows = []
    memory = median(each["memory"] for each in peaks)
    for batch, each in seconds.items():
        for name, times in each.items():
            ratios = [reference / own for reference, own in zip(each["transformers"], times, strict=True)]
            beside = f"{LLAMA}, {_bits(name, arguments.precision)}"
            against = [reference / own for reference, own in zip(each.get(beside, ()), times, strict=beside in each)]
            work = batch * arguments.tokens
            rates: dict[str, Callable[[list[float]], float]] = {
                "tokens_per_second": median,
                "slowest": max,
                "fastest": min,
            }
            rows.append(
                {
                    "batch": batch,
                    "contender": name,
                    **{word: work / choose(times) for word, choose in rates.items()},
                    "ratio": median(ratios),
                    "least_ratio": min(ratios),
                    "largest_ratio": max(ratios),
                    "times_llama": [median(against), min(against), max(against)] if against else None,
                    "share_of_bandwidth": running[name].bytes * arguments.tokens / median(times) / memory,
                    "seconds": times,
                }
            )
    return {
        **{name: getattr(arguments, name) for name in ("preset", "precision", "prompt", "tokens", "threads", "rounds")},
        "machine": platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "peak": {name: median(each[name] for each in peaks) for name in peaks[0]},
        "first_call": first,
        "gaps": gaps,
        "ids_agree": all(gap <= NEAR[arguments.precision] for gap in gaps.values()),
        "contenders": rows,
    }


def _is_rounded(contender: str) -> bool:
    return contender.removesuffix(COMPILED).endswith((*ROUNDED.keys(), *ROUNDED.values()))


def _bits(contender: str, precision: str) -> str:
    """llama.cpp's kind of weights beside which a contender stands."""
    kind = contender.removesuffix(COMPILED).rpartition(", ")[2]
    return kind if kind in ROUNDED.values() else ROUNDED.get(kind, PLAIN[precision])


def show(result: dict[str, Any]) -> None:
    """The results as a table."""
    peak = {name: f"{rate / 1e9:,.0f}" for name, rate in result["peak"].items()}
    print(
        f"{result['preset']}, {result['precision']}, greedy, {result['tokens']} tokens after {result['prompt']}, "
        f"{result['threads']} threads, {result['rounds']} rounds, torch {result['torch']}; "
        f"measured matmul rates {peak['fp32']} GFLOP/s fp32, {peak['bf16']} bf16, copying {peak['memory']} GB/s\n"
    )
    columns = (
        "tokens/s, median (min to max)",
        "times transformers, median of the rounds (min to max)",
        "times llama.cpp of as many bits",
        "of the bandwidth",
    )
    print(f"| batch | contender | {' | '.join(columns)} |")
    print("|---|---" + "|---" * len(columns) + "|")
    for row in result["contenders"]:
        speed = f"{row['tokens_per_second']:.1f} ({row['slowest']:.1f} to {row['fastest']:.1f})"
        ratio = f"{row['ratio']:.2f} ({row['least_ratio']:.2f} to {row['largest_ratio']:.2f})"
        share = f"{row['share_of_bandwidth']:.0%}" if row["share_of_bandwidth"] else ""
        llama = "{:.2f} ({:.2f} to {:.2f})".format(*row["times_llama"]) if row["times_llama"] else ""
        print(f"| {row['batch']} | {row['contender']} | {speed} | {ratio} | {llama} | {share} |")
    usual = {row["contender"]: median(row["seconds"]) for row in reversed(result["contenders"])}
    summary = ", ".join(f"{name} {first - usual[name]:+.2f} s" for name, first in result["first_call"].items())
    print(f"\nThe first call, including compiling, compared with the median one: {summary}.")
    worst = max(result["gaps"].values())
    agree = "yes" if result["ids_agree"] else "NO"
    print(
        f"Ids agree: {agree}; where rows first differ, transformers' logits of the two differ by at most {worst:.1e}."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="gpt2-small")
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--prompt", type=int, default=64, help="tokens of each prompt")
    parser.add_argument("--tokens", type=int, default=64, help="tokens drawn for each prompt")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--plain", action="store_true", help="also heddle with plain steps")
    parser.add_argument("--rounded", nargs="+", default=[], choices=ROUNDED, help="also heddle with rounded weights")
    parser.add_argument("--compiled", action="store_true", help="also heddle with compiled steps")
    parser.add_argument("--llama", action="store_true", help="also llama.cpp, for each kind of weights")
    parser.add_argument("--tree", type=Path, help="another checkout of heddle to compare with")
    parser.add_argument("--json", type=Path)
    for name in ("--library", "--weights"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--contender", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.contender:
        contender(arguments)
        return
    result = race(arguments)
    show(result)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    main()
