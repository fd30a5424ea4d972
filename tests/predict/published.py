"""Tiny random models as transformers publishes them, each with a tokenizer of a few words."""

from pathlib import Path
from typing import Any

import tokenizers
import transformers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from heddle.convert import import_model
from heddle.model import Transformer
from heddle.text import Tokenizer
from heddle.weights import load

WORDS = ["the", "warp", "weft", "is", "held", "thrown", "and", "over", "##s", "##ed", "loom"]
BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
SIZES: dict[str, Any] = {
    "vocab_size": len(BERT), "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40,
    "max_position_embeddings": 20, "type_vocab_size": 2, "pad_token_id": 0,
    # Far from zero, so that what is predicted depends on every token.
    "initializer_range": 0.5,
}  # fmt: skip
T5: dict[str, Any] = {
    "vocab_size": len(BERT), "d_model": 24, "d_kv": 6, "d_ff": 40, "num_layers": 2, "num_heads": 4, "pad_token_id": 0,
    "eos_token_id": 3, "decoder_start_token_id": 0,
}  # fmt: skip


def word_pieces(single: str = "[CLS] $A [SEP]", pair: str = "[CLS] $A [SEP] $B:1 [SEP]:1") -> tokenizers.Tokenizer:
    """A BERT's tokenizer."""
    made = tokenizers.Tokenizer(models.WordPiece(dict(zip(BERT, range(len(BERT)), strict=True)), unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.add_special_tokens(BERT[:5])
    marks = [(name, BERT.index(name)) for name in ("[CLS]", "[SEP]")]
    made.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=marks)
    return made


Published = tuple[Transformer, Tokenizer, PreTrainedModel, PreTrainedTokenizerFast]


def published(folder: Path, architecture: str, template: tuple[str, ...] = (), **more: Any) -> Published:
    """A random model of an architecture, imported, beside the one of transformers; and both tokenizers."""
    made: Any = getattr(transformers, architecture)
    config = made.config_class(**{**(T5 if architecture.startswith("T5") else SIZES), **more})
    reference = made(config).eval()
    reference.save_pretrained(folder / "published")
    names = {
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
        "pad_token": "[PAD]",
    }
    cut = PreTrainedTokenizerFast(tokenizer_object=word_pieces(*template), **names)
    cut.save_pretrained(folder / "published")
    import_model(folder / "published", folder / "run")
    model, tokenizer = load(folder / "run", "cpu")
    assert tokenizer is not None
    return model, tokenizer, reference, cut
