"""`heddle prove`."""

import sys
from pathlib import Path

from rich.text import Text

from heddle.account.resolve import changed
from heddle.cli.output import RUNS, console, print_json, table
from heddle.errors import HeddleError
from heddle.prove import Proof, prove_config, prove_run


def prove(
    model: str, /, *changes: str, compile: bool = False, kills: int = 0, seed: int = 0, json: bool = False
) -> None:
    """Prove that a model predicts with the function that was trained and, for a run, that its training computed what it should.

    Exit code 1 when a check fails. A run's proof is kept in its directory as proof.json.

    Parameters
    ----------
    model
        A preset, a run, or a .toml or .json file that describes a model.
    changes
        `key=value`: settings to change, such as decoder.block.mixer.window=7; not for a run, whose weights are fixed.
    compile
        Also check the model under torch.compile.
    kills
        For a run: train short copies of it, kill them this many times at random moments, resume them, and compare what they
        end with, byte for byte.
    seed
        Seed of the texts tried and of random weights.
    json
        One JSON document on stdout.
    """
    folder = next((path for path in (RUNS / model, Path(model)) if (path / "model.safetensors").is_file()), None)
    out = console(json)
    with out.status("") as status:

        def tell(check: str) -> None:
            status.update(Text(f"checking: {check}"))

        if folder is None and kills:
            raise HeddleError(f"{model} is no run, so there is no training to kill; leave out --kills")
        if folder is None:
            run = RUNS / model
            name, config = changed(str(run) if (run / "config.json").is_file() else model, changes)
            proof = prove_config(config, name, compile, tell, seed)
        elif changes:
            raise HeddleError(f"{folder} has weights, and {changes[0]} would be another model; leave it out")
        else:
            proof = prove_run(folder, model, compile, tell, seed, kills)
    if json:
        print_json(proof.to_dict())
    else:
        _show(proof)
    if not proof.holds:
        sys.exit(1)


def _show(proof: Proof) -> None:
    out = console()
    if proof.reduced:
        out.print(f"{proof.name} is large: its choices are checked at width {proof.config.dim}, with random weights.")
    rows = [
        [each.check, each.word, f"{each.error:.1e}" if each.error else "", f"{each.bound:.1e}" if each.error else "",
         "; ".join(part for part in (each.layer and f"from {each.layer} on", each.detail) if part)]
        for each in proof.verdicts
    ]  # fmt: skip
    out.print(table(["check", "verdict", "difference", "allowed", ""], rows))
    failed = [each for each in proof.verdicts if not each.holds]
    held = sum(each.word in ("EXACT", "ROUNDING") for each in proof.verdicts)
    word = f"{len(failed)} checks FAILED" if failed else f"{held} checks hold"
    out.print(f"\n{word}; rounding is {proof.rounding:.1e} of the largest logit here, and 8 times that is allowed.")
