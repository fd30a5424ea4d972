"""`heddle look --model`: the architecture as a drawing."""

from dataclasses import asdict
from pathlib import Path

from heddle.cli.output import console, find_run, print_json, table
from heddle.config.presets import preset, preset_names
from heddle.look import draw, write_drawing
from heddle.weights.run import read_config


def print_model(name: str, path: Path, json: bool) -> None:
    """Draw a run's model or a preset, and list its parts."""
    config = preset(name) if name in preset_names() and not Path(name).exists() else read_config(find_run(name)).model
    drawing = draw(config)
    write_drawing(drawing, path)
    if json:
        print_json({"drawing": str(path), **asdict(drawing)})
        return
    rows = [
        [box.name, box.label, box.shape, f"{box.parameters:,}", count, f"{box.parameters * count:,}"]
        for box, count in drawing.boxes()
    ]
    out = console()
    title = f"{drawing.title}: {drawing.parameters:,} parameters"
    out.print(table(["box", "what it is", "shape", "parameters", "times", "in all"], rows, title))
    out.print(f"written: {path}", markup=False)
