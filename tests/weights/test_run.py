"""The run directory: what is loaded, what is refused, and that no moment leaves it unloadable."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from heddle.config import SavedConfig, TransformerConfig
from heddle.config.train import LoRAConfig
from heddle.errors import HeddleError
from heddle.model import Transformer, build
from heddle.model.lora import adapt
from heddle.model.precision import cast
from heddle.text import train_tokenizer
from heddle.weights import load, publish, read_config, save, save_checkpoint
from heddle.weights.files import write_manifest
from heddle.weights.run import _finish_publishing
from tests import refusing
from tests.convert.conftest import shrunk
from tests.model import modules

OPTIMIZER = {"moment": torch.ones(3)}


def refusal(source: Path) -> str:
    return refusing.refusal(lambda: load(source, "cpu"))


def same(model: Transformer, weights: dict[str, torch.Tensor]) -> bool:
    state = model.state_dict()
    return state.keys() == weights.keys() and all(torch.equal(state[name], weights[name]) for name in weights)


def checkpoint(run: Path, config: TransformerConfig, step: int) -> Path:
    """A checkpoint whose weights are those of seed `step`."""
    return save_checkpoint(run, step, build(config, seed=step).state_dict(), OPTIMIZER, {"step": step}, keep=9)


def edit(path: Path, change: Callable[[dict[str, object]], None]) -> None:
    """Change a JSON file, and let the manifest beside it agree."""
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    manifest = json.loads((path.parent / "manifest.json").read_text())
    write_manifest(path.parent, {"step": manifest["step"]})


def flip(path: Path, place: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


FAMILIES = [
    "t5-small",
    "vaswani-base",
    "rnn-translate",
    "bert-base-like",
    "laptop-encoder",
    "mixtral-8x7b",
    "falcon-40b",
]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_run_of_any_family_comes_back_bit_for_bit(tmp_path: Path, name: str) -> None:
    model = build(shrunk(name), seed=3)
    save(model, tmp_path / "run")
    back = load(tmp_path / "run", "cpu").model
    assert same(back, model.state_dict())
    assert back.config == model.config
    newer = build(model.config, seed=4).state_dict()
    save_checkpoint(tmp_path / "run", 7, newer, OPTIMIZER, {"step": 7}, keep=2)
    assert same(load(tmp_path / "run", "cpu").model, newer)


@pytest.mark.parametrize(
    ("name", "stack", "message"),
    [
        ("t5-small", "encoder", "the weights have 3 layers in the encoder, the config says 24"),
        ("t5-small", "decoder", "the weights have 2 layers in the decoder, the config says 24"),
        ("bert-base-like", "encoder", "the weights have 3 layers, the config says 24"),
    ],
)
def test_the_depth_of_every_stack_is_compared(tmp_path: Path, name: str, stack: str, message: str) -> None:
    save(build(shrunk(name)), tmp_path / "run")
    edit(tmp_path / "run" / "config.json", lambda data: data["model"][stack].update(depth=24))  # type: ignore[index]
    assert message in refusal(tmp_path / "run")


def test_a_run_is_a_model_and_a_tokenizer(run: Path, tiny: TransformerConfig) -> None:
    model, tokenizer = load(run, "cpu")
    assert same(model, build(tiny, seed=1).state_dict())
    assert model.config == tiny
    assert not model.training
    assert tokenizer is not None
    assert tokenizer.decode(tokenizer.encode("hé")) == "hé"
    assert load(str(run)).model.device.type in {"cpu", "cuda", "mps"}


def test_publishing_replaces_the_weights(run: Path, tiny: TransformerConfig) -> None:
    weights = build(tiny, seed=2).state_dict()
    publish(run, weights, step=30, extra={"loss": 1.5})
    assert same(load(run, "cpu").model, weights)
    manifest = json.loads((run / "manifest.json").read_text())
    assert (manifest["step"], manifest["loss"]) == (30, 1.5)
    assert sorted(manifest["files"]) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert sorted(path.name for path in run.iterdir()) == sorted([*manifest["files"], "manifest.json"])


def test_a_run_may_have_no_tokenizer(tmp_path: Path, tiny: TransformerConfig) -> None:
    run = tmp_path / "bare"
    run.mkdir()
    (run / "config.json").write_text(SavedConfig(model=tiny).to_json())
    publish(run, build(tiny, seed=2).state_dict(), step=0)
    assert load(run, "cpu").tokenizer is None
    train_tokenizer("bytes", []).save(run)  # one that its user adds later is taken
    assert load(run, "cpu").tokenizer is not None


def test_a_model_in_memory_is_saved_as_a_run(tmp_path: Path, tiny: TransformerConfig) -> None:
    model, tokenizer = build(tiny, seed=3), train_tokenizer("bytes", [])
    save(model, tmp_path / "run", tokenizer)
    back = load(tmp_path / "run", "cpu")
    assert same(back.model, model.state_dict())
    assert back.tokenizer is not None
    assert back.tokenizer.fingerprint() == tokenizer.fingerprint()
    with pytest.raises(HeddleError, match="already exists"):
        save(model, tmp_path / "run")
    save(build(tiny, seed=3, dtype=torch.bfloat16), str(tmp_path / "half"))
    assert load(tmp_path / "half", "cpu").model.embedding.weight.dtype == torch.float32


class Doubled(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any, **named: Any) -> Any:
        return 2 * self.inner(*args, **named)


def replaced(model: Transformer) -> None:
    model.decoder.blocks[0].mixer = Doubled(model.decoder.blocks[0].mixer)


def same_names(model: Transformer) -> None:
    class Other(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return -super().forward(x)

    model.decoder.blocks[0].ffn.up.__class__ = Other


def added(model: Transformer) -> None:
    model.probe = nn.Linear(3, 3)


def resized(model: Transformer) -> None:
    model.embedding.weight = nn.Parameter(model.embedding.weight[:-1].detach())


def infinite(model: Transformer) -> None:
    with torch.no_grad():
        model.embedding.weight[3, 3] = torch.inf


def adapted(model: Transformer) -> None:
    adapt(model, LoRAConfig(rank=2, layers=("*.mixer.*",)))


CHANGES = {
    replaced: "decoder.blocks.0.mixer is a Doubled, but load would build an Attention",
    same_names: "is an Other, but load would build a Linear",
    added: "does not describe probe",
    resized: "embedding.weight has shape",
    infinite: "1 of the .* numbers of embedding.weight are NaN or infinite",
    adapted: "is an AdaptedLinear",
}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_what_load_would_refuse_or_build_otherwise_is_not_saved(
    tmp_path: Path, tiny: TransformerConfig, change: Callable[[Transformer], None]
) -> None:
    model = build(tiny, seed=3)
    change(model)
    with pytest.raises(HeddleError, match=CHANGES[change]):
        save(model, tmp_path / "run")
    assert not any(tmp_path.iterdir())


def test_a_saved_model_is_replaced_where_that_is_asked_for(tmp_path: Path, tiny: TransformerConfig) -> None:
    """A model alone is; a training, or what is no model, never."""
    first, second, run = build(tiny, seed=1), build(tiny, seed=2), tmp_path / "run"
    save(first, run, overwrite=True)
    (run / "proof.json").write_text("{}")  # of the model before
    with pytest.raises(HeddleError, match=r"already exists; nothing was changed\. .* overwrite=True"):
        save(second, run)
    assert same(load(run, "cpu").model, first.state_dict())
    save(second, run, overwrite=True)
    assert same(load(run, "cpu").model, second.state_dict())
    assert sorted(path.name for path in tmp_path.rglob("*")) == [
        "config.json",
        "manifest.json",
        "model.safetensors",
        "run",
    ]

    checkpoint(run, tiny, 1)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("Dear")
    (tmp_path / "file").write_text("text")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for name, why in (
        ("run", "is a training run"),
        ("mine", "heddle did not save it"),
        ("file", "heddle did not save it"),
    ):
        with pytest.raises(HeddleError, match=f"{name} is not overwritten: .*{why}"):
            save(first, tmp_path / name, overwrite=True)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_publishing_needs_a_config(tmp_path: Path, tiny: TransformerConfig) -> None:
    with pytest.raises(HeddleError, match=r"has no config\.json"):
        publish(tmp_path, build(tiny).state_dict(), step=0)
    assert not list(tmp_path.iterdir())


def test_damaged_files_are_never_brought_into_place(run: Path, tiny: TransformerConfig) -> None:
    """What a killed publication staged, and something then damaged: the published weights stay."""
    shutil.copytree(run, run / ".publishing")
    weights = build(tiny, seed=1).state_dict()
    flip(run / ".publishing" / "model.safetensors")
    assert same(load(run, "cpu").model, weights)
    _finish_publishing(run)
    assert same(load(run, "cpu").model, weights)
    assert not (run / ".publishing").exists()


@pytest.mark.thorough
def test_killed_anywhere_the_run_still_loads(tmp_path: Path) -> None:
    """While it is published, and while a checkpoint is written."""
    script = Path(__file__).parent / "kill_everywhere.py"
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), "publish", "checkpoint"],
        cwd=root, env={"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2
    for line in done.stdout.splitlines():
        kills, old, new = map(int, line.split())
        assert kills > 20
        assert old > 5
        assert new > 5


def test_a_checkpoint_directory_loads_by_itself(run: Path, tiny: TransformerConfig, tmp_path: Path) -> None:
    path = checkpoint(run, tiny, 5)
    moved = tmp_path / "elsewhere"
    path.rename(moved)
    model, tokenizer = load(moved, "cpu")
    assert same(model, build(tiny, seed=5).state_dict())
    assert tokenizer is not None


def test_a_later_checkpoint_goes_before_published_weights(run: Path, tiny: TransformerConfig) -> None:
    checkpoint(run, tiny, 9)
    assert same(load(run, "cpu").model, build(tiny, seed=1).state_dict())
    checkpoint(run, tiny, 11)
    assert same(load(run, "cpu").model, build(tiny, seed=11).state_dict())


def test_a_run_that_was_never_published_loads_from_its_checkpoint(run: Path, tiny: TransformerConfig) -> None:
    (run / "manifest.json").unlink()
    (run / "model.safetensors").unlink()
    assert "no weights yet" in refusal(run)
    checkpoint(run, tiny, 3)
    assert same(load(run, "cpu").model, build(tiny, seed=3).state_dict())


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_flipped_bit_is_refused(run: Path, name: str) -> None:
    # In JSON, change a letter of a word: most other places would make it no JSON at all.
    words = {"model.safetensors": b"", "config.json": b"dim", "tokenizer.json": b"type"}
    flip(run / name, (run / name).read_bytes().index(words[name]) - (name == "model.safetensors"))
    message = refusal(run)
    assert str(run / name) in message
    assert "sha256" in message or name == "config.json"


def test_damaged_weights_are_never_replaced_by_older_ones_in_silence(run: Path, tiny: TransformerConfig) -> None:
    older = checkpoint(run, tiny, 9)
    flip(run / "model.safetensors")
    message = refusal(run)
    assert f"{run / 'model.safetensors'}: sha256 differs from the manifest" in message
    assert f"{older} is undamaged: name it to load it" in message
    assert same(load(older, "cpu").model, build(tiny, seed=9).state_dict())


def test_a_damaged_newest_checkpoint_is_refused_too(run: Path, tiny: TransformerConfig) -> None:
    older, newest = checkpoint(run, tiny, 20), checkpoint(run, tiny, 30)
    flip(newest / "model.safetensors")
    message = refusal(run)
    assert str(newest / "model.safetensors") in message
    assert f"{older} is undamaged" in message


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", "manifest.json"])
def test_a_missing_or_empty_file_is_refused(run: Path, name: str) -> None:
    whole = (run / name).read_bytes()
    (run / name).write_bytes(b"")
    assert name in refusal(run)
    (run / name).write_bytes(whole[: len(whole) // 2])
    assert name in refusal(run)
    (run / name).unlink()
    assert name in refusal(run)


@pytest.mark.parametrize("record", ["[]", '{"files": {}}', '{"files": {}, "step": 3}', '{"files": 3, "step": "x"}'])
def test_a_manifest_that_says_nothing_is_refused(run: Path, record: str) -> None:
    (run / "manifest.json").write_text(record)
    assert "manifest.json" in refusal(run)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("dim", 32, "embedding.weight has shape [320, 16] in the file and [320, 32] in the model"),
        ("vocab_size", 600, "embedding.weight has shape [320, 16] in the file and [640, 16] in the model"),
        ("depth", 24, "the weights have 2 layers, the config says 24"),
        ("depth", 999, "the weights have 2 layers, the config says 999"),
        ("depth", 10**12, "depth = 1000000000000"),
        ("dim", 10**6, "has shape [320, 16] in the file"),
        ("dim", 10**12, "model.dim = 1000000000000: input should be less than or equal to 4194304"),
        ("dim", 10**30, "input should be less than or equal to 4194304"),
        ("hidden", 10**6, "ffn.gate.weight has shape [64, 16] in the file and [1000000, 16] in the model"),
        ("hidden", 10**9, "block.ffn.hidden = 1000000000: input should be less than or equal to 4194304"),
        ("head_dim", 10**6, "mixer.q.weight has shape"),
        ("head_dim", 10**10, "block.mixer.head_dim = 10000000000: input should be less than or equal to 4194304"),
    ],
)
def test_a_config_of_other_sizes_is_refused_before_memory_is_taken(
    run: Path, path: str, value: int, message: str
) -> None:
    def change(data: dict[str, object]) -> None:
        model: dict[str, object] = data["model"]  # type: ignore[assignment]
        block = model["decoder"]["block"]  # type: ignore[index]
        places = {"depth": model["decoder"], "hidden": block["ffn"], "head_dim": block["mixer"]}
        places.get(path, model)[path] = value  # type: ignore[index]

    edit(run / "config.json", change)
    assert message in refusal(run)


@pytest.mark.lecture("L1-62")
def test_another_models_tokenizer_is_refused(tmp_path: Path, tiny: TransformerConfig) -> None:
    special = [f"<|{number}|>" for number in range(30)]
    tokenizer = train_tokenizer("bytes", [], special=special)
    with pytest.raises(HeddleError, match="the tokenizer has 286 ids, but the model's vocab_size is 257"):
        save(build(tiny), tmp_path / "other", tokenizer)
    save(build(tiny), tmp_path / "other")
    tokenizer.save(tmp_path / "other")
    assert "286 ids, but the model has only 257" in refusal(tmp_path / "other")


def test_places_that_are_no_run(tmp_path: Path, run: Path) -> None:
    assert "no such directory" in refusal(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    assert "not a run directory" in refusal(tmp_path / "empty")
    assert "no such directory" in refusal(run / "config.json")
    (tmp_path / "empty" / "config.json").write_text('{"model_type": "gpt2"}')
    assert "import it first: heddle import" in refusal(tmp_path / "empty")
    with pytest.raises(HeddleError, match="device = 'gpu' is not one of"):
        load(run, "gpu")


def test_loading_while_training_publishes(run: Path, tiny: TransformerConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two looks of the reader the weights are replaced; it looks again."""
    from heddle.weights import run as module

    looked = module._newest
    weights = build(tiny, seed=2).state_dict()

    def interrupted(path: Path) -> Path:
        if not same_as_before:
            return looked(path)
        same_as_before.clear()
        publish(run, weights, step=20)
        raise HeddleError("model.safetensors: sha256 differs")

    same_as_before = [True]
    monkeypatch.setattr(module, "_newest", interrupted)
    assert same(load(run, "cpu").model, weights)


