"""Defaults for generation in a published model's generation_config.json, or in an older config.json."""

from collections.abc import Mapping
from typing import Any

from heddle.checks import short_repr
from heddle.config.decoding import DecodingDefaults
from heddle.errors import HeddleError

# Hugging Face's fields and heddle's names for them: for every model, for sampling, for beam search.
BOTH = {
    "max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens", "repetition_penalty": "repetition_penalty",
    "no_repeat_ngram_size": "no_repeat_ngram",
}  # fmt: skip
SAMPLING = {name: name for name in ("temperature", "top_k", "top_p", "min_p", "typical_p")}
BEAM_SEARCH = {"num_beams": "beams", "length_penalty": "length_penalty", "early_stopping": "early_stopping"}
# These lengths include the id that starts a text. In a decoder-only model they also include the prompt, so heddle cannot use them.
LENGTHS = {"max_length": "max_tokens", "min_length": "min_tokens"}
DEFAULT_TOP_K = 50  # of Hugging Face transformers when sampling

# Values that change no text. Other fields have no such value.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "min_new_tokens": (0,), "min_length": (0,), "repetition_penalty": (1,), "no_repeat_ngram_size": (0,),
    "temperature": (1,), "top_p": (1,), "typical_p": (1,), "num_beams": (1,), "length_penalty": (1,),
    "early_stopping": (False,), "do_sample": (False,), "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1,), "num_beam_groups": (1,), "diversity_penalty": (0,), "penalty_alpha": (0,),
    "epsilon_cutoff": (0,), "eta_cutoff": (0,), "stop_strings": ([],), "renormalize_logits": (False,),
    "begin_suppress_tokens": ([],), "token_healing": (False,), "guidance_scale": (1,), "num_return_sequences": (1,),
    "prefix": ("",), "task_specific_params": ({},),
}  # fmt: skip
OTHERS = {
    "max_time", "dola_layers", "top_h", "force_words_ids", "constraints", "exponential_decay_length_penalty",
    "sequence_bias", "watermarking_config",
}  # fmt: skip
# Fields about how a text is computed, or what else is returned. `read_ids` reads the ids.
SAME = {
    "use_cache", "cache_implementation", "cache_config", "max_cache_len", "remove_invalid_values", "output_attentions",
    "output_hidden_states", "output_scores", "output_logits", "return_dict_in_generate", "is_assistant",
    "num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold", "prompt_lookup_num_tokens",
    "max_matching_ngram_size", "assistant_early_exit", "assistant_lookbehind", "target_lookbehind",
    "assistant_ensemble_weight", "speculation_type", "use_mtp", "compile_config", "disable_compile",
    "continuous_batching_config", "low_memory", "prefill_chunk_size", "_from_model_config", "transformers_version",
    "pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "forced_bos_token_id",
    "forced_eos_token_id", "bad_words_ids", "suppress_tokens",
}  # fmt: skip
FIELDS = {*BOTH, *SAMPLING, *BEAM_SEARCH, *LENGTHS, *NEUTRAL, *OTHERS}
OF_PIPELINES = ("prefix", "task_specific_params")  # always in config.json


def read_decoding(
    config: Mapping[str, Any], generation: Mapping[str, Any] | None, paired: bool
) -> tuple[DecodingDefaults | None, list[str]]:
    """A published model's defaults for generation, and notes on the fields that are used and those that are left out.

    A field that heddle supports becomes a default of `generate` or `translate`. Other fields that change texts are left out.

    Args:
        config: its config.json, which has these fields in older models.
        generation: its generation_config.json, which takes precedence; None if there is none.
        paired: whether it is an encoder-decoder, which heddle decodes with beam search. Other models sample.
    """
    file = "config.json" if generation is None else "generation_config.json"
    fields = {name: config[name] for name in FIELDS if name in config} if generation is None else generation
    fields = {**{name: config.get(name) for name in OF_PIPELINES}, **fields}
    table = {name: value for name, value in fields.items() if value is not None and name not in SAME}
    samples = table.get("do_sample") is True and not paired
    single = table.get("num_beams", 1) == 1
    names = {**BOTH, **(BEAM_SEARCH if paired else SAMPLING if samples else {})}
    defaults: dict[str, Any] = {"top_k": DEFAULT_TOP_K} if samples else {}
    ignored: dict[str, Any] = {}
    for name in sorted(table, key=lambda name: name not in LENGTHS):  # max_new_tokens comes last and wins
        value = table[name]
        if samples and name == "top_k" and value == 0:
            del defaults["top_k"]
        elif (
            value in NEUTRAL.get(name, ())
            or (name == "do_sample" and samples)
            or (name in BEAM_SEARCH and single and not paired)
        ):
            continue
        elif paired and name in LENGTHS and _possible(LENGTHS[name], _less(value)):
            defaults[LENGTHS[name]] = value - 1
        elif name in names and _possible(names[name], value):
            defaults[names[name]] = value
        else:
            ignored[name] = value
    if fields.get("do_sample") is False and not paired:
        defaults["temperature"] = 0.0
    notes = []
    if defaults:
        notes.append(f"generation defaults from {file}: {listed(defaults)}")
    if ignored:
        notes.append(f"generation settings of {file} that are left out: {listed(ignored)}")
    return (DecodingDefaults.of(defaults) if defaults else None), notes


def decoding_to_fields(defaults: DecodingDefaults | None) -> dict[str, Any]:
    """The fields of generation_config.json, as `read_decoding` reads them."""
    if defaults is None:
        return {}
    settings = defaults.set_values()
    names = {**BOTH, **SAMPLING, **BEAM_SEARCH}
    written = {published: settings[name] for published, name in names.items() if name in settings}
    if written.get("temperature") == 0:
        return {**{name: value for name, value in written.items() if name not in SAMPLING}, "do_sample": False}
    samples = any(name in written for name in SAMPLING)
    return {**({"do_sample": True, "top_k": 0} if samples else {}), **written}


def listed(fields: Mapping[str, Any]) -> str:
    """Fields with their values, as text."""
    return ", ".join(f"{name} = {short_repr(value)}" for name, value in sorted(fields.items()))


def _less(value: Any) -> Any:
    return value - 1 if type(value) is int else None


def _possible(name: str, value: Any) -> bool:
    """Whether heddle can use such a value."""
    try:
        return value is not None and DecodingDefaults.of({name: value}).set_values() == {name: value}
    except HeddleError:
        return False
