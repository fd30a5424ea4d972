"""llama.cpp beside heddle: greedy texts and log probabilities of GGUF files, of tiny random models of every family.

    python benchmarks/llama_cpp.py [--prompts 20] [--tokens 24] [--only WORD ...] [--json FILE]

Each model is built by Hugging Face transformers, imported, and written by `heddle export` as a GGUF file, which llama.cpp (the
package xllamacpp) loads. Both continue the same texts greedily; then llama.cpp's log probabilities of the most probable tokens
are compared with heddle's at every step. Again with matrices that `gguf` rounds to Q8_0, beside heddle in fp32: log probabilities
are near, and texts may part where two tokens are nearly as probable.
"""

import argparse
import json
import math
import os
import random
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "max_position_embeddings": 128,
}  # fmt: skip
GROUPED = {**SIZES, "num_key_value_heads": 2}
WIDE = {**GROUPED, "head_dim": 32}
EXPERTS = {**GROUPED, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
GEMMA = {
    **WIDE, "sliding_window": 8, "query_pre_attn_scalar": 32, "num_hidden_layers": 7, "tie_word_embeddings": True,
}  # fmt: skip
NEOX = {**SIZES, "hidden_act": "gelu_new"}


def slowed(kind: str, **fields: Any) -> dict[str, Any]:
    """Rotary positions with slowed angles, which show within a few tokens."""
    more = {"llama3": {"low_freq_factor": 1.0, "high_freq_factor": 4.0}}.get(kind, {})
    original = {} if kind == "linear" else {"original_max_position_embeddings": 16}
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 100.0, "factor": 3.0, **original, **more, **fields}}


