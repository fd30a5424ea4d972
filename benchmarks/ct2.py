"""CTranslate2 beside heddle: what it makes of `heddle export`, by its own converter and search, from texts on.

    python benchmarks/ct2.py RUN SOURCES [--lines 200] [--beams 5] [--json FILE]    # a translator: beam search
    python benchmarks/ct2.py --families [--prompts 20] [--json FILE]                 # tiny random models of every family

The first form counts translations that are equal, and lists those that part, with both log probabilities. The second compares
greedy ids of models that write, beams of those that translate, and hidden vectors of encoders.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
TEXT = "The weaver lifts the heddle, and the shuttle passes; 12 picks to the inch.\nThe warp is held: it can't slip.\n"
CLOSE = 1e-3  # two texts whose log probabilities, summed, are as near as this are equally good for rounding
SMALL = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 128,
}  # fmt: skip
GROUPED = {**SMALL, "num_key_value_heads": 2}
BARTS = {
    "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "max_position_embeddings": 128,
}  # fmt: skip
T5S = {"d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4}
BERTS = {**SMALL, "type_vocab_size": 2}
# The class of transformers and its settings, for each model that CTranslate2 has a converter for.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}),
    "gptj": ("GPTJForCausalLM", {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128, "rotary_dim": 8}),
    "gptneox": ("GPTNeoXForCausalLM", SMALL),
    "opt": (
        "OPTForCausalLM",
        {"hidden_size": 64, "word_embed_proj_dim": 64, "ffn_dim": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
         "max_position_embeddings": 128, "vocab_size": 320},
    ),
    "llama": ("LlamaForCausalLM", GROUPED),
    "mistral": ("MistralForCausalLM", {**GROUPED, "sliding_window": None}),
    "qwen2": ("Qwen2ForCausalLM", GROUPED),
    "qwen3": ("Qwen3ForCausalLM", {**GROUPED, "head_dim": 32}),
    "gemma2": ("Gemma2ForCausalLM", {**GROUPED, "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 128}),
    "gemma3": ("Gemma3ForCausalLM", {**GROUPED, "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 128}),
    "phi": ("PhiForCausalLM", SMALL),
    "phi3": ("Phi3ForCausalLM", {**GROUPED, "sliding_window": None, "pad_token_id": None}),
    "falcon": ("FalconForCausalLM", {key: SMALL[key] for key in SMALL if key != "intermediate_size"}),
    "bart": ("BartForConditionalGeneration", {**BARTS, "forced_eos_token_id": None}),
    "marian": ("MarianMTModel", {**BARTS, "forced_eos_token_id": None}),
    "t5": ("T5ForConditionalGeneration", T5S),
    "umt5": ("UMT5ForConditionalGeneration", T5S),
    "bert": ("BertModel", BERTS),
    "distilbert": ("DistilBertModel", {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 96, "max_position_embeddings": 128}),
    "roberta": ("RobertaModel", {**BERTS, "max_position_embeddings": 450}),
    "xlm_roberta": ("XLMRobertaModel", {**BERTS, "max_position_embeddings": 450}),
}  # fmt: skip

# Models that CTranslate2 4.8 does not convert beside transformers 5, and why.
REASONS = {
    "gptneox": "its converter reads a field, rotary_pct, that transformers 5 no longer has",
    "phi": "its converter is for the first Phi's own code, not for PhiForCausalLM",
    "phi3": "its converter takes every rope_parameters of transformers 5 for a scaling",
    "qwen2": "transformers 5 gives every Qwen2 its own split of text, which is not this tokenizer's: the export is refused",
}


class Answer(NamedTuple):
    """A text that was written, or the ids of one, and its log probability per id."""

    text: str | tuple[int, ...]
    score: float


class Outcome(NamedTuple):
    """What both made of the same texts.

    Attributes:
        model: its name.
        texts: how many were read.
        equal: those with equal ids; of an encoder, with vectors within 1e-4.
        close: others, whose two answers are equally probable up to rounding.
        difference: the largest of two scores, or of two vectors.
        refused: why CTranslate2 does not read it.
    """

    model: str
    texts: int
    equal: int = 0
    close: int = 0
    difference: float = 0.0
    refused: str = ""


def converted(exported: Path, folder: Path) -> Path:
    """A directory of `heddle export` as CTranslate2's own converter writes it."""
    import ctranslate2

    ctranslate2.converters.TransformersConverter(str(exported)).convert(str(folder))
    return folder


