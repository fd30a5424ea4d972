"""Reads and writes special ids in config.json and generation_config.json."""

from collections.abc import Mapping
from typing import Any

from heddle.config.ids import SpecialIds
from heddle.config.model import TransformerConfig
from heddle.text.tokenizer import Tokenizer
from heddle.weights.special_tokens import PADS

# Hugging Face's names, and heddle's.
NAMES = {
    "bos_token_id": "begin", "eos_token_id": "end", "pad_token_id": "padding", "decoder_start_token_id": "decoder_start",
    "forced_bos_token_id": "forced_begin", "forced_eos_token_id": "forced_end", "bad_words_ids": "banned",
}  # fmt: skip
SEVERAL = ("eos_token_id", "forced_eos_token_id")  # may be a list
GENERATION = ("bad_words_ids",)  # only in generation_config.json in newer versions
SUPPRESSED = "suppress_tokens"  # single ids that are never generated
START = "decoder_start_token_id"
# Always written to config.json, as null if absent, since the classes of Hugging Face transformers have defaults for these.
ALWAYS = ("bos_token_id", "eos_token_id", "pad_token_id")


def read_ids(
    config: Mapping[str, Any], generation: Mapping[str, Any], defaults: Mapping[str, int], count: int
) -> tuple[SpecialIds, list[str]]:
    """The special ids in a published model's files, and notes about ids that are left out.

    Args:
        config: its config.json.
        generation: its generation_config.json, which overrides config.json, since `generate` reads it.
        defaults: the defaults of the Hugging Face class for ids that are not in config.json.
        count: V; ids must be below it.
    """
    fields: dict[str, Any] = {
        NAMES[name]: value for name, value in defaults.items() if name not in config and value < count
    }
    notes = []
    for file, table in (("config.json", config), ("generation_config.json", generation)):
        for name, heddle_name in NAMES.items():
            value = table.get(name)
            if value is None:
                continue
            if _is_valid(name, value, count):
                fields[heddle_name] = value
            else:
                notes.append(f"{name} = {value!r} in {file} is not valid (the model has {count:,} ids): left out")
        suppressed = table.get(SUPPRESSED) or []
        if isinstance(suppressed, list) and all(_is_valid("pad_token_id", id, count) for id in suppressed):
            fields["banned"] = [*fields.get("banned", []), *([id] for id in suppressed)]
        else:
            notes.append(
                f"{SUPPRESSED} = {suppressed!r} in {file} is not valid (the model has {count:,} ids): left out"
            )
    return SpecialIds.of(fields, where="the special ids"), notes


def _is_valid(name: str, value: Any, count: int) -> bool:
    def in_range(each: Any) -> bool:
        return isinstance(each, int) and not isinstance(each, bool) and 0 <= each < count

    if name == "bad_words_ids":
        return isinstance(value, list) and all(
            isinstance(word, list) and word and all(map(in_range, word)) for word in value
        )
    if name in SEVERAL and isinstance(value, list):
        return bool(value) and all(map(in_range, value))
    return in_range(value)


def own_ids(tokenizer: Tokenizer | None, config: TransformerConfig) -> SpecialIds:
    """The special ids of a model built by heddle: as in GPT-2, the token that ends a text also begins one.

    With an encoder, it also pads sequences; in an encoder-decoder, the decoder starts with it. An encoder-only model is padded with
    the tokenizer's padding token if there is one.
    """
    if tokenizer is None:
        return SpecialIds()
    end, encoder_decoder = tokenizer.end_of_text, len(config.stacks()) == 2
    padding_token = (
        None if encoder_decoder else next((tokenizer.special[name] for name in PADS if name in tokenizer.special), None)
    )
    padding = None if config.encoder is None else end if padding_token is None else padding_token
    return SpecialIds(begin=end, end=end, padding=padding, decoder_start=end if encoder_decoder else None)


def ids_to_fields(ids: SpecialIds, defaults: Mapping[str, int]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of config.json and of generation_config.json, as `read_ids` reads them."""
    data = ids.to_dict()
    fields = {name: data[heddle_name] for name, heddle_name in NAMES.items()}
    generation = {name: value for name, value in fields.items() if value not in (None, [])}
    kept_names = (*generation, *defaults, *ALWAYS)
    config = {name: value for name, value in fields.items() if name in kept_names and name not in GENERATION}
    if config.get(START, 0) is None:
        config[START] = 0  # Hugging Face transformers requires a number
    return config, generation
