"""How the code is kept: imports go down, nothing is pickled, importing is light, files stay short."""

import ast
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from scripts.house import (
    FLOORS,
    MACHINE_PATH,
    MOST_FILES,
    MOST_LINES,
    MOST_LINES_OF_PACKAGE,
    circles,
    faults,
    floor_faults,
    imported,
    module_faults,
    name_faults,
    nodes,
    old_name_faults,
    prose_faults,
    python_prose,
    size_faults,
    sources,
)

ROOT = Path(__file__).parents[1]
HEDDLE = ROOT / "heddle"

LIGHT_FLOORS = 3  # the lowest ones do not import torch

PICKLES = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}
UNSAFE_NAMES = {"torch.load", "torch.save", "torch.serialization.load", "torch.serialization.save"}
UNSAFE_ARGUMENTS = {"allow_pickle", "trust_remote_code"}
# A source without any of these words is not parsed, which takes long.
SUSPECT = re.compile("|".join([*sorted(PICKLES | UNSAFE_ARGUMENTS), r"\b(?:load|save)\b"]))


def pickle_faults(source: str) -> list[str]:
    """Say where a source unpickles, pickles, or runs code that came with weights."""
    if not SUSPECT.search(source):
        return []
    parts = nodes(source)
    imports = list(imported(parts, ""))
    faults = [f"{line}: imports {name}" for line, name in imports if name.split(".")[0] in PICKLES]
    faults += [f"{line}: imports {name}" for line, name in imports if name in UNSAFE_NAMES]
    short = {a.asname: a.name for n in parts if isinstance(n, ast.Import) for a in n.names if a.asname}
    for node in parts:
        if isinstance(node, ast.Attribute) and node.attr in {"load", "save"}:
            first, dot, rest = ast.unparse(node).partition(".")
            name = short.get(first, first) + dot + rest
            if name in UNSAFE_NAMES:
                faults.append(f"{node.lineno}: uses {name}")
        elif isinstance(node, ast.keyword) and node.arg in UNSAFE_ARGUMENTS and ast.unparse(node.value) != "False":
            faults.append(f"{node.value.lineno}: passes {node.arg}={ast.unparse(node.value)}")
    return faults


def init_faults(source: str) -> list[str]:
    """Say what an ``__init__`` holds beside a docstring, imports, ``__all__``, literals and a module ``__getattr__``."""
    tree = ast.parse(source)
    faults = [] if ast.get_docstring(tree) else ["no docstring"]
    named = [n for n in tree.body if isinstance(n, ast.Assign | ast.AnnAssign) and ast.unparse(n).startswith("__all__")]
    faults += [] if named else ["no __all__"]

    def allowed(node: ast.stmt) -> bool:
        if isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}:
            return not node.orelse and all(allowed(inner) for inner in node.body)
        lazy = isinstance(node, ast.FunctionDef) and node.name in {"__getattr__", "__dir__"}
        return lazy or node in named or plain(node) or isinstance(node, ast.Import | ast.ImportFrom)

    def plain(node: ast.stmt) -> bool:
        """Whether a statement names literal data: a version, or where lazy names live."""
        if not isinstance(node, ast.Assign) or ast.unparse(node.value) == "{}":  # an empty one is there to be filled
            return False
        return all(isinstance(part, ast.Constant | ast.Dict | ast.Tuple | ast.Load) for part in ast.walk(node.value))

    body = tree.body[1:] if ast.get_docstring(tree) is not None else tree.body
    return faults + [f"line {node.lineno} does work: {ast.unparse(node)[:60]}" for node in body if not allowed(node)]


def prefixed(path: Path, faults: Iterable[str]) -> list[str]:
    return [f"{path.relative_to(ROOT)}: {fault}" for fault in faults]


