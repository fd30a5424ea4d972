"""The command line; see `heddle --help`."""

__all__: list[str] = []
