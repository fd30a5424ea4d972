"""The frame of all commands: help without torch, unknown words, and every kind of failure as one line."""

import io
import re
import shutil
import signal
import sys
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest
import torch

import heddle as package
from heddle.cli.main import COMMANDS, DIVIDED, GROUPS, _options, _without_dash, make_app
from heddle.config.problems import models_in
from heddle.config.run import RunConfig
from heddle.parallel.join import process
from tests import programs

from .conftest import Heddle, Result

SHOWN = ["train", "generate", "eval", "count", "presets", "import", "export", "runs", "tokenizer", "vectors"]


def test_help_needs_no_torch() -> None:
    output = programs.run("cli.asking_for_help")
    for name in SHOWN:
        assert f"{name} " in output


def test_the_installed_name_is_the_same_program() -> None:
    """`python -m heddle` and `heddle` are one function."""
    scripts = tomllib.loads((programs.ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"heddle": "heddle.cli.main:run"}
    done = programs.heddle("nonsense")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "heddle: unknown command 'nonsense'. See heddle --help\n"


@pytest.mark.parametrize(
    "words",
    [[], *([name] for name in SHOWN), *(["tokenizer", n] for n in ("train", "encode")), ["vectors", "train"]],
)
def test_every_command_has_help(heddle: Heddle, words: list[str]) -> None:
    shown = heddle(*words, "--help")
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.startswith(f"Usage: heddle {' '.join(words)}".rstrip())
    if words and words not in (["tokenizer"], ["vectors"]):
        assert "One JSON document on stdout." in shown.out


def test_help_is_the_whole_docstring_and_wraps_where_the_terminal_ends(
    heddle: Heddle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    output = heddle("train", "--help").out
    lines = output[
        output.index("A list of values") : output.index("\n\n", output.index("A list of values"))
    ].splitlines()
    assert " ".join(lines).rstrip().endswith("resumes from its last checkpoint.")
    for line, following in pairwise(lines):
        assert len(line.rstrip()) <= 60 < len(line.rstrip()) + 1 + len(following.split()[0])
    assert "A list of values" not in heddle("eval", "--help").out


def test_the_help_of_train_lists_every_key(heddle: Heddle) -> None:
    """In the groups of a run file, with defaults; from the fields themselves, so that none can be forgotten."""
    shown = heddle("train", "--help").out
    parts = re.split(r"^\[(\w+)\].*$", shown, flags=re.MULTILINE)
    assert parts[1::2] == list(RunConfig.model_fields)
    for (name, field), part in zip(RunConfig.model_fields.items(), parts[2::2], strict=True):
        listed = re.findall(r"^  (\w+)  +(\S.+)$", part, flags=re.MULTILINE)
        first, *others = models_in(field.annotation)
        keys = [*first.model_fields, *(key for config in others for key in config.model_fields if key != "kind")]
        # A key is listed once for all kinds that mean the same by it.
        assert list(dict.fromkeys(key for key, _ in listed)) == list(dict.fromkeys(keys)), name
    text = " ".join(shown.split())
    assert "validation Share of the text that is held out for evaluation. [default: 0.1]" in text
    assert "step. [cosine, linear, constant, wsd, inverse_sqrt; default: linear]" in text
    assert "Settings" not in heddle("eval", "--help").out


def test_a_dash_is_standard_input_but_for_the_value_of_an_option() -> None:
    words = ["embed", "-", "--json", "-", "--prompt", "-", "--normalise", "-", "a-b"]
    dashes = ["embed", "/dev/stdin", "--json", "/dev/stdin", "--prompt", "-", "--normalise", "/dev/stdin", "a-b"]
    assert _without_dash(make_app(), words) == dashes
    assert _without_dash(make_app(), ["tokenizer", "-"]) == ["tokenizer", "/dev/stdin"]
    assert _without_dash(make_app(), ["generate", "--help", "-"]) == ["generate", "--help", "-"]
    assert _without_dash(make_app(), ["generate", "a", "--prompt", "-", "--window", "-"])[3:] == [
        "-",
        "--window",
        "/dev/stdin",
    ]


def test_the_options_without_a_value_are_those_of_the_command() -> None:
    """Also those in a group of options."""
    calls = [[name] for name, *_ in COMMANDS]
    calls += [[group, name] for (group, _), commands in GROUPS.items() for name, *_ in commands]
    flags = {
        " ".join(words): {
            name for name, flag in _options(make_app(), words).items() if flag and not name.startswith("--no-")
        }
        for words in calls
    }
    assert {name for name, options in flags.items() if "--json" not in options} == {"bench", "chat", "serve"}
    assert "--quick" in flags["bench"], "its --json has a value, the name of a file"
    assert flags["generate"] == {"--window", "--lookup", "--compile", "--json"}
    assert flags["tokenizer encode"] == {"--special", "--json"}
    assert flags["tokenizer train"] == {"--json"}, "--special has a value here"


SHARED = [
    "--device",
    "--weights",
    "--encoding",
    "--skip-invalid",
    "--text-column",
    "--pair-column",
    "--top-k",
    "--seed",
]


def test_what_several_commands_have_is_explained_in_the_same_words() -> None:
    texts: dict[str, set[str]] = {}
    for name in ("train", "generate", "classify", "fill", "embed", "translate", "chat", "serve", "look", "eval"):
        for argument in make_app()[name].assemble_argument_collection(parse_docstring=True):
            texts.setdefault(argument.name, set()).add(
                (argument.parameter.help or "").removesuffix(" [default: utf-8]")
            )
    assert {name: len(texts[name]) for name in SHARED} == dict.fromkeys(SHARED, 1)
    assert all(texts[name] != {""} for name in SHARED)


def test_no_command_shows_help(heddle: Heddle) -> None:
    assert heddle() == heddle("--help")
    assert heddle("tokenizer").out == heddle("tokenizer", "--help").out


def test_the_version(heddle: Heddle) -> None:
    assert heddle("--version").out == f"{package.__version__}\n"
    project = tomllib.loads((programs.ROOT / "pyproject.toml").read_text())["project"]
    assert project.get("version", package.__version__) == package.__version__


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], "unknown command 'trian'. Did you mean 'train'? See heddle --help"),
        (["vector"], "unknown command 'vector'. Did you mean 'vectors'? See heddle --help"),
        (["tokenizer", "trian"], "unknown command 'trian'. Did you mean 'train'? See heddle tokenizer --help"),
        (["generate", "a", "--promt", "x"], "Unknown option: --promt. Did you mean --prompt?"),
        (["train", "--nmae", "x"], "Unknown option: --nmae. Did you mean --name?"),
        (["generate"], "RUN requires an argument"),
        (["generate", "a", "--max-tokens", "many"], 'unable to convert "many" into int'),
        (
            ["presets", "gpt2-small", "more"],
            "`heddle presets` got unexpected arguments: more; see heddle presets --help",
        ),
    ],
)
def test_unknown_words(heddle: Heddle, words: list[str], message: str) -> None:
    result = heddle(*words)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("heddle: ")
    assert result.err.count("\n") == 1
    assert message in result.err


