"""`heddle data show`."""

from dataclasses import asdict

from heddle.cli.say import console, document, find_run, pluralize, table
from heddle.train.show import ShownMask, show_step


def show(run: str, /, *, step: int = 1, rows: int = 1, length: int = 32, json: bool = False) -> None:
    """Show what a step reads: tokens, what each place predicts, and which tokens it may attend to.

    Parameters
    ----------
    run
        A run directory, or its name in runs/. It need not have been trained yet, and is not changed.
    step
        The step, from 1.
    rows
        How many rows of the batch to show.
    length
        How many places of each row to show.
    json
        One JSON document on stdout.
    """
    found = show_step(find_run(run), step, rows, length)
    if json:
        document({"run": str(find_run(run)), **asdict(found)})
        return
    out = console()
    share = f"{pluralize(found.targets, 'target')} in {pluralize(found.places, 'place')}"
    out.print(f"step {found.step} of {found.steps}: {found.described}; {share}", markup=False)
    columns = ["place", "id", "token", "predicts", "id", "weight", "position", "segment"]
    for number, row in enumerate(found.rows):
        cells = zip(
            range(len(row.tokens)),
            row.tokens,
            map(repr, row.pieces),
            ["" if piece is None else repr(piece) for piece in row.predicts],
            ["" if target is None else target for target in row.targets],
            row.weights,
            row.positions,
            row.segments,
            strict=True,
        )
        out.print(table(columns, cells, f"\nrow {number}"))
    for mask in found.masks:
        out.print("\n" + picture(mask), markup=False)


def picture(mask: ShownMask) -> str:
    """A mask as text: a line for each query, a mark for each key that it may attend to."""
    layers = ", ".join(map(str, mask.layers))
    lines = ["".join("█" if seen else "·" for seen in query) for query in mask.seen]
    return "\n".join([f"{mask.stack}, layers {layers}, row 0: {mask.rule}", *lines])
