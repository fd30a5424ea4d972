"""Resolves a name to a model: a preset, the directory of a run, or a file."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from heddle.checks import checked, names_file
from heddle.config.base import parse_overrides, read_table
from heddle.config.model import TransformerConfig
from heddle.config.presets import preset, preset_names
from heddle.config.run import RunConfig
from heddle.config.saved import SavedConfig
from heddle.errors import HeddleError, did_you_mean

# For a run file that sets neither; a real run chooses them by measurement.
DEPTH, CONTEXT = 4, 256


@checked()
def changed(name: str, words: Sequence[str] = ()) -> tuple[str, TransformerConfig]:
    """`resolve` a name, then apply `key=value` words to the config, such as `dim=4096` or `decoder.block.norm.kind=rms`.

    Raises:
        HeddleError: as `resolve`, or the changed config is invalid.
    """
    called, config = resolve(name)
    if not words:
        return called, config
    return " ".join((called, *words)), config.override(parse_overrides(words))


@checked()
def resolve(name: str) -> tuple[str, TransformerConfig]:
    """The name and the config of the model that a word on the command line refers to.

    Args:
        name: a preset; a run's or an imported model's directory, which has a `config.json`; a `.json` or `.toml` file
            with a model, a saved config or a run. A run file has no vocabulary: its `tokenizer_size` is used.

    Raises:
        HeddleError: it is something else, or the file does not describe a model.
    """
    if name in preset_names():
        return name, preset(name)
    path, usable = Path(name), names_file(name)
    if usable and path.is_dir():
        if not (path / "config.json").is_file():
            raise HeddleError(f"{path} has no config.json, so it is not a run; name a run, a preset or a file.")
        return path.resolve().name, _model(read_table(path / "config.json"), path / "config.json")
    if usable and path.is_file():
        return path.stem, _model(read_table(path), path)
    raise HeddleError(
        f"{name!r} is not a preset, a run directory or a file.{did_you_mean(name, preset_names())} "
        "`heddle presets` lists the presets; a file ends in .toml or .json."
    )


def _model(data: Mapping[str, Any], path: Path) -> TransformerConfig:
    """The model in the table of a file: a model, a saved config or a run."""
    where = str(path)
    model = data.get("model")
    if "version" in data or (isinstance(model, Mapping) and "vocab_size" in model):
        return SavedConfig.of(data, where).model
    if {"model", "data", "train"} & set(data):
        run = RunConfig.of(data, where)
        return run.model.resolve(run.data.tokenizer_size, DEPTH, CONTEXT, run.task)
    if "model_type" in data or "architectures" in data:
        raise HeddleError(f"{path} is another library's config; import the model with `heddle import`.")
    # `heddle presets NAME --json` also prints `training`.
    return TransformerConfig.of({key: value for key, value in data.items() if key != "training"}, where)
