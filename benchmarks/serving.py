"""The server under load: requests that a fuzzer makes, and streams whose clients leave.

    python benchmarks/serving.py --fuzz 2000        # cases from the server's own description; no answer may be 5xx
    python benchmarks/serving.py --streams 200 [RUN] [--leave 0.25 --tokens 64 --rows 32]

Without RUN, the models are tiny with random weights. `--streams` starts so many streams within two seconds; a share of the clients
leaves after a random number of tokens. Every other stream must end, no text may be left in the engine, and the texts per second,
and the 50th and 99th percentile of the times to the first token and between tokens, are reported.
"""

import argparse
import asyncio
import json
import random
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
CHECKS = "not_a_server_error,status_code_conformance,response_schema_conformance,content_type_conformance"
PATIENCE = 30  # seconds until no text may be left


def fuzz(url: str, cases: int, seed: int = 0) -> dict[str, Any]:
    """Send at least so many cases. Raises SystemExit with the fuzzer's report if one of them fails."""
    few = (
        cases < 1000
    )  # drawn requests alone; otherwise also a systematic walk through the description, over 1,000 cases
    sent, examples = 0, cases // 6 + 1 if few else cases // 40  # of each operation; few: six read a body
    while sent < cases:
        command = [sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json", "--checks", CHECKS]
        command += ["--max-examples", str(examples), "--seed", str(seed), "--no-color"]
        command += ["--phases", "fuzzing"] if few else []
        result = subprocess.run(command, capture_output=True, text=True)
        counts = re.search(r"(\d+) generated, (\d+) passed", result.stdout)
        if result.returncode or counts is None:
            raise SystemExit(result.stdout + result.stderr)
        sent, seed = sent + int(counts[2]), seed + 1
    return {"cases": sent, "failed": 0}


async def one_stream(client: Any, model: str, number: int, tokens: int, leave: float) -> dict[str, Any]:
    """One stream: when its tokens came, and whether its client left."""
    chance = random.Random(number)
    await asyncio.sleep(2 * chance.random())
    last = chance.randrange(1, tokens) if chance.random() < leave else None
    began, times = time.perf_counter(), list[float]()
    stream = await client.completions.create(
        model=model, prompt=f"warp {number}", max_tokens=tokens, seed=number, stream=True
    )
    finish = None
    async for part in stream:
        times.append(time.perf_counter())
        finish = part.choices[0].finish_reason
        if last is not None and len(times) >= last:
            await stream.close()
            return {"began": began, "times": times, "left": True}
    return {"began": began, "times": times, "left": False, "finish": finish}


async def every_stream(url: str, model: str, streams: int, tokens: int, leave: float) -> list[dict[str, Any]]:
    """All streams, which try again where the queue is full."""
    import openai

    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=100, timeout=600) as client:
        made = (one_stream(client, model, number, tokens, leave) for number in range(streams))
        return await asyncio.gather(*made)


def load(url: str, model: str, streams: int, tokens: int, leave: float) -> dict[str, Any]:
    """Start streams and report their times. Raises SystemExit if one does not end, or if a text is left in the engine."""
    import httpx2

    began = time.perf_counter()
    outcome = asyncio.run(every_stream(url, model, streams, tokens, leave))
    seconds = time.perf_counter() - began
    if any(not each["left"] and each["finish"] is None for each in outcome):
        raise SystemExit("a stream ended without a reason")
    patience = time.monotonic() + PATIENCE
    while left := _texts(httpx2.get(f"{url}/metrics").text, model):
        if time.monotonic() > patience:
            raise SystemExit(f"{left} texts are left in the engine")
        time.sleep(0.1)
    first = [each["times"][0] - each["began"] for each in outcome if each["times"]]
    between = [gap for each in outcome for gap in np.diff(each["times"])]
    drawn = sum(len(each["times"]) for each in outcome)
    return {
        "streams": streams,
        "left": sum(each["left"] for each in outcome),
        "tokens per second": round(drawn / seconds, 1),
        "seconds": round(seconds, 2),
        "first token, ms (p50, p99)": [round(1000 * float(np.percentile(first, share)), 1) for share in (50, 99)],
        "between tokens, ms (p50, p99)": [round(1000 * float(np.percentile(between, share)), 1) for share in (50, 99)],
    }


def _texts(metrics: str, model: str) -> int:
    """Texts that grow or wait."""
    counts = re.findall(rf'heddle:num_requests_\w+{{model_name="{re.escape(model)}"}} ([\d.]+)', metrics)
    return int(sum(map(float, counts)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", nargs="?", type=Path)
    parser.add_argument("--fuzz", type=int)
    parser.add_argument("--streams", type=int)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--leave", type=float, default=0.25)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.fuzz is None and arguments.streams is None:
        raise SystemExit("give --fuzz CASES, --streams COUNT, or both")

    from heddle.config import EngineConfig
    from heddle.config.serve import ServeConfig
    from heddle.serve import ServedRun
    from heddle.weights import load as load_run
    from tests.serve.conftest import Server

    runs = None
    if arguments.run is not None:
        model, tokenizer = load_run(arguments.run, "cpu")
        assert tokenizer is not None
        runs = [ServedRun(arguments.run.name, model.eval(), tokenizer)]
    config = ServeConfig(engine=EngineConfig(rows=arguments.rows, queue=256, chunk=512, keep=4), seconds=120.0)
    server, result = Server(config, runs), dict[str, Any]()
    try:
        if arguments.fuzz is not None:
            result["fuzz"] = fuzz(server.url, arguments.fuzz)
        if arguments.streams is not None:
            name = next(iter(server.models))
            result["load"] = load(server.url, name, arguments.streams, arguments.tokens, arguments.leave)
    finally:
        server.stop()
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