# The class of transformers and its settings, for each model.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 128}),
    "gpt2 untied": (
        "GPT2LMHeadModel",
        {"n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": 128, "n_inner": 96, "tie_word_embeddings": False},
    ),
    "llama": ("LlamaForCausalLM", GROUPED),
    "llama tied, biases": (
        "LlamaForCausalLM",
        {**SIZES, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
    ),
    "llama wide heads": ("LlamaForCausalLM", WIDE),
    "llama linear": ("LlamaForCausalLM", {**GROUPED, **slowed("linear")}),
    "llama llama3": ("LlamaForCausalLM", {**GROUPED, **slowed("llama3")}),
    "llama yarn": ("LlamaForCausalLM", {**GROUPED, **slowed("yarn")}),
    "mistral": ("MistralForCausalLM", {**WIDE, "sliding_window": None}),
    "mixtral": (
        "MixtralForCausalLM",
        {**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    ),
    "qwen2": ("Qwen2ForCausalLM", GROUPED),
    "qwen2 yarn": ("Qwen2ForCausalLM", {**GROUPED, **slowed("yarn")}),
    "qwen3": ("Qwen3ForCausalLM", WIDE),
    "qwen2moe": ("Qwen2MoeForCausalLM", {**EXPERTS, "shared_expert_intermediate_size": 64, "norm_topk_prob": False}),
    "qwen3moe": ("Qwen3MoeForCausalLM", {**EXPERTS, "head_dim": 32, "norm_topk_prob": True}),
    "phi3": ("Phi3ForCausalLM", {**GROUPED, "sliding_window": None}),
    "phi3 in part": ("Phi3ForCausalLM", {**GROUPED, "sliding_window": None, "partial_rotary_factor": 0.5}),
    "gemma2": ("Gemma2ForCausalLM", {**GEMMA, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0}),
    "gemma3": ("Gemma3ForCausalLM", GEMMA),
    "gptneox": ("GPTNeoXForCausalLM", NEOX),
    "gptneox serial": ("GPTNeoXForCausalLM", {**NEOX, "use_parallel_residual": False, "tie_word_embeddings": True}),
    "phi2": ("PhiForCausalLM", {**SIZES, "partial_rotary_factor": 0.5}),
    "phi2 grouped": ("PhiForCausalLM", {**GROUPED, "partial_rotary_factor": 0.25}),
    "stablelm": ("StableLmForCausalLM", {**GROUPED, "use_qkv_bias": True}),
    "stablelm parallel": (
        "StableLmForCausalLM",
        {**GROUPED, "use_parallel_residual": True, "tie_word_embeddings": True},
    ),
    "olmo2": ("Olmo2ForCausalLM", GROUPED),
    "olmo2 yarn": ("Olmo2ForCausalLM", {**SIZES, **slowed("yarn")}),
    "granite": (
        "GraniteForCausalLM",
        {
            **GROUPED,
            "embedding_multiplier": 6,
            "attention_multiplier": 0.2,
            "residual_multiplier": 0.5,
            "logits_scaling": 3,
        },
    ),
    "smollm3": ("SmolLM3ForCausalLM", {**GROUPED, "num_hidden_layers": 5, "tie_word_embeddings": False}),
    "command-r": ("CohereForCausalLM", {**GROUPED, "logit_scale": 0.5, "tie_word_embeddings": True}),
}
TEXT = "The weaver lifts the heddle, and the shuttle passes; 12 picks to the inch.\nThe warp is held: it can't slip.\n"
TOP = 5  # tokens whose log probabilities are compared at each step


@dataclass(frozen=True)
class Outcome:
    """What both made of one file: texts that are equal id by id, of how many; the largest difference of two log probabilities.

    A text that parts where the two tokens are within twice that difference of each other is counted as `close`; then the rounding
    of the matrices explains it.
    """

    model: str
    weights: str
    prompts: int
    equal: int
    close: int
    difference: float


def prompts_of(count: int, seed: int = 0) -> list[str]:
    """Parts of the text, from a few characters up."""
    draw = random.Random(seed)
    starts = [draw.randrange(len(TEXT) - 4) for _ in range(count)]
    return [TEXT[start : start + draw.randint(3, 40)].strip() or "warp" for start in starts]


def write(name: str, folder: Path, seed: int = 0) -> Any:
    """A model's run and its GGUF file, `model.gguf`; returns what the export says."""
    from benchmarks.imports import published
    from heddle.convert import export_gguf, import_model
    from heddle.text import train_tokenizer

    architecture, fields = MODELS[name]
    tokenizer = train_tokenizer("bpe", [TEXT * 20], 320)
    end = tokenizer.end_of_text
    model = published(architecture, {**fields, "vocab_size": tokenizer.vocab_size}, seed, scale=0.2)
    model.config.bos_token_id = model.config.eos_token_id = end
    model.generation_config.bos_token_id = model.generation_config.eos_token_id = end
    model.generation_config.bad_words_ids = [[id] for id in unprintable(tokenizer)]
    model.save_pretrained(folder / "published")
    tokenizer.save(folder / "published")
    import_model(folder / "published", folder / "run")
    return export_gguf(folder / "run", folder / "model.gguf")


def unprintable(tokenizer: Any) -> list[int]:
    """Ids that neither side may draw: llama.cpp's server keeps back the log probabilities of half a character."""
    special = set(tokenizer.special.values())
    return [
        id
        for id in range(tokenizer.vocab_size)
        if id not in special and not tokenizer.token_bytes(id).decode("ascii", "replace").isascii()
    ]


def continued(server: Any, prompt: Any, tokens: int, never: list[int]) -> tuple[list[int], list[dict[int, float]]]:
    """The ids of llama.cpp's greedy continuation, the end included, and at each step the log probabilities of the best tokens."""
    request = {"prompt": prompt, "n_predict": tokens, "temperature": 0.0, "n_probs": TOP, "cache_prompt": False}
    request |= {"logit_bias": [[id, False] for id in never]}
    answer = server.handle_completions(request)
    if "choices" not in answer:
        raise RuntimeError(f"llama.cpp: {answer}")
    steps = (answer["choices"][0]["logprobs"] or {"content": []})["content"]
    return [step["id"] for step in steps], [
        {each["id"]: each["logprob"] for each in step["top_logprobs"]} for step in steps
    ]


def compare(name: str, count: int, tokens: int, folder: Path, eighths: bool = True) -> list[Outcome]:
    """One family's file in fp32 and, with `eighths`, in Q8_0."""
    from benchmarks.gguf_files import rounded

    write(name, folder)
    outcomes = [compared(name, "fp32", folder / "model.gguf", folder / "run", count, tokens)]
    if eighths:
        rounded(folder / "model.gguf", folder / "q8_0.gguf")
        outcomes.append(compared(name, "Q8_0", folder / "q8_0.gguf", folder / "run", count, tokens))
    return outcomes


def compared(name: str, weights: str, file: Path, run: Path, count: int, tokens: int) -> Outcome:
    """What both make of the same prompts."""
    import torch

    from benchmarks.gguf_files import serve
    from heddle.config import SamplingConfig
    from heddle.generate.text import text_engine
    from heddle.weights import load

    model, tokenizer = load(run, "cpu")
    assert tokenizer is not None
    prompts = prompts_of(count)
    engine = text_engine(model, tokenizer, prompts, SamplingConfig(temperature=0.0, max_tokens=tokens))
    ours: list[list[int]] = [[] for _ in prompts]
    while engine:
        for event in engine.step():
            ours[event.row].append(event.token)
    server, never = serve(file, 128, exact=True), unprintable(tokenizer)
    equal, worst, parted = 0, 0.0, list[float]()
    for prompt, actual in zip(prompts, ours, strict=True):
        ids = tokenizer.encode(prompt)
        reference, steps = continued(server, ids, tokens, never)
        text, _ = continued(server, prompt, tokens, never)
        with torch.inference_mode():
            scores = model.logits(model(torch.tensor([ids + reference])).hidden)[0].float().log_softmax(-1)
        for place, step in enumerate(steps):
            own = scores[len(ids) - 1 + place]
            worst = max(worst, *(abs(float(own[id]) - value) for id, value in step.items()))
        end = tokenizer.end_of_text
        same = (
            reference == (actual[:-1] if actual[-1:] == [end] and reference[-1:] != [end] else actual)
            and text == reference
        )
        equal += same
        if not same:
            parted.append(gap(scores[len(ids) - 1 :], actual, reference) if text == reference else math.inf)
    close = sum(gap <= 2 * worst for gap in parted)
    return Outcome(name, weights, count, equal, close, worst)


def gap(scores: Any, own: list[int], reference: list[int]) -> float:
    """How much more probable heddle's id is, for heddle, than the other where two texts part; infinite if one is only longer.

    The ids that neither may draw are often more probable than both.
    """
    place = next((n for n, pair in enumerate(zip(own, reference, strict=False)) if pair[0] != pair[1]), None)
    return math.inf if place is None else float(scores[place, own[place]] - scores[place, reference[place]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    outcomes: list[Outcome] = []
    for name in (name for name in MODELS if not options.only or any(word in name for word in options.only)):
        with tempfile.TemporaryDirectory() as folder:
            outcomes += compare(name, options.prompts, options.tokens, Path(folder))
            print(outcomes[-2], outcomes[-1], file=sys.stderr)
    print(
        "| model | equal texts, fp32 | largest difference | equal texts, Q8_0 | largest difference |\n|---|---|---|---|---|"
    )
    for plain, eighth in zip(outcomes[::2], outcomes[1::2], strict=True):
        print(
            f"| {plain.model} | {' | '.join(f'{e.equal} of {e.prompts} | {e.difference:.1e}' for e in (plain, eighth))} |"
        )
    if options.json:
        options.json.write_text(json.dumps([asdict(each) for each in outcomes], indent=1) + "\n", encoding="utf-8")
    sys.exit(any(each.weights == "fp32" and each.equal + each.close < each.prompts for each in outcomes))


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    sys.path.insert(0, str(Path(__file__).parents[1]))
    main()