@pytest.mark.parametrize(
    ("module", "source", "fault"),
    [
        ("heddle.nn.mask", "from heddle.model import Transformer", "upwards"),
        ("heddle.nn.mask", "import heddle.train.loop", "upwards"),
        ("heddle.nn.mask", "def late():\n    from heddle.generate.stream import stream", "upwards"),
        ("heddle.nn.mask", "from ..model.stack import Stack", "upwards"),
        ("heddle.nn.mask", "import importlib\nimportlib.import_module('heddle.serve')", "upwards"),
        ("heddle.data.order", "from heddle import weights", "sideways"),
        ("heddle.text.chat_template", "from heddle.config.model import TransformerConfig", "sideways"),
        ("heddle.generate.stream", "from heddle.train import fit", "upwards"),
        ("heddle.train.step", "from heddle.runs import prepare", "upwards"),
        ("heddle.weights.run", "from heddle.convert import import_model", "upwards"),
        ("heddle.runs.trainer", "from heddle.prove import prove", "upwards"),
        ("heddle.runs.trainer", "from heddle.predict import embed", "sideways"),
        ("heddle.errors", "import heddle.config", "upwards"),
        ("heddle.model.build", "import heddle", "no package"),
        ("heddle.model.build", "from heddle import Transformer", "no package"),
        ("heddle.extra.thing", "", "no floor"),
    ],
)
def test_a_wrong_import_is_found(module: str, source: str, fault: str) -> None:
    (message,) = floor_faults(source, module)
    assert fault in message


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("heddle.train.loop", "from heddle.generate.stream import stream\nfrom heddle.errors import HeddleError"),
        (
            "heddle.text.chat_template",
            "from heddle.errors import HeddleError\nfrom heddle.text.tokenizer import Tokenizer",
        ),
        ("heddle.convert.families.llama", "from .. import names\nfrom . import shared\nfrom ...model import build"),
        ("heddle.cli.main", "from heddle import __version__\nimport heddle.serve.app"),
        ("heddle.nn.mask", "import torch\nfrom heddlework import model"),
    ],
)
def test_a_right_import_passes(module: str, source: str) -> None:
    assert not floor_faults(source, module)


def test_nothing_is_pickled() -> None:
    paths = sources("heddle", "benchmarks", "recipes", "tests")
    faults = [line for path in paths for line in prefixed(path, pickle_faults(path.read_text()))]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "def late():\n    from cloudpickle import dumps",
        "import joblib.externals",
        "import importlib\nimportlib.import_module('dill')",
        "import torch\ntorch.load('weights.pt', weights_only=True)",
        "import torch as t\nread = t.load",
        "import torch\ntorch.save({}, 'weights.pt')",
        "from torch import load as read",
        "from torch.serialization import save",
        "import numpy as np\nnp.load('rows.npy', allow_pickle=True)",
        "make(name, trust_remote_code=True)",
        "make(name, trust_remote_code=trusted)",
    ],
)
def test_a_pickle_is_found(source: str) -> None:
    assert pickle_faults(source)


def test_reading_safely_passes() -> None:
    source = "import json, numpy as np\nnp.load('rows.npy', allow_pickle=False)\nmake(trust_remote_code=False)"
    assert not pickle_faults(source)


def written(name: str) -> bool:
    return (HEDDLE / f"{name}.py").exists() or (HEDDLE / name / "__init__.py").exists()


LIGHT = """
import importlib, pkgutil, sys
for name in sys.argv[1:]:
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(getattr(package, "__path__", []), name + "."):
        importlib.import_module(module.name)
heavy = sorted({"torch", "transformers"} & sys.modules.keys())
assert not heavy, f"importing {sys.argv[1:]} brings {heavy}"
"""


LIGHT_ONES = [name for name in FLOORS if FLOORS[name] < LIGHT_FLOORS and written(name)] + ["cli.main"]


@pytest.mark.parametrize("name", LIGHT_ONES)
def test_importing_is_light(name: str) -> None:
    """The root, floor 0 and the command line's entry import without torch, so that ``heddle --help`` is instant."""
    call = [sys.executable, "-c", LIGHT, f"heddle.{name}"]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_heavy_import_is_found(tmp_path: Path) -> None:
    (tmp_path / "torch.py").touch()
    (tmp_path / "loom").mkdir()
    (tmp_path / "loom" / "__init__.py").touch()
    (tmp_path / "loom" / "deep.py").write_text("import torch")
    call = [sys.executable, "-c", LIGHT, "loom"]
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=False, env=os.environ)
    assert "brings ['torch']" in done.stderr


@pytest.mark.skipif("HEDDLE_CHECKED" in os.environ, reason="not all shapes are checked in this run")
@pytest.mark.parametrize(
    "name", [n for n in ("nn", "model", "data", "tasks", "train", "runs", "generate") if written(n)]
)
def test_shapes_are_checked(name: str) -> None:
    """The packages with tensor signatures are loaded through jaxtyping (see conftest.py), so a wrong shape fails."""
    spec = importlib.util.find_spec(f"heddle.{name}")
    assert spec is not None
    assert type(spec.loader).__module__.startswith("jaxtyping")


