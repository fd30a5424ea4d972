"""The tokenizers that classes of Hugging Face transformers build from a `tokenizer.json`, and where they deviate from the file."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tokenizers

from heddle.errors import HeddleError
from heddle.text.file import Content, model_type, steps_of, vocabulary
from heddle.text.tokenizer import Around, Tokenizer

Settings = Mapping[str, Any]
Parts = dict[str, Any]

ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BARE_BPE = {
    "unk_token": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "dropout": None,
    "continuing_subword_prefix": None, "end_of_word_suffix": None,
}  # fmt: skip
NFC: Content = {"type": "NFC"}
BYTES: Content = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
# Spaces at both ends, capitals, accents, punctuation, numbers, other scripts, line breaks, the empty text.
PROBES = (
    "", " ", "warp", " warp", "  Two spaces", "ends in a space ", "The Weaver LIFTS", "naïve café, Größe", "e\u0301 is é",
    "it ' s the weaver's, don't!", "1234 and 5 picks .", "織る heddle 織", "a\nb\n\n c\td", "½ ﬁ", "😀", "x  y   z",
    "un-known: [x] <y>",
)  # fmt: skip


def gpt2(settings: Settings, content: Content) -> Parts:
    """GPT-2's split into bytes of words."""
    cut = {**BYTES, "add_prefix_space": bool(settings.get("add_prefix_space"))}
    return {"normalizer": None, "pre_tokenizer": cut, "decoder": BYTES, "model": BARE_BPE}


def codegen(settings: Settings, content: Content) -> Parts:
    return {**gpt2(settings, content), "post_processor": None}


def gpt_neox(settings: Settings, content: Content) -> Parts:
    return {**gpt2(settings, content), "normalizer": NFC, "post_processor": None}


def roberta(settings: Settings, content: Content) -> Parts:
    return {**gpt2(settings, content), "post_processor": framed(settings, content, two=True)}


def qwen2(settings: Settings, content: Content) -> Parts:
    split = {"type": "Split", "pattern": {"Regex": QWEN_SPLIT}, "behavior": "Isolated", "invert": False}
    cut = {**BYTES, "add_prefix_space": bool(settings.get("add_prefix_space")), "use_regex": False}
    return {**gpt2(settings, content), "normalizer": NFC, "pre_tokenizer": sequence("pretokenizers", split, cut)}


def cohere(settings: Settings, content: Content) -> Parts:
    cut = gpt2(settings, content)["pre_tokenizer"]
    digits = {"type": "Digits", "individual_digits": True}
    return {**gpt2(settings, content), "normalizer": NFC, "pre_tokenizer": sequence("pretokenizers", digits, cut)}


def llama(settings: Settings, content: Content) -> Parts:
    """SentencePiece's BPE, with a space before a text or, in the legacy form, before each part of it."""
    prefix = settings.get("add_prefix_space") is not False
    scheme = ("always" if settings.get("legacy") else "first") if prefix else "never"
    steps: list[Content] = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefix:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {
        "normalizer": None, "pre_tokenizer": metaspace(scheme, split=False), "decoder": sequence("decoders", *steps),
        "model": {**BARE_BPE, "fuse_unk": True, "byte_fallback": True},
    }  # fmt: skip


def gemma(settings: Settings, content: Content) -> Parts:
    cut = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    parts = llama({"add_prefix_space": False}, content)
    blank = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    model = {**parts["model"], "unk_token": token_text(settings.get("unk_token"))}
    return {**parts, "normalizer": blank, "pre_tokenizer": cut, "model": model}


def t5(settings: Settings, content: Content) -> Parts:
    return {**unigram("always", content, 2), "post_processor": frame((), ("</s>",), content)}


def xlm_roberta(settings: Settings, content: Content) -> Parts:
    begin, end = token_text(settings.get("bos_token")), token_text(settings.get("eos_token"))
    scheme = "never" if settings.get("add_prefix_space") is False else "always"
    return {**unigram(scheme, content, 3), "post_processor": frame((begin,), (end,), content, two=True)}


def bert(settings: Settings, content: Content) -> Parts:
    """BERT's words."""
    normalizer = {"type": "BertNormalizer", "clean_text": True, **bert_settings(settings)}
    model = {
        "unk_token": token_text(settings.get("unk_token")),
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
    }
    return {
        "normalizer": normalizer, "pre_tokenizer": {"type": "BertPreTokenizer"}, "model": model,
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True}, "post_processor": framed(settings, content),
    }  # fmt: skip


def mpnet(settings: Settings, content: Content) -> Parts:
    return {**bert(settings, content), "post_processor": framed(settings, content, two=True)}


def bert_settings(settings: Settings) -> dict[str, Any]:
    """The settings of BERT's normalizer, which its classes read from `tokenizer_config.json` alone."""
    return {
        "lowercase": bool(settings.get("do_lower_case", True)), "strip_accents": settings.get("strip_accents"),
        "handle_chinese_chars": bool(settings.get("tokenize_chinese_chars", True)),
    }  # fmt: skip


