"""What a model and a run are, as frozen, torch-free data."""

from heddle.config.base import Config as Config
from heddle.config.base import parse_overrides as parse_overrides
from heddle.config.model import AttentionConfig as AttentionConfig
from heddle.config.model import BlockConfig as BlockConfig
from heddle.config.model import EntryConfig as EntryConfig
from heddle.config.model import GatedConfig as GatedConfig
from heddle.config.model import HeadConfig as HeadConfig
from heddle.config.model import LayerNormConfig as LayerNormConfig
from heddle.config.model import MLPConfig as MLPConfig
from heddle.config.model import RMSNormConfig as RMSNormConfig
from heddle.config.model import RotaryConfig as RotaryConfig
from heddle.config.model import StackConfig as StackConfig
from heddle.config.model import TransformerConfig as TransformerConfig
from heddle.config.presets import preset as preset
from heddle.config.presets import preset_names as preset_names
from heddle.config.presets import sized as sized
from heddle.config.run import Chosen as Chosen
from heddle.config.run import DataConfig as DataConfig
from heddle.config.run import ModelChoice as ModelChoice
from heddle.config.run import RunConfig as RunConfig
from heddle.config.run import SavedConfig as SavedConfig
from heddle.config.run import TrainConfig as TrainConfig
from heddle.config.sampling import SamplingConfig as SamplingConfig

__all__ = [
    "AttentionConfig",
    "BlockConfig",
    "Chosen",
    "Config",
    "DataConfig",
    "EntryConfig",
    "GatedConfig",
    "HeadConfig",
    "LayerNormConfig",
    "MLPConfig",
    "ModelChoice",
    "RMSNormConfig",
    "RotaryConfig",
    "RunConfig",
    "SamplingConfig",
    "SavedConfig",
    "StackConfig",
    "TrainConfig",
    "TransformerConfig",
    "parse_overrides",
    "preset",
    "preset_names",
    "sized",
]