CALLS = [[name] for name, *_ in COMMANDS] + [[group, name] for (group, _), rows in GROUPS.items() for name, *_ in rows]


@pytest.mark.parametrize("call", [call for call in CALLS if " ".join(call) not in DIVIDED], ids=" ".join)
def test_a_command_for_one_process_is_refused_under_torchrun(
    call: list[str], heddle: Heddle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By rank 0; here it finds no other. A single process of torchrun is as good as none."""
    process.cache_clear()
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    line = f"`heddle {' '.join(call)}` is for one process, but torchrun started 2: start it without torchrun"
    assert heddle(*call) == Result(2, "", f"heddle: {line}\n")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert "torchrun" not in heddle(*call, "--help").out
    process.cache_clear()


@pytest.mark.parametrize("words", [[], ["--help"], ["--version"], ["train", "--help"]], ids=" ".join)
def test_help_is_printed_by_the_first_process_alone(
    words: list[str], heddle: Heddle, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = heddle(*words)
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank, out in enumerate((expected.out, "")):
        monkeypatch.setenv("RANK", str(rank))
        assert heddle(*words) == Result(0, out, "")
    monkeypatch.delenv("WORLD_SIZE")  # another program's RANK
    assert heddle(*words) == expected
    assert expected.out


def test_the_commands_that_divide_their_work_exist() -> None:
    assert {" ".join(call) for call in CALLS} >= DIVIDED


FAILURES = [
    (FileNotFoundError(2, "No such file or directory", "x.txt"), 2, "x.txt: No such file or directory"),
    (OSError(28, "No space left on device"), 2, "No space left on device"),
    (OSError("odd"), 2, "odd"),
    (MemoryError(), 2, "out of memory: use a smaller model"),
    (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), 2, "out of memory: use a smaller model"),
    (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to"), 2, "out of memory: use a smaller"),
    (KeyboardInterrupt(), 130, "stopped"),
]


@pytest.mark.parametrize(("error", "code", "message"), FAILURES, ids=[type(error).__name__ for error, *_ in FAILURES])
def test_failures_are_one_line(
    heddle: Heddle, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, message: str
) -> None:
    def fail(name: str) -> None:
        raise error

    monkeypatch.setattr("heddle.cli.sizes.count.preset", fail)
    plain, as_json = heddle("presets", "gpt2-small"), heddle("presets", "gpt2-small", "--json")
    assert (plain.code, as_json.code) == (code, code)
    assert plain.err.startswith(f"heddle: {message}")
    assert plain.err.count("\n") == 1
    assert list(as_json.json) == ["error"]
    assert as_json.json["error"].startswith(message)


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        ("bench --json FILE --rounds 0", False),
        ("bench --rounds 0 --json FILE", False),
        ("bench --json=FILE --rounds 0", False),
        ("bench --rounds 0 --quick --json", False),
        ("presets no-such --json", True),
        ("presets --json no-such", True),
        ("tokenizer encode no-such x --json", True),
        ("serve no-such --json", True),  # which has no such option
        ("trian --json", True),
        ("presets no-such", False),
    ],
)
def test_an_error_is_json_on_stdout_where_json_is_a_flag(heddle: Heddle, words: str, printed: bool) -> None:
    result = heddle(*words.split())
    assert result.code == 2
    assert result.err.startswith("heddle: ")
    assert result.err.count("\n") == 1
    assert (result.out.startswith('{"error": ') and result.out.count("\n") == 1) if printed else result.out == ""
    assert not Path("FILE").exists()


def test_mistakes_of_the_program_are_shown_whole(heddle: Heddle, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that no user can cause is not dressed up as one."""
    monkeypatch.setattr("heddle.cli.sizes.count.preset", lambda name: torch.ones(2) @ torch.ones(3))
    with pytest.raises(RuntimeError, match="size"):
        heddle("presets", "gpt2-small")


def test_a_reader_that_has_gone_is_no_error() -> None:
    for words in ("train --help", "--help"):
        call = f"{sys.executable} -m heddle {words} | true; exit ${{PIPESTATUS[0]}}"
        done = programs.finished(["bash", "-c", call])
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("call", "code", "out", "err"),
    [
        ("train --help >&-", 0, "", ""),
        ("--nonsense 2>&-", 2, "", ""),
        ("--nonsense <&- >&-", 2, "", "heddle: "),
        ("--version <&- 2>&-", 0, f"{package.__version__}\n", ""),
    ],
)
def test_streams_that_are_closed(call: str, code: int, out: str, err: str) -> None:
    """They are as the null device; in-process, Python has none there."""
    done = programs.finished(["bash", "-c", f"exec {sys.executable} -m heddle {call}"])
    assert (done.returncode, done.stdout) == (code, out)
    assert done.stderr.startswith(err)
    assert "Traceback" not in done.stderr
    assert bool(done.stderr) == bool(err)


