"""The process that runs submissions: it imports torch once, and forks a child with limits for each file.

`heddle.lessons.sandbox` starts it, and writes a line of JSON for each submission: its file, the part, and a folder which has the
cases' tensors and gets what the submission computed. The answer is a line of JSON that tells how the child ended.
"""

import contextlib
import inspect
import json
import os
import resource
import select
import signal
import sys
import time
from importlib import util
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from heddle.lessons.homework import HOMEWORK, Parameters, compare_parameters, homework_name
from heddle.lessons.learning import learn

SECONDS = 20.0
SECONDS_TO_LEARN = 180.0
MEMORY = 2 << 30  # bytes that a submission may use beside torch
FILE_SIZE = 64 << 20  # bytes of a file that it may write
LONGEST = 300  # characters of an error that are reported


def main() -> None:
    """Serve requests until the input ends."""
    torch.set_num_threads(1)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps({"ended": run(request)}), flush=True)


def run(request: dict[str, Any]) -> str:
    """Run a submission in a child; how it ended, or an empty text if well."""
    child = os.fork()
    if not child:
        work(request)
    seconds, deadline = request["seconds"], time.monotonic() + request["seconds"]
    status = None
    handle = os.pidfd_open(child) if hasattr(os, "pidfd_open") else None
    while status is None and time.monotonic() < deadline:
        if handle is None:
            time.sleep(0.02)
        else:
            select.select([handle], [], [], max(0.0, deadline - time.monotonic()))
        ended, code = os.waitpid(child, os.WNOHANG)
        status = code if ended else None
    if handle is not None:
        os.close(handle)
    stop(child)
    if status is None:
        os.waitpid(child, 0)
        return f"it did not end within {seconds:.0f} seconds"
    if os.WIFSIGNALED(status):
        return f"it was ended by {signal.Signals(os.WTERMSIG(status)).name}"
    if (Path(request["folder"]) / "result.json").exists():
        return ""
    return f"it ends the process, with exit code {os.WEXITSTATUS(status)}"


def stop(child: int) -> None:
    """End whatever a submission started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)


def work(request: dict[str, Any]) -> None:
    """What the child does; it never returns."""
    folder = Path(request["folder"])
    os.setsid()
    os.chdir(folder / "scratch")
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(quiet, stream)
    limit()
    result: dict[str, Any] = {}
    try:
        result = examine(request, folder)
    except SystemExit as error:
        os._exit(error.code if isinstance(error.code, int) else 1)
    except MemoryError:
        result = {"error": f"it needs more than {MEMORY >> 30} GiB of memory"}
    except Exception as error:
        result = {"error": described(error, request["file"])}
    (folder / "result.json.partial").write_text(json.dumps(result))
    os.replace(folder / "result.json.partial", folder / "result.json")
    os._exit(0)


def limit() -> None:
    """Limit memory and the size of files. Where the system does not count address space, memory stays unlimited."""
    with contextlib.suppress(OSError, ValueError):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_SIZE, FILE_SIZE))


def described(error: Exception, file: str) -> str:
    """An error in a line, with the last line of the submission that it came through."""
    text = " ".join(str(error).split())[:LONGEST]
    if "can't allocate memory" in text or "not enough memory" in text:
        text = f"it needs more than {MEMORY >> 30} GiB of memory"
    line, trace = 0, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            line = trace.tb_lineno
        trace = trace.tb_next
    if isinstance(error, SyntaxError) and error.filename == file:
        line = error.lineno or 0
    return (f"line {line}: " if line else "") + f"{type(error).__name__}: {text}".removesuffix(": ")


def examine(request: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Import a submission, compare its parameters, and compute every case."""
    homework = HOMEWORK[request["part"]]
    spec = util.spec_from_file_location("submission", request["file"])
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    sys.modules["submission"] = module
    sys.path.insert(0, str(Path(request["file"]).parent))
    spec.loader.exec_module(module)
    kind = getattr(module, homework.name, None)
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        return {"error": f"it has no class {homework.name}(nn.Module)" + others(module)}
    try:
        built = kind(**homework.arguments).eval()
    except TypeError as error:
        raise TypeError(f"{error}; the class is made as {homework.call}") from error
    aliases: dict[int, tuple[list[str], Tensor]] = {}
    for name, parameter in built.named_parameters(remove_duplicate=False):
        aliases.setdefault(id(parameter), ([], parameter))[0].append(name)
    parameters = compare_parameters(
        homework.shapes, [(tuple(names), tuple(tensor.shape)) for names, tensor in aliases.values()]
    )
    result: dict[str, Any] = {
        "missing": parameters.missing,
        "extra": parameters.extra,
        "misshapen": parameters.misshapen,
        "errors": {},
        "takes_layout": takes_layout(built),
    }
    tensors = load_file(folder / "cases.safetensors")
    outputs: dict[str, Tensor] = {}
    for index, case in enumerate(request["cases"]):
        computed: list[dict[str, Tensor]] = []
        for dtype in (torch.float64, torch.float32):
            built.to(dtype)
            load(built, parameters, tensors, f"{case['weights']}:")
            x = tensors[f"input:{index}"]
            try:
                results = calls(built, case["method"], x.to(dtype) if x.is_floating_point() else x, index)
                computed.append(results | (gradients(built, parameters, index) if case["gradients"] else {}))
            except NotImplementedError:
                result["errors"][index] = f"{case['method']} is not written yet"
            except Exception as error:
                result["errors"][index] = described(error, request["file"])
        if computed:
            result["errors"].pop(index, None)
            outputs |= computed[0] if agree(computed, f"{index}:output") else computed[-1]
    save_file(outputs, folder / "outputs.safetensors")
    if request["learns"] and not result["errors"]:
        result["learned"] = learn(kind)
    return result


