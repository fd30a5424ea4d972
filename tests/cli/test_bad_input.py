"""Whatever a user gives that cannot work: exit code 2, one line that says what to do, nothing left behind."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from heddle.config import preset, sized
from heddle.convert.families.gpt2 import GPT2
from heddle.convert.published import write_published
from heddle.model import build
from heddle.model.stack import Stack
from heddle.text import train_tokenizer
from heddle.weights import save

from .conftest import TINY, Heddle

Refused = Callable[..., str]

TEXTS: dict[str, tuple[bytes | None, str]] = {
    "missing.txt": (None, "missing.txt: no such file or folder"),
    "empty.txt": (b"", "empty.txt: the file is empty"),
    "latin.txt": ("Fäden".encode("latin-1"), "latin.txt: not UTF-8 at byte 1 (0xe4); convert it with iconv"),
    "broken.jsonl": (b"{", "broken.jsonl:1: not a line of JSON"),
    "*.none": (None, "*.none: the pattern matches no file"),
}


@pytest.fixture
def texts(tmp_path: Path) -> None:
    for name, (data, _) in TEXTS.items():
        if data is not None:
            (tmp_path / name).write_bytes(data)


@pytest.mark.usefixtures("texts")
@pytest.mark.parametrize("name", TEXTS)
def test_text_that_cannot_be_read(refused: Refused, name: str) -> None:
    assert refused("train", name, *TINY).startswith(TEXTS[name][1])
    assert refused("tokenizer", "train", "new", name, "--kind", "bpe").startswith(TEXTS[name][1])


@pytest.mark.usefixtures("texts")
@pytest.mark.parametrize("name", ["missing.txt", "empty.txt", "latin.txt"])
def test_text_that_cannot_be_scored(refused: Refused, run_a: Path, name: str) -> None:
    assert refused("eval", "a", name).startswith(TEXTS[name][1])


def test_text_that_is_too_short(refused: Refused, run_a: Path, tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("A sentence.")
    line = refused("train", "one.txt", *TINY)
    assert line == "context = 16, but training has 9 tokens and validation 2: give more text"
    (tmp_path / "more.txt").write_text("A sentence, and another, and a third.")
    line = refused("train", "more.txt", *TINY)
    assert line.endswith("training has 33 tokens and validation 4: give more text")
    (tmp_path / "a.txt").write_text("a")
    assert "needs at least 2" in refused("train", "a.txt", *TINY)
    assert "it needs at least 2" in refused("eval", "a", "a.txt")


SETTINGS = {
    "num_layers=4": "unknown key 'num_layers'. heddle calls it 'depth'.",
    "depht=4": "unknown key 'depht'. Did you mean 'depth'?",
    "model.decoder.depht=4": "unknown key 'decoder.depht' in model. Did you mean 'decoder.depth'?",
    "parallel.contxt=2": "unknown key 'parallel.contxt' in settings. Did you mean 'parallel.context'?",
    "paralel.context=2": "unknown key 'paralel.context'. Did you mean 'parallel.context'?",
    "decodr.block.norm.kind=rms": "unknown key 'decodr.block.norm.kind'. Did you mean 'decoder'?",
    "train.depth=2": "unknown key 'train.depth' in settings. It is in another table: 'model.depth'.",
    "depth=0": "model.depth = 0: input should be greater than 0",
    "context=1000000000": "context = 1000000000, but training has 2,787 tokens and validation 310: set context=309 or less",
    "dim=1000000": "the weights, gradients and optimizer state alone need",
    f"dim={10**40}": "input should be less than or equal to 4194304",
    "dim=" + 5000 * "9": "model.dim",
    "batch=1000000 context=64": "training needs about",
    f"seed={2**64}": "train.seed",
    f"tokenizer=bpe tokenizer_size={10**11}": "data.tokenizer_size",
    "steps=1 steps=2": "steps is given twice, the second time as 'steps=2'; give it once",
    "train.clip=1 clip=2": "train.clip=1 and clip=2 are the same setting; give it once",
    "clip=1 train.clip=1": "clip=1 and train.clip=1 are the same setting; give it once",
    "sources=b.txt": "corpus.txt and sources=b.txt are the same setting; give it once",
    "learning-rate=1 learning_rate=2": "learning_rate is given twice",
    "preset=gpt2": "unknown preset 'gpt2'. Did you mean 'gpt2-xl', 'gpt2-large' or 'gpt2-small'?",
    "preset=bert-base-like": "'bert-base-like' is an encoder, but the task 'next_token' trains only a decoder;",
    "preset=laptop-translate": "preset = 'laptop-translate' is an encoder-decoder, but the task 'next_token'",
    "=3": "'=3' is not of the form key=value",
    "model=3": "model = 3",
    "train.steps.more=3": "'steps' is a value, not a table of keys",
    "decoder.block.mixer.kind=recurent": "Did you mean 'recurrent'?",
    "decoder.block.mixer.kind=recurrent decoder.block.mixer.heads=2": "unknown key 'decoder.block.mixer.heads' in model",
}


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: settings[:40])
def test_settings_that_cannot_work(refused: Refused, corpus: str, settings: str) -> None:
    assert SETTINGS[settings] in refused("train", corpus, *TINY, *settings.split())


ABSENT = "mps" if torch.cuda.is_available() else "cuda"
# Several problems, each with a part of its line: one error names all.
SEVERAL: dict[str, list[str]] = {
    "depht=4 stepz=3": ["unknown key 'depht'. Did you mean 'depth'?", "unknown key 'stepz'. Did you mean 'steps'?"],
    "zzz=1 qqq=2 dim=-1": ["unknown keys 'zzz', 'qqq'. Known keys: ", "model.dim = -1: input should be greater than 0"],
    "depth=0 steps=x": [
        "model.depth = 0: input should be greater",
        "train.steps = 'x': input should be a valid integer",
    ],
    "train.lora.x=3 model.bar=2": ["unknown key 'train.lora.x' in settings.", "unknown key 'model.bar' in settings."],
    "optimizer=adm task=maskd": ["train.optimizer = 'adm'", "task.kind = 'maskd' is not one of"],
    "clip=1 train.clip=2 steps=0": ["clip=1 and train.clip=2 are the same setting", "train.steps = 0"],
    "clip=1 clip=2 =3": ["clip is given twice", "'=3' is not of the form key=value"],
    "missing.txt absent.txt": ["missing.txt: no such file or folder", "absent.txt: no such file or folder"],
    f"device={ABSENT} lora.rank=2": ["does not find this device here", "name it, from=RUN, or leave lora out"],
    "decoder.block.mixer.a=1 decoder.block.ffn.b=2": [
        "'decoder.block.mixer.a' in model",
        "'decoder.block.ffn.b' in model",
    ],
}


@pytest.mark.parametrize("words", SEVERAL, ids=lambda words: words)
def test_one_error_names_all_that_is_wrong(refused: Refused, corpus: str, words: str) -> None:
    line = refused("train", corpus, *TINY, *words.split())
    parts = SEVERAL[words]
    assert all(part in line for part in parts)
    assert [f"({number}) " in line for number in range(1, len(parts) + 2)] == [True] * len(parts) + [False]


def test_run_files_name_all_that_is_wrong(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('[train]\nsteps = "x"\nfooo = 2\n[model]\ndim = -4\ndepht = 1\n')
    line = refused("train", "run.toml")
    for part in ("'train.fooo' in run.toml", "'model.depht' in run.toml", "train.steps = 'x'", "model.dim = -4"):
        assert part in line


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("parallel.shard=x", "the command line: parallel.shard = 'x': input should be a valid integer, or 'auto'"),
        ("train.zz=1", "unknown key 'train.zz' in the command line."),
        ("model.n_layer=0", "the command line: model.depth = 0: input should be greater than 0"),
        ("train.clip=[1,1]", "run.toml and the command line: clip=1 occurs twice in the series"),
        ("learning_rate=[]", "the command line: learning_rate = []: give at least one value"),
        ("batch=4", "run.toml and the command line: train: batch = 4 cannot be split into accumulate = 3"),
        ("steps=4", "run.toml: train.clip = 'x'"),
    ],
)  # fmt: skip
def test_what_the_command_line_sets_is_not_blamed_on_a_run_file(
    refused: Refused, tmp_path: Path, words: str, line: str
) -> None:
    (tmp_path / "run.toml").write_text('[train]\nclip = "x"\n' if words == "steps=4" else "[train]\naccumulate = 3\n")
    assert line in refused("train", "run.toml", *words.split())


@pytest.mark.parametrize("command", ["serve", "look", "runs"])
def test_all_runs_that_are_missing_are_named(heddle: Heddle, command: str) -> None:
    result = heddle(command, "a", "b")
    assert result.code == 2
    assert "(1) no run 'a'" in result.err
    assert "(2) no run 'b'" in result.err


def test_texts_to_classify_need_folders_of_several_classes(refused: Refused, corpus: str, tmp_path: Path) -> None:
    line = refused("train", corpus, *TINY, "task=classification")
    assert line == (
        f"corpus.txt: the label of a text file is the name of its folder, and there is only {tmp_path.name!r}: give a folder for "
        "each class, or a table (.tsv, .csv, .jsonl) with a label column"
    )


def test_changes_that_are_given_twice(refused: Refused) -> None:
    for command in ("count", "prove"):
        line = refused(command, "gpt2-small", "dim=64", "dim=96")
        assert line == "dim is given twice, the second time as 'dim=96'; give it once"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("[model]\ndepht = 2\n", "unknown key 'model.depht' in run.toml. Did you mean 'model.depth'?"),
        ("[modle]\ndepth = 2\n", "unknown key 'modle' in run.toml. Did you mean 'model'?"),
        (
            '[model]\npreset = "bert-base-like"\ncontext = 16\n',
            "preset = 'bert-base-like' is an encoder, but the task 'next_token' trains",
        ),
        (None, "run.toml: no such file"),
    ],
)
def test_run_files_that_cannot_work(refused: Refused, tmp_path: Path, data: str | None, message: str) -> None:
    if data is not None:
        (tmp_path / "run.toml").write_text(data)
    assert message in refused("train", "run.toml")


NAMES = ["my/../mine", "..", "../mine", ".", "", ".mine", "-mine", "a\nb", "runs/..", "a/.b", "a\0b"]


@pytest.mark.parametrize("name", NAMES, ids=repr)
def test_names_that_are_none(refused: Refused, corpus: str, name: str) -> None:
    """A run is where its name says, and its name fits into a line."""
    assert refused("train", corpus, *TINY, f"--name={name}").startswith(
        f"{name!r} is not a valid run name: use a plain name"
    )
    if not name.startswith("-"):  # that would be an option
        assert f"{name!r} is not a valid run name: use a plain name" in refused("import", "nowhere", name)


def test_a_plain_name_is_offered(refused: Refused, corpus: str) -> None:
    assert "use a plain name, such as 'mine', or a path" in refused("train", corpus, *TINY, "--name", "my/../mine")


def test_what_is_there_is_not_overwritten(refused: Refused, run_a: Path, corpus: str, tmp_path: Path) -> None:
    line = refused("train", corpus, *TINY, "--name", "a")
    assert line == "runs/a already exists: continue it with `heddle train --resume runs/a`, or choose another --name"
    assert "tokenizer.json already exists" in refused("tokenizer", "train", "runs/a", corpus)


def test_resume_takes_nothing_else(refused: Refused, run_a: Path, corpus: str) -> None:
    for words in ([corpus], ["--name", "b"], ["--dry-run"]):
        assert "--resume accepts only --device and settings" in refused("train", "--resume", "a", *words)
    assert "train.learning_rate cannot change" in refused("train", "--resume", "a", "learning_rate=1")
    assert "steps = 4: runs/a has already done 4" in refused("train", "--resume", "a", "steps=4")


@pytest.mark.parametrize("command", [["generate"], ["eval"], ["export"], ["train", "--resume"]])
def test_runs_that_are_not_there(refused: Refused, run_a: Path, tmp_path: Path, command: list[str]) -> None:
    more = ["out"] if command == ["export"] else []
    (run_a.parent / "shuttle").mkdir()
    assert refused(*command, "shutle", *more).startswith("no run 'shutle'. Did you mean 'shuttle'?")
    assert "not a run directory, since it has no config.json" in refused(*command, "shuttle", *more)
    assert "File name too long" in refused(*command, "x" * 300, *more)


@pytest.mark.parametrize("damage", [lambda data: data[:-100], lambda data: b"no tensors at all" * 50])
def test_damaged_weights(refused: Refused, run_a: Path, damage: Callable[[bytes], bytes]) -> None:
    """Published ones and checkpoints alike."""
    for folder in (run_a, *(run_a / "checkpoints").iterdir()):
        file = folder / "model.safetensors"
        file.write_bytes(damage(file.read_bytes()))
    for command in (["generate", "a"], ["eval", "a"], ["export", "a", "out"]):
        assert "runs/a/model.safetensors" in refused(*command)


@pytest.mark.parametrize("size", [("dim", 32), ("context", 8), ("vocab_size", 300), ("depth", 2)])
def test_a_config_of_another_model(refused: Refused, run_a: Path, size: tuple[str, int]) -> None:
    data = json.loads((run_a / "config.json").read_text())
    (data["model"]["decoder"] if size[0] == "depth" else data["model"])[size[0]] = size[1]
    (run_a / "config.json").write_text(json.dumps(data))
    for command in (["generate", "a"], ["eval", "a"], ["export", "a", "out"]):
        assert "runs/a/config.json" in refused(*command)
    expected = "config.json 300" if size[0] == "vocab_size" else "restore it: cp runs/a/checkpoints/step-4/config.json"
    assert expected in refused("train", "--resume", "a")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "data/meta.json"])
@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[]", b"{}", b"[" * 100_000])
def test_damaged_files_of_a_run(refused: Refused, run_a: Path, name: str, data: bytes) -> None:
    (run_a / name).write_bytes(data)
    assert name.removeprefix("data/") in refused("train", "--resume", "a")
    if name != "data/meta.json":
        assert f"runs/a/{name}" in refused("generate", "a")
    assert "runs/a" in refused("eval", "a")


def test_a_machine_without_the_device(refused: Refused, run_a: Path, corpus: str) -> None:
    """A run of another machine."""
    for folder in (run_a, *(run_a / "checkpoints").iterdir()):
        file = folder / "config.json"
        file.write_text(
            file.read_text().replace('"device": "cpu",\n    "precision"', '"device": "mps",\n    "precision"')
        )
    assert "device = 'mps': torch " in refused("train", "--resume", "a")
    line = "--device cpu: runs/a started on mps, so it cannot continue on cpu"
    assert refused("train", "--resume", "a", "--device", "cpu") == line
    assert "device = 'cuda:1': torch " in refused("generate", "a", "--device", "cuda:1")
    assert (
        refused("train", corpus, "device=gpu")
        == "settings: train.device = 'gpu': must be auto, cpu, cuda, cuda:N or mps"
    )
    assert "is not one of auto, cpu, cuda, cuda:N, mps. Did you mean 'cpu'?" in refused(
        "generate", "a", "--device", "gpu"
    )


GENERATE = {
    "--max-tokens 0": "max_tokens = 0",
    "--seed -1": "seed = -1",
    "--min-p 2": "min_p = 2",
    "--lookup --draft a": "give --draft or --lookup, not both",
    "--regex (a": "regex: ",
    "--logprobs -1": "logprobs = -1",
    "--ban=": "a text to ban must not be empty or only whitespace",
    "--regex a --choice b": "exclude each other",
    "--json-schema nowhere": "nowhere: No such file",
    "--draft b": "no run 'b'",
    "--prompt 01234567890123456789": "prompt 0 has 20 tokens, but the model's context is 16; "
    "shorten it, or set --window (in Python window=True) to continue from its last tokens",
}


@pytest.mark.parametrize("options", GENERATE)
def test_generation_that_cannot_work(refused: Refused, run_a: Path, options: str) -> None:
    assert GENERATE[options] in refused("generate", "a", *options.split())


FULL = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError(
        "[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"
    ),
    RuntimeError(
        "[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes."
    ),
    MemoryError(),
]


@pytest.mark.parametrize("error", FULL, ids=["cuda", "linux", "windows", "python"])
def test_what_does_not_fit_into_memory(
    refused: Refused, run_a: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The line says what there was too much of, and what to lower."""

    def full(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(Stack, "forward", full)
    assert refused("generate", "a", "--prompt", "x", "--prompt", "yes", "--max-tokens", "5") == (
        "out of memory with 2 texts of up to 3 tokens at a time: use fewer texts, a lower max_tokens, shorter prompts, or a "
        "smaller model"
    )
    line = "rows of 16 tokens to score: use fewer rows, a shorter context, or a smaller model"
    assert refused("eval", "a").endswith(line)
    for command in ("embed", "look"):
        words = ["the warp"] if command == "embed" else ["--lens", "--prompt", "the warp"]
        assert "out of memory" in refused(command, "a", *words)


def test_a_draft_with_another_tokenizer(refused: Refused, run_a: Path) -> None:
    save(build(sized(1, vocab_size=300, dim=16), seed=1), "runs/other", train_tokenizer("characters", ["abc"]))
    assert "other has another tokenizer than the run" in refused("generate", "a", "--draft", "other")


def test_other_commands(refused: Refused, run_a: Path, corpus: str, tmp_path: Path) -> None:
    assert "context = 0: must be at least 1" in refused("eval", "a", "--context", "0")
    assert "context = 17 is more than the model's 16" in refused("eval", "a", "--context", "17")
    assert "Did you mean 'gpt2-small'?" in refused("presets", "gpt2-smal")
    assert "Did you mean 'gpt2-small'?" in refused("count", "gpt2-smal")
    assert "corpus.txt: not valid TOML" in refused("count", corpus)
    assert "batch = 0: must be at least 1" in refused("count", "a", "--batch", "0")
    for words in (["--batch", str(10**30)], ["--length", str(10**30)], ["--length", str(10**10)]):
        assert "a pass would need more numbers than fit on any machine" in refused("count", "a", *words)
    assert "id 257 is out of range (vocab size 257)" in refused("tokenizer", "decode", "a", "257")
    assert "cannot read nowhere" in refused("tokenizer", "encode", "nowhere", "x")
    assert "corpus.txt is not JSON" in refused("tokenizer", "encode", corpus, "x")
    assert "not printable ASCII" in refused("tokenizer", "train", "new", corpus, "--kind", "bytes", "--special", "é")
    assert "1,048,576" in refused("tokenizer", "train", "new", corpus, "--size", str(10**11))
    assert "nowhere: no such directory; to download it" in refused("import", "nowhere", "b")
    (tmp_path / "folder").mkdir()
    assert "folder" in refused("import", "folder", "b")
    shutil.rmtree(run_a / "data")
    assert "has no held-out data; give files to score" in refused("eval", "a")


GAIN = "transformer.h.1.ln_1.weight"
PUBLISHED: dict[str, tuple[Callable[[dict[str, Any], dict[str, torch.Tensor]], object], str]] = {
    "another architecture": (
        lambda config, weights: config.update(model_type="mamba"),
        "theirs: model_type = 'mamba'; heddle reads gpt2, llama, ",
    ),
    "a tensor less": (lambda config, weights: weights.pop(GAIN), f"{GAIN} [16] is not in the file"),
    "a nan": (lambda config, weights: weights[GAIN][3:4].fill_(torch.nan), f"1 of the 16 numbers of {GAIN} are NaN or"),
}


@pytest.mark.parametrize("fault", PUBLISHED)
def test_published_weights_that_cannot_be_taken_over(refused: Refused, tmp_path: Path, fault: str) -> None:
    sizes = {"dim": 16, "context": 8, "decoder.depth": 2, "decoder.block.mixer.heads": 2, "vocab_size": 30}
    folder = tmp_path / "theirs"
    folder.mkdir()
    write_published(folder, GPT2, build(preset("gpt2-small").override(sizes), seed=1), None)
    config, weights = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    change, message = PUBLISHED[fault]
    change(config, weights)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors")
    assert message in refused("import", "theirs", "b")


@pytest.mark.parametrize("when", ["preparation", "checkpoint", "publication"])
def test_a_full_disk(heddle: Heddle, corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """No partial file is left, and a run that was begun continues once there is room."""
    place = {"preparation": "data", "checkpoint": "step-4", "publication": ".publishing"}[when]
    fsync = os.fsync

    def full(handle: int) -> None:
        if place in os.readlink(f"/proc/self/fd/{handle}"):
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        result = heddle("train", corpus, *TINY, "save_every=2", "--name", "b", "--json")
    assert result.code == 2
    assert "No space left on device" in result.json["error"] or "disk full while writing" in result.json["error"]
    assert "Traceback" not in result.err
    assert not [path for path in tmp_path.rglob(".*") if path.name.endswith(".partial")]
    run = tmp_path / "runs" / "b"
    if when == "preparation":
        assert not run.exists()
        assert result.json["error"].endswith("nothing was changed. Free some space and try again")
        assert heddle("train", corpus, *TINY, "save_every=2", "--name", "b", "--json").json["finished"] is True
        return
    assert not (run / "model.safetensors").exists()
    advice = "Once it can be written, continue with: heddle train --resume runs/b"
    assert result.json["error"].endswith(advice)
    remaining = {"checkpoint": ["step-2"], "publication": ["step-2", "step-4"]}[when]
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == remaining
    assert heddle("train", "--resume", "b", "--json").json["finished"] is True


def test_a_place_that_cannot_be_written(refused: Refused, corpus: str, tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file where the folder should be")
    assert "runs" in refused("train", corpus, *TINY)
    assert "corpus.txt/new" in refused("tokenizer", "train", f"{corpus}/new", corpus, "--kind", "bytes")
