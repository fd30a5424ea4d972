"""Attention maps as small pictures, without a library for pictures."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

if TYPE_CHECKING:
    from heddle.look.attention import AttentionPass

MASKED = "#f3d9c4"  # not grey, so that masked and small weights differ
LOW, HIGH = (255, 255, 255), (16, 62, 130)  # the colours of the weights 0 and 1
BLOCKED = 255  # the byte of a cell whose pairs are all masked
HEADS, SIDE, PIXELS = 12, 40, 160  # of a notebook: maps at most, cells along a map, pixels along a picture


def thumbnails(layer: AttentionPass, side: int = SIDE, heads: int | None = None) -> Tensor:
    """The maps of the first heads as bytes, UInt8[h t s]: the largest weight in each cell as 0 to 254; 255 if the mask blocks
    all of it.

    Args:
        side: maximum number of cells along each axis.
        heads: number of heads; None: all.
    """
    count = layer.heads if heads is None else min(heads, layer.heads)
    height, width = min(side, layer.queries), min(side, layer.keys)
    largest = torch.zeros(count, height, width)
    visible = torch.zeros(height, width, dtype=torch.bool)
    for start, stop, weights in layer.blocks(range(count)):
        rows = torch.arange(start, stop) * height // layer.queries
        cells = F.adaptive_max_pool1d(weights[0].float().flatten(0, 1), width).unflatten(0, (count, stop - start))
        allowed = layer.allowed(slice(start, stop)).expand(len(weights), 1, -1, -1)[0].float()
        open_cells = F.adaptive_max_pool1d(allowed, width)[0] > 0
        for row in rows.unique().tolist():
            largest[:, row] = torch.maximum(largest[:, row], cells[:, rows == row].amax(1).cpu())
            visible[row] |= open_cells[rows == row].any(0).cpu()
    return torch.where(visible, (largest * 254).round().clamp(0, 254), float(BLOCKED)).to(torch.uint8)


def maps_html(layer: AttentionPass) -> str:
    """The first heads' maps of the first text, as pictures on a white ground."""
    if not layer.queries or not layer.keys or layer.q.is_meta:
        return f"<p>Attention of {layer.queries} queries to {layer.keys} keys</p>"
    size = f"{layer.queries} queries × {layer.keys} keys"
    rest = f" The first {HEADS} of {layer.heads} heads: the rest with .weights(heads=…)." * (layer.heads > HEADS)
    figures = "".join(
        '<figure style="display:inline-block;margin:0 0.5em 0.5em 0">'
        f'<img alt="head {head}: {size}" style="image-rendering:pixelated;border:1px solid #888" '
        f'width="{PIXELS}" height="{max(8, round(PIXELS * layer.queries / max(layer.keys, layer.queries)))}" '
        f'src="data:image/png;base64,{base64.b64encode(_png(cells)).decode()}"><figcaption>head {head}</figcaption></figure>'
        for head, cells in enumerate(thumbnails(layer, heads=HEADS))
    )
    return (
        f"<p>Attention weights, {size}, one map per head. Rows are queries, columns are keys; darker is larger, "
        f"masked pairs are orange.{rest}</p>{figures}"
    )


def _png(cells: Tensor) -> bytes:
    """A map as a PNG file, a pixel for each cell (PNG specification, 3rd edition)."""
    share = (cells.float() / 254)[..., None]
    colours = (1 - share) * torch.tensor(LOW) + share * torch.tensor(HIGH)
    masked = torch.tensor(list(bytes.fromhex(MASKED[1:])), dtype=torch.float32)
    pixels = torch.where(cells[..., None] == BLOCKED, masked, colours).round().to(torch.uint8).numpy()
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)  # filter type 0 before each row
    header = struct.pack(">IIBBBBB", cells.shape[1], cells.shape[0], 8, 2, 0, 0, 0)  # 8 bits, RGB
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
