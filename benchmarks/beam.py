"""Beam search compared with Hugging Face transformers and CTranslate2: equal texts on tiny models, speed on a translator.

    python benchmarks/beam.py --equal 200                          # imported Marian, BART, T5 and GPT-2, random weights
    python benchmarks/beam.py RUN SOURCES [--precision bf16 --rounds 9] [--ctranslate2 float32 int8] [--json FILE]

`--equal` compares the ids and scores of the three best texts of each source, for several penalties; where ids part, both scores
must be within 1e-5. The second form exports RUN, lets all translate the lines of SOURCES in turns, in batches that are sorted
by length, each of the size that is fastest for it on two cores, and reports the ratios of their times to heddle's, as medians with
their spread, and how many translations are equal. All stop a search when as many texts have ended as there are beams, as
CTranslate2 does.
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


Translate = Callable[[], list[str]]


def contenders(run: Path, folder: Path, arguments: argparse.Namespace, texts: list[str]) -> dict[str, Translate]:
    """All translators, each with its own tokens of the same texts."""
    import torch

    from benchmarks.decoding import compile_at_once
    from heddle.config import BeamConfig
    from heddle.convert import export_model
    from heddle.generate import translate
    from heddle.model.precision import cast
    from heddle.weights import load

    model, tokenizer = load(run, "cpu")
    exported = folder / "exported"
    export_model(run, exported)
    cast(model, arguments.precision)
    assert tokenizer is not None
    config = BeamConfig(beams=arguments.beams, max_tokens=arguments.tokens, early_stopping=True)

    def by_heddle() -> list[str]:
        torch.set_num_threads(os.cpu_count() or 1)  # CTranslate2 sets OpenMP's number for all
        return [best.text for best, *_ in translate(model, tokenizer, texts, config, rows=arguments.rows)]

    compile_at_once()
    result: dict[str, Translate] = {"heddle": by_heddle}
    if not arguments.without_transformers:
        result["transformers"] = by_transformers(run, exported, arguments, texts)
    for kind in arguments.ctranslate2:
        result[f"CTranslate2 {kind}"] = by_ctranslate2(exported, folder / kind, kind, arguments, texts)
    return result


def by_transformers(run: Path, exported: Path, arguments: argparse.Namespace, texts: list[str]) -> Translate:
    """`generate` of the exported model."""
    import torch
    from transformers import AutoModelForSeq2SeqLM

    from heddle.generate.translate import Marks, source_ids
    from heddle.weights import load

    model, tokenizer = load(run, "cpu")
    assert tokenizer is not None
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[arguments.precision]
    reference, marks = (
        AutoModelForSeq2SeqLM.from_pretrained(exported, dtype=dtype).eval(),
        Marks.of(model.config, tokenizer),
    )

    def go() -> list[str]:
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
                    early_stopping=True,
                )
            for row, each in zip(rows, made[:, 1:].tolist(), strict=True):
                end = each.index(marks.end) if marks.end in each else len(each)
                result[row] = tokenizer.decode(each[:end])
        return result

    return go


def by_ctranslate2(
    exported: Path, folder: Path, kind: str, arguments: argparse.Namespace, texts: list[str]
) -> Translate:
    """CTranslate2's translator of the exported model, with weights of this kind, and one worker per core as heddle has."""
    import ctranslate2
    from transformers import AutoTokenizer

    ctranslate2.converters.TransformersConverter(str(exported)).convert(str(folder), quantization=kind)
    workers = os.cpu_count() or 1
    translator = ctranslate2.Translator(str(folder), "cpu", compute_type=kind, inter_threads=workers, intra_threads=1)
    tokenizer = AutoTokenizer.from_pretrained(exported)

    def go() -> list[str]:
        sources = [tokenizer.convert_ids_to_tokens(ids) for ids in tokenizer(texts)["input_ids"]]
        made = translator.translate_batch(
            sources,
            beam_size=arguments.beams,
            min_decoding_length=0,
            max_decoding_length=arguments.tokens,
            max_batch_size=arguments.ctranslate2_rows,
        )
        ids: Any = [tokenizer.convert_tokens_to_ids(each.hypotheses[0]) for each in made]
        return list(tokenizer.batch_decode(ids, skip_special_tokens=True))

    return go


def race(arguments: argparse.Namespace) -> dict[str, Any]:
    """All in turns."""
    texts = [line for line in arguments.sources.read_text(encoding="utf-8").splitlines() if line][: arguments.lines]
    with tempfile.TemporaryDirectory() as folder:
        all_of_them = contenders(arguments.run, Path(folder), arguments, texts)
        seconds: dict[str, list[float]] = {name: [] for name in all_of_them}
        translations = {
            name: translate() for name, translate in all_of_them.items()
        }  # not timed: the first call of each
        for number in range(arguments.rounds):
            for name in sorted(all_of_them, reverse=bool(number % 2)):
                began = time.perf_counter()
                all_of_them[name]()
                seconds[name].append(time.perf_counter() - began)
            print(
                f"round {number}: { {name: round(times[-1], 2) for name, times in seconds.items()} }", file=sys.stderr
            )
    rows = []
    for name, times in seconds.items():
        ratios = [reference / own for own, reference in zip(seconds["heddle"], times, strict=True)]
        equal = sum(a == b for a, b in zip(translations["heddle"], translations[name], strict=True))
        ratio = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        rows.append({"name": name, "seconds": median(times), "times heddle's": ratio, "equal": equal, "all": times})
    sizes = {"heddle": arguments.rows, "transformers": arguments.their_rows, "CTranslate2": arguments.ctranslate2_rows}
    return {"sources": len(texts), "precision": arguments.precision, "rows": sizes, "contenders": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", nargs="?", type=Path)
    parser.add_argument("sources", nargs="?", type=Path)
    parser.add_argument("--equal", type=int, nargs="?", const=200, help="compare texts on so many random sources")
    parser.add_argument("--beams", type=int, default=5)
    parser.add_argument("--rows", type=int, default=128, help="sources that share each forward pass")
    parser.add_argument("--their-rows", type=int, default=64, help="the same for Hugging Face transformers")
    parser.add_argument(
        "--ctranslate2", nargs="+", default=[], metavar="KIND", help="float32, int8, ...: of its weights"
    )
    parser.add_argument("--ctranslate2-rows", type=int, default=32, help="the same for CTranslate2")
    parser.add_argument("--without-transformers", action="store_true")
    parser.add_argument("--lines", type=int, help="translate the first lines alone")
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
