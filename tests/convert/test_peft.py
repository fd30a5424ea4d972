"""Adapters alone: peft as the outside witness, in both directions, and no model but their own."""

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from heddle.config import SavedConfig
from heddle.config.train import LoRAConfig, TrainConfig
from heddle.convert import export_adapter, export_model, import_model, merge_adapter
from heddle.convert.families import FAMILIES
from heddle.convert.mapping import to_published
from heddle.convert.peft import to_peft
from heddle.model import Transformer, build
from heddle.model.lora import adapt, adapted
from heddle.weights import load
from heddle.weights.adapter import Adapter, fingerprint
from heddle.weights.run import write_model
from tests.convert.test_parity import answer_of_ours, answer_of_theirs, relative
from tests.convert.toys import Toy, Toys
from tests.refusing import refusal

# What peft itself calls of transformers.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:Adapter 'default'. 3 LoRA tensor.s. have invalid shape.*"),
]
# Every linear layer that has a row of its own or shares one: experts have none.
EVERY = ("*.q", "*.k", "*.v", "*.o", "*.ffn.up", "*.ffn.down")
FEW = ("*.q", "*.v")
Published = Callable[..., PreTrainedModel]


def learned(model: Transformer, layers: tuple[str, ...], rank: int = 3, alpha: float = 5.0, seed: int = 2) -> Adapter:
    """An adapter with random factors beside a model's weights, which keeps them; a classifier's head was trained, too."""
    head = model.config.head if model.config.head.kind == "classifier" else None
    before = {name: value.clone() for name, value in model.state_dict().items()}
    draw = torch.Generator().manual_seed(seed)
    adapt(model, LoRAConfig(rank=rank, alpha=alpha, layers=layers), seed)
    tensors: dict[str, torch.Tensor] = {}
    for name, layer in adapted(model):
        tensors[f"{name}.lora_a"] = layer.lora_a.detach().clone()
        tensors[f"{name}.lora_b"] = torch.randn(layer.lora_b.shape, generator=draw) * 0.1
    if head is not None:
        tensors |= {name: value + 0.1 for name, value in before.items() if name.startswith("head.")}
    base = fingerprint({name: value for name, value in before.items() if name not in tensors})
    return Adapter(tensors, alpha / rank, base, head)


def tuned(base: Path, run: Path, layers: tuple[str, ...], **settings: Any) -> Adapter:
    """A run as the training of an adapter publishes it."""
    model, tokenizer = load(base, "cpu")
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    adapter = learned(load(base, "cpu").model, layers, **settings)
    config = SavedConfig(
        model=model.config, train=TrainConfig.of({"lora": {"rank": 3, "alpha": 5.0, "layers": list(layers)}})
    )
    run.mkdir()
    adapter.save(run / "adapter.safetensors")
    write_model(run, adapter.merged(weights, set(weights), "adapter"), config, tokenizer, step=1)
    return adapter


def with_peft(base: Path, adapter: Path, kind: type[Any]) -> Any:
    """The exported base with the adapter, as peft's users load them."""
    reference = kind.from_pretrained(base, attn_implementation="eager")
    return peft.PeftModel.from_pretrained(reference, adapter).eval()


@pytest.mark.parametrize(
    ("variant", "layers"),
    [
        ("gpt2", FEW),  # q and v are two thirds of c_attn, a Conv1D
        ("llama-grouped", ("*.mixer.*", "decoder.blocks.1.ffn.*")),
        ("gpt_neox", ("*.k", "*.o")),  # q, k and v lie head by head
        ("bert", FEW),
        ("bert_classifier", ("*.q", "encoder.blocks.0.ffn.down")),
        ("t5", FEW),
        ("bart", EVERY),
    ],
)
def test_peft_computes_what_heddle_does(toys: Toys, tmp_path: Path, variant: str, layers: tuple[str, ...]) -> None:
    """Logits of peft's model are heddle's; what peft saves of it is read back, and so is what heddle wrote."""
    toy = toys(variant)
    tuned(toy.run, tmp_path / "run", layers)
    export_adapter(tmp_path / "run", tmp_path / "adapter")
    model = load(tmp_path / "run", "cpu").model
    expected = answer_of_ours(model).detach()
    assert relative(answer_of_ours(toy.model), expected) > 1e-3

    reference = with_peft(toy.exported, tmp_path / "adapter", type(toy.published))
    with torch.no_grad():
        assert relative(answer_of_theirs(reference), expected) < 1e-5

    reference.save_pretrained(tmp_path / "again")
    for number, adapter in enumerate(("adapter", "again")):
        report = merge_adapter(toy.run, tmp_path / adapter, tmp_path / f"merged-{number}")
        assert report["checked"] == (adapter != "again")
        merged = load(tmp_path / f"merged-{number}", "cpu").model
        assert merged.config == model.config
        assert relative(answer_of_ours(merged), expected) < 1e-5


