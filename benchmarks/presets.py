"""Train, stop, resume and prove every preset at laptop size, by every task that its stacks can do.

    python benchmarks/presets.py [--only laptop-moe …] [--tasks masked …] [--steps 6] [--no-proof] [--json]

A preset keeps its choices (norms, positions, attention, experts, placement) and gets a small width, depth and context, except for
the laptop presets, which keep everything but their context. Each run is made from one run file, trained to its end, trained again
from the same start with a stop half-way, compared byte for byte, and proved by `heddle prove`.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

WORDS = "the warp is held and weft thrown while heddles lift threads they own over under again until cloth grows"
TASKS = {
    ("decoder",): ("next_token", "translation", "classification", "token_classification", "regression"),
    ("encoder",): ("masked", "classification", "token_classification", "regression"),
    ("encoder", "decoder"): ("translation", "span_corruption"),
}


@dataclass
class Trained:
    """What came of one preset and one task."""

    preset: str
    task: str
    seconds: float
    parameters: int
    loss: float
    resumed: bool  # the stopped and resumed run ended bit-equal
    proved: bool
    problems: list[str]


def write_data(task: str, folder: Path) -> str:
    """A small file of the kind that the task reads."""
    draw = random.Random(0)
    rows = [" ".join(draw.choices(WORDS.split(), k=draw.randint(4, 12))) for _ in range(300)]
    if task in ("next_token", "masked", "span_corruption"):
        file, lines = folder / "text.txt", rows
    elif task == "translation":
        file, lines = folder / "pairs.tsv", ["source\ttarget", *(f"{row}\t{row.upper()}" for row in rows)]
    elif task == "token_classification":
        file = folder / "words.conll"
        lines = ["\n".join(f"{word} {'LONG' if len(word) > 4 else 'O'}" for word in row.split()) + "\n" for row in rows]
    else:
        file = folder / "table.csv"
        of_class = task == "classification"
        lines = ["text,label", *(f"{row},{'the' in row if of_class else len(row)}" for row in rows)]
    file.write_text("\n".join(lines) + "\n")
    return str(file)


def small(preset: str) -> dict[str, Any]:
    """The model section of a run file: the preset, made small where it is not."""
    import heddle
    from heddle.prove import laptop as at_laptop_size

    config = heddle.preset(preset)
    if preset.startswith("laptop"):
        return {"preset": preset, "context": 64}
    laptop = at_laptop_size(config)
    settings: dict[str, Any] = {"preset": preset, "dim": laptop.dim, "context": min(64, laptop.context)}
    for name, stack in laptop.stacks().items():
        settings[name] = stack.to_dict()
    return settings


def one(preset: str, task: str, steps: int, proof: bool, folder: Path) -> Trained:
    """Train one preset by one task, twice, and prove it."""
    from heddle.config import RunConfig
    from heddle.prove import prove_run
    from heddle.runs import Interrupted, Trainer, prepare
    from heddle.weights.checkpoints import checkpoints

    began = time.perf_counter()
    tokenizer = {"tokenizer": "bpe", "tokenizer_size": 400}
    train = {
        "steps": steps,
        "batch": 8,
        "precision": "fp32",
        "products": "torch",
        "compile": "off",
        "evaluate_every": 3,
    }
    config = {"data": {"sources": [write_data(task, folder)], **tokenizer}, "model": small(preset), "task": task}
    runs = [folder / name for name in ("whole", "stopped")]
    for run in runs:
        planned = prepare(RunConfig.of({**config, "train": train}), run)
    loss = Trainer(runs[0]).run().loss
    trainer = Trainer(runs[1])
    trainer.readers.append(lambda report: trainer.stop.set() if report.step == steps // 2 else None)
    problems = []
    try:
        trainer.run()
        problems.append("it did not stop")
    except Interrupted:
        Trainer(runs[1]).run()
    names = ["model.safetensors", "metrics.jsonl"]
    last = [checkpoints(run)[0][1] for run in runs]
    pairs = [(runs[0] / name, runs[1] / name) for name in names] + [
        (file, last[1] / file.name) for file in sorted(last[0].iterdir()) if file.suffix == ".safetensors"
    ]
    different = [own_file.name for own_file, other in pairs if own_file.read_bytes() != other.read_bytes()]
    problems += [f"resumed: {name} differs" for name in different]
    verdicts = prove_run(runs[0], preset).verdicts if proof else ()
    problems += [f"{each.check}: {each.detail or each.layer}" for each in verdicts if not each.holds]
    proved = proof and all(each.holds for each in verdicts)
    seconds = time.perf_counter() - began
    return Trained(preset, task, seconds, planned.parameters, loss, not different, proved, problems)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", help="names of presets, or their beginnings; default: all")
    parser.add_argument("--tasks", nargs="*")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--no-proof", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    import heddle
    from heddle.errors import HeddleError

    done = []
    for preset in heddle.config.preset_names():
        if options.only and not any(preset.startswith(each) for each in options.only):
            continue
        for task in TASKS[tuple(heddle.preset(preset).stacks())]:
            if options.tasks and task not in options.tasks:
                continue
            with tempfile.TemporaryDirectory() as folder:
                try:
                    outcome = one(preset, task, options.steps, not options.no_proof, Path(folder))
                except HeddleError as error:
                    outcome = Trained(preset, task, 0.0, 0, float("nan"), False, False, [str(error)])
            done.append(outcome)
            if not options.json:
                words = (
                    f"loss {outcome.loss:.3f}",
                    "resumed" * outcome.resumed,
                    "proved" * outcome.proved,
                    *outcome.problems,
                )
                print(f"{preset:16} {task:20} {outcome.seconds:5.1f} s  {'; '.join(filter(None, words))}", flush=True)
    bad = [each for each in done if each.problems]
    if options.json:
        print(json.dumps([asdict(each) for each in done], indent=2))
    else:
        print(f"{len(done)} runs, {len(bad)} with problems")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
