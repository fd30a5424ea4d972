"""Planted faults: a fragment of heddle's own source is changed in a copy, and whoever is named next to it must notice.

    python -m benchmarks.mutations [--json FILE] [--only WORD ...]

The faults are the rows of `tests/*/faults.py`, beside the tests that notice them. A fault of what predicts must move some output of
a trained toy by more than rounding, and then the check of `prove` that it names must say DIFFERENT or break off; where it names
parity, the logits must leave those that transformers computed from the toy's own weights. Before anything is planted, every toy has
to be found sound by both.

Where a fault names a test, that test must fail; if it names five steps of training, they must end at other weights. Before anything
is planted, all of these tests have to pass.

`--only` takes the faults in whose names a word occurs. Exit code 1: a fault was not noticed as named, or was none.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from tests.planting import Fault, collect, misplaced
from tests.toys import STEPS, TOYS

ROOT = Path(__file__).parents[1]
PARITY = 1e-5
# What the token loop draws where one id, 60, is the best at every step unless a setting forbids it.
BIAS = 100.0
SETTINGS: dict[str, dict[str, Any]] = {
    "bias": {},
    "repetition": {"repetition_penalty": 64.0},
    "presence": {"presence_penalty": 2.0 * BIAS},
    "small presence": {"presence_penalty": 0.3 * BIAS},
    "frequency": {"frequency_penalty": 0.6 * BIAS},
    "runs": {"no_repeat_ngram": 2},
    "banned": {"banned": [[60, 60]]},
    "shortest": {"min_tokens": 3},
}
MOVED = 1e-6  # of a parameter's largest number: five steps that end nearer than this are the same five steps


def train(config: dict[str, Any], folder: Path) -> None:
    """A toy that has learned something, saved as a run, and if a family can express it as transformers' directory."""
    import torch
    from torch.nn import functional as F

    import heddle
    from heddle.config import TransformerConfig
    from heddle.convert import export_model
    from heddle.errors import HeddleError
    from heddle.weights import save

    model = heddle.build(TransformerConfig.of(config), seed=1).train()
    for parameter in model.parameters():  # biases start at 0, where dropping one would go unnoticed
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, float(parameter.detach().mean()), 0.2)
    optimizer = torch.optim.AdamW(model.parameters(), 5e-3)
    draw = torch.Generator().manual_seed(0)
    for _ in range(120):
        start = torch.randint(61, (16, 1), generator=draw)
        stride = torch.randint(1, 5, (16, 1), generator=draw)
        tokens = (start + stride * torch.arange(25)) % 61
        source = tokens[:, :9] if model.encoder is not None and model.decoder is not None else None
        hidden = model(tokens[:, :-1], None, source).hidden
        loss = F.cross_entropy(model.logits(hidden).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    save(model.eval(), folder / "run")
    try:
        export_model(folder / "run", folder / "published")
    except HeddleError as error:
        (folder / "unpublished").write_text(str(error))


def outputs(folder: Path) -> dict[str, Any]:
    """What the toy computes in every way it is used: at once, in steps, ragged, padded, packed, forked."""
    import torch

    from heddle.config.model import with_kernel
    from heddle.errors import HeddleError
    from heddle.nn import Layout
    from heddle.prove.subject import Subject
    from heddle.weights import load

    subject = Subject(load(folder / "run", "cpu").model)
    model = subject.model
    draw = torch.Generator().manual_seed(5)
    tokens = torch.randint(61, (3, 24), generator=draw)
    source = torch.randint(61, (3, 9), generator=draw) if subject.is_encoder_decoder else None
    padded = Layout.padded([9, 5, 2], 9) if subject.is_encoder_decoder else None
    traces = {"whole": subject.full_pass(tokens, None, source)}
    traces["source"] = subject.full_pass(tokens, None, source, padded)
    for side in ("left", "right"):
        layout = Layout.padded([24, 11, 3], 24, side)
        trace = subject.full_pass(tokens, layout, source)
        traces[side] = {"output": trace["output"][layout.segment >= 0]}
    traces["packed"] = subject.full_pass(tokens, Layout.packed([[9, 15]] * 3, 24), source)
    for kernel in ("reference", "blockwise"):
        with contextlib.suppress(HeddleError):  # it cannot do what the model asks of it
            other = type(model)(with_kernel(model.config, kernel))
            other.load_state_dict(model.state_dict())
            traces[kernel] = subject.full_pass(tokens, None, source, model=other.eval())
    if model.decoder is not None:
        traces |= remembered(subject, tokens, source)
    if model.decoder is not None and source is None:
        traces |= learned_and_drawn(subject, tokens)
    return {"rounding": subject.bounds["output"], "outputs": {name: trace["output"] for name, trace in traces.items()}}


def remembered(subject: Any, tokens: Any, source: Any) -> dict[str, Any]:
    """The same through caches that are stepped, grown, joined, ragged and forked."""
    import torch

    model, draw = subject.model, torch.Generator().manual_seed(6)
    traces = {"stepped": subject.stepwise_pass(tokens, range(1, 24), source)}
    long = torch.randint(61, (2, 72), generator=draw)
    traces["long"] = subject.stepwise_pass(long, [60, 66], None if source is None else source[:2])
    with torch.no_grad():
        first, second = model.new_cache(2), model.new_cache(1)
        subject.step(tokens[:2, :9], first, None, None if source is None else source[:2])
        subject.step(tokens[2:, :5], second, None, None if source is None else source[2:, :4])
        both = second.join(first)
        traces["joined"] = subject.trace(lambda: subject.step(tokens[:, 9:10], both))
    with torch.no_grad():
        cache = model.new_cache(3)
        subject.step(tokens[:, :9], cache, [9, 4, 6], source)
        forked = cache.select([2, 0, 2])
        traces["forked"] = subject.trace(lambda: subject.step(tokens[:, 9:10], forked))
        traces["ragged"] = subject.trace(lambda: subject.step(tokens[:, 9:12], cache, [3, 1, 2]))
        traces["ragged"] = {"output": traces["ragged"]["output"][:, :1]}
        traces["ragged again"] = subject.trace(lambda: subject.step(tokens[:, 12:13], cache))
    return traces


def learned_and_drawn(subject: Any, tokens: Any) -> dict[str, Any]:
    """What the objective gives a decoder, with all its gradients, and what the token loop draws from it."""
    import torch

    from heddle.config import EngineConfig, SamplingConfig
    from heddle.data.batch import next_token_batch
    from heddle.generate import Engine, generate
    from heddle.generate.prefill import MIN_SHARED
    from heddle.nn import Layout
    from heddle.tasks import CrossEntropy

    model, traces = subject.model, {}
    torch.manual_seed(0)
    model.train()
    batch = replace(next_token_batch(tokens.numpy()), layout=Layout.packed([[9, 14]] * 3, 23))
    leaves = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with torch.enable_grad():
        loss = CrossEntropy(model)(batch)
        gradients = torch.autograd.grad(loss.total + loss.extra, leaves, materialize_grads=True)
    traces["learned"] = {"output": torch.cat([loss.total.detach()[None], *[each.flatten() for each in gradients]])}
    model.eval()
    events = list(generate(model, [[5, 9], [7, 3, 1, 8]], SamplingConfig(temperature=0.0, max_tokens=6)))
    traces["drawn"] = {"output": torch.tensor([event.logprob for event in events])}
    for name, setting in SETTINGS.items():
        sampling = SamplingConfig.of({"temperature": 0.0, "max_tokens": 6, "logit_bias": {60: BIAS}, **setting})
        texts = generate(model, [[5, 9, 7]], sampling, 60 if name == "shortest" else None)
        tokens = [float(event.token) for event in texts if event.token is not None]
        traces[name] = {"output": torch.tensor([*tokens, *[-1.0] * (6 - len(tokens))])}
    engine, echoed = Engine(model, config=EngineConfig(keep=1)), list[float]()
    prompt = [5, 9, 7, 3] * (MIN_SHARED // 4 + 1)  # a shorter one is not stored
    # The second text finds the states of the first. A prompt that is read in both directions has no log probabilities.
    for echo in (False, not engine.cache.prefix):
        engine.submit(prompt, SamplingConfig(temperature=0.0, max_tokens=1), echo=echo)
        while engine:
            echoed += [each.logprob for event in engine.step() for each in event.prompt]
    traces["echoed"] = {"output": torch.tensor([*echoed, *[1.0] * (len(prompt) - 1 - len(echoed))])}
    return traces


def examine(folder: Path) -> dict[str, Any]:
    """In this process's heddle: how far the outputs are from the sound ones, what `prove` says, and parity."""
    import torch
    from safetensors.torch import load_file

    from heddle.prove import prove
    from heddle.weights import load

    sound = load_file(folder / "sound.safetensors")
    result: dict[str, Any] = {"moved": 0.0, "where": "", "prove": [], "parity": None}
    try:
        report = outputs(folder)["outputs"]
        for name, expected in sound.items():
            if name in report:
                error = float((report[name] - expected).abs().nan_to_num(nan=1e9).max() / expected.abs().max())
                if error > result["moved"]:
                    result |= {"moved": error, "where": name}
        if "published" in sound:
            whole = outputs(folder)["outputs"]["whole"]
            result["parity"] = float((whole - sound["published"]).abs().max() / sound["published"].abs().max())
    except Exception as error:
        result |= {"moved": float("inf"), "where": f"{type(error).__name__}: {error}"[:120]}
    try:
        with torch.enable_grad():
            proof = prove(load(folder / "run", "cpu").model)
        result["prove"] = [verdict.check for verdict in proof.verdicts if not verdict.holds]
    except Exception:  # why, says `where`
        result["prove"] = ["broke off"]
    return result


def prepare(folder: Path, name: str) -> dict[str, Any]:
    """A trained toy and its sound outputs; transformers' logits beside them where a family can express it."""
    import torch
    from safetensors.torch import save_file

    train(TOYS[name], folder)
    report = outputs(folder)
    sound = {key: value.contiguous() for key, value in report["outputs"].items()}
    if (folder / "published").is_dir():
        from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

        draw = torch.Generator().manual_seed(5)
        tokens = torch.randint(61, (3, 24), generator=draw)
        source = torch.randint(61, (3, 9), generator=draw)
        kind = AutoModelForSeq2SeqLM if "encoder" in TOYS[name] else AutoModelForCausalLM
        reference = kind.from_pretrained(folder / "published", dtype=torch.float32).eval()
        inputs = (
            {"input_ids": source, "decoder_input_ids": tokens} if "encoder" in TOYS[name] else {"input_ids": tokens}
        )
        with torch.no_grad():
            sound["published"] = reference(**inputs).logits[..., :61].contiguous()
    save_file(sound, folder / "sound.safetensors")
    (folder / "rounding.json").write_text(json.dumps(report["rounding"]))
    return {}


def five_steps(name: str) -> dict[str, Any]:
    """Five steps as a run makes them: uneven targets, two micro-batches, a rise and a fall of the rate, several epochs."""
    import numpy as np
    import torch

    import heddle
    from heddle.config import TransformerConfig
    from heddle.config.train import TrainConfig
    from heddle.data.batch import next_token_batch
    from heddle.data.order import windows
    from heddle.tasks import CrossEntropy
    from heddle.train import Optimizer, train_step
    from heddle.train.runtime import seed_step
    from heddle.train.schedule import factor

    config, settings, precision = STEPS[name]
    train = TrainConfig.of({"clip": 0.5, "weight_decay": 0.5, "betas": [0.8, 0.99], "final": 0.1, **settings})
    model = heddle.build(TransformerConfig.of(config), seed=1)
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():  # biases start at 0, where half of all faults would go unnoticed
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=draw))
    optimizer, objective = Optimizer(model, train, 1e-2, precision), CrossEntropy(model.train())
    ids = np.random.default_rng(0).integers(0, 61, 200)
    for step in range(5):
        seed_step(0, step)
        rows = np.stack([ids[start : start + 25] for start in windows(len(ids), 24, 0, step, 4)])
        weights = torch.rand(4, 24, generator=draw).masked_fill(
            torch.arange(24) > torch.tensor([[24], [9], [2], [17]]), 0.0
        )
        batch = replace(next_token_batch(rows), weights=weights)
        train_step(objective, optimizer, batch, 2, factor(step, 5, 2, train), train.clip)
    return {key: master.detach().clone() for key, master in optimizer.masters.items()}