def test_a_file_never_gets_the_number_of_a_closed_stream() -> None:
    """Else what others print would be written into it."""
    program = "import os\nfrom heddle.cli.main import run\nrun(['--version'])\nprint(os.open('/dev/null', 0))"
    done = programs.finished(["bash", "-c", 'exec "$0" -c "$1" <&- 2>&-', sys.executable, program])
    assert done.stdout.split() == [package.__version__, "3"]


def test_sigterm_is_one_line(heddle: Heddle, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the way it is handled is as before, afterwards."""
    monkeypatch.setattr("heddle.cli.sizes.count.preset", lambda name: signal.raise_signal(signal.SIGTERM))
    result = heddle("presets", "gpt2-small")
    assert (result.code, result.out, result.err) == (143, "", "heddle: stopped\n")
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_what_a_terminal_cannot_show_is_numbered(heddle: Heddle, run_a: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    assert heddle("tokenizer", "decode", "a", *map(str, "wärp".encode())).code == 0
    stream.flush()
    assert stream.buffer.getvalue() == b"w\\xe4rp\n"  # type: ignore[attr-defined]


def test_a_users_own_module_is_found_in_the_folder(
    heddle: Heddle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by a script that pip installs, for which Python does not look there, as here."""
    (tmp_path / "mixers_here").mkdir()
    shutil.copy(programs.ROOT / "tests" / "lectures" / "own.py", tmp_path / "mixers_here")
    (tmp_path / "m.toml").write_text(
        "vocab_size = 11\ndim = 8\ncontext = 8\n[decoder]\ndepth = 1\n[decoder.block]\n"
        'mixer = { kind = "custom", target = "mixers_here.own:Averaging" }\n'
    )
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder not in ("", str(tmp_path))])
    result = heddle("count", "m.toml", "--json")
    assert (result.code, result.err) == (0, "")
    assert result.json["parameters"]["parts"]["custom mixer"] == 8 * 8


def test_the_folder_comes_last_and_once(heddle: Heddle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["first"])
    heddle("--version")
    heddle("--version")
    assert sys.path == ["first", str(tmp_path)]


def test_a_folder_that_is_gone_is_no_matter(heddle: Heddle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert heddle("presets").code == 0