def test_packages_hold_their_public_names_only() -> None:
    faults = []
    for folder in sorted({path.parent for path in sources("heddle")}):
        init = folder / "__init__.py"
        faults += prefixed(init, init_faults(init.read_text()) if init.exists() else ["missing"])
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("from heddle.nn.mask import Mask\n__all__ = ['Mask']", "no docstring"),
        ("'''Masks.'''\nfrom heddle.nn.mask import Mask", "no __all__"),
        ("'''Masks.'''\n__all__ = []\nprint('work')", "does work"),
        ("'''Masks.'''\n__all__: list[str] = []\ndef helper(): ...", "does work"),
        ("'''Masks.'''\n__all__ = []\nif TYPE_CHECKING:\n    cache = {}", "does work"),
    ],
)
def test_a_busy_init_is_found(source: str, fault: str) -> None:
    assert any(fault in message for message in init_faults(source))


def test_a_plain_init_passes() -> None:
    lazy = "if TYPE_CHECKING:\n    from heddle.model import build\ndef __getattr__(name): ..."
    assert not init_faults(f"'''Masks.'''\nfrom typing import TYPE_CHECKING\n__all__ = ['build']\n{lazy}")


def test_the_project_speaks_of_itself_alone() -> None:
    folders = [ROOT / name for name in ("heddle", "docs", "recipes", "benchmarks", "scripts", ".ci")]
    files = [path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()]
    files += sorted(path for path in ROOT.glob("*") if path.suffix in {".md", ".toml", ".txt", ".cfg"})
    faults = []
    for path in [*files, ROOT / "Makefile"]:
        data = path.read_bytes()
        if b"\0" not in data and "__pycache__" not in path.parts:
            lines = enumerate(data.decode().splitlines(), 1)
            faults += prefixed(path, (f"{n}: names a machine path" for n, line in lines if MACHINE_PATH.search(line)))
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("line", ["see /opt/wheels", "`/work/main`", "open('/root/x')", "/tmp/w/venv", "cd /work"])
def test_a_machine_path_is_found(line: str) -> None:
    assert MACHINE_PATH.search(line)


@pytest.mark.parametrize(
    "line", ["src/work/", "/tmp/weights", "network/root/x", "and/or", "/optional", "https://a.b/work/"]
)
def test_other_paths_pass(line: str) -> None:
    assert not MACHINE_PATH.search(line)


def test_what_is_too_large_is_found() -> None:
    many = {f"m{number}.py": 10 for number in range(MOST_FILES + 1)}
    assert size_faults({"heddle/a": {"b.py": MOST_LINES + 1}, "heddle/c": many}) == [
        f"heddle/a/b.py: {MOST_LINES + 1} lines, at most {MOST_LINES}: is it one idea?",
        f"heddle/c: {MOST_FILES + 1} files, at most {MOST_FILES}: move what is one idea into a subpackage",
    ]
    (fault,) = size_faults({"heddle/d": {f"m{number}.py": 399 for number in range(12)}})
    assert fault == f"heddle/d: {12 * 399} lines, at most {MOST_LINES_OF_PACKAGE}"


def test_a_circle_is_found(tmp_path: Path) -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [["b", "c"]]
    assert circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_every_kind_of_fault_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "README.md": "# Loom\n\nA run is no file.\n",
        "heddle/__init__.py": "",
        "heddle/nn/__init__.py": "",
        "heddle/nn/mask.py": "from heddle.model import build\n",
        "heddle/nn/left.py": "from heddle.nn import right\n",
        "heddle/nn/right.py": "from heddle.nn import left\n",
        "heddle/nn/long.py": "x = 1\n" * (MOST_LINES + 1),
        "heddle/nn/names.py": "class Reading: ...\nfound = 1\n",
        "heddle/nn/prose.py": "# What\n# was asked for.\n",
        "heddle/runs/spread.py": "",
        "tests/test_mask.py": "from hypothesis import given\n\ndef test_mask(kept): ...\n",
        **{f"heddle/text/t{number}.py": "" for number in range(MOST_FILES + 1)},
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr("scripts.house.ROOT", tmp_path)
    assert sorted(faults()) == sorted(
        [
            "README.md:3: 'is no file': say is not",
            "a circle: heddle.nn.left -> heddle.nn.right -> heddle.nn.left",
            f"heddle/nn/long.py: {MOST_LINES + 1} lines, at most {MOST_LINES}: is it one idea?",
            "heddle.nn.mask:1 imports upwards: heddle.model.build",
            "heddle.runs.spread: say seed_statistics",
            "heddle/nn/names.py:1: Reading: say DataSpec",
            "heddle/nn/names.py:2: found: name what it holds",
            "heddle/nn/prose.py:2: 'asked for': say requested",
            f"heddle/text: {MOST_FILES + 1} files, at most {MOST_FILES}: move what is one idea into a subpackage",
            "tests/test_mask.py:3: kept: name what it holds",
        ]
    )