def test_every_family_has_a_place_for_every_layer(one_of_each: Toy) -> None:
    """The product of the two factors is what the family's table makes of the layers' products."""
    published = one_of_each.published
    family = FAMILIES[type(published).__name__]
    named = {**json.loads(published.config.to_json_string()), "architectures": [family.architecture]}
    model = build(family.to_config(named))
    moe = all(block.ffn.kind == "moe" for stack in model.config.stacks().values() for block in stack.blocks)
    adapter = learned(model, ("*.q", "*.k", "*.v", "*.o") if moe else EVERY)
    adapter = Adapter({name: value for name, value in adapter.tensors.items() if "lora" in name}, adapter.factor)
    tensors, config = to_peft(adapter, family, model.config)
    deltas = {name: torch.zeros(value.shape) for name, value in build(model.config, "meta").state_dict().items()}
    for layer in adapter.layers():
        a, b = adapter.tensors[f"{layer}.lora_a"], adapter.tensors[f"{layer}.lora_b"]
        deltas[f"{layer}.weight"] = adapter.factor * b @ a
    expected = to_published(family.table, *family.rewrite(model.config, deltas), gradients=True)
    modules = {name.split(".lora_")[0] for name in tensors}
    for name, value in expected.items():
        module = f"base_model.model.{name.removesuffix('.weight')}"
        if module not in modules:
            assert not value.any(), name
            continue
        a, b = (tensors[f"{module}.lora_{each}.weight"] for each in "AB")
        short = module.removeprefix("base_model.model.")
        alpha = config["alpha_pattern"].get(short, config["lora_alpha"])
        assert config["rank_pattern"].get(short, config["r"]) == len(a)
        product = alpha / len(a) * b @ a
        torch.testing.assert_close(product.T if config["fan_in_fan_out"] else product, value, rtol=0, atol=1e-6)


@pytest.fixture
def base(toys: Toys) -> Path:
    return toys("llama").run


def test_peft_with_its_own_settings(make_published: Published, base: Path, tmp_path: Path) -> None:
    """Ranks by module, a factor of alpha / √r, and short names, as peft itself trains and saves them."""
    config = peft.LoraConfig(
        r=4, lora_alpha=6, use_rslora=True, target_modules=["q_proj", "down_proj"], init_lora_weights=False,
        rank_pattern={"down_proj": 2}, alpha_pattern={r"layers\.1\.mlp\.down_proj": 3},
    )  # fmt: skip
    reference = peft.get_peft_model(make_published("llama"), config).eval()
    reference.save_pretrained(tmp_path / "adapter")
    report = merge_adapter(base, tmp_path / "adapter", tmp_path / "run")
    assert report == {"layers": 6, "checked": False}
    with torch.no_grad():
        expected = answer_of_theirs(reference)
    assert relative(answer_of_ours(load(tmp_path / "run", "cpu").model), expected) < 1e-5


def test_a_base_without_its_head_is_given_one(toys: Toys, tmp_path: Path) -> None:
    """An adapter with a new head, which heddle's metadata describe, makes a classifier of a BERT that fills in tokens."""
    plain = toys("bert").model
    head = {"kind": "classifier", "classes": 3, "pooling": "first", "dense": True}
    model = build(plain.config.override({"head": head, "architecture": None}), seed=4)
    model.load_state_dict({**model.state_dict(), **{k: v for k, v in plain.state_dict().items() if "head" not in k}})
    adapter = learned(model, FEW)
    run = tmp_path / "run"
    run.mkdir()
    adapter.save(run / "adapter.safetensors")
    weights = adapter.merged(plain.state_dict(), set(build(model.config, "meta").state_dict()), "adapter")
    write_model(run, weights, SavedConfig(model=model.config), None, step=1)
    export_adapter(run, tmp_path / "adapter")
    for number, source in enumerate((run, tmp_path / "adapter")):
        merge_adapter(toys("bert").run, source, tmp_path / f"merged-{number}")
        merged = load(tmp_path / f"merged-{number}", "cpu").model
        assert relative(answer_of_ours(merged), answer_of_ours(load(run, "cpu").model)) < 1e-6
    reference = AutoModelForSequenceClassification.from_pretrained(toys("bert").exported, num_labels=3)
    reference = peft.PeftModel.from_pretrained(reference, tmp_path / "adapter").eval()
    with torch.no_grad():
        assert relative(answer_of_theirs(reference), answer_of_ours(load(run, "cpu").model)) < 1e-5


