"""Norms before or after the residual sums, twelve layers, no warm-up: final validation losses over several seeds, and a plot.

python recipes/norms.py [TEXT] [--seeds 3 --runs DIR --plot norms.png] [--json FILE]
"""

from pathlib import Path

from common import DATA, HERE, absent, heddle, heddle_json, minutes, parser, report, spread


def main() -> None:
    more = parser(__doc__, seeds=3)
    more.add_argument("text", nargs="?", type=Path, default=DATA / "shakespeare/input.txt")
    more.add_argument("--plot", type=Path)
    arguments = more.parse_args()
    if not arguments.text.is_file():
        absent(
            f"{arguments.text.parent} has no {arguments.text.name}; name the text: python recipes/norms.py input.txt"
        )
    rows, runs = [], []
    for placement in ("pre", "post"):
        losses, seconds = [], []
        for seed in range(arguments.seeds):
            run = arguments.runs / f"norms-{placement}-{seed}"
            settings = [f"decoder.block.placement={placement}", f"seed={seed}", "--name", run]
            seconds.append(heddle("train", HERE / "norms.toml", arguments.text, *settings))
            losses.append(heddle_json("eval", run)["loss"])
            runs.append(run)
        rows.append([placement, spread(losses, 4), minutes(seconds)])
    if arguments.plot is not None:
        heddle("runs", *runs, "--plot", arguments.plot)
    report(["norm", "validation loss", "training"], rows, arguments.json)


if __name__ == "__main__":
    main()