def test_the_config_is_read(run: Path, tiny: TransformerConfig) -> None:
    assert read_config(run) == SavedConfig(model=tiny)
    (run / "config.json").write_text("{")
    with pytest.raises(HeddleError, match="not valid JSON"):
        read_config(run)


def of_users_own(mixer: str, ffn: str | None = None) -> TransformerConfig:
    """A model of a user's own modules."""
    block = {"mixer": {"kind": "custom", "target": f"tests.model.modules:{mixer}"}}
    if ffn is not None:
        block["ffn"] = {"kind": "custom", "target": f"tests.model.modules:{ffn}"}
    return TransformerConfig.of({"vocab_size": 11, "dim": 8, "context": 24, "decoder": {"depth": 2, "block": block}})


@pytest.mark.parametrize(("mixer", "ffn"), [("Keeping", "Feed"), ("Asking", None), ("Tied", None), ("Counting", None)])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_users_own_modules_come_back_whole(tmp_path: Path, mixer: str, ffn: str | None, precision: str) -> None:
    """Weights and buffers of any kind from the file, and what no file holds from the constructor."""
    model = build(of_users_own(mixer, ffn), seed=3).eval()
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if name not in module._non_persistent_buffers_set:
                buffer.copy_(buffer.bool().logical_not() if buffer.dtype == torch.bool else buffer + 1)
    save(cast(model, precision), tmp_path / "own")
    result = load(tmp_path / "own", "cpu").model
    expected = cast(model, "fp32").state_dict()
    for name, tensor in result.state_dict().items():
        assert tensor.dtype == expected[name].dtype, name
        assert torch.equal(tensor, expected[name]), name
    tokens = torch.arange(10)[None]
    assert torch.equal(result(tokens).hidden, model(tokens).hidden)


def test_an_odd_dtype_is_refused_in_words(tmp_path: Path) -> None:
    model = build(of_users_own("Mean"))
    model.decoder.blocks[1].mixer.inner.register_buffer("odd", torch.zeros(2, dtype=torch.complex128))
    with pytest.raises(
        HeddleError, match=r"decoder\.blocks\.1\.mixer\.inner\.odd is of torch\.complex128, .* persistent=False"
    ):
        save(model, tmp_path / "own")
    assert not (tmp_path / "own").exists()


def test_a_strangers_run_calls_nothing(tmp_path: Path) -> None:
    save(build(of_users_own("Mean")), tmp_path / "own")
    for target in ("tests.model.modules:make", "os:urandom", "builtins:print"):

        def change(data: dict[str, object], target: str = target) -> None:
            data["model"]["decoder"]["block"]["mixer"]["target"] = target  # type: ignore[index]

        edit(tmp_path / "own" / "config.json", change)
        assert f"target = {target!r} is not a subclass of torch.nn.Module" in refusal(tmp_path / "own")
    assert modules.CALLED == []
