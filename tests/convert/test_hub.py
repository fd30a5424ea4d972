"""Fetching by name, against a stand-in of the Hub on this machine."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from heddle.convert import import_model
from heddle.errors import HeddleError
from heddle.weights import load
from tests import programs

TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """What a download asks for: a model, the list of its files, and a file. It notes which files were wanted."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.requested: set[str] = set()
        super().__init__(("127.0.0.1", 0), Answer)


class Answer(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        hub = self.server
        assert isinstance(hub, Hub)
        model, file = "/api/models/owner/tiny", f"/owner/tiny/resolve/{COMMIT}/"
        sizes = {path.name: path.stat().st_size for path in hub.folder.iterdir()}
        if self.path == f"{model}/revision/main":
            names = [{"rfilename": name} for name in sizes]
            self.say(200, json.dumps({"id": "owner/tiny", "sha": COMMIT, "siblings": names}).encode())
        elif self.path.startswith(f"{model}/tree/{COMMIT}"):
            entries = [{"type": "file", "path": name, "size": size, "oid": name} for name, size in sizes.items()]
            self.say(200, json.dumps(entries).encode())
        elif self.path.startswith(file):
            name = self.path.removeprefix(file)
            hub.requested.add(name)
            self.say(200, (hub.folder / name).read_bytes())
        else:
            self.say(404, b"")

    do_GET = do_HEAD

    def say(self, status: int, body: bytes) -> None:
        self.send_response(status)
        headers = {"Content-Length": str(len(body)), "ETag": f'"{len(body)}"', "X-Repo-Commit": COMMIT}
        for name, value in (headers | ({"X-Error-Code": "RepoNotFound"} if status == 404 else {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def hub(make_published: Callable[..., PreTrainedModel], tmp_path: Path) -> Iterator[Hub]:
    make_published("llama").save_pretrained(tmp_path / "published")
    (tmp_path / "published" / "pytorch_model.bin").write_bytes(b"PK")
    (tmp_path / "published" / "tokenizer_config.json").write_text("{}")
    (tmp_path / "published" / "chat_template.jinja").write_text(TEMPLATE)
    (tmp_path / "published" / "own_code.py").write_text("raise SystemExit")
    with Hub(tmp_path / "published") as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def fetch(hub: Hub, *requests: tuple[str, Path, dict[str, str]]) -> list[tuple[int, str, str]]:
    """For each model, run and further variables: the exit code, what is printed, and the errors."""
    env = {name: value for name, value in programs.environment().items() if not name.startswith("HF_")}
    env |= {"HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}", "HF_HOME": str(requests[0][1].parent / "cache")}
    env |= {"HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1"}
    call = programs.call("convert.fetching", json.dumps(requests, default=str))
    done = subprocess.run(call, env=env, cwd=programs.ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def test_a_model_is_fetched_and_only_what_is_read(hub: Hub, tmp_path: Path) -> None:
    ((code, out, err),) = fetch(hub, ("owner/tiny", tmp_path / "run", {}))
    assert (code, out.strip()) == (0, "llama"), err
    files = {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer_config.json",
        "chat_template.jinja",
    }
    assert hub.requested == files
    chat = load(tmp_path / "run", "cpu").model.config.chat
    assert chat is not None
    assert chat.template == TEMPLATE
    import_model(hub.folder, tmp_path / "local")
    fetched, local = (load(tmp_path / name, "cpu").model.state_dict() for name in ("run", "local"))
    assert all(torch.equal(fetched[name], local[name]) for name in local)


@pytest.mark.thorough
def test_a_model_that_cannot_be_had_is_one_line(hub: Hub, tmp_path: Path) -> None:
    run = tmp_path / "run"
    requests: list[tuple[str, Path, dict[str, str]]] = [
        ("owner/other", run, {}),
        ("owner/tiny", run, {"HF_HUB_OFFLINE": "1"}),
        ("owner/tiny", run, {"HF_ENDPOINT": "http://127.0.0.1:1"}),
    ]
    results = fetch(hub, *requests)
    for (name, _, _), (code, out, err) in zip(requests, results, strict=True):
        assert code == 2, err
        assert out.startswith(f"{name} cannot be downloaded from the Hub (")
        assert out.count("\n") == 1
        assert not run.exists()


def test_without_huggingface_hub_the_way_to_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(HeddleError, match=r"pip install 'heddle-lm\[hub\]'"):
        import_model("owner/tiny", tmp_path / "run", hub=True)