def trained(name: str, file: Path) -> dict[str, Any]:
    """Write down the weights that sound steps end at."""
    from safetensors.torch import save_file

    save_file(five_steps(name), file)
    return {}


def slipped(name: str, file: Path, test: str) -> dict[str, Any]:
    """In this process's heddle: how far five steps end from the sound ones, and what comes of the test."""
    from safetensors.torch import load_file

    moved, where = 0.0, "nowhere"
    steps = five_steps(name) if name else {}
    for key, expected in load_file(file).items() if name else ():
        error = float((steps[key] - expected).abs().nan_to_num(nan=1e9).max() / expected.abs().max())
        if error > moved:
            moved, where = error, key
    return {"moved": moved, "where": where, **tested([test])}


def tested(tests: list[str]) -> dict[str, Any]:
    """The exit code of pytest, and which tests failed."""
    import pytest

    class Failures:
        names: list[str] = []  # noqa: RUF012

        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.failed:
                self.names.append(report.nodeid)

    words = [
        "-q",
        "-p",
        "no:cacheprovider",
        "-W",
        "ignore::pytest.PytestAssertRewriteWarning",
        *[f"tests/{test}" for test in tests],
    ]
    with contextlib.redirect_stdout(sys.stderr):
        code = int(pytest.main(words, plugins=[Failures()]))
    return {"code": code, "failed": Failures.names}


