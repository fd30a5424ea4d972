"""An export is read by transformers from text on as the model was trained: ids, types, special tokens, pipelines."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers.processors import TemplateProcessing
from transformers import AddedToken, AutoTokenizer, BertTokenizer, PreTrainedModel, pipeline

from heddle.config import SavedConfig
from heddle.config.chat_template import CHAT_TOKENS, ChatTemplateConfig
from heddle.config.model import TransformerConfig
from heddle.convert import export_model, import_model
from heddle.model import build
from heddle.predict import classify, fill
from heddle.predict.rows import frame_for, frame_rows
from heddle.text import END_OF_TEXT, Tokenizer, add_special_tokens, load_tokenizer, train_tokenizer
from heddle.text.base import Base
from heddle.text.chat_template import ChatTemplate
from heddle.text.file import Around
from heddle.text.words import load_wordpiece_vocab
from heddle.weights import load, read_config, tokenizer_of
from heddle.weights.run import write_model
from heddle.weights.special_tokens import around_read
from tests.convert.conftest import shrunk
from tests.refusing import refusal

Make = Callable[..., PreTrainedModel]
TEXT = "The weaver lifts the heddle, and the shuttle passes; ein Webfach öffnet sich. The warp is the loom's.\n" * 20
SPECIAL = (END_OF_TEXT, "[CLS]", "[SEP]", "[MASK]", "[PAD]")
KINDS = {"bytes": None, "characters": None, "words": None, "bpe": 300, "wordpiece": 90, "unigram": 400}
PAIRS = [("The weaver", "lifts the heddle."), ("passes;", "the loom"), ("ein Webfach", "The warp is")]
HEADS = {
    "masked": {"kind": "language", "bias": True, "transform": True},
    "classified": {"kind": "classifier", "classes": 3, "pooling": "first", "dense": True, "names": ("a", "b", "c")},
    "tagged": {"kind": "classifier", "classes": 3, "pooling": "none"},
    "pooled": {"kind": "embedding", "pooling": "first", "dense": True},
}


def make_run(path: Path, config: TransformerConfig, tokenizer: Tokenizer) -> Path:
    path.mkdir()
    config = config.override({"vocab_size": tokenizer.vocab_size})
    write_model(path, build(config, seed=4).state_dict(), SavedConfig(model=config), tokenizer, step=3)
    return path


def bert(head: str, **changes: Any) -> TransformerConfig:
    return shrunk("bert-base-like", **{"head": HEADS[head], "initial.std": 0.2, "context": 64, **changes})


@pytest.mark.parametrize(("kind", "special"), [*((kind, SPECIAL) for kind in KINDS), ("bpe", (END_OF_TEXT,))])
def test_a_trained_tokenizer_frames_pairs_as_the_classifier_was_trained(
    tmp_path: Path, kind: str, special: tuple[str, ...]
) -> None:
    """transformers' classes of pairs, from text, are `classify`'s; so are those of its pipeline, in one padded batch."""
    tokenizer = train_tokenizer(kind, [TEXT], KINDS[kind], special=special)
    report = export_model(make_run(tmp_path / "run", bert("classified"), tokenizer), tmp_path / "out")
    assert (report["family"], report["checked"], report["notes"]) == ("bert", True, [])
    reference = AutoTokenizer.from_pretrained(tmp_path / "out")
    text, pair = (tokenizer.encode(each) for each in PAIRS[0])
    read = reference(*PAIRS[0])
    end = tokenizer.special["[SEP]"] if special is SPECIAL else tokenizer.special[END_OF_TEXT]
    begin = [tokenizer.special["[CLS]"]] if special is SPECIAL else []
    assert read["input_ids"] == [*begin, *text, end, *pair, end]
    assert read["token_type_ids"] == [0] * (len(begin) + len(text) + 1) + [1] * (len(pair) + 1)
    if special is SPECIAL:
        assert (reference.cls_token, reference.sep_token, reference.pad_token) == ("[CLS]", "[SEP]", "[PAD]")
        assert reference.mask_token == "[MASK]"
    assert len(reference) == tokenizer.vocab_size
    expected = classify(*load(tmp_path / "run", "cpu"), PAIRS)
    pipe = pipeline("text-classification", model=str(tmp_path / "out"), top_k=None)
    predictions = pipe([{"text": text, "text_pair": other} for text, other in PAIRS], batch_size=3)
    for predicted, ours in zip(predictions, expected, strict=True):
        scores = {each["label"]: each["score"] for each in predicted}
        assert scores == pytest.approx(ours.probabilities, abs=1e-5)


PUBLISHED = {
    "bert": ("BertTokenizer", "the [MASK] lifts [MASK], and"),
    "roberta": ("RobertaTokenizer", "the <mask> lifts <mask>, and"),
    "llama": ("LlamaTokenizer", "the <s> lifts </s>, and"),
    "t5": ("T5Tokenizer", "the loom lifts </s>, and"),
}


@pytest.mark.parametrize("family", PUBLISHED)
def test_a_framed_text_has_the_ids_of_transformers(make_published: Make, tmp_path: Path, family: str) -> None:
    """Imported and exported: frames, a mask in the text, and pairs; of other names only with `allow_special`."""
    from tests.convert.test_tokenizer_classes import learned

    name, text = PUBLISHED[family]
    vocab, merges = learned(name)
    mask = {"mask_token": AddedToken("<mask>", lstrip=True, special=True)} if family == "roberta" else {}
    kind: Any = getattr(transformers, name)
    saved = kind(vocab=vocab, **({} if merges is None else {"merges": merges}), **mask)
    if family == "llama":  # as its published files do
        begin = {"bos": ("<s>", saved.bos_token_id)}
        saved.backend_tokenizer.post_processor = TemplateProcessing("<s> $A", "<s> $A <s> $B", list(begin.values()))
    saved.save_pretrained(tmp_path / "published")
    ids = {"bos_token_id": saved.bos_token_id, "eos_token_id": saved.eos_token_id, "pad_token_id": saved.pad_token_id}
    types = {"type_vocab_size": 1} if family == "roberta" else {}
    make_published(family, vocab_size=len(saved), **ids, **types).save_pretrained(tmp_path / "published")
    import_model(tmp_path / "published", tmp_path / "run")
    export_model(tmp_path / "run", tmp_path / "out")
    tokenizer = load(tmp_path / "run", "cpu").tokenizer
    assert tokenizer is not None
    allowed = family in ("llama", "t5")  # which have no mask: all names are read, as transformers reads them
    for folder in ("published", "out"):
        reference = AutoTokenizer.from_pretrained(tmp_path / folder)
        for each in (text, "the weaver", text[4:]):
            assert tokenizer.encode(each, special=True, allow_special=allowed) == reference(each)["input_ids"]
        if tokenizer.around.between:
            row = tokenizer.encode(text, special=True, pair="warp", allow_special=allowed)
            assert row == reference(text, "warp")["input_ids"]
    framed_ids, plain = tokenizer.encode("warp", special=True), tokenizer.encode("warp")
    assert len(framed_ids) == len(plain) + {"bert": 2, "roberta": 2, "llama": 1, "t5": 1}[family]
    assert load_tokenizer(tmp_path / "run").encode(text, special=True) == tokenizer.encode(text, special=True)


@pytest.mark.parametrize("head", ["masked", "classified", "tagged"])
def test_a_trained_model_says_how_its_texts_are_framed(tmp_path: Path, head: str) -> None:
    """The ids are those that `fill`, `classify` and the export read; a file without a frame does not say what its model reads."""
    tokenizer = train_tokenizer("words", [TEXT], special=SPECIAL)
    make_run(tmp_path / "run", bert(head), tokenizer)
    model, loaded = load(tmp_path / "run", "cpu")
    assert loaded is not None
    export_model(tmp_path / "run", tmp_path / "out")
    reference = AutoTokenizer.from_pretrained(tmp_path / "out")
    mask, begin, end = (tokenizer.special[name] for name in ("[MASK]", "[CLS]", "[SEP]"))
    weaver, lifts = (tokenizer.encode(f"The {word}")[-1] for word in ("weaver", "lifts"))
    own = [weaver, mask, lifts]
    expected = own if head == "masked" else [begin, *own, end]
    for made in (loaded, tokenizer_of(model, tokenizer), add_special_tokens(loaded, ["<more>"])):
        assert (
            made.encode("weaver [MASK] lifts", special=True)
            == expected
            == reference("weaver [MASK] lifts")["input_ids"]
        )
    (row,) = frame_rows(frame_for(model, tokenizer), [tokenizer.encode("weaver lifts")])
    assert loaded.encode("weaver lifts", special=True) == row.ids
    assert mask not in loaded.encode("weaver [MASK] lifts")
    assert begin not in loaded.encode("weaver [CLS] lifts", special=True)[1:]
    assert begin in loaded.encode("weaver [CLS] [MASK] lifts", allow_special="[CLS]", special=True)[1:]
    assert loaded.fingerprint() == tokenizer.fingerprint()
    line = refusal(lambda: tokenizer.encode("weaver", special=True))
    assert "use the tokenizer of heddle.load" in line
    if head == "masked":
        assert "has no separator" in refusal(lambda: loaded.encode("weaver", pair="lifts"))
    else:
        assert loaded.encode("weaver", pair="lifts") == [begin, weaver, end, lifts, end]


def test_a_tokenizer_of_another_model_is_refused() -> None:
    model = build(shrunk("gpt2-small"))
    tokenizer = train_tokenizer("bytes", [])
    assert "use the model's own tokenizer" in refusal(lambda: tokenizer_of(model, tokenizer))
    decoder = build(shrunk("gpt2-small", vocab_size=tokenizer.vocab_size, prompts="beginning"))
    assert tokenizer_of(decoder, tokenizer).encode("a", special=True) == [tokenizer.end_of_text, 97]


@pytest.mark.parametrize("kind", ["bytes", "words", "bpe"])
def test_a_pipeline_fills_masks_as_heddle_does(tmp_path: Path, kind: str) -> None:
    tokenizer = train_tokenizer(kind, [TEXT], KINDS[kind], special=SPECIAL)
    make_run(tmp_path / "run", bert("masked"), tokenizer)
    export_model(tmp_path / "run", tmp_path / "out")
    pipe = pipeline("fill-mask", model=str(tmp_path / "out"))
    for text in ("the [MASK] lifts the heddle.", "ein [MASK]", "[MASK] weaver"):
        (ours,) = fill(*load(tmp_path / "run", "cpu"), [text])
        best = [(each.id, each.probability) for each in ours.masks[0]]
        predictions = pipe(text, top_k=5)
        assert [each["token"] for each in predictions] == [id for id, _ in best]
        assert [each["score"] for each in predictions] == pytest.approx([p for _, p in best], abs=1e-6)


def test_a_pipeline_tags_the_ids_that_heddle_tags(tmp_path: Path) -> None:
    tokenizer = train_tokenizer("wordpiece", [TEXT], 90, special=SPECIAL)
    make_run(tmp_path / "run", bert("tagged"), tokenizer)
    export_model(tmp_path / "run", tmp_path / "out")
    (ours,) = classify(*load(tmp_path / "run", "cpu"), ["the weaver lifts"])
    predictions = pipeline("token-classification", model=str(tmp_path / "out"), ignore_labels=[])("the weaver lifts")
    starts = {0: 0, 4: 1, 11: 2}
    for each in predictions:
        if each["start"] in starts:
            assert each["score"] == pytest.approx(
                max(ours.words[starts[each["start"]]].probabilities.values()), abs=1e-5
            )


def test_a_long_pair_loses_the_same_ids(tmp_path: Path) -> None:
    """Whichever text is longer, for odd and even room."""
    tokenizer = train_tokenizer("bytes", [], special=SPECIAL)
    for context in (20, 21):
        run = make_run(tmp_path / f"run-{context}", bert("classified", context=context), tokenizer)
        export_model(run, tmp_path / f"out-{context}")
        reference = AutoTokenizer.from_pretrained(tmp_path / f"out-{context}")
        frame = frame_for(load(run, "cpu").model, tokenizer, 2)
        for first, second in ((30, 30), (30, 9), (9, 30), (3, 30), (30, 3), (8, 8), (9, 8), (8, 9), (10, 9), (9, 11)):
            text, pair = "a" * first, "b" * second
            (row,) = frame_rows(frame, [tokenizer.encode(text)], [tokenizer.encode(pair)])
            assert reference(text, pair, truncation=True)["input_ids"] == row.ids, (context, first, second)


@pytest.mark.parametrize("kind", ["bpe", "words"])
def test_a_conversation_has_the_ids_of_training(tmp_path: Path, kind: str) -> None:
    tokenizer = train_tokenizer(kind, [TEXT], KINDS[kind], special=(END_OF_TEXT, *CHAT_TOKENS))
    chat = ChatTemplateConfig()
    config = shrunk("gpt2-small", **{"chat": chat.to_dict(), "context": 64})
    run = make_run(tmp_path / "run", config, tokenizer)
    export_model(run, tmp_path / "out")
    reference = AutoTokenizer.from_pretrained(tmp_path / "out")
    messages = [{"role": "user", "content": "the loom"}, {"role": "assistant", "content": "The warp."}]
    ours = ChatTemplate.of(chat, tokenizer)
    assert reference.apply_chat_template(messages, return_dict=False) == ours.render(messages)
    prompt = reference.apply_chat_template(messages[:1], add_generation_prompt=True, return_dict=False)
    assert prompt == ours.render(messages[:1], add_generation_prompt=True)


def test_a_decoder_that_read_plain_text_is_given_none_of_a_published_tokenizers_marks(tmp_path: Path) -> None:
    """Trained from scratch with a tokenizer whose file begins every text with <s>, which no row of training had."""
    plain = train_tokenizer("bytes", [], special=("<s>", END_OF_TEXT))
    assert isinstance(plain, Base)
    published = plain.framed(Around((256,), (), ()), typed=False)
    assert published.begins == (256,)
    run = make_run(tmp_path / "run", shrunk("gpt2-small"), published)
    export_model(run, tmp_path / "out")
    assert AutoTokenizer.from_pretrained(tmp_path / "out")("ab")["input_ids"] == [97, 98]


def write_bert(make_published: Make, folder: Path, **settings: Any) -> Path:
    """A BERT in two halves: its weights, and the tokenizer as `settings` describe it beside a lower-casing tokenizer.json."""
    folder.mkdir()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "warp", "weft", "Warp", "##s", "é", "e", "loom"]
    (folder / "vocab.txt").write_text("\n".join([*words, *(f"w{n}" for n in range(49))]) + "\n", encoding="utf-8")
    make_published("bert_classifier", pad_token_id=0).save_pretrained(folder)
    load_wordpiece_vocab(folder / "vocab.txt").save(folder)
    (folder / "vocab.txt").unlink()
    if settings:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize(
    "settings",
    [
        {"tokenizer_class": "BertTokenizer"},
        {"tokenizer_class": "BertTokenizerFast", "do_lower_case": False, "model_max_length": 512},
        {"tokenizer_class": "BertTokenizer", "strip_accents": False},
        {"tokenizer_class": "BertTokenizer", "tokenize_chinese_chars": False, "mask_token": "[MASK]"},
        {"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": False, "cls_token": "[CLS]"},
    ],
)  # fmt: skip
def test_an_imported_bert_reads_as_its_tokenizer_config_says_and_so_does_its_export(
    make_published: Make, tmp_path: Path, settings: dict[str, Any]
) -> None:
    """transformers gives the same ids for what was published, for the run, and for the export of the run."""
    published = AutoTokenizer.from_pretrained(write_bert(make_published, tmp_path / "published", **settings))
    import_model(tmp_path / "published", tmp_path / "run")
    export_model(tmp_path / "run", tmp_path / "out")
    exported = AutoTokenizer.from_pretrained(tmp_path / "out")
    tokenizer = load(tmp_path / "run", "cpu").tokenizer
    assert tokenizer is not None
    for texts in (("Warp weft é 織weft",), ("warps", "Loom é")):
        read = exported(*texts)
        begin = [2] if isinstance(published, BertTokenizer) else published(*texts)["input_ids"][:0]
        assert [id for id in read["input_ids"] if id not in (2, 3)] == [
            id for id in published(*texts)["input_ids"] if id not in (2, 3)
        ]
        assert read["input_ids"][:1] == [2]
        if begin:
            assert read["input_ids"] == published(*texts)["input_ids"]
            assert read["token_type_ids"] == published(*texts)["token_type_ids"]
        assert tokenizer.encode(texts[0]) == [id for id in exported(texts[0])["input_ids"] if id not in (2, 3)]
    roles = {
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
    }
    assert {name: getattr(exported, name) for name in roles} == roles


def test_roles_survive_import_and_export(make_published: Make, tmp_path: Path) -> None:
    """Those with unusual names, too; one that no token has is left out, and said."""
    folder = write_bert(make_published, tmp_path / "published")
    config = {"mask_token": {"content": "[MASK]"}, "cls_token": "[CLS]", "eos_token": "[SEP]", "bos_token": "<none>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **config}))
    notes = import_model(folder, tmp_path / "run")["notes"]
    assert "bos_token = '<none>' is left out: the tokenizer has no such special token" in notes
    ids = read_config(tmp_path / "run").model.ids
    assert ids is not None
    assert ids.roles == {"eos_token": "[SEP]"}  # the others are what the tokens are anyway
    export_model(tmp_path / "run", tmp_path / "out")
    reference = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert (reference.eos_token, reference.bos_token, reference.mask_token) == ("[SEP]", None, "[MASK]")


@pytest.mark.parametrize("slip", ["ids", "types", "padding"])
def test_an_export_that_reads_texts_otherwise_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slip: str
) -> None:
    """Three faults of the files, each of which changes nothing for ids alone."""
    from heddle.convert import published

    def broken(config: TransformerConfig, tokenizer: Base) -> Tokenizer:
        right = tokenizer.framed(around_read(config, tokenizer), typed=True)
        if slip == "ids":
            return tokenizer
        return tokenizer.framed(right.around, typed=False) if slip == "types" else right

    monkeypatch.setattr(published, "published_tokenizer", broken)
    tokenizer = train_tokenizer("bytes", [], special=SPECIAL)
    if slip == "padding":  # attention to padding, as if the mask were not passed on
        monkeypatch.setattr(
            published,
            "tokenizer_config",
            lambda *args: {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "model_input_names": ["input_ids", "token_type_ids"],
                "pad_token": "[PAD]",
                "model_max_length": 64,
            },
        )
    run = make_run(tmp_path / "run", bert("classified"), tokenizer)
    line = refusal(lambda: export_model(run, tmp_path / "out"))
    assert {"ids": "with other ids than heddle", "types": "with other types than heddle", "padding": "differ by"}[
        slip
    ] in line
    assert not (tmp_path / "out").exists()
