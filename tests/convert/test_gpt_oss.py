"""gpt-oss beyond parity: experts in MXFP4, the usual angles, sizes; what its class cannot express is said."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GptOssConfig, GptOssForCausalLM, PreTrainedModel
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from heddle.account import parameter_count
from heddle.convert import export_gguf, export_model, import_model
from heddle.convert.families.gpt_oss import GPT_OSS
from heddle.convert.mxfp4 import Unpacked, unpacked
from heddle.weights import load
from heddle.weights.tensors import Weights
from tests.refusing import refusal

Make = Callable[..., PreTrainedModel]
TOKENS = torch.randint(61, (2, 12), generator=torch.Generator().manual_seed(3))
WIDE = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 4}  # whole blocks of 32 numbers


def bytes_of(*shape: int, least: int = 0, most: int = 255) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(least, most + 1, shape, dtype=torch.uint8, generator=generator)


def test_packed_numbers_are_those_of_transformers() -> None:
    """Every byte, and powers of 2 from the smallest to the largest that stay finite."""
    blocks, scales = bytes_of(3, 5, 2, 16), bytes_of(3, 5, 2, least=1, most=250)
    blocks[0, 0, 0], blocks.view(-1)[-256:] = 0, torch.arange(256, dtype=torch.uint8)
    expected = convert_moe_packed_tensors(blocks, scales)
    assert torch.equal(unpacked(blocks, scales).transpose(1, 2), expected.float())
    assert unpacked(torch.tensor([[0x91]], dtype=torch.uint8), torch.tensor([128], dtype=torch.uint8)).tolist() == [
        1.0,
        -1.0,
    ]


def packed_file(make_published: Make, folder: Path) -> dict[str, torch.Tensor]:
    """A published model whose experts are in MXFP4; returns its plain tensors."""
    make_published("gpt_oss", **WIDE).save_pretrained(folder)
    plain = load_file(folder / "model.safetensors")
    stored = dict(plain)
    for name in [name for name in plain if name.endswith(("gate_up_proj", "down_proj")) and "experts" in name]:
        experts, inputs, outputs = stored.pop(name).shape
        blocks = bytes_of(experts, outputs, inputs // 32, 16)
        scales = bytes_of(experts, outputs, inputs // 32, least=120, most=125)
        stored |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        plain[name] = convert_moe_packed_tensors(blocks, scales).float()
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (folder / "config.json").write_text(json.dumps(config))
    return plain


def test_packed_experts_are_read_as_transformers_reads_them(make_published: Make, tmp_path: Path) -> None:
    plain = packed_file(make_published, tmp_path / "packed")
    import_model(tmp_path / "packed", tmp_path / "run")
    model = load(tmp_path / "run", "cpu").model
    fields = {name: value for name, value in json.loads((tmp_path / "packed" / "config.json").read_text()).items()
            if name != "quantization_config"}  # fmt: skip
    reference = GptOssForCausalLM(GptOssConfig(**fields, attn_implementation="eager"))  # type: ignore[call-arg]
    reference.load_state_dict(plain)
    with torch.no_grad():
        expected, actual = reference.eval()(TOKENS).logits, model.logits(model(TOKENS).hidden)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))


def test_other_packings_and_broken_files_are_refused(make_published: Make, tmp_path: Path) -> None:
    packed_file(make_published, tmp_path / "packed")
    stored = load_file(tmp_path / "packed" / "model.safetensors")
    weights = Unpacked(Weights([tmp_path / "packed" / "model.safetensors"]))
    assert not any(name.endswith(("_blocks", "_scales")) for name in weights)
    name = next(name for name in stored if name.endswith("_scales"))
    save_file({key: each for key, each in stored.items() if key != name}, tmp_path / "packed" / "model.safetensors")
    assert name.removesuffix("_scales") in refusal(lambda: import_model(tmp_path / "packed", tmp_path / "run"))
    stored[name] = torch.full_like(stored[name], 255)  # not a number
    save_file(stored, tmp_path / "packed" / "model.safetensors")
    assert "infinite" in refusal(lambda: import_model(tmp_path / "packed", tmp_path / "run"))
    for fields in ({"quant_method": "gptq"}, {"bits": 4}):
        line = refusal(lambda fields=fields: GPT_OSS.to_config({"quantization_config": fields}))
        assert line.startswith("quantization_config = ")


@pytest.mark.parametrize("layers", [24, 36])
def test_the_published_sizes_have_their_parameters(layers: int) -> None:
    """gpt-oss-20b and gpt-oss-120b, counted by transformers from the same fields as by heddle."""
    fields: dict[str, Any] = {"num_hidden_layers": layers, "num_local_experts": 32 if layers == 24 else 128}
    with torch.device("meta"):
        reference = AutoModelForCausalLM.from_config(GptOssConfig(**fields))
    config = GPT_OSS.to_config({**fields, "initial_context_length": 4096, "experts_per_token": 4})
    assert parameter_count(config) == sum(each.numel() for each in reference.parameters())
    assert [block.mixer.window for block in config.stacks()["decoder"].blocks[:3]] == [128, None, 128]


def test_without_a_word_angles_are_slowed_as_in_transformers(make_published: Make, tmp_path: Path) -> None:
    """Its class has YaRN by default, whose ramp is not rounded."""
    published = make_published("gpt_oss", rope_parameters=None, head_dim=16)
    published.save_pretrained(tmp_path / "published")
    config = json.loads((tmp_path / "published" / "config.json").read_text())
    assert config.pop("rope_parameters")["truncate"] is False
    (tmp_path / "published" / "config.json").write_text(json.dumps(config))
    import_model(tmp_path / "published", tmp_path / "run")
    model = load(tmp_path / "run", "cpu").model
    with torch.no_grad():
        expected, actual = published(TOKENS).logits, model.logits(model(TOKENS).hidden)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_without_a_window_in_any_layer_an_export_computes_the_same(make_published: Make, tmp_path: Path) -> None:
    make_published("gpt_oss", layer_types=2 * ["full_attention"], num_hidden_layers=2).save_pretrained(
        tmp_path / "published"
    )
    import_model(tmp_path / "published", tmp_path / "run")
    export_model(tmp_path / "run", tmp_path / "out")  # compares what both compute
    assert json.loads((tmp_path / "out" / "config.json").read_text())["layer_types"] == 2 * ["full_attention"]


def test_what_it_lacks_is_said(make_published: Make, tmp_path: Path) -> None:
    assert "sliding_window is null" in refusal(lambda: GPT_OSS.to_config({"sliding_window": None}))
    assert refusal(lambda: GPT_OSS.to_config({"swiglu_alpha": 1.0})).startswith("swiglu_alpha = 1.0 in config.json")
    config = GPT_OSS.to_config({"num_hidden_layers": 2})
    assert GPT_OSS.reasons(config) == ([], [])
    for change, message in {
        "mixer.sinks": False, "ffn.router_bias": False, "ffn.renormalise": False, "ffn.expert.limit": None,
        "ffn.expert.plus_one": False, "ffn.expert.activation": "silu", "ffn.expert.bias": False, "mixer.cap": 5.0,
    }.items():  # fmt: skip
        reasons, _ = GPT_OSS.reasons(config.override({f"decoder.block.{change}": message}))
        assert any(change in reason for reason in reasons), (change, reasons)
    make_published("gpt_oss").save_pretrained(tmp_path / "published")
    import_model(tmp_path / "published", tmp_path / "run")
    assert "GptOssForCausalLM" in refusal(lambda: export_gguf(tmp_path / "run", tmp_path / "out.gguf"))