def unigram(scheme: str, content: Content, unknown: int) -> Parts:
    table = [step for step in steps_of(content.get("normalizer"), "normalizers") if step.get("type") == "Precompiled"]
    cut = sequence("pretokenizers", {"type": "WhitespaceSplit"}, metaspace(scheme, split=True))
    parts = {"normalizer": table[0] if table else None, "pre_tokenizer": cut, "decoder": metaspace(scheme, split=True)}
    return {**parts, "model": {"unk_id": unknown, "byte_fallback": False}}


def metaspace(scheme: str, split: bool) -> Content:
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}


def sequence(name: str, *steps: Content) -> Content:
    return {"type": "Sequence", name: list(steps)}


def framed(settings: Settings, content: Content, two: bool = False) -> Content | None:
    return frame((token_text(settings.get("cls_token")),), (token_text(settings.get("sep_token")),), content, two)


def frame(before: Sequence[str], after: Sequence[str], content: Content, two: bool = False) -> Content | None:
    """The post-processor that puts tokens around texts. With `two`, the end token is doubled between the texts of a pair."""
    ids = vocabulary(content["model"]) | {token["content"]: token["id"] for token in content["added_tokens"]}
    if any(name not in ids for name in (*before, *after)):
        return None
    first, last = ([{"SpecialToken": {"id": name, "type_id": 0}} for name in names] for names in (before, after))
    text, pair = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    between = [*last, *(last if two else [])]
    table = {name: {"id": name, "ids": [ids[name]], "tokens": [name]} for name in (*before, *after)}
    return {
        "type": "TemplateProcessing", "single": [*first, text, *last], "pair": [*first, text, *between, pair, *last],
        "special_tokens": table,
    }  # fmt: skip


class Class(NamedTuple):
    """A class of Hugging Face transformers.

    Attributes:
        build: the parts of a `tokenizer.json` that it overrides, from the settings.
        sort: the type of its tokenizer models.
        default_for: the values of `model_type` for which it is the default.
        roles: its default names of special tokens.
    """

    build: Callable[[Settings, Content], Parts]
    sort: str
    default_for: tuple[str, ...] = ()
    roles: Mapping[str, str] = {}


END = "<|endoftext|>"
ENDS = {"bos_token": END, "eos_token": END, "unk_token": END}
ANGLES = {
    "bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "cls_token": "<s>", "unk_token": "<unk>", "pad_token": "<pad>",
    "mask_token": "<mask>",
}  # fmt: skip
SQUARES = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}
GEMMAS = {
    "unk_token": "<unk>",
    "bos_token": "<bos>",
    "eos_token": "<eos>",
    "pad_token": "<pad>",
    "mask_token": "<mask>",
}
COHERES = {
    "unk_token": "<UNK>", "bos_token": "<BOS_TOKEN>", "eos_token": "<|END_OF_TURN_TOKEN|>", "pad_token": "<PAD>",
    "cls_token": "<CLS>", "sep_token": "<SEP>", "mask_token": "<MASK_TOKEN>",
}  # fmt: skip
_BERT = Class(bert, "WordPiece", ("bert", "distilbert", "electra"), SQUARES)
_ROBERTA = Class(roberta, "BPE", ("roberta", "bart"), ANGLES)
CLASSES = {
    "BertTokenizer": _BERT,
    "DistilBertTokenizer": _BERT,
    "ElectraTokenizer": _BERT,
    "MPNetTokenizer": Class(mpnet, "WordPiece", ("mpnet",), {**ANGLES, "unk_token": "[UNK]"}),
    "GPT2Tokenizer": Class(gpt2, "BPE", ("gpt2", "opt", "gptj", "phi"), ENDS),
    "CodeGenTokenizer": Class(codegen, "BPE", (), ENDS),
    "GPTNeoXTokenizer": Class(gpt_neox, "BPE", ("gpt_neox",), {**ENDS, "pad_token": "<|padding|>"}),
    "RobertaTokenizer": _ROBERTA,
    "BartTokenizer": _ROBERTA,
    "Qwen2Tokenizer": Class(
        qwen2, "BPE", ("qwen2", "qwen3", "qwen2_moe", "qwen3_moe"), {"unk_token": END, "eos_token": END, "pad_token": END}
    ),
    "CohereTokenizer": Class(cohere, "BPE", ("cohere",), COHERES),
    "LlamaTokenizer": Class(llama, "BPE", (), {role: ANGLES[role] for role in ("unk_token", "bos_token", "eos_token")}),
    "GemmaTokenizer": Class(gemma, "BPE", ("gemma2", "gemma3_text"), GEMMAS),
    "T5Tokenizer": Class(t5, "Unigram", ("t5",), {role: ANGLES[role] for role in ("eos_token", "unk_token", "pad_token")}),
    "XLMRobertaTokenizer": Class(xlm_roberta, "Unigram", ("xlm-roberta",), ANGLES),
}  # fmt: skip
# Models whose default class is used whatever their file names, and models whose file is always read unchanged.
FORCED, PLAIN = ("qwen2",), ("mistral", "mixtral", "phi3", "stablelm", "olmo2", "granite", "modernbert", "umt5")
AS_IT_IS = ("PreTrainedTokenizerFast", "PreTrainedTokenizer", "TokenizersBackend")


