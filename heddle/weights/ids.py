"""Special ids as published files say them, in config.json and in generation_config.json; both ways."""

from collections.abc import Mapping
from typing import Any

from heddle.config.ids import SpecialIds
from heddle.text.tokenizer import Tokenizer

# Their names, and heddle's.
NAMES = {
    "bos_token_id": "begin", "eos_token_id": "end", "pad_token_id": "padding", "decoder_start_token_id": "decoder_start",
    "forced_bos_token_id": "forced_begin", "forced_eos_token_id": "forced_end", "bad_words_ids": "banned",
}  # fmt: skip
SEVERAL = ("eos_token_id", "forced_eos_token_id")  # which may be a list
GENERATION = ("bad_words_ids",)  # which only generation_config.json has nowadays
START = "decoder_start_token_id"
# What stands in every config.json, as null where there is none: classes of transformers have numbers of their own for it.
ALWAYS = ("bos_token_id", "eos_token_id", "pad_token_id")


def read_ids(
    config: Mapping[str, Any], generation: Mapping[str, Any], usual: Mapping[str, int], count: int
) -> tuple[SpecialIds, list[str]]:
    """What a published model's files say of its special ids, and notes about what was left out.

    Args:
        config: its config.json.
        generation: its generation_config.json, which counts where both say something, since it is what `generate` reads.
        usual: what the class of transformers takes where config.json is silent.
        count: V; no id is beyond it.
    """
    found = {NAMES[name]: value for name, value in usual.items() if name not in config and value < count}
    notes = []
    for file, table in (("config.json", config), ("generation_config.json", generation)):
        for name, ours in NAMES.items():
            value = table.get(name)
            if value is None:
                continue
            if _sound(name, value, count):
                found[ours] = value
            else:
                notes.append(f"{name} = {value!r} in {file} is none of the model's {count:,} ids: left out")
    return SpecialIds.of(found, where="the special ids"), notes


def _sound(name: str, value: Any, count: int) -> bool:
    def known(each: Any) -> bool:
        return isinstance(each, int) and not isinstance(each, bool) and 0 <= each < count

    if name == "bad_words_ids":
        return isinstance(value, list) and all(
            isinstance(word, list) and word and all(map(known, word)) for word in value
        )
    if name in SEVERAL and isinstance(value, list):
        return bool(value) and all(map(known, value))
    return known(value)


def own_ids(tokenizer: Tokenizer | None, several: bool) -> SpecialIds:
    """The special ids of a model that heddle made: the one token that ends a text does all there is to do, as in GPT-2.

    Args:
        several: there is an encoder and a decoder, so that it also fills rows up and stands before a decoder's first token.
    """
    end = None if tokenizer is None else tokenizer.end_of_text
    more = end if several else None
    return SpecialIds(begin=end, end=end, padding=more, decoder_start=more)


def written_ids(ids: SpecialIds, usual: Mapping[str, int]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What `read_ids` reads: the fields of config.json and those of generation_config.json."""
    data = ids.to_dict()
    said = {name: data[ours] for name, ours in NAMES.items()}
    generation = {name: value for name, value in said.items() if value not in (None, [])}
    known = (*generation, *usual, *ALWAYS)
    config = {name: value for name, value in said.items() if name in known and name not in GENERATION}
    if config.get(START, 0) is None:
        config[START] = 0  # transformers wants some number
    return config, generation
