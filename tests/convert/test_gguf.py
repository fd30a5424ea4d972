"""A GGUF file holds what was published, read back with gguf's reader and loaded by transformers'; the rest is refused."""

import errno
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from heddle.config import SavedConfig, preset
from heddle.convert import export_gguf
from heddle.errors import HeddleError
from heddle.model import build
from heddle.weights.run import write_model
from tests import refusing
from tests.convert.toys import Toys

GEMMA = {"query_pre_attn_scalar": 8, "layer_types": None}
DEEP = {**GEMMA, "num_hidden_layers": 7}
NEW = {"hidden_act": "gelu_new"}
PLAIN_GEMMA = {"attention_bias": False, "tie_word_embeddings": True}
TWO_ROTARIES = {
    "full_attention": {"rope_type": "linear", "factor": 3.0, "rope_theta": 500.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
}
YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 3.0, "original_max_position_embeddings": 8}
# Variants of the published models, what is changed in them, and llama.cpp's name of the architecture.
WRITTEN: list[tuple[str, dict[str, Any], str]] = [
    ("gpt2", {}, "gpt2"), ("gpt2-untied", {}, "gpt2"),
    ("llama", {}, "llama"), ("llama-tied", {}, "llama"), ("llama-grouped", {}, "llama"), ("llama-biases", {}, "llama"),
    ("llama", {"head_dim": 10}, "llama"), ("llama-linear", {}, "llama"), ("llama-llama3", {}, "llama"),
    ("llama-yarn", {}, "llama"), ("llama-dynamic", {}, "llama"),
    ("mistral-whole", {}, "llama"), ("mistral-window", {"sliding_window": 24}, "llama"),
    ("mixtral", {}, "llama"), ("qwen2", {}, "qwen2"), ("qwen2", {"rope_parameters": YARN}, "qwen2"),
    ("qwen3", {}, "qwen3"), ("qwen3-tied-grouped", {}, "qwen3"),
    ("qwen2_moe", {}, "qwen2moe"), ("qwen3_moe-renormalised", {}, "qwen3moe"),
    ("phi3", {}, "phi3"), ("phi3", {"partial_rotary_factor": 0.67}, "phi3"),
    ("gemma2", GEMMA, "gemma2"), ("gemma3", DEEP, "gemma3"), ("gemma3", {**DEEP, "rope_parameters": TWO_ROTARIES}, "gemma3"),
    ("gpt_neox", NEW, "gptneox"), ("gpt_neox-serial", {**NEW, "attention_bias": True}, "gptneox"),
]  # fmt: skip
# Not written exactly: what transformers' reader of GGUF does not know, though llama.cpp does.
UNREAD = {
    "gptneox": "it has no such class",
    "mixtral {}": "it has no such class",
    "phi3 {'partial_rotary_factor': 0.67}": "it rotates all channels",
    "qwen2moe": "it takes another width of the shared expert",
}

# Of these it reads the config too; of the others it leaves out scaled angles, biases, widths of heads, or scales.
WHOLE = [
    (variant, changes)
    for variant, changes, _ in WRITTEN
    if not changes.keys() & {"rope_parameters", "head_dim"}
    and variant in ("llama", "llama-tied", "llama-grouped", "mistral-whole", "mistral-window", "qwen2")
]

