"""Models and runs as frozen, torch-free data.

In reading order:

- `model`: a transformer: stacks of blocks, entry, heads (`TransformerConfig`, `StackConfig`, `BlockConfig`).
- `layers`: the choices inside a layer: norms, positions, mixers, feed-forwards.
- `possible`: checks across layers, such as sizes against the model's width.
- `kernels`: the features of each attention kernel, and the choice of `auto`.
- `ids`: the special ids of an imported model; `chat_template`: its chat template.
- `presets`: named models, and `sized`, a model of any depth.
- `decoding`: sampling and beam search (`SamplingConfig`, `BeamConfig`), and limits of an engine (`EngineConfig`).
- `tasks`: the tasks (`NextTokenConfig`, ...); `train`: training settings (`TrainConfig`).
- `vectors`: settings for word vectors (`VectorsConfig`).
- `run`: a user's settings: data, model, task, training (`RunConfig`); `saved`: a run directory's config, with settings chosen by
  measurement (`SavedConfig`).
- `sweep`: several runs from one table of settings (`variants`).
- `base`: the base of all configs: strict keys, one-line errors, JSON, TOML and `key=value` overrides.

`TransformerConfig.of(table)`, `preset(name)` or `sized(depth, ...)` gives a model's config, for `heddle.build`.
"""

from heddle.config.base import Config as Config
from heddle.config.base import parse_overrides as parse_overrides
from heddle.config.chat_template import ChatTemplateConfig as ChatTemplateConfig
from heddle.config.data import DataConfig as DataConfig
from heddle.config.decoding import BeamConfig as BeamConfig
from heddle.config.decoding import EngineConfig as EngineConfig
from heddle.config.decoding import SamplingConfig as SamplingConfig
from heddle.config.embedding import DenseConfig as DenseConfig
from heddle.config.embedding import EmbeddingHeadConfig as EmbeddingHeadConfig
from heddle.config.entry import EntryConfig as EntryConfig
from heddle.config.ids import SpecialIds as SpecialIds
from heddle.config.layers import AttentionConfig as AttentionConfig
from heddle.config.layers import ConvolutionConfig as ConvolutionConfig
from heddle.config.layers import CustomConfig as CustomConfig
from heddle.config.layers import DropoutConfig as DropoutConfig
from heddle.config.layers import GatedConfig as GatedConfig
from heddle.config.layers import GroupsConfig as GroupsConfig
from heddle.config.layers import LatentConfig as LatentConfig
from heddle.config.layers import LayerNormConfig as LayerNormConfig
from heddle.config.layers import LinearConfig as LinearConfig
from heddle.config.layers import MLPConfig as MLPConfig
from heddle.config.layers import MoEConfig as MoEConfig
from heddle.config.layers import NoFeedForwardConfig as NoFeedForwardConfig
from heddle.config.layers import NoNormConfig as NoNormConfig
from heddle.config.layers import RecurrentConfig as RecurrentConfig
from heddle.config.layers import RMSNormConfig as RMSNormConfig
from heddle.config.layers import ScoresConfig as ScoresConfig
from heddle.config.model import BlockConfig as BlockConfig
from heddle.config.model import ClassifierHeadConfig as ClassifierHeadConfig
from heddle.config.model import InitialConfig as InitialConfig
from heddle.config.model import LanguageHeadConfig as LanguageHeadConfig
from heddle.config.model import NoHeadConfig as NoHeadConfig
from heddle.config.model import Override as Override
from heddle.config.model import StackConfig as StackConfig
from heddle.config.model import TransformerConfig as TransformerConfig
from heddle.config.positions import AlibiConfig as AlibiConfig
from heddle.config.positions import BucketsConfig as BucketsConfig
from heddle.config.positions import DynamicScaling as DynamicScaling
from heddle.config.positions import LinearScaling as LinearScaling
from heddle.config.positions import Llama3Scaling as Llama3Scaling
from heddle.config.positions import LongRopeScaling as LongRopeScaling
from heddle.config.positions import NTKScaling as NTKScaling
from heddle.config.positions import RotaryConfig as RotaryConfig
from heddle.config.positions import YarnScaling as YarnScaling
from heddle.config.presets import preset as preset
from heddle.config.presets import preset_names as preset_names
from heddle.config.presets import sized as sized
from heddle.config.run import ModelChoice as ModelChoice
from heddle.config.run import RunConfig as RunConfig
from heddle.config.saved import Chosen as Chosen
from heddle.config.saved import SavedConfig as SavedConfig
from heddle.config.sweep import variants as variants
from heddle.config.tasks import ChatConfig as ChatConfig
from heddle.config.tasks import ClassificationConfig as ClassificationConfig
from heddle.config.tasks import ContrastiveConfig as ContrastiveConfig
from heddle.config.tasks import MaskedConfig as MaskedConfig
from heddle.config.tasks import MultiLabelConfig as MultiLabelConfig
from heddle.config.tasks import NextTokenConfig as NextTokenConfig
from heddle.config.tasks import PrefixLMConfig as PrefixLMConfig
from heddle.config.tasks import RegressionConfig as RegressionConfig
from heddle.config.tasks import SpanCorruptionConfig as SpanCorruptionConfig
from heddle.config.tasks import TaskSettings as TaskSettings
from heddle.config.tasks import TokenClassificationConfig as TokenClassificationConfig
from heddle.config.tasks import TranslationConfig as TranslationConfig
from heddle.config.train import GroupConfig as GroupConfig
from heddle.config.train import TrainConfig as TrainConfig
from heddle.config.vectors import VectorsConfig as VectorsConfig

__all__ = [
    "AlibiConfig",
    "AttentionConfig",
    "BeamConfig",
    "BlockConfig",
    "BucketsConfig",
    "ChatConfig",
    "ChatTemplateConfig",
    "Chosen",
    "ClassificationConfig",
    "ClassifierHeadConfig",
    "Config",
    "ContrastiveConfig",
    "ConvolutionConfig",
    "CustomConfig",
    "DataConfig",
    "DenseConfig",
    "DropoutConfig",
    "DynamicScaling",
    "EmbeddingHeadConfig",
    "EngineConfig",
    "EntryConfig",
    "GatedConfig",
    "GroupConfig",
    "GroupsConfig",
    "InitialConfig",
    "LanguageHeadConfig",
    "LatentConfig",
    "LayerNormConfig",
    "LinearConfig",
    "LinearScaling",
    "Llama3Scaling",
    "LongRopeScaling",
    "MLPConfig",
    "MaskedConfig",
    "MoEConfig",
    "ModelChoice",
    "MultiLabelConfig",
    "NTKScaling",
    "NextTokenConfig",
    "NoFeedForwardConfig",
    "NoHeadConfig",
    "NoNormConfig",
    "Override",
    "PrefixLMConfig",
    "RMSNormConfig",
    "RecurrentConfig",
    "RegressionConfig",
    "RotaryConfig",
    "RunConfig",
    "SamplingConfig",
    "SavedConfig",
    "ScoresConfig",
    "SpanCorruptionConfig",
    "SpecialIds",
    "StackConfig",
    "TaskSettings",
    "TokenClassificationConfig",
    "TrainConfig",
    "TransformerConfig",
    "TranslationConfig",
    "VectorsConfig",
    "YarnScaling",
    "parse_overrides",
    "preset",
    "preset_names",
    "sized",
    "variants",
]