class Copy:
    """A copy of heddle and its tests, in which one line at a time is changed.

    Every part runs in a process of its own, forked off one that has the large libraries, but nothing of heddle, in memory.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        junk = shutil.ignore_patterns("__pycache__")
        for folder in ("heddle", "tests", "docs", "recipes"):  # a page shows code that a test runs
            shutil.copytree(ROOT / folder, place / folder, ignore=junk)
        shutil.copy(ROOT / "pyproject.toml", place)
        self.stamps = count(int(time.time()))

    @contextlib.contextmanager
    def changed(self, fault: Fault) -> Iterator[None]:
        """With the fault planted."""
        file = self.place / "heddle" / fault.file
        sound = file.read_text()
        try:
            self._write(file, fault.plant(sound))
            yield
        finally:
            self._write(file, sound)

    def _write(self, file: Path, text: str) -> None:
        file.write_text(text)
        stamp = next(self.stamps)  # Python tells a changed file by its size and its second
        os.utime(file, (stamp, stamp))

    def run(self, part: Callable[..., dict[str, Any]], *args: Any) -> dict[str, Any]:
        """A part's answer; of one that broke off, `broke` with the last line it said."""
        ours, sender = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.get_context("fork").Process(target=self._part, args=(sender, part, args))
        process.start()
        sender.close()
        try:
            result: dict[str, Any] = ours.recv()
        except EOFError:
            result = {"broke": "the process ended"}
        process.join()
        return result

    def _part(self, answer: Any, part: Callable[..., dict[str, Any]], args: tuple[Any, ...]) -> None:
        os.chdir(self.place)
        sys.path.insert(0, str(self.place))
        log = os.open(self.place / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(log, stream)
        try:
            answer.send(part(*args))
        except BaseException as error:
            answer.send({"broke": f"{type(error).__name__}: {error}"[:200]})


def preload() -> None:
    """What every part needs and no fault changes, imported once: one thread, so that a fork takes nothing away."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1", "OMP_NUM_THREADS": "1", "HEDDLE_CHECKED": ""}
    import pytest  # noqa: F401
    import torch
    from transformers import (  # noqa: F401
        AutoModelForCausalLM,
        AutoModelForSeq2SeqLM,
        GPT2LMHeadModel,
        LlamaForCausalLM,
        MistralForCausalLM,
        MixtralForCausalLM,
        T5ForConditionalGeneration,
    )

    torch.set_num_threads(1)
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]  # each part imports its copy's
    loaded = [name for name in sys.modules if name.partition(".")[0] in ("heddle", "tests")]
    assert not loaded, f"the parent already has {loaded[:3]}"


def predicting(copy: Copy, scratch: Path, faults: list[Fault]) -> list[dict[str, Any]]:
    """Plant the faults of what predicts, one after another."""
    rows = []
    for toy in dict.fromkeys(fault.toy for fault in faults):
        (scratch / toy).mkdir()
        made = copy.run(prepare, scratch / toy, toy)
        sound = made or copy.run(examine, scratch / toy)
        fine = sound.get("prove") == [] and (sound["parity"] is None or sound["parity"] <= PARITY)
        print(f"toy {toy}: {'sound' if fine else f'NOT SOUND: {sound}'}", file=sys.stderr, flush=True)
        if not fine:
            raise SystemExit(1)
    for fault in faults:
        with copy.changed(fault):
            report = copy.run(examine, scratch / fault.toy)
        if "broke" in report:
            report = {"moved": float("inf"), "where": report["broke"], "prove": ["broke off"], "parity": None}
        rounding = 8 * json.loads((scratch / fault.toy / "rounding.json").read_text())
        # The check `export` of prove compares with transformers as well.
        parity = "export" in report["prove"] or (report["parity"] is not None and not report["parity"] <= PARITY)
        noticed = parity if fault.check == "parity" else bool({fault.check, "broke off"} & {*report["prove"]})
        caught = fault.check if noticed else "NOTHING"
        moved = not report["moved"] <= rounding
        rows.append({"fault": fault.name, "toy": fault.toy, "is_a_fault": moved, "caught_by": caught, **report})
        print(f"| {fault.name} | {fault.toy} | {report['moved']:.1e} ({report['where']}) | {caught} | "
              f"{', '.join(report['prove'])} |", flush=True)  # fmt: skip
    return rows


def training(copy: Copy, scratch: Path, faults: list[Fault]) -> list[dict[str, Any]]:
    """Plant the faults of what trains, one after another."""
    rows: list[dict[str, Any]] = []
    if not faults:
        return rows
    for steps in dict.fromkeys(fault.steps for fault in faults if fault.steps):
        if made := copy.run(trained, steps, scratch / f"{steps}.safetensors"):
            raise SystemExit(f"five steps of {steps}: {made}")
    sound = copy.run(tested, list(dict.fromkeys(fault.test for fault in faults)))
    print(
        f"tests of training: {'sound' if sound.get('code') == 0 else f'NOT SOUND: {sound}'}",
        file=sys.stderr,
        flush=True,
    )
    if sound.get("code") != 0:
        raise SystemExit(1)
    for fault in faults:
        with copy.changed(fault):
            result = copy.run(slipped, fault.steps, scratch / f"{fault.steps}.safetensors", fault.test)
        if "broke" in result or result["code"] not in (0, 1):
            raise SystemExit(f"{fault.name}: it does not even run: {result}")
        moved, caught = not fault.steps or not result["moved"] <= MOVED, "its test" if result["failed"] else "NOTHING"
        rows.append({"fault": fault.name, "steps": fault.steps, "test": fault.test, "is_a_fault": moved, "caught_by": caught,
                     **result})  # fmt: skip
        print(
            f"| {fault.name} | {fault.steps} | {result['moved']:.1e} ({result['where']}) | {caught} | {fault.test} |",
            flush=True,
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", nargs="*", metavar="WORD")
    arguments = parser.parse_args()

    def is_selected(name: str) -> bool:
        return not arguments.only or any(word in name for word in arguments.only)

    faults = [each for each in collect() if is_selected(each.name)]
    if not faults:
        raise SystemExit(f"no fault has {' or '.join(map(repr, arguments.only))} in its name")
    if reasons := misplaced(faults):  # before any time is spent
        raise SystemExit("\n".join(["these faults cannot be planted; name the places as they are now:", *reasons]))
    preload()
    with tempfile.TemporaryDirectory() as place:
        scratch, copy = Path(place), Copy(Path(place) / "copy")
        rows = predicting(copy, scratch, [each for each in faults if each.toy])
        more = training(copy, scratch, [each for each in faults if each.test])
    missed = [row["fault"] for row in rows + more if row["caught_by"] == "NOTHING"]
    harmless = [row["fault"] for row in rows + more if not row["is_a_fault"]]
    parity = sum(row["caught_by"] == "parity" for row in rows)
    print(f"\n{len(faults)} faults: in {len(rows)} toys {parity} were caught by parity and the others by the check named, unless "
          f"missed; {len(more)} by the test named, unless missed; missed: {', '.join(missed) or 'none'}"
          + (f"; no fault at all: {', '.join(harmless)}" if harmless else ""))  # fmt: skip
    if arguments.json:
        report = {"missed": missed, "harmless": harmless, "faults": rows, "training": more}
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")
    if missed or harmless:
        sys.exit(1)


if __name__ == "__main__":
    main()