@pytest.mark.parametrize(
    "source",
    [
        "found = 1",
        "def f(wanted): ...",
        "def told(): ...",
        "class Kept: ...",
        "for theirs in (): ...",
        "x.given = 1",
        "def _said(): ...",
    ],
)
def test_an_empty_name_is_found(source: str) -> None:
    assert name_faults(source)


def test_a_word_in_prose_is_no_name() -> None:
    assert not name_faults('"""What was found and said."""\nx = {"found": 1}["found"]\nfoundation = 1')


@pytest.mark.parametrize(
    "source", ["class Reading: ...", "import heddle.generate as Proposer", "def _drawn(): ...", "shown = 1"]
)
def test_an_old_name_is_found(source: str) -> None:
    assert old_name_faults(source)


def test_a_name_that_resembles_an_old_one_passes() -> None:
    assert not old_name_faults("class Readings: ...\nclass PromptLookup: ...\ntexts = is_shown = drawing = 1")


def test_an_old_module_is_found() -> None:
    assert module_faults("heddle.runs.spread") == ["heddle.runs.spread: say seed_statistics"]
    assert module_faults("heddle.page.asked") == ["heddle.page.asked: name what it holds"]
    assert not module_faults("heddle.runs.seed_statistics")


@pytest.mark.parametrize(
    "text",
    [
        "a preset is no model that generates",
        "the id 300 is none of the tokenizer's ids",
        "The settings leave none.",
        "runs that are told apart\nby their seeds",
        "how far they lie apart",
        "a text's states are kept",
        "the precision that was asked for",
        "Only those that were given count.",
        "the tokens, of which those that were read are mapped",
        "It gets the one of its family.",
        "A run is written completely\n    or not at all.",
        "Damaged files are recognised by their hashes.",
        "every file's hash",
        "a hash of the file",
        "cut after a sentence or a blank",
        "Beside every score is its error.",
        "It fails in silence.",
        "Requests go on to their ends.",
        "answers that have begun",
        "A client that leaves cancels its request.",
        "A resumed run goes on with its own.",
        "what holds for all of them",
        "What it needs is said by its config.",
        "as its user says",
        "an id without text is never drawn",
        "ids that stand for what is missing",
        "the counts of what no score is of",
        "larger than any machine can hold",
        "this task reads records of text and label",
        "an error; its log says more",
        "It ends. Of an imported model, all ids count.",
        "fixed by issue 38",
        "written in an earlier session",
        "a helper of the loop",
        "read /root/text.txt",
    ],
)
def test_a_phrase_of_the_old_words_is_found(text: str) -> None:
    assert prose_faults(text)


@pytest.mark.parametrize(
    "text",
    [
        "There is no token 5: ids go from 0 to 4.",
        "It is no longer read, and is no faster than before.",
        "a blank line between the blank records",
        "an item beside it; besides, a list",
        "a hash of their content, and a tokenizer's fingerprint",
        "Lag 3 is said to have no effect. Attention maps: of a head, such as 3.2",
        "the training session and its Session; one issue at a time",
        "as for any other; trained to its end; runs apart from it",
    ],
)
def test_plain_words_pass(text: str) -> None:
    assert not prose_faults(text)


def test_prose_is_read_from_docstrings_strings_and_comments() -> None:
    source = '''"""A map."""

def f(x):
    # One of
    # two lines.
    return f"a {x} of {x}", "b"  # last
'''
    assert sorted(python_prose(source)) == [
        (1, "A map."),
        (4, "One of\ntwo lines."),
        (6, "a {} of {}"),
        (6, "b"),
        (6, "last"),
    ]
    assert prose_faults("It is\nplain. It\nis told\napart.", first=4) == ["6: 'told apart': say distinguished"]


