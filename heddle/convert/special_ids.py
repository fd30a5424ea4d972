"""Special ids in published files, config.json and generation_config.json: reading and writing."""

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
SEVERAL = ("eos_token_id", "forced_eos_token_id")  # which may be a list
GENERATION = ("bad_words_ids",)  # only in generation_config.json nowadays
SUPPRESSED = "suppress_tokens"  # single ids that are never generated
START = "decoder_start_token_id"
# Written to every config.json, as null if absent: the classes of Hugging Face transformers have defaults for these.
ALWAYS = ("bos_token_id", "eos_token_id", "pad_token_id")


def read_ids(
    config: Mapping[str, Any], generation: Mapping[str, Any], usual: Mapping[str, int], count: int
) -> tuple[SpecialIds, list[str]]:
    """The special ids in a published model's files, and notes about those left out.

    Args:
        config: its config.json.
        generation: its generation_config.json, which wins over config.json, since `generate` reads it.
        usual: the defaults of the Hugging Face class for what config.json leaves out.
        count: V; ids must be below it.
    """
    found: dict[str, Any] = {
        NAMES[name]: value for name, value in usual.items() if name not in config and value < count
    }
    notes = []
    for file, table in (("config.json", config), ("generation_config.json", generation)):
        for name, ours in NAMES.items():
            value = table.get(name)
            if value is None:
                continue
            if _is_valid(name, value, count):
                found[ours] = value
            else:
                notes.append(f"{name} = {value!r} in {file} is not one of the model's {count:,} ids: left out")
        never = table.get(SUPPRESSED) or []
        if isinstance(never, list) and all(_is_valid("pad_token_id", id, count) for id in never):
            found["banned"] = [*found.get("banned", []), *([id] for id in never)]
        else:
            notes.append(f"{SUPPRESSED} = {never!r} in {file} are not ids of the model's {count:,}: left out")
    return SpecialIds.of(found, where="the special ids"), notes


def _is_valid(name: str, value: Any, count: int) -> bool:
    def known(each: Any) -> bool:
        return isinstance(each, int) and not isinstance(each, bool) and 0 <= each < count

    if name == "bad_words_ids":
        return isinstance(value, list) and all(
            isinstance(word, list) and word and all(map(known, word)) for word in value
        )
    if name in SEVERAL and isinstance(value, list):
        return bool(value) and all(map(known, value))
    return known(value)


def own_ids(tokenizer: Tokenizer | None, config: TransformerConfig) -> SpecialIds:
    """The special ids of a model built by heddle: the token that ends a text serves every purpose, as in GPT-2.

    With an encoder, it also pads rows; in an encoder-decoder, it comes before the decoder's first token. An encoder alone is
    padded by the tokenizer's own token for that, if there is one.
    """
    if tokenizer is None:
        return SpecialIds()
    end, several = tokenizer.end_of_text, len(config.stacks()) == 2
    named = None if several else next((tokenizer.special[name] for name in PADS if name in tokenizer.special), None)
    padding = None if config.encoder is None else end if named is None else named
    return SpecialIds(begin=end, end=end, padding=padding, decoder_start=end if several else None)


def written_ids(ids: SpecialIds, usual: Mapping[str, int]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of config.json and of generation_config.json, as `read_ids` reads them."""
    data = ids.to_dict()
    said = {name: data[ours] for name, ours in NAMES.items()}
    generation = {name: value for name, value in said.items() if value not in (None, [])}
    known = (*generation, *usual, *ALWAYS)
    config = {name: value for name, value in said.items() if name in known and name not in GENERATION}
    if config.get(START, 0) is None:
        config[START] = 0  # Hugging Face transformers requires a number
    return config, generation
