"""What the README promises runs as written."""

import json
import re
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from heddle.cli.main import make_app
from heddle.config import RunConfig
from tests.cli.conftest import Heddle
from tests.cli.conftest import heddle as heddle

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def printed(code: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What a program prints. It runs here, where the modules that it needs are: a process of its own would import them again."""
    capsys.readouterr()
    exec(compile(code, "<page>", "exec"), {"__name__": "__main__"})
    return capsys.readouterr().out


def test_the_first_code_of_the_readme_runs(heddle: Heddle, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[0]
    assert len(code.strip().splitlines()) <= 11
    # Somebody may try it again; one step of training is enough to come to what the first time left.
    twice = f"{code}\nprint('again')\n{code.replace('steps=40', 'steps=1')}"
    output = printed(twice, capsys)
    first, last = map(float, re.search(r"loss ([\d.]+) -> ([\d.]+)", output).groups())
    assert last < first / 3
    assert " lifts the threads it owns." in output
    assert (tmp_path / "runs/first/model.safetensors").is_file()


def test_the_configs_to_prove_hold(heddle: Heddle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As written: one of attention, and one with a mixer of one's own instead, padding and packing among its checks."""
    mixer = next(code for code in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "class MyMixer" in code)
    attention, custom = re.findall(r"```toml\n(.*?)```", README.split("## Proving a model")[1], re.DOTALL)[:2]
    config = attention.split("[decoder.block.mixer]")[0] + custom
    target = tomllib.loads(config)["decoder"]["block"]["mixer"]["target"].removesuffix(":MyMixer")
    module = tmp_path / (target.replace(".", "/") + ".py")
    module.parent.mkdir()
    module.write_text("import torch\nfrom torch import nn\n\n" + mixer)
    (tmp_path / "mine.toml").write_text(config)
    (tmp_path / "attention.toml").write_text(attention)
    monkeypatch.setattr(sys, "path", [*sys.path])  # the command adds the folder
    assert heddle("prove", "attention.toml").code == 0
    assert "`heddle prove mine.toml`" in README
    done = heddle("prove", "mine.toml", "--json")
    assert done.code == 0, done
    words_by_check = {check["check"]: check["word"] for check in done.json["checks"]}
    assert {"DIFFERENT", "NOT CHECKED"}.isdisjoint(
        {words_by_check[name] for name in ("causality", "packing", "padding on the left")}
    )


def test_the_run_files_of_the_readme_are_read() -> None:
    texts = [text for text in re.findall(r"```toml\n(.*?)```", README, re.DOTALL) if "[data]" in text]
    assert len(texts) == 3
    assert {RunConfig.of(tomllib.loads(text)).task.kind for text in texts} == {
        "next_token",
        "classification",
        "contrastive",
    }


def test_every_command_of_the_readme_exists() -> None:
    known = {name for name in make_app() if not name.startswith("-")}
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    shell = "".join(body for language, body in blocks if not language)
    named = set(re.findall(r"^heddle (\w+)", shell, re.MULTILINE))
    assert named
    assert named <= known
    assert known <= named, "a command that the README does not show"


TRAINING = (ROOT / "docs/training.md").read_text(encoding="utf-8")


def test_the_code_of_the_guide_to_training_runs(
    heddle: Heddle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From top to bottom, in one process; the classifier has learned, and the run is proved."""
    code = "\n".join(re.findall(r"```python\n(.*?)```", TRAINING, re.DOTALL))
    output = printed(code, capsys)
    assert float(re.search(r"accuracy ([\d.]+)", output).group(1)) > 0.9
    assert output.splitlines()[-2] == "True"
    assert json.loads((tmp_path / "runs/mine/manifest.json").read_text())["step"] == 30


def test_every_command_has_a_call_that_exists() -> None:
    rows = re.findall(r"^\| `(heddle .*?)\|(.*)\|$", TRAINING, re.MULTILINE)
    calls = {call for _, cell in rows for call in re.findall(r"`(heddle\.[\w.]+)`", cell)}
    assert len(rows) > 10
    for call in calls:
        module, _, name = call.rpartition(".")
        assert callable(getattr(import_module(module), name)), call
    named = {" ".join(words.split()[1:2]).strip("`") for words, _ in rows}
    known = {name for name in make_app() if not name.startswith("-")}
    # This one lists names, and computes nothing.
    assert known - named <= {"presets"}
    assert named <= known


@pytest.mark.parametrize("page", ["README.md", "docs/architecture.md", "docs/benchmarks.md", "docs/training.md"])
def test_links_between_pages_lead_somewhere(page: str) -> None:
    file = ROOT / page
    for link in re.findall(r"\]\(([^)#:]+)\)", file.read_text(encoding="utf-8")):
        assert (file.parent / link).exists(), f"{page} links to {link}"


def test_the_code_about_looking_inside_runs(heddle: Heddle, capsys: pytest.CaptureFixture[str]) -> None:
    """On a run named as in the text."""
    _, code = re.findall(r"```python\n(.*?)```", (ROOT / "docs/look.md").read_text(encoding="utf-8"), re.DOTALL)
    made = (
        "import heddle\nfrom heddle.config import TransformerConfig\n"
        "from heddle.text import train_tokenizer\nfrom heddle.weights import save\n"
        "tokenizer = train_tokenizer('bytes', ['the man eats fish'])\n"
        "stack = {'depth': 1, 'block': {'mixer': {'heads': 2}}}\n"
        "config = {'vocab_size': tokenizer.vocab_size, 'dim': 16, 'context': 64, 'decoder': stack}\n"
        "save(heddle.build(TransformerConfig.of(config)), 'runs/mine', tokenizer)\n"
    )
    check = "\nassert layer.error() < 1e-5 and layer.weights(heads=1).shape == (1, 1, 12, 12)\n"
    printed(made + code + check, capsys)