def test_no_other_model(base: Path, make_published: Published, tmp_path: Path) -> None:
    """Other values, other shapes, other layers: one line each, and nothing is written."""
    tuned(base, tmp_path / "run", FEW)
    export_adapter(tmp_path / "run", tmp_path / "adapter")
    others = {
        "values": ({}, "was trained on other weights: their values differ"),
        "wider": ({"hidden_size": 32}, "belongs to another model"),
        "shorter": ({"num_hidden_layers": 2}, "belongs to another model"),
    }
    for name, (changes, error) in others.items():
        torch.manual_seed(1)
        other = make_published("llama", **changes)
        if name == "values":
            other.model.norm.weight.data[0] += 1e-3
        other.save_pretrained(tmp_path / f"published-{name}")
        import_model(tmp_path / f"published-{name}", tmp_path / name)
        for adapter in ("run", "run/adapter.safetensors", "adapter"):
            message = refusal(
                lambda name=name, adapter=adapter: merge_adapter(tmp_path / name, tmp_path / adapter, tmp_path / "x")
            )
            assert error in message, message
            assert not (tmp_path / "x").exists()
    assert "has no adapter.safetensors: it was not trained with [train.lora]" in refusal(
        lambda: export_adapter(base, tmp_path / "x")
    )
    assert "neither a run with adapter.safetensors nor a peft directory" in refusal(
        lambda: merge_adapter(base, base, tmp_path / "x")
    )