# The parts of GGUF's names, and of the published ones of Llama and its relatives.
PARTS = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    "attn_qkv": "self_attn.qkv_proj",
}  # fmt: skip
OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
OTHERS: dict[str, dict[str, str]] = {
    "gpt2": {
        "attn_norm": "ln_1", "attn_qkv": "attn.c_attn", "attn_output": "attn.c_proj", "ffn_norm": "ln_2", "ffn_up": "mlp.c_fc",
        "ffn_down": "mlp.c_proj",
    },
    "gpt_neox": {
        "attn_norm": "input_layernorm", "attn_qkv": "attention.query_key_value", "attn_output": "attention.dense",
        "ffn_norm": "post_attention_layernorm", "ffn_up": "mlp.dense_h_to_4h", "ffn_down": "mlp.dense_4h_to_h",
    },
    "phi3": {**PARTS, "ffn_up": "mlp.gate_up_proj"},
    "gemma2": {
        **PARTS, "post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    },
    "mixtral": {**PARTS, "ffn_gate_inp": "mlp.gate", "ffn_down_exps": "mlp.experts.down_proj"},
}  # fmt: skip
OTHERS["gemma3_text"] = OTHERS["gemma2"]
OTHERS["qwen3_moe"] = OTHERS["mixtral"]
OTHERS["qwen2_moe"] = {
    **OTHERS["mixtral"], "ffn_gate_shexp": "mlp.shared_expert.gate_proj", "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj", "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
}  # fmt: skip
OUTERS = {
    "gpt2": {"token_embd": "transformer.wte", "position_embd": "transformer.wpe", "output_norm": "transformer.ln_f",
             "output": "lm_head"},
    "gpt_neox": {"token_embd": "gpt_neox.embed_in", "output_norm": "gpt_neox.final_layer_norm", "output": "lm_head"},
}  # fmt: skip
LAYERS = {"gpt2": "transformer.h", "gpt_neox": "gpt_neox.layers"}


def metadata(file: Path) -> dict[str, Any]:
    return {name: field.contents() for name, field in gguf.GGUFReader(file).fields.items()}


def tensors(file: Path) -> dict[str, Tensor]:
    """The tensors with their shapes in torch."""
    by_name = {}
    for each in gguf.GGUFReader(file).tensors:
        assert each.tensor_type == gguf.GGMLQuantizationType.F32
        assert each.shape.tolist() == list(each.data.shape)[::-1]
        by_name[each.name] = torch.from_numpy(np.array(each.data))
    return by_name


def published_name(name: str, family: str) -> str:
    """What transformers calls a tensor of a GGUF file."""
    body, end = name.rsplit(".", 1)
    if not body.startswith("blk."):
        return f"{OUTERS.get(family, OUTER)[body]}.{end}"
    _, layer, part = body.split(".", 2)
    published_part = OTHERS.get(family, PARTS)[part]
    whole = f"{LAYERS.get(family, 'model.layers')}.{layer}.{published_part}"
    return whole if part == "ffn_down_exps" else f"{whole}.{end}"


def undone(name: str, tensor: Tensor, config: Any) -> Tensor:
    """A tensor of a GGUF file as it was published."""
    family, part = config.model_type, name.split(".")[-2]
    if family in ("llama", "mistral", "mixtral") and part in ("attn_q", "attn_k"):
        heads = config.num_attention_heads if part == "attn_q" else config.num_key_value_heads
        pairs = tensor.reshape(heads, -1, 2, *tensor.shape[1:])
        return torch.cat((pairs[:, :, 0], pairs[:, :, 1]), 1).reshape(tensor.shape)
    if family == "gpt2" and part in ("attn_qkv", "attn_output", "ffn_up", "ffn_down") and name.endswith("weight"):
        return tensor.T
    if family == "gpt_neox" and part == "attn_qkv":
        heads = [each.reshape(config.num_attention_heads, -1, *tensor.shape[1:]) for each in tensor.chunk(3)]
        return torch.stack(heads, 1).reshape(tensor.shape)
    return tensor


def expected_tensors(published: PreTrainedModel) -> dict[str, Tensor]:
    """The published tensors, Gemma's norms with the 1 that it leaves out."""
    tensors = {name: tensor.detach() for name, tensor in published.state_dict().items() if "rotary_emb" not in name}
    gemma = published.config.model_type.startswith("gemma")
    return {name: tensor + 1 if gemma and "norm" in name else tensor for name, tensor in tensors.items()}


@pytest.mark.parametrize(("variant", "changes", "architecture"), WRITTEN)
def test_every_tensor_is_the_published_one(
    toys: Toys, variant: str, changes: dict[str, Any], architecture: str
) -> None:
    toy = toys(variant, **changes)
    config, left, notes = toy.published.config, expected_tensors(toy.published), toy.gguf_report
    stored = tensors(toy.gguf)
    assert (notes["architecture"], notes["tensors"]) == (architecture, len(stored))
    if config.tie_word_embeddings:
        del left["lm_head.weight"]
    if architecture == "gptneox" and config.tie_word_embeddings:
        assert torch.equal(stored.pop("output.weight"), stored["token_embd.weight"])
    divisors = stored.pop("rope_freqs.weight", None)
    assert (divisors is not None) == (variant == "llama-llama3")
    gates = {name: stored.pop(name) for name in list(stored) if "_gate_exps" in name}
    for name in gates:  # transformers has both of an expert's matrices in one
        both = torch.cat((gates[name], stored.pop(name.replace("_gate_", "_up_"))), 1)
        assert torch.equal(both, left.pop(f"model.layers.{name.split('.')[1]}.mlp.experts.gate_up_proj"))
    for name, tensor in stored.items():
        same = left.pop(published_name(name, config.model_type))
        assert torch.equal(undone(name, tensor, config).reshape(same.shape), same), name
    assert not left


@pytest.mark.parametrize(("variant", "changes", "architecture"), WRITTEN)
def test_the_metadata_is_the_configs(toys: Toys, variant: str, changes: dict[str, Any], architecture: str) -> None:
    toy = toys(variant, **changes)
    config: Any = toy.published.config
    stored = metadata(toy.gguf)
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    expected_fields = {
        "context_length": config.max_position_embeddings, "embedding_length": config.hidden_size, "vocab_size": 61,
        "block_count": config.num_hidden_layers, "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": getattr(config, "num_key_value_heads", config.num_attention_heads),
        "attention.key_length": width, "attention.value_length": width,
    }  # fmt: skip
    if "moe" in architecture:
        expected_fields |= {"expert_feed_forward_length": config.moe_intermediate_size}
    else:
        expected_fields |= {"feed_forward_length": getattr(config, "intermediate_size", 4 * config.hidden_size)}
    layer_norm = {"gpt2": "layer_norm_epsilon", "gptneox": "layer_norm_eps"}.get(architecture)
    name = "layer_norm_rms_epsilon" if layer_norm is None else "layer_norm_epsilon"
    expected_fields[f"attention.{name}"] = np.float32(getattr(config, layer_norm or "rms_norm_eps"))
    if architecture != "gpt2":
        expected_fields |= rotary(config, width)
    assert {key: stored.get(f"{architecture}.{key}") for key in expected_fields} == expected_fields
    assert stored["general.architecture"] == architecture
    assert (stored["general.file_type"], stored["tokenizer.ggml.model"]) == (gguf.LlamaFileType.ALL_F32, "no_vocab")
    assert not [
        key for key in stored if "rope.scaling" in key and key.removeprefix(f"{architecture}.") not in expected_fields
    ]


def rotary(config: Any, width: int) -> dict[str, Any]:
    """The metadata of rotary positions that a published config describes."""
    tables = config.rope_parameters
    table = tables.get("full_attention", tables)
    share = table.get("partial_rotary_factor", getattr(config, "partial_rotary_factor", None)) or 1.0
    base, kind = table["rope_theta"], table["rope_type"]
    if kind == "dynamic":
        base *= (table["factor"] * 1 - (table["factor"] - 1)) ** (
            width / (width - 2)
        )  # for a text of the context's length
    fields = {"rope.dimension_count": int(width * share), "rope.freq_base": np.float32(base)}
    if kind in ("linear", "yarn"):
        fields |= {"rope.scaling.type": kind, "rope.scaling.factor": np.float32(table["factor"])}
    if kind == "yarn":
        fields |= {"rope.scaling.original_context_length": table["original_max_position_embeddings"]}
    if "sliding_attention" in tables:
        fields |= {"rope.freq_base_swa": np.float32(tables["sliding_attention"]["rope_theta"])}
    return fields


def test_the_divisors_are_llama_3s(toys: Toys) -> None:
    """The frequencies of transformers are the plain ones, divided by them."""
    toy = toys("llama-llama3")
    scaled = toy.published.model.rotary_emb.inv_freq
    plain = 100.0 ** -(torch.arange(0, 6, 2) / 6)
    divisors = tensors(toy.gguf)["rope_freqs.weight"]
    torch.testing.assert_close(plain / divisors, scaled)
    assert divisors.max() > 1.5


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("variant", "changes", "architecture"), WRITTEN)
def test_transformers_reads_the_file(toys: Toys, variant: str, changes: dict[str, Any], architecture: str) -> None:
    """Its reader of GGUF undoes llama.cpp's conventions by itself, so what it computes depends on each of them."""
    if architecture in UNREAD or f"{variant} {changes}" in UNREAD:
        pytest.skip(UNREAD.get(architecture) or UNREAD[f"{variant} {changes}"])
    toy = toys(variant, **changes)
    reference = type(toy.published).from_pretrained(
        toy.gguf.parent,
        gguf_file=toy.gguf.name,
        config=None if (variant, changes) in WHOLE else toy.published.config,
        dtype=torch.float32,
    )
    model = toy.model
    ids = torch.randint(61, (2, 20), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = model.logits(model(ids).hidden)
        assert (reference(ids).logits - expected).abs().max() < 1e-5 * expected.abs().max().clamp(min=1)


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "activation": ("gpt2-exact-gelu-inner", {}, "activation_function = 'gelu'"),
    "activation of a Llama": ("llama", {"hidden_act": "gelu"}, "supports only 'silu'"),
    "scores": ("gpt2-by-layer", {}, "scale_attn_by_inverse_layer_idx = True"),
    "window": ("mistral-window", {}, "sliding_window = 7"),
    "windows": ("qwen3-yarn-window", {}, "use_sliding_window = True"),
    "window of Phi": ("phi3-odd-window", {}, "sliding_window = 7"),
    "long rope": ("phi3-longrope", {}, "scaled by longrope"),
    "ramp": ("mistral-yarn", {}, "yarn scaling has other settings"),
    "width": ("qwen2", {"head_dim": 8}, "4 heads of width 8"),
    "odd rotation": ("gpt_neox-odd", NEW, "5 channels of a head are rotated"),
    "biases": ("qwen3", {"attention_bias": True}, "attention_bias = True"),
    "dense layer": ("qwen3_moe-yarn-dense-window", {"use_sliding_window": False}, "mlp_only_layers = [0]"),
    "chances": ("qwen3_moe-as-they-are", {}, "norm_topk_prob = False"),
    "scale": ("gemma2", {}, "query_pre_attn_scalar = 12, and llama.cpp supports only 8"),
    "caps": ("gemma2-without-caps", GEMMA, "no attn_logit_softcapping"),
    "places of windows": ("gemma2-caps", {**GEMMA, "layer_types": ["full_attention"] * 3, **PLAIN_GEMMA}, "other"),
    "no whole layer": ("gemma3", GEMMA, "3 layers, all with a window"),
    "two kinds of angles": ("gemma3-yarns", DEEP, "scaled by yarn"),
    "unknown": ("opt", {}, "its class is OPTForCausalLM"),
    "encoder": ("bert", {}, "its class is BertForMaskedLM"),
    "two stacks": ("t5", {}, "its class is T5ForConditionalGeneration"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_llama_cpp_lacks_is_refused(toys: Toys, tmp_path: Path, kind: str) -> None:
    variant, changes, reason = REFUSED[kind]
    run, before = toys(variant, **changes).run, sorted(tmp_path.iterdir())
    line = refusing.refusal(lambda: export_gguf(run, tmp_path / "model.gguf"))
    assert reason in line
    assert line.endswith("to export it for Hugging Face transformers, name a directory")
    assert sorted(tmp_path.iterdir()) == before


def test_what_no_family_has_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    config = preset("laptop-rnn").override({"dim": 16, "vocab_size": 61, "context": 20})
    write_model(tmp_path / "run", build(config, seed=1).state_dict(), SavedConfig(model=config), None, step=1)
    line = refusing.refusal(lambda: export_gguf(tmp_path / "run", tmp_path / "model.gguf"))
    assert "decoder.block.mixer.kind is recurrent, StableLmForCausalLM has attention" in line
    assert line.endswith("To export it, train a model with the values that one class has")


@pytest.mark.parametrize("kind", ["taken", "full disk", "interrupted", "no package", "no folder"])
def test_nothing_is_half_written(run: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    target = run.parent / "model.gguf"
    reasons = {"taken": "already exists", "full disk": "disk full", "no package": "pip install 'heddle-lm[gguf]'"}
    if kind == "taken":
        target.write_text("mine")
    if kind == "no package":
        monkeypatch.setitem(sys.modules, "gguf", None)
    if kind == "no folder":
        target = run / "config.json" / "model.gguf"
    failures = {"full disk": OSError(errno.ENOSPC, "No space left on device"), "interrupted": KeyboardInterrupt()}
    if kind in failures:

        def fail(*args: object) -> None:
            raise failures[kind]

        monkeypatch.setattr(gguf.GGUFWriter, "write_tensors_to_file", fail)
    before = {path: path.read_bytes() for path in run.parent.rglob("*") if path.is_file()}
    with pytest.raises(KeyboardInterrupt if kind == "interrupted" else HeddleError) as caught:
        export_gguf(run, target)
    assert reasons.get(kind, "") in str(caught.value)
    assert {path: path.read_bytes() for path in run.parent.rglob("*") if path.is_file()} == before


def test_a_name_is_the_runs_and_the_bytes_are_always_the_same(run: Path) -> None:
    export_gguf(run, run.parent / "a.gguf")
    export_gguf(run, run.parent / "new" / "b.gguf")
    assert metadata(run.parent / "a.gguf")["general.name"] == "run"
    assert (run.parent / "a.gguf").read_bytes() == (run.parent / "new" / "b.gguf").read_bytes()
