"""No class of transformers reads a published tokenizer otherwise than heddle in silence, whatever its files say."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import Tokenizer as Library
from tokenizers import models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer

from heddle.config.ids import SpecialIds
from heddle.config.model import TransformerConfig
from heddle.convert import import_model
from heddle.convert.published import read_tokenizer, read_tokens
from heddle.convert.tokenizer_classes import BYTES, CLASSES
from heddle.predict import classify
from heddle.text import train_tokenizer
from heddle.weights import load
from heddle.weights.special_tokens import around_read
from tests.convert.conftest import shrunk

LINES = ["The weaver lifts the heddle, and the shuttle passes; ein Webfach öffnet sich. It's 12 picks, don't!\n"] * 20
TEXTS = (
    "", " ", "warp", " warp", "  two blanks", "a blank at the end ", "The WARP is", "naïve café", "Größe e\u0301", "織る 織",
    "it's 12 .",
    "it ' s , so !", "line\n\n line\ttab", "don't 1234 5", "x  y   z", "😀 ½", "[CLS] [MASK]", "a<mask> b </s>", "<s>the <pad>",
    "the <|endoftext|> warp", "<unk> of [UNK] weft",
)  # fmt: skip
# The class, the `model_type`, and whether the model has an encoder.
KINDS = {
    "GPT2Tokenizer": ("gpt2", False), "RobertaTokenizer": ("roberta", True),
    "Qwen2Tokenizer": ("qwen3", False), "GPTNeoXTokenizer": ("gpt_neox", False), "CohereTokenizer": ("cohere", False),
    "CodeGenTokenizer": ("phi", False), "LlamaTokenizer": ("llama", False), "GemmaTokenizer": ("gemma2", False),
    "T5Tokenizer": ("t5", True), "XLMRobertaTokenizer": ("xlm-roberta", True), "BertTokenizer": ("bert", True),
    "MPNetTokenizer": ("mpnet", True),
}  # fmt: skip
FIELDS: list[dict[str, Any]] = [
    {}, {"add_prefix_space": True}, {"add_prefix_space": False}, {"trim_offsets": False}, {"legacy": True}, {"legacy": False},
    {"add_bos_token": True}, {"add_bos_token": False}, {"add_eos_token": True}, {"add_eos_token": False}, {"padding_side": "left"},
    {"padding_side": "right"}, {"clean_up_tokenization_spaces": True}, {"clean_up_tokenization_spaces": False},
    {"split_special_tokens": True}, {"do_lower_case": False}, {"do_lower_case": True}, {"strip_accents": True},
    {"tokenize_chinese_chars": False}, {"additional_special_tokens": ["the"]}, {"extra_special_tokens": ["<new>"]},
    {"unk_token": "the"}, {"cls_token": "the", "sep_token": "the"}, {"mask_token": {"content": "the", "lstrip": True}},
    {"eos_token": "the", "bos_token": "the"}, {"errors": "strict"}, {"tokenizer_class": "PreTrainedTokenizerFast"},
    {"tokenizer_class": None}, {"tokenizer_class": "AlbertTokenizer"}, {"tokenizer_class": "NoSuchTokenizer"},
    {"tokenizer_class": "ElectraTokenizerFast"}, {"tokenizer_class": "BartTokenizer"}, {"tokenizer_class": "DistilBertTokenizer"},
]  # fmt: skip
PARTS: list[dict[str, Any]] = [
    {"post_processor": None}, {"normalizer": None}, {"normalizer": {"type": "Lowercase"}},
    {"pre_tokenizer": {"type": "WhitespaceSplit"}},
    {"pre_tokenizer": BYTES}, {"pre_tokenizer": {**BYTES, "add_prefix_space": True}},
]  # fmt: skip


def learned(name: str) -> tuple[Any, list[Any] | None]:
    """A vocabulary, and merges if it has any, for a class."""
    sort, special = CLASSES[name].sort, list(dict.fromkeys(CLASSES[name].roles.values()))
    if name == "T5Tokenizer":
        special = ["<pad>", "</s>", "<unk>"]
    if name == "XLMRobertaTokenizer":
        special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    library = Library({"BPE": models.BPE, "Unigram": models.Unigram, "WordPiece": models.WordPiece}[sort]())
    if sort == "WordPiece":
        library.normalizer = normalizers.BertNormalizer(lowercase=False)
        library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer: Any = trainers.WordPieceTrainer(vocab_size=200, special_tokens=special, show_progress=False)
    elif sort == "Unigram":
        library.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=120, special_tokens=special, unk_token="<unk>", show_progress=False
        )
    elif name in ("LlamaTokenizer", "GemmaTokenizer"):
        library.pre_tokenizer = pre_tokenizers.Metaspace()
        special += [f"<0x{byte:02X}>" for byte in range(256)]
        trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, show_progress=False)
    else:
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=340, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        )
    library.train_from_iterator(LINES, trainer)
    model = json.loads(library.to_str())["model"]
    vocab = [tuple(pair) for pair in model["vocab"]] if sort == "Unigram" else model["vocab"]
    merges = model.get("merges")
    return vocab, None if merges is None else [tuple(pair) for pair in merges]


@pytest.fixture(scope="module", params=KINDS)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A class and the directory that it writes."""
    name, folder = request.param, tmp_path_factory.mktemp("saved")
    vocab, merges = learned(name)
    kind: Any = getattr(transformers, name)
    kind(vocab=vocab, **({} if merges is None else {"merges": merges})).save_pretrained(folder)
    return name, folder


