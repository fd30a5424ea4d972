"""How large a model is, and a training on many devices: `heddle count`, `heddle presets` and `heddle plan`."""

__all__: list[str] = []