def test_what_peft_knows_and_heddle_does_not_is_refused(base: Path, tmp_path: Path) -> None:
    tuned(base, tmp_path / "run", FEW)
    adapter = tmp_path / "adapter"
    export_adapter(tmp_path / "run", adapter)

    def said_of(**changes: Any) -> str:
        other = tmp_path / "other"
        shutil.rmtree(other, ignore_errors=True)
        shutil.copytree(adapter, other)
        config = json.loads((other / "adapter_config.json").read_text())
        (other / "adapter_config.json").write_text(json.dumps({**config, **changes}))
        return refusal(lambda: merge_adapter(base, other, tmp_path / "x"))

    assert "use_dora = True is not supported" in said_of(use_dora=True)
    assert "peft_type = 'IA3' is not supported, only 'LORA'" in said_of(peft_type="IA3")
    assert "init_lora_weights = 'pissa' is not supported" in said_of(init_lora_weights="pissa")
    assert "bias = 'all' is not supported" in said_of(bias="all")
    assert "adapter_config.json: lora_alpha = 'much' must be a number" in said_of(lora_alpha="much")
    assert "lora_alpha = None must be a number" in said_of(lora_alpha=None)
    assert "alpha_pattern.q_proj = [1] must be a number" in said_of(alpha_pattern={"q_proj": [1]})
    assert "alpha_pattern = ['q_proj'] must be a table of numbers by module" in said_of(alpha_pattern=["q_proj"])
    assert "a name in alpha_pattern is not a regular expression" in said_of(alpha_pattern={"(q": 1})
    (tmp_path / "pickled").mkdir()
    (tmp_path / "pickled" / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    (tmp_path / "pickled" / "adapter_model.bin").write_bytes(b"")
    assert "a pickle, which can run code when read" in refusal(
        lambda: merge_adapter(base, tmp_path / "pickled", tmp_path / "x")
    )
    tensors = load_file(adapter / "adapter_model.safetensors")
    first = next(name for name in tensors if "lora_B" in name)
    other = first.replace("lora_B", "lora_A")
    for change, error in (
        ({name: value for name, value in tensors.items() if name != first}, f"{other} without {first}; it is damaged"),
        ({name: value for name, value in tensors.items() if name != other}, f"{first} without {other}; it is damaged"),
        ({**tensors, first: tensors[first] * float("nan")}, "NaN or infinite"),
        ({**tensors, "base_model.model.model.layers.0.x.weight": torch.ones(2)}, "has no model.layers.0.x.weight"),
    ):
        save_file(change, adapter / "adapter_model.safetensors")
        assert error in refusal(lambda: merge_adapter(base, adapter, tmp_path / "x"))
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(("there", "lost"), [("lora_a", "lora_b"), ("lora_b", "lora_a")])
def test_half_an_adapter_is_refused(base: Path, tmp_path: Path, there: str, lost: str) -> None:
    adapter = tuned(base, tmp_path / "run", FEW)
    layer = adapter.layers()[0]
    less = {name: value for name, value in adapter.tensors.items() if name != f"{layer}.{lost}"}
    Adapter(less, adapter.factor, adapter.base).save(tmp_path / "run" / "adapter.safetensors")
    message = f"adapter.safetensors: {layer}.{there} without {layer}.{lost}; it is damaged"
    for call in (
        lambda: merge_adapter(base, tmp_path / "run", tmp_path / "x"),
        lambda: export_adapter(tmp_path / "run", tmp_path / "x"),
    ):
        assert refusal(call).endswith(message)
    assert not (tmp_path / "x").exists()


def test_what_peft_has_no_place_for_is_refused(base: Path, tmp_path: Path) -> None:
    """Weights that were trained in full beside the adapters, but for a head that scores classes."""
    adapter = tuned(base, tmp_path / "run", FEW)
    more = Adapter({**adapter.tensors, "decoder.final_norm.weight": torch.ones(24)}, adapter.factor)
    more.save(tmp_path / "run" / "adapter.safetensors")
    message = refusal(lambda: export_adapter(tmp_path / "run", tmp_path / "x"))
    assert message.startswith(
        "decoder.final_norm.weight was trained in full, but peft stores only adapters and classifiers"
    )
    assert not (tmp_path / "x").exists()


def test_target_modules_are_short_where_they_can_be(toys: Toys) -> None:
    cases = {
        ("llama", FEW): ["q_proj", "v_proj"],
        ("gpt2", FEW): ["c_attn"],
        ("t5", FEW): ["q", "v"],
        ("bert", ("encoder.blocks.1.mixer.o",)): ["bert.encoder.layer.1.attention.output.dense"],
    }
    for (variant, layers), expected in cases.items():
        model = load(toys(variant).run, "cpu").model
        config = model.config
        _, peft_config = to_peft(learned(model, layers), FAMILIES[str(config.architecture)], config)
        assert peft_config["target_modules"] == expected


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("saved", [["embed_tokens"], ["lm_head"], ["embed_tokens", "lm_head"], ["norm"]])
def test_what_an_adapter_brings_in_full_stays_apart_from_what_it_was_tied_to(
    toys: Toys, tmp_path: Path, tied: bool, saved: list[str]
) -> None:
    """peft trains a copy of a module in `modules_to_save`; a head that was tied to it keeps the base's numbers."""
    toy = toys("llama", tie_word_embeddings=tied)
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=saved, init_lora_weights=False)
    reference = peft.get_peft_model(copy.deepcopy(toy.published), config).eval()
    draw = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, tensor in reference.named_parameters():
            if "modules_to_save" in name:
                tensor += torch.randn(tensor.shape, generator=draw) * 0.1
        expected = answer_of_theirs(reference)
    reference.save_pretrained(tmp_path / "adapter")
    merge_adapter(toy.run, tmp_path / "adapter", tmp_path / "run")
    model = load(tmp_path / "run", "cpu").model
    assert relative(answer_of_ours(model), expected) < 1e-5
    assert model.config.head.tied == (tied and saved == ["norm"])
    export_model(tmp_path / "run", tmp_path / "out")


