"""Shakespeare by characters: heddle's run file compared with a plain fp32 loop of the same shape, in turns, over several seeds.

    python recipes/shakespeare.py [TEXT] [--seeds 3] [--json FILE]

The losses are of the last tenth of the text, in windows of 64 that do not overlap, as a mean over all targets: `heddle eval RUN`
for heddle, the same windows for the plain loop. Wall times include only training for the loop, but the whole command (reading,
tokenizer, measuring, evaluations, saving, samples) for heddle.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from math import cos, pi
from pathlib import Path
from statistics import median
from typing import Any

from common import absent, count

ROOT = Path(__file__).parents[1]
TEXT = ROOT / "../shared/data/shakespeare/input.txt"
LAYERS, HEADS, WIDTH, CONTEXT, BATCH, STEPS = 4, 4, 128, 64, 12, 2000


def heddle(text: Path, seed: int, folder: Path) -> dict[str, float]:
    """Train and score with the command line."""
    run = folder / f"seed-{seed}"
    command = [sys.executable, "-m", "heddle"]
    began = time.perf_counter()
    words = ["train", str(ROOT / "recipes/shakespeare.toml"), str(text), f"seed={seed}", "--name", str(run)]
    subprocess.run([*command, *words], check=True, stdout=subprocess.DEVNULL, cwd=folder)
    seconds = time.perf_counter() - began
    done = subprocess.run(
        [*command, "eval", str(run), "--json"], check=True, capture_output=True, text=True, cwd=folder
    )
    return {"loss": json.loads(done.stdout)["loss"], "seconds": seconds}


def plain(text: Path, seed: int) -> dict[str, float]:
    """The same shape in torch's modules: fp32, eager, AdamW with nanoGPT's rates."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    torch.manual_seed(seed)
    characters = sorted(set(read := text.read_text(encoding="utf-8")))
    number = {character: i for i, character in enumerate(characters)}
    ids = torch.tensor([number[character] for character in read])
    train, held_out = ids[: int(len(ids) * 0.9)], ids[int(len(ids) * 0.9) :]

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.positions = nn.Embedding(len(characters), WIDTH), nn.Embedding(CONTEXT, WIDTH)
            layer = nn.TransformerEncoderLayer(
                WIDTH, HEADS, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True, bias=False
            )
            self.blocks = nn.TransformerEncoder(layer, LAYERS, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
            self.mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT)
            for parameter in self.parameters():
                if parameter.dim() > 1:
                    nn.init.normal_(parameter, std=0.02)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            length = x.shape[1]
            h = self.tokens(x) + self.positions(torch.arange(length))
            hidden: torch.Tensor = self.blocks(h, mask=self.mask[:length, :length], is_causal=True)
            return hidden @ self.tokens.weight.T

    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1)
    began = time.perf_counter()
    for step in range(STEPS):
        decay = 0.1 + 0.9 * (1 + cos(pi * max(0, step - 100) / (STEPS - 100))) / 2
        optimizer.param_groups[0]["lr"] = 1e-3 * (min(1.0, (step + 1) / 100) if step < 100 else decay)
        starts = torch.randint(len(train) - CONTEXT - 1, (BATCH,)).tolist()
        rows = torch.stack([train[start : start + CONTEXT + 1] for start in starts])
        loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    seconds = time.perf_counter() - began
    nats = 0.0
    with torch.no_grad():
        model.eval()
        for start in range(0, len(held_out) - 1, CONTEXT):
            row = held_out[start : start + CONTEXT + 1]
            nats += F.cross_entropy(model(row[None, :-1])[0], row[1:], reduction="sum").item()
    return {"loss": nats / (len(held_out) - 1), "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", nargs="?", type=Path, default=TEXT)
    parser.add_argument("--seeds", type=count, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    text = arguments.text.resolve()
    if not text.is_file():
        absent(f"{text.parent} has no {text.name}; name the text: python recipes/shakespeare.py input.txt")
    rows: dict[str, list[dict[str, float]]] = {"heddle": [], "plain fp32 loop": []}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(arguments.seeds):
            contenders: dict[str, Callable[[], dict[str, float]]] = {
                "heddle": partial(heddle, text, seed, Path(folder)),
                "plain fp32 loop": partial(plain, text, seed),
            }
            for name, run in contenders.items():
                rows[name].append(run())
                print(f"seed {seed}, {name}: {rows[name][-1]}", file=sys.stderr)
    print("| | validation loss, each seed | median | wall time, median |\n|---|---|---|---|")
    result: dict[str, Any] = {}
    for name, runs in rows.items():
        losses, seconds = [run["loss"] for run in runs], median(run["seconds"] for run in runs)
        print(f"| {name} | {', '.join(f'{loss:.4f}' for loss in losses)} | {median(losses):.4f} | {seconds:.0f} s |")
        result[name] = {"losses": losses, "median_loss": median(losses), "median_seconds": seconds}
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