def config_for(encoder: bool, model: str, vocab: int) -> TransformerConfig:
    name = "t5-small" if model == "t5" else "bert-base-like" if encoder else "gpt2-small"
    return shrunk(name, vocab_size=vocab, context=32).model_copy(update={"ids": SpecialIds()})


def cases() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """What `tokenizer.json`, `tokenizer_config.json` and another file say: one thing at a time."""
    for fields in FIELDS:
        yield "tokenizer_config.json", {}, fields
    for part in PARTS:
        yield "tokenizer.json", part, {}
        yield "tokenizer.json", part, {"tokenizer_class": "PreTrainedTokenizerFast"}
    yield "special_tokens_map.json", {}, {"mask_token": "the", "unk_token": "the", "eos_token": "the"}
    yield "added_tokens.json", {}, {"<new>": 1000}


@pytest.mark.thorough
def test_what_files_say_is_followed_or_noted(saved: tuple[str, Path], tmp_path: Path) -> None:
    """One thing at a time: ids and decoded texts are those of transformers, or a note says so. As saved, there is no note."""
    name, folder = saved
    model, encoder = KINDS[name]
    content, settings = (
        json.loads((folder / file).read_text()) for file in ("tokenizer.json", "tokenizer_config.json")
    )
    compared, silent = 0, []
    for number, (file, part, fields) in enumerate(cases()):
        case = tmp_path / str(number)
        case.mkdir()
        (case / "config.json").write_text(json.dumps({"model_type": model}))
        (case / "tokenizer.json").write_text(json.dumps({**content, **part}))
        (case / file).write_text(json.dumps(fields)) if "map" in file or "added" in file else None
        more = fields if file in ("tokenizer_config.json", "tokenizer.json") else {}
        whole = {key: value for key, value in {**settings, **more}.items() if value is not None}
        (case / "tokenizer_config.json").write_text(json.dumps(whole))
        tokenizer, notes = read_tokenizer(case, model)
        try:
            reference = AutoTokenizer.from_pretrained(case)
        except (TypeError, ValueError):  # a class that its file does not fit
            assert "mask_token" in fields or tokenizer is None or fields.get("tokenizer_class") == "AlbertTokenizer", (
                part,
                fields,
            )
            continue
        if tokenizer is None:
            assert notes[0].startswith("its tokenizer is left out")
            continue
        config = config_for(encoder, model, tokenizer.vocab_size)
        notes += read_tokens(case, config, tokenizer, model, lower=False)[1]
        around = tokenizer.around if config.encoder is None else around_read(config, tokenizer)
        split, compared = bool(fields.get("split_special_tokens")), compared + 1
        for text in TEXTS:
            ids = [*around.before, *tokenizer.encode(text, allow_special=not split), *around.after]
            same = ids == reference(text)["input_ids"] and tokenizer.decode(ids) == reference.decode(ids)
            if not same and not notes:
                silent.append((file, part, fields, text))
        assert number or not notes, notes
    assert compared > 30
    assert not silent


@pytest.mark.parametrize(
    ("fields", "note"),
    [
        ({"model_max_length": 8}, "model_max_length = 8 in tokenizer_config.json is ignored: heddle reads up to 24 ids of a text"),
        ({"model_max_length": 1e30}, None),
        ({"truncation_side": "left"}, "truncation_side = 'left' in tokenizer_config.json is ignored: a long text loses its end"),
        ({"padding_side": "left"}, None),
        ({"clean_up_tokenization_spaces": True}, "keep spaces before punctuation"),
        ({"additional_special_tokens": ["<new>"]}, "the special token '<new>' (1 in all) is left out"),
    ],
)  # fmt: skip
def test_an_import_notes_what_it_leaves_out(
    make_published: Callable[..., Any], tmp_path: Path, fields: dict[str, Any], note: str | None
) -> None:
    from tests.convert.test_token_roles import write_bert

    folder = write_bert(make_published, tmp_path / "published", **{"tokenizer_class": "BertTokenizer", **fields})
    notes = import_model(folder, tmp_path / "run")["notes"]
    assert any(note in each for each in notes) if note else notes == []


def test_rows_are_the_same_whichever_side_a_published_tokenizer_pads(
    make_published: Callable[..., Any], tmp_path: Path
) -> None:
    """Texts of several lengths: heddle's classes are those of transformers, which pads on that side."""
    from tests.convert.test_token_roles import write_bert

    texts = ["warp", "weft loom warps e", "loom warp"]
    rows = []
    for side in ("left", "right"):
        folder = write_bert(make_published, tmp_path / side, tokenizer_class="BertTokenizer", padding_side=side)
        import_model(folder, tmp_path / f"run-{side}")
        rows.append([each.probabilities for each in classify(*load(tmp_path / f"run-{side}", "cpu"), texts)])
    assert rows[0] == rows[1]


def test_a_class_whose_unknown_token_is_lacking_is_noted(make_published: Callable[..., Any], tmp_path: Path) -> None:
    """Gemma's class, for one, cannot read a text with a byte-level file: transformers fails, and heddle follows the file."""
    tokenizer = train_tokenizer("bytes", [])
    make_published("gemma2", vocab_size=tokenizer.vocab_size).save_pretrained(tmp_path / "published")
    tokenizer.save(tmp_path / "published")
    (note,) = import_model(tmp_path / "published", tmp_path / "run")["notes"]
    assert note.startswith("GemmaTokenizer of Hugging Face transformers gives")
