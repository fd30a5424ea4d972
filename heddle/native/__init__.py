"""The processor of this machine: its cores, measurements that are made once on it, and products compiled for it.

- `cores`: sharing cores with other programs.
- `measured`: measurements of this machine, cached on disk.
- `library`: `rows.cpp`, compiled once for this processor by its C++ compiler.
- `products`: products of few rows by that library, for decoding.
"""

__all__: list[str] = []