def cut_texts(exported: Path, texts: Sequence[str]) -> tuple[Any, list[list[str]]]:
    """The tokenizer that transformers reads beside the model, and the tokens of texts."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(exported)
    pieces: Any = tokenizer.convert_ids_to_tokens
    return tokenizer, [pieces(tokenizer(text)["input_ids"]) for text in texts]


def translations_by_ctranslate2(
    exported: Path, folder: Path, texts: Sequence[str], beams: int, tokens: int
) -> list[Answer]:
    """CTranslate2's best translation of each text."""
    import ctranslate2

    tokenizer, sources = cut_texts(exported, texts)
    translator = ctranslate2.Translator(str(converted(exported, folder)), "cpu", inter_threads=1, intra_threads=1)
    made = translator.translate_batch(
        sources,
        beam_size=beams,
        min_decoding_length=0,
        max_decoding_length=tokens,
        return_scores=True,
        max_batch_size=16,
    )
    ids = [tokenizer.convert_tokens_to_ids(each.hypotheses[0]) for each in made]
    return [
        Answer(tokenizer.decode(each, skip_special_tokens=True), result.scores[0])
        for each, result in zip(ids, made, strict=True)
    ]


def our_translations(run: Path, texts: Sequence[str], beams: int, tokens: int) -> list[Answer]:
    """heddle's, which stops as CTranslate2 does: when as many texts have ended as there are beams."""
    from heddle.generate import translate
    from heddle.weights import load

    model, tokenizer = load(run, "cpu")
    assert tokenizer is not None
    made = translate(model, tokenizer, list(texts), beams=beams, max_tokens=tokens, early_stopping=True)
    return [Answer(best.text, best.score) for best, *_ in made]


def continuations_by_ctranslate2(exported: Path, folder: Path, texts: Sequence[str], tokens: int) -> list[Answer]:
    """CTranslate2's greedy texts."""
    import ctranslate2

    _, prompts = cut_texts(exported, texts)
    generator = ctranslate2.Generator(str(converted(exported, folder)), "cpu", inter_threads=1, intra_threads=1)
    made = generator.generate_batch(
        prompts, max_length=tokens, include_prompt_in_result=False, return_scores=True, max_batch_size=16
    )
    return [Answer(tuple(each.sequences_ids[0]), each.scores[0]) for each in made]


def our_continuations(run: Path, texts: Sequence[str], tokens: int) -> list[Answer]:
    """heddle's greedy texts, without the id that ends them."""
    import torch

    from heddle.config import SamplingConfig
    from heddle.generate.text import text_engine
    from heddle.weights import load

    model, tokenizer = load(run, "cpu")
    assert tokenizer is not None
    engine = text_engine(model, tokenizer, list(texts), SamplingConfig(temperature=0.0, max_tokens=tokens))
    starts = [list(each.ids) for each in engine.waiting]
    ids: list[list[int]] = [[] for _ in texts]
    while engine:
        for event in engine.step():
            ids[event.row].append(event.token)
    result, ends = [], set(model.config.ids.ends()) if model.config.ids else {tokenizer.end_of_text}
    for start, row in zip(starts, ids, strict=True):
        with torch.inference_mode():
            scores = model.logits(model(torch.tensor([start + row])).hidden)[0].float().log_softmax(-1)
        total = sum(float(scores[len(start) - 1 + place, id]) for place, id in enumerate(row))
        result.append(Answer(tuple(row[:-1] if row[-1] in ends else row), total / len(row)))
    return result


def vectors_apart(run: Path, exported: Path, folder: Path, texts: Sequence[str]) -> list[float]:
    """For each text, the largest difference of two numbers of the hidden vectors that an encoder gives its ids."""
    import ctranslate2
    import numpy as np
    import torch

    from heddle.weights import load

    model, _ = load(run, "cpu")
    tokenizer, rows = cut_texts(exported, texts)
    encoder = ctranslate2.Encoder(str(converted(exported, folder)), "cpu", inter_threads=1, intra_threads=1)
    differences = []
    for row in rows:
        reference = np.array(encoder.forward_batch([row]).last_hidden_state)[0]
        with torch.inference_mode():
            ours = model(torch.tensor([tokenizer.convert_tokens_to_ids(row)])).hidden[0].numpy()
        differences.append(float(np.abs(reference - ours).max()))
    return differences