LONGEST_FUNCTION = 60
MOST_ARGUMENTS = 8  # of a constructor in the packages that models and their training are built from


def code_lines(tree: ast.AST, source: str) -> int:
    """Lines of code: without blank lines, comments and docstrings."""
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            skipped |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    start, stop = getattr(tree, "lineno", 1), getattr(tree, "end_lineno", None)
    lines = enumerate(source.splitlines()[start - 1 : stop], start)
    return sum(1 for number, line in lines if line.strip() and line.strip()[0] != "#" and number not in skipped)


def length_faults(source: str) -> list[str]:
    """Say which functions are too long."""
    functions = [n for n in nodes(source) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    lengths = {f"{node.name}, line {node.lineno}": code_lines(node, source) for node in functions}
    return [f"{name}: {count} lines of code" for name, count in lengths.items() if count > LONGEST_FUNCTION]


def argument_faults(source: str) -> list[str]:
    """Say which constructors take too many arguments, by hand or as the fields of a dataclass."""
    faults = []
    for node in nodes(source):
        if isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef) and inner.name == "__init__":
                    arguments = inner.args
                    count = len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs) - 1
                    faults += [f"{node.name}: {count} arguments"] if count > MOST_ARGUMENTS else []
    return faults


def test_functions_stay_short() -> None:
    faults = [line for path in sources("heddle") for line in prefixed(path, length_faults(path.read_text()))]
    assert not faults, "\n".join(faults)


def test_constructors_take_few_arguments() -> None:
    paths = sources("heddle/nn", "heddle/model", "heddle/tasks", "heddle/train", "heddle/runs")
    faults = [line for path in paths for line in prefixed(path, argument_faults(path.read_text()))]
    assert not faults, "\n".join(faults)


LONGEST_PATH = 1200
# What the reader's path must show; each in one of its files.
SHOWN = {
    "nn/mask.py": "class Causal",
    "nn/kernels/reference.py": ".softmax(",
    "nn/scope.py": "class Pattern",
    "nn/attention.py": "class Attention",
    "nn/block.py": "class Block",
    "model/stack.py": "class Stack",
    "model/transformer.py": "class Transformer",
    "model/head.py": "class LanguageHead",
    "data/batch.py": "def next_token_batch",
    "tasks/objective.py": "class CrossEntropy",
    "tasks/loss.py": "def cross_entropy",
    "train/step.py": "def train_step",
    "train/optimizer.py": "class Optimizer",
    "generate/sampling.py": "def draw",
    "generate/stream.py": "def stream",
}


def reading_path() -> list[Path]:
    """The files that docs/internals/path.md numbers, in its order, without the engine, which is not part of the path."""
    page = (ROOT / "docs/internals/path.md").read_text().partition("\n## ")[0]
    numbered = re.findall(r"^(?:\d+\. |    ).*$", page, re.MULTILINE)
    names = re.findall(r"\]\(../../(heddle/[\w/]+\.py)\)", "\n".join(numbered))
    return [ROOT / name for name in names if name != "heddle/generate/engine.py"]


def test_the_readers_path_is_short_and_whole() -> None:
    path = reading_path()
    assert [str(each.relative_to(HEDDLE)) for each in path] == list(SHOWN)
    for each, shown in zip(path, SHOWN.values(), strict=True):
        assert shown in each.read_text(), f"{each.name} no longer has {shown!r}"
    lengths = {each.name: code_lines(ast.parse(each.read_text()), each.read_text()) for each in path}
    assert sum(lengths.values()) <= LONGEST_PATH, lengths


def test_a_long_function_is_found() -> None:
    body = "\n".join(f"    x = {number}" for number in range(LONGEST_FUNCTION))
    assert length_faults(f"def f():\n{body}")
    assert not length_faults(f'def f():\n    """One\n    two."""\n{body[:-11]}\n\n    # why')


def test_a_long_constructor_is_found() -> None:
    names = ", ".join(f"a{number}" for number in range(MOST_ARGUMENTS))
    assert argument_faults(f"class A:\n    def __init__(self, {names}, *, more): ...")
    assert not argument_faults(f"class A:\n    def __init__(self, {names}): ...")