def class_of(model_kind: str, settings: Settings, content: Content) -> str | None:
    """The name of the class that `AutoTokenizer` uses, which may not be in `CLASSES`; None if it reads the file unchanged."""
    default = next((name for name, each in CLASSES.items() if model_kind in each.default_for), None)
    class_name = str(settings.get("tokenizer_class") or "").removesuffix("Fast")
    by_bytes = any(step.get("type") == "ByteLevel" for step in steps_of(content.get("decoder"), "decoders"))
    if model_kind in PLAIN or (class_name == "LlamaTokenizer" and by_bytes):
        return None
    if not class_name or model_kind in FORCED:
        return default
    return None if class_name in [name.removesuffix("Fast") for name in AS_IT_IS] else class_name


def class_content(name: str | None, settings: Settings, content: Content) -> Content:
    """The content of a `tokenizer.json` as changed by a class, with the special tokens that it looks up by their text."""
    kind = CLASSES.get(name or "")
    all_settings = {
        **(kind.roles if kind else {}),
        **{key: value for key, value in settings.items() if key not in ROLES or value},
    }
    flags = {token["content"]: token for token in content["added_tokens"]}
    flags |= {
        token["content"]: {**token, "id": int(id)}
        for id, token in (all_settings.get("added_tokens_decoder") or {}).items()
        if token_text(token) and str(id).isdigit()
    }
    ids = vocabulary(content["model"]) | {name: token["id"] for name, token in flags.items()}
    default_flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    for role in ROLES:
        text = token_text(all_settings.get(role))
        if text and text not in flags:  # a missing token is appended to the vocabulary
            role_flags = all_settings[role] if isinstance(all_settings[role], Mapping) else {}
            ids.setdefault(text, len(ids))
            flags[text] = {
                **default_flags,
                **{key: role_flags[key] for key in default_flags if key in role_flags},
                "content": text,
                "id": ids[text],
            }
    added = [{**flags[text], "id": ids[text]} for text in sorted(flags, key=ids.__getitem__)]
    content = {**content, "added_tokens": added}
    parts = {} if kind is None or kind.sort != model_type(content) else kind.build(all_settings, content)
    model = {**content["model"], "type": model_type(content), **parts.pop("model", {})}
    return {**content, **parts, "truncation": None, "padding": None, "model": model}


def token_text(token: Any) -> str:
    """The text of a special token, which files store as text or as a table with flags."""
    text = token.get("content") if isinstance(token, Mapping) else token
    return text if isinstance(text, str) else ""


def first_difference(
    tokenizer: Tokenizer, around: Around, content: Content, split: bool, clean: bool
) -> tuple[str, str] | None:
    """The first probe that `tokenizers` encodes or decodes differently, and what differs: "ids" or "decoded text".

    Args:
        tokenizer: heddle's tokenizer.
        around: the ids that it puts around a text.
        content: the `tokenizer.json` for `tokenizers`.
        split: whether the names of special tokens in a text are ordinary text.
        clean: whether decoded texts lose spaces before punctuation.
    """
    try:
        reference = tokenizers.Tokenizer.from_str(json.dumps(content))
    except Exception:  # `tokenizers` raises a bare Exception if it cannot build a tokenizer
        return "", "ids"
    reference.encode_special_tokens = split
    special_names = list(tokenizer.special)[:8]
    decoded = None
    for text in (*PROBES, *special_names, *(f"warp {mark} weft{mark}weft" for mark in special_names)):
        try:
            ids = tokenizer.encode(text, allow_special=not split)
        except HeddleError:  # no ids spell this text
            continue
        try:
            reference_ids = reference.encode(text).ids
        except Exception:  # it has no unknown token
            return text, "ids"
        if [*around.before, *ids, *around.after] != reference_ids:
            return text, "ids"
        if decoded is None and tokenizer.decode(ids) != cleaned(
            reference.decode(ids, skip_special_tokens=False), clean
        ):
            decoded = text, "decoded text"
    return decoded


def cleaned(text: str, clean: bool) -> str:
    """A decoded text as `clean_up_tokenization_spaces` leaves it."""
    pairs = (
        (" .", "."),
        (" ?", "?"),
        (" !", "!"),
        (" ,", ","),
        (" ' ", "'"),
        *((f" {end}", end) for end in ("n't", "'m", "'s", "'ve", "'re")),
    )
    for loose, tight in pairs if clean else ():
        text = text.replace(loose, tight)
    return text
