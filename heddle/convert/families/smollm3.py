"""SmolLM 3 (Bakouch et al. 2025) in Hugging Face's format: a Llama without positions in every fourth layer."""

from dataclasses import replace

from heddle.config.model import TransformerConfig
from heddle.config.positions import RotaryConfig
from heddle.convert.families import layers, llama, rotary
from heddle.convert.fields import Data, Fields, FieldTable, Part, derived, one_block
from heddle.errors import HeddleError

BASE = 2_000_000.0


def _rotated(f: Fields) -> list[int]:
    """The layers with rotary positions. `no_rope_layers` has a 1 for each of them, despite its name.

    Raises:
        HeddleError: a field about these layers is invalid.
    """
    every, flags = layers.numbers(f["num_hidden_layers"]), f["no_rope_layers"]
    if flags is None:
        step = layers.period(f["no_rope_layer_interval"], "no_rope_layer_interval")
        return [number for number in every if (number + 1) % step]
    if not isinstance(flags, list) or len(flags) != len(every) or any(each not in (0, 1) for each in flags):
        raise HeddleError(f"no_rope_layers = {flags!r} in config.json: must have 0 or 1 for each layer")
    return [number for number in every if flags[number]]


def _read_positions(f: Fields, data: Data) -> None:
    rotated, depth, stack = _rotated(f), f["num_hidden_layers"], data["decoder"]
    relative = {name: value for name, value in rotary.heddle_rotary(f, BASE).items() if value is not None}
    layers.changed(stack, rotated, {"mixer": {"relative": relative}})
    unrotated = [number for number in layers.numbers(depth) if number not in rotated] if f["use_sliding_window"] else []
    local = layers.local_layers(f["layer_types"], depth, unrotated)
    if local and f["sliding_window"] is None and f["layer_types"] is not None:
        raise HeddleError(f"layer_types in config.json has {layers.LOCAL}, but there is no window")
    layers.set_window(stack, local, f["sliding_window"])


def _write_positions(config: TransformerConfig) -> Data:
    stack = config.stacks()["decoder"]
    relatives = [getattr(block.mixer, "relative", None) for block in stack.blocks]
    rotating = next((each for each in relatives if isinstance(each, RotaryConfig)), RotaryConfig(base=BASE))
    window, kinds = layers.windows_and_types(stack)
    return {
        **rotary.published_rotary(rotating, one_block(config).mixer.width(config.dim)),
        "no_rope_layers": [int(each is not None) for each in relatives],
        "use_sliding_window": window is not None,
        "sliding_window": window,
        "layer_types": kinds,
    }


FIELDS = FieldTable(
    "SmolLM 3's config.json",
    llama.CONSTANTS,
    (
        *derived(
            llama.ROWS,
            ("head_dim",),
            vocab_size=128256,
            hidden_size=2048,
            num_hidden_layers=36,
            num_attention_heads=16,
            num_key_value_heads=4,
            max_position_embeddings=32768,
            tie_word_embeddings=True,
        ),
        Part(
            {
                **rotary.DEFAULTS, "no_rope_layers": None, "no_rope_layer_interval": 4, "use_sliding_window": False,
                "sliding_window": None, "layer_types": None,
            },
            _read_positions,
            _write_positions,
        ),
        llama.WHOLE_HEADS,
    ),
    fixed=rotary.FIXED,
    idle=("max_window_layers",),  # no version of Hugging Face transformers reads it here
)  # fmt: skip
SMOLLM3 = replace(
    llama.LLAMA,
    name="smollm3",
    architecture="SmolLM3ForCausalLM",
    fields=FIELDS,
    names=llama.NAMES,
    options=replace(llama.OPTIONS, relatives=(None, RotaryConfig())),
    ids={"bos_token_id": 128000, "eos_token_id": 128001, "pad_token_id": 128004},
)