def test_tables_that_peft_keeps_tied_stay_one(make_published: Published, tmp_path: Path) -> None:
    """Told to tie them, or saved beside the adapter because the table is no copy."""
    for number, settings in enumerate(({"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True}, {})):
        published = make_published("llama-tied")
        published.save_pretrained(tmp_path / f"published-{number}")
        import_model(tmp_path / f"published-{number}", tmp_path / f"base-{number}")
        config = peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False, **settings)
        reference = peft.get_peft_model(published, config).eval()
        with torch.no_grad():
            for name, tensor in reference.named_parameters():
                if "modules_to_save" in name if settings else "embed_tokens" in name:
                    tensor += torch.randn(tensor.shape, generator=torch.Generator().manual_seed(3)) * 0.1
            expected = answer_of_theirs(reference)
        reference.save_pretrained(tmp_path / f"adapter-{number}", save_embedding_layers=not settings)
        merge_adapter(tmp_path / f"base-{number}", tmp_path / f"adapter-{number}", tmp_path / f"run-{number}")
        model = load(tmp_path / f"run-{number}", "cpu").model
        assert relative(answer_of_ours(model), expected) < 1e-5
        assert model.config.head.tied


def test_a_pattern_for_layer_1_is_not_that_of_layer_11(make_published: Published, tmp_path: Path) -> None:
    """Its names are whole ends of a module's name; the first that fits counts."""
    patterns = {"1.self_attn.q_proj": 3, r"layers\.\d\.self_attn\.q_proj": 5, "v_proj": 7}
    published = make_published("llama", num_hidden_layers=12)
    published.save_pretrained(tmp_path / "published")
    import_model(tmp_path / "published", tmp_path / "base")
    config = peft.LoraConfig(
        r=2, lora_alpha=6, target_modules=["q_proj", "v_proj"], init_lora_weights=False, alpha_pattern=patterns,
        rank_pattern={"1.self_attn.q_proj": 4}, layers_to_transform=[1, 2, 11], layers_pattern="layers",
    )  # fmt: skip
    reference = peft.get_peft_model(published, config).eval()
    reference.save_pretrained(tmp_path / "adapter")
    assert merge_adapter(tmp_path / "base", tmp_path / "adapter", tmp_path / "run")["layers"] == 6
    with torch.no_grad():
        assert relative(answer_of_ours(load(tmp_path / "run", "cpu").model), answer_of_theirs(reference)) < 1e-5


@pytest.mark.parametrize(
    ("variant", "settings", "reason"),
    [
        ("llama-tied", {"target_modules": ["embed_tokens"]}, "has no model.embed_tokens.lora_embedding_"),
        ("llama", {"target_modules": ["q_proj"], "trainable_token_indices": [3]}, "trainable_token_indices = [3]"),
        ("llama", {"target_modules": ["q_proj"], "use_dora": True}, "use_dora = True is not supported"),
        ("llama-biases", {"target_modules": ["q_proj"], "bias": "lora_only"}, "bias = 'lora_only' is not supported"),
        ("llama-biases", {"target_modules": ["q_proj"], "lora_bias": True}, "lora_bias = True is not supported"),
        ("mixtral", {"target_modules": [], "target_parameters": ["experts.gate_up_proj"]}, "has no model.layers."),
        ("t5", {"target_modules": ["q"], "modules_to_save": ["shared"]}, "shared.weight, which several parts of the base share"),
    ],
)  # fmt: skip
def test_what_peft_saves_and_heddle_cannot_apply_is_refused(
    toys: Toys, tmp_path: Path, variant: str, settings: dict[str, Any], reason: str
) -> None:
    published, run = copy.deepcopy(toys(variant).published), toys(variant).run
    reference = peft.get_peft_model(published, peft.LoraConfig(r=2, init_lora_weights=False, **settings))
    reference.save_pretrained(tmp_path / "adapter", save_embedding_layers=False)
    assert reason in refusal(lambda: merge_adapter(run, tmp_path / "adapter", tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_settings_of_which_heddle_knows_nothing_are_refused(base: Path, tmp_path: Path) -> None:
    """Fields that a later version of peft may have: only what changes nothing is passed over."""
    tuned(base, tmp_path / "run", FEW)
    export_adapter(tmp_path / "run", tmp_path / "adapter")
    file = tmp_path / "adapter" / "adapter_config.json"
    config = json.loads(file.read_text())
    every = peft.LoraConfig(r=config["r"], lora_alpha=config["lora_alpha"]).to_dict()
    plain = {name: value for name, value in every.items() if not isinstance(value, set)} | {
        "peft_type": "LORA",
        **config,
    }
    file.write_text(json.dumps(plain, default=str))
    merge_adapter(base, tmp_path / "adapter", tmp_path / "merged")
    for field in ("use_bdlora", "kasa_config", "arrow_config", "something_new"):
        file.write_text(json.dumps({**config, field: {"rank": 2}}))
        assert f"{field} = {{'rank': 2}} is not supported" in refusal(
            lambda: merge_adapter(base, tmp_path / "adapter", tmp_path / "x")
        )
