"""An independent witness: T5, BART and Marian of Hugging Face transformers, trained in a plain torch loop on the same pairs."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from heddle.config import TrainConfig, TranslationConfig
from heddle.convert import import_model
from heddle.data.corpus import Corpus
from heddle.data.records import Records
from heddle.tasks import DataSpec, TranslationTask
from heddle.text import train_tokenizer
from heddle.train import Optimizer, train_step
from heddle.weights import load
from tests.tasks.pairs import pairs

TOKENIZER = train_tokenizer("characters", ["abcdefghijkl"], special=("</s>", "<pad>", "<s>"))
END, PAD, BEGIN = (TOKENIZER.special[name] for name in ("</s>", "<pad>", "<s>"))
BART = {
    "vocab_size": TOKENIZER.vocab_size, "d_model": 24, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40, "encoder_attention_heads": 4, "decoder_attention_heads": 2, "max_position_embeddings": 24,
    "dropout": 0.0, "attention_dropout": 0.0, "eos_token_id": END, "pad_token_id": PAD, "bos_token_id": BEGIN,
    "forced_eos_token_id": None,
}  # fmt: skip
T5 = {
    "vocab_size": TOKENIZER.vocab_size, "d_model": 24, "d_kv": 6, "d_ff": 40, "num_layers": 2, "num_heads": 4,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 12, "dropout_rate": 0.0, "eos_token_id": END,
    "pad_token_id": PAD, "decoder_start_token_id": PAD,
}  # fmt: skip
# The class, its settings, and the id that its labels begin with.
MODELS: dict[str, tuple[str, dict[str, Any], int | None]] = {
    "t5": ("T5ForConditionalGeneration", T5, None),
    "bart": ("BartForConditionalGeneration", {**BART, "decoder_start_token_id": END}, BEGIN),
    "marian": ("MarianMTModel", {**BART, "decoder_start_token_id": PAD, "scale_embedding": True}, None),
}


def theirs_of(name: str) -> transformers.PreTrainedModel:
    kind, sizes, first = MODELS[name]
    family = getattr(transformers, kind)
    torch.manual_seed(0)
    model: transformers.PreTrainedModel = family(family.config_class(**sizes))
    model.generation_config.forced_bos_token_id = first
    # Marian's decoder starts with the padding id, whose vector transformers would then train by the scores alone.
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            module.padding_idx = None
    return model.train()


def filled(rows: list[list[int]], fill: int) -> Tensor:
    width = max(map(len, rows))
    return torch.tensor([row + [fill] * (width - len(row)) for row in rows])


def their_loss(model: transformers.PreTrainedModel, records: Records, places: list[int], first: int | None) -> Tensor:
    """As their documentation trains: source ids with their end and a mask; labels, from which they make the decoder's input."""
    sources = [[*records.columns["source"][place].tolist(), END] for place in places]
    start = [] if first is None else [first]
    labels = filled([[*start, *records.columns["target"][place].tolist(), END] for place in places], -100)
    ids = filled(sources, PAD)
    mask = filled([[1] * len(row) for row in sources], 0)
    loss: Tensor = model(input_ids=ids, attention_mask=mask, labels=labels).loss
    return loss


@pytest.mark.parametrize("name", list(MODELS))
def test_losses_and_weights_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """The same weights imported here: ten steps of AdamW, in two micro-batches."""
    reference = theirs_of(name)
    reference.save_pretrained(tmp_path / "before")
    import_model(tmp_path / "before", tmp_path / "run")
    ours, _ = load(tmp_path / "run", "cpu")
    records = pairs(60)
    spec = DataSpec(Corpus(records), ours.config, 8, 3, context=20, tokenizer=TOKENIZER)
    task = TranslationTask(TranslationConfig(), spec)
    objective = task.objective(ours)
    optimizer = Optimizer(ours.train(), TrainConfig(optimizer="adamw", weight_decay=0.1), 1e-3, "fp32")
    learned = [each for each in reference.parameters() if each.requires_grad]
    groups = [
        {"params": [each for each in learned if each.dim() > 1], "weight_decay": 0.1},
        {"params": [each for each in learned if each.dim() == 1], "weight_decay": 0.0},
    ]
    plain = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99), eps=1e-10)
    for step in range(10):
        examples = task.examples(step)
        loss, _ = train_step(objective, optimizer, task.batch(examples), 2, 1.0, 0.0)
        places = [place for place in examples.places.tolist() if place >= 0]
        expected = their_loss(reference, records, places, MODELS[name][2])
        expected.backward()
        plain.step()
        plain.zero_grad()
        assert loss == pytest.approx(expected.item(), abs=1e-4)
    reference.save_pretrained(tmp_path / "after")
    import_model(tmp_path / "after", tmp_path / "trained")
    trained = load(tmp_path / "trained", "cpu")[0].state_dict()
    for key, parameter in ours.state_dict().items():
        # The gradient of a key's bias is rounding, which AdamW turns into whole steps.
        if not key.endswith(("mixer.k.bias", "cross.k.bias")):
            torch.testing.assert_close(
                parameter, trained[key], rtol=0, atol=1e-4, msg=lambda detail, key=key: f"{key}: {detail}"
            )