def compared(name: str, ours: Sequence[Answer], reference: Sequence[Answer]) -> tuple[Outcome, list[dict[str, Any]]]:
    """How many are equal; those that part, with both scores."""
    pairs = list(zip(ours, reference, strict=True))
    parted: list[dict[str, Any]] = [
        {"text": number, "heddle": a.text, "ctranslate2": b.text, "scores": [a.score, b.score]}
        for number, (a, b) in enumerate(pairs)
        if a.text != b.text
    ]
    same = [abs(a.score - b.score) for a, b in pairs if a.text == b.text]
    close = sum(abs(each["scores"][0] - each["scores"][1]) <= CLOSE for each in parted)
    return Outcome(name, len(pairs), len(same), close, max(same, default=0.0)), parted


def write(name: str, folder: Path, seed: int = 0) -> None:
    """A tiny random model as published, its run, and the export of the run."""
    from benchmarks.imports import published
    from heddle.convert import export_model, import_model
    from heddle.text import train_tokenizer

    architecture, fields = MODELS[name]
    tokenizer = train_tokenizer("bpe", [TEXT * 20], 320, special=("<|endoftext|>", "<pad>"))
    end, pad = tokenizer.special["<|endoftext|>"], tokenizer.special["<pad>"]
    ids = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": pad}
    if architecture.endswith(("ConditionalGeneration", "MTModel")):
        ids["decoder_start_token_id"] = pad
    model = published(architecture, {"vocab_size": tokenizer.vocab_size, **fields, **ids}, seed, scale=0.2)
    for key, value in ids.items() if hasattr(model, "generation_config") else ():
        setattr(model.generation_config, key, value)
    if (
        architecture == "MarianMTModel"
    ):  # as published: the last id, which pads, has no vector, starts, and is never written
        model.model.shared.weight.data[pad] = 0.0
        model.generation_config.bad_words_ids = [[pad]]
    model.save_pretrained(folder / "published")
    tokenizer.save(folder / "published")
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
    names |= {"pad_token": "<pad>", "bos_token": "<|endoftext|>"}
    (folder / "published" / "tokenizer_config.json").write_text(json.dumps(names))
    import_model(folder / "published", folder / "run")
    export_model(folder / "run", folder / "exported")


def compare(name: str, count: int, folder: Path, tokens: int = 16) -> Outcome:
    """What both make of one family's texts."""
    from benchmarks.llama_cpp import prompts_of

    texts, architecture = prompts_of(count), MODELS[name][0]
    exported, made = folder / "exported", folder / "converted"
    try:
        write(name, folder)
        if architecture.endswith("Model") and "Head" not in architecture and "MT" not in architecture:
            apart = vectors_apart(folder / "run", exported, made, texts)
            return Outcome(name, count, sum(each <= 1e-4 for each in apart), 0, max(apart))
        if architecture.endswith("CausalLM") or architecture.startswith("GPT2"):
            reference = continuations_by_ctranslate2(exported, made, texts, tokens)
            return compared(name, our_continuations(folder / "run", texts, tokens), reference)[0]
        reference = translations_by_ctranslate2(exported, made, texts, 4, tokens)
        return compared(name, our_translations(folder / "run", texts, 4, tokens), reference)[0]
    except Exception as error:  # CTranslate2 and its converters raise anything
        return Outcome(name, count, refused=" ".join(f"{type(error).__name__}: {error}".split())[:160])


def translations(run: Path, texts: Sequence[str], beams: int, tokens: int) -> tuple[Outcome, list[dict[str, Any]]]:
    """A run's translations beside those that CTranslate2 makes of its export."""
    from heddle.convert import export_model

    with tempfile.TemporaryDirectory() as place:
        export_model(run, Path(place) / "exported")
        reference = translations_by_ctranslate2(
            Path(place) / "exported", Path(place) / "converted", texts, beams, tokens
        )
    return compared(str(run), our_translations(run, texts, beams, tokens), reference)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", type=Path)
    parser.add_argument("sources", nargs="?", type=Path)
    parser.add_argument("--families", action="store_true")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--lines", type=int, default=200)
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--beams", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64, help="the longest translation")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.families == (arguments.run is not None and arguments.sources is not None):
        raise SystemExit("name a run and a file of sources, or give --families")
    result: list[dict[str, Any]] = []
    if arguments.families:
        for name in (name for name in MODELS if not arguments.only or name in arguments.only):
            with tempfile.TemporaryDirectory() as folder:
                result.append(compare(name, arguments.prompts, Path(folder))._asdict())
                print(result[-1], file=sys.stderr)
    else:
        texts = [line for line in arguments.sources.read_text(encoding="utf-8").splitlines() if line]
        outcome, parted = translations(arguments.run, texts[: arguments.lines], arguments.beams, arguments.tokens)
        result = [{**outcome._asdict(), "parted": parted}]
    print(json.dumps(result, indent=1, ensure_ascii=False))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    os.environ |= {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    main()
