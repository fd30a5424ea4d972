"""Beam search compared with `generate` of Hugging Face transformers: equal texts on tiny models, speed on a trained translator.

    python benchmarks/beam.py --equal 200                          # imported Marian, BART, T5 and GPT-2, random weights
    python benchmarks/beam.py RUN SOURCES [--beams 5 --precision bf16 --rounds 9] [--json FILE]

`--equal` compares the ids and scores of the three best texts of each source, for several penalties; where ids part, both scores
must be within 1e-5. The second form exports RUN, lets both translate the lines of SOURCES in turns, in batches that are sorted
by length, each of the size that is fastest for it on two cores, and reports the ratio of their times, as a median with its
spread, and how many translations are equal.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
TOKENS = 20  # longest text of the comparison

SETTINGS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"beams": 4, "best": 3}, {"num_beams": 4, "num_return_sequences": 3}),
    (
        {"beams": 3, "best": 3, "length_penalty": 0.0},
        {"num_beams": 3, "num_return_sequences": 3, "length_penalty": 0.0},
    ),
    (
        {"beams": 4, "best": 3, "length_penalty": 2.0, "early_stopping": True, "repetition_penalty": 1.4},
        {
            "num_beams": 4,
            "num_return_sequences": 3,
            "length_penalty": 2.0,
            "early_stopping": True,
            "repetition_penalty": 1.4,
        },
    ),
    (
        {"beams": 5, "best": 3, "length_penalty": 1.3, "early_stopping": "never", "no_repeat_ngram": 2},
        {
            "num_beams": 5,
            "num_return_sequences": 3,
            "length_penalty": 1.3,
            "early_stopping": "never",
            "no_repeat_ngram_size": 2,
        },
    ),
    ({"beams": 1}, {"num_beams": 1}),
]
KINDS: dict[str, dict[str, Any]] = {
    "marian": {"eos_token_id": 0, "pad_token_id": 60, "decoder_start_token_id": 60, "forced_eos_token_id": 0},
    "bart": {
        "bos_token_id": 0,
        "eos_token_id": 2,
        "pad_token_id": 1,
        "decoder_start_token_id": 4,
        "forced_eos_token_id": 2,
    },
    "t5": {"eos_token_id": 1, "pad_token_id": 0, "decoder_start_token_id": 0},
    "gpt2": {"eos_token_id": 5, "bos_token_id": 5, "pad_token_id": 3},
}


def compare(sources: int) -> list[dict[str, Any]]:
    """Every kind and setting: how many texts are equal, and the largest difference of two scores."""
    import torch

    from heddle.config import BeamConfig
    from heddle.convert import import_model
    from heddle.generate import beam_search
    from heddle.weights import load
    from tests.convert.conftest import make

    draw, rows = torch.Generator().manual_seed(0), []
    texts = [torch.randint(9, 60, (3 + number % 16,), generator=draw).tolist() for number in range(sources)]
    for kind, ids in KINDS.items():
        longer = {"n_positions": 48} if kind == "gpt2" else {} if kind == "t5" else {"max_position_embeddings": 48}
        published: Any = make(kind, **ids, **longer)
        with torch.no_grad():
            for name, parameter in published.named_parameters():  # so that texts differ from source to source
                parameter.mul_(3 if parameter.dim() > 1 and "positions" not in name else 1)
        published.generation_config.bad_words_ids = [[7], [8, 9]]
        published.generation_config.forced_bos_token_id = 33 if kind == "bart" else None
        with tempfile.TemporaryDirectory() as folder:
            published.save_pretrained(Path(folder) / "published")
            import_model(Path(folder) / "published", Path(folder) / "run")
            model, _ = load(Path(folder) / "run")
        paired = model.encoder is not None
        inputs: dict[str, Any] = {"prompts": [[]] * sources, "sources": texts} if paired else {"prompts": texts}
        for own_settings, published_settings in SETTINGS:
            results = dict(beam_search(model, config=BeamConfig(max_tokens=TOKENS, **own_settings), **inputs))
            equal, parted, worst = 0, 0, 0.0
            for number, text in enumerate(texts):
                with torch.inference_mode():
                    expected = published.generate(
                        torch.tensor([text]), attention_mask=torch.ones(1, len(text), dtype=torch.long), do_sample=False,
                        max_new_tokens=TOKENS, return_dict_in_generate=True, output_scores=True, **published_settings,
                    )  # fmt: skip
                start = 1 if paired else len(text)
                scores = expected.sequences_scores.tolist() if own_settings["beams"] > 1 else [None]
                for sequence, score, each in zip(expected.sequences.tolist(), scores, results[number], strict=True):
                    same = list(each.ids) == sequence[start : start + len(each.ids)]
                    equal, parted = equal + same, parted + (not same)
                    if score is not None:
                        worst = max(worst, abs(score - each.score) / max(1.0, abs(score)))
            rows.append({"kind": kind, **own_settings, "equal": equal, "parted": parted, "largest difference": worst})
            print(rows[-1], file=sys.stderr)
    return rows


def contenders(
    run: Path, folder: Path, arguments: argparse.Namespace, texts: list[str]
) -> dict[str, Callable[[], list[str]]]:
    """Both translators, each with its own tokens of the same texts."""
    import torch
    from transformers import AutoModelForSeq2SeqLM

    from heddle.config import BeamConfig
    from heddle.convert import export_model
    from heddle.generate import translate
    from heddle.generate.translate import Marks, source_ids
    from heddle.model.precision import cast
    from heddle.weights import load

    model, tokenizer = load(run, "cpu")
    export_model(run, folder / "exported")
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[arguments.precision]
    reference = AutoModelForSeq2SeqLM.from_pretrained(folder / "exported", dtype=dtype).eval()
    cast(model, arguments.precision)
    assert tokenizer is not None
    config = BeamConfig(beams=arguments.beams, max_tokens=arguments.tokens)
    marks = Marks.of(model.config, tokenizer)

    def by_transformers() -> list[str]:
        ids = list(source_ids(model.config, tokenizer, marks, dict(enumerate(texts))).values())
        order = sorted(range(len(ids)), key=lambda number: -len(ids[number]))
        result = [""] * len(ids)
        for start in range(0, len(order), arguments.their_rows):
            rows = order[start : start + arguments.their_rows]
            width = max(len(ids[row]) for row in rows)
            tokens = torch.tensor([ids[row] + [0] * (width - len(ids[row])) for row in rows])
            mask = torch.tensor([[1] * len(ids[row]) + [0] * (width - len(ids[row])) for row in rows])
            with torch.inference_mode():
                made = reference.generate(
                    tokens,
                    attention_mask=mask,
                    num_beams=arguments.beams,
                    max_new_tokens=arguments.tokens,
                    do_sample=False,
                )
            for row, each in zip(rows, made[:, 1:].tolist(), strict=True):
                end = each.index(marks.end) if marks.end in each else len(each)
                result[row] = tokenizer.decode(each[:end])
        return result

    def by_heddle() -> list[str]:
        return [best.text for best, *_ in translate(model, tokenizer, texts, config, rows=arguments.rows)]

    return {"heddle": by_heddle, "transformers": by_transformers}


def race(arguments: argparse.Namespace) -> dict[str, Any]:
    """Both in turns."""
    texts = [line for line in arguments.sources.read_text(encoding="utf-8").splitlines() if line]
    seconds: dict[str, list[float]] = {"heddle": [], "transformers": []}
    with tempfile.TemporaryDirectory() as folder:
        both = contenders(arguments.run, Path(folder), arguments, texts)
        translations = {name: translate() for name, translate in both.items()}  # not timed: the first call of each
        for number in range(arguments.rounds):
            for name in sorted(both, reverse=bool(number % 2)):
                began = time.perf_counter()
                both[name]()
                seconds[name].append(time.perf_counter() - began)
            print(
                f"round {number}: { {name: round(times[-1], 2) for name, times in seconds.items()} }", file=sys.stderr
            )
    ratios = [reference / own for own, reference in zip(seconds["heddle"], seconds["transformers"], strict=True)]
    equal = sum(a == b for a, b in zip(*translations.values(), strict=True))
    ratio = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    settings = {
        "precision": arguments.precision,
        "rows": {"heddle": arguments.rows, "transformers": arguments.their_rows},
    }
    return {"sources": len(texts), **settings, "ratio": ratio, "equal": equal, "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", nargs="?", type=Path)
    parser.add_argument("sources", nargs="?", type=Path)
    parser.add_argument("--equal", type=int, nargs="?", const=200, help="compare texts on so many random sources")
    parser.add_argument("--beams", type=int, default=5)
    parser.add_argument("--rows", type=int, default=128, help="sources that share each forward pass")
    parser.add_argument("--their-rows", type=int, default=64, help="the same for Hugging Face transformers")
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    os.environ |= {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    if (arguments.equal is None) == (arguments.run is None or arguments.sources is None):
        raise SystemExit("name a run and a file of sources, or give --equal")
    result: Any = race(arguments) if arguments.equal is None else compare(arguments.equal)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