def others(module: ModuleType) -> str:
    """The classes that a file has instead, in words."""
    kinds = [
        name
        for name, each in vars(module).items()
        if isinstance(each, type) and issubclass(each, nn.Module) and each.__module__ == module.__name__
    ]
    return f"; it has {', '.join(kinds)}" if kinds else ""


def takes_layout(built: nn.Module) -> bool:
    """Whether `forward` can be called as a mixer's: with vectors and a layout."""
    try:
        inspect.signature(built.forward).bind(None, None)
    except TypeError:
        return False
    return True


def agree(computed: list[dict[str, Tensor]], name: str) -> bool:
    """Whether float64 and float32 give the same, roughly: a class that makes float32 tensors of its own may not work in float64."""
    first, last = (each[name].double() for each in (computed[0], computed[-1]))
    size = last.nan_to_num(0.0, 0.0, 0.0).abs().max().clamp(min=1.0).item()
    return first.shape == last.shape and torch.allclose(first, last, rtol=0.0, atol=1e-2 * size, equal_nan=True)


def load(built: nn.Module, parameters: Parameters, tensors: dict[str, Tensor], prefix: str) -> None:
    """Give a submission the case's weights: graders that seed both sides fail right answers that draw in another order."""
    state = dict(built.named_parameters(remove_duplicate=False))
    with torch.no_grad():
        for name, parts in parameters.places.items():
            tensor = {part: tensors[prefix + part.name] for part in parts}
            state[name].copy_(torch.cat([each[part.rows(len(each))] for part, each in tensor.items()]))


def calls(built: nn.Module, method: str, x: Tensor, index: int) -> dict[str, Tensor]:
    """What a submission returns in evaluation, again, and in training, with the gradients of a sum; and what reaches W_O."""
    before: list[Tensor] = []
    maps = [module for name, module in built.named_modules() if homework_name(name).rpartition(".")[2] == "o"]
    hook = maps[0].register_forward_hook(lambda _, inputs, __: before.append(inputs[0].detach())) if maps else None
    call = built if method == "forward" else getattr(built, method)
    results = {"output": call(x.clone())}
    if hook is not None:
        hook.remove()
    results["again"] = call(x.clone())
    built.train()
    built.zero_grad()
    results["training"] = call(x.clone())
    for name, each in results.items():
        if not isinstance(each, Tensor):
            raise TypeError(f"{method} returned {type(each).__name__}, not a tensor")
        if name == "training" and each.requires_grad:
            each.square().sum().backward()
        results[name] = each.detach().contiguous().clone()
    built.eval()
    if before:
        results["joined"] = before[0].contiguous()
    return {f"{index}:{name}": each for name, each in results.items()}


def gradients(built: nn.Module, parameters: Parameters, index: int) -> dict[str, Tensor]:
    """The gradients of the last call in training, by the homework's names."""
    state = dict(built.named_parameters(remove_duplicate=False))
    pieces: dict[str, dict[int, Tensor]] = {}
    for name, parts in parameters.places.items():
        gradient = state[name].grad
        if gradient is not None:
            for part, piece in zip(parts, gradient.chunk(len(parts)), strict=True):
                pieces.setdefault(part.name, {})[part.head or 0] = piece
    return {
        f"{index}:gradient:{name}": torch.cat([each for _, each in sorted(heads.items())])
        for name, heads in pieces.items()
    }


if __name__ == "__main__":
    main()
