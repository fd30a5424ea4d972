"""`heddle prove`."""

import sys
from pathlib import Path

from rich.text import Text

from heddle.account.resolve import changed
from heddle.cli.options import Json, Model
from heddle.cli.output import RUNS, console, print_json, table
from heddle.errors import HeddleError
from heddle.prove import Proof, prove_config, prove_run


def prove(
    model: Model, /, *changes: str, compile: bool = False, kills: int = 0, seed: int = 0, json: Json = False
) -> None:
    """Verify that a model predicts with the function it was trained with and, for a run, that its training was correct.

    The exit code is 1 if a check fails. A run's proof is saved in its directory as proof.json.

    Parameters
    ----------
    changes
        Config overrides as key=value, such as decoder.block.mixer.window=7; not for a run, whose weights fix its config.
    compile
        Also check the model under torch.compile.
    kills
        For a run: train short copies of it, kill them this many times at random moments, resume them, and compare the results
        byte for byte.
    seed
        Seed of the test inputs and of random weights.
    """
    run_directory = next((path for path in (RUNS / model, Path(model)) if any(path.glob("model*.safetensors"))), None)
    out = console(json)
    with out.status("") as status:

        def report(check: str) -> None:
            status.update(Text(f"checking: {check}"))

        if run_directory is None and kills:
            raise HeddleError(f"{model} is not a finished run: train one to its end, or leave out --kills")
        if run_directory is None:
            config_path = RUNS / model
            name, config = changed(str(config_path) if (config_path / "config.json").is_file() else model, changes)
            proof = prove_config(config, name, compile, report, seed)
        elif changes:
            raise HeddleError(
                f"{run_directory} has trained weights, so its config cannot change: leave out {changes[0]}"
            )
        else:
            proof = prove_run(run_directory, model, compile, report, seed, kills)
    if json:
        print_json(proof.to_dict())
    else:
        _print_proof(proof)
    if not proof.holds:
        sys.exit(1)


def _print_proof(proof: Proof) -> None:
    out = console()
    if proof.reduced:
        out.print(f"{proof.name} is large: checking its architecture at width {proof.config.dim}, with random weights.")
    rows = [
        [verdict.check, verdict.word,
         f"{verdict.error:.1e}" if verdict.error else "", f"{verdict.bound:.1e}" if verdict.error else "",
         "; ".join(part for part in (verdict.layer and f"from {verdict.layer} on", verdict.detail) if part)]
        for verdict in proof.verdicts
    ]  # fmt: skip
    out.print(table(["check", "verdict", "difference", "allowed", ""], rows))
    failed = [verdict for verdict in proof.verdicts if not verdict.holds]
    passed = sum(verdict.word in ("EXACT", "ROUNDING") for verdict in proof.verdicts)
    summary = f"{len(failed)} checks FAILED" if failed else f"{passed} checks passed"
    out.print(
        f"\n{summary}; the tolerance is 8 times the rounding error, which is {proof.rounding:.1e} of the largest logit."
    )
