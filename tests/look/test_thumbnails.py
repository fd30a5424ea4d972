"""Maps as pictures for notebooks: their pixels are the weights, and their number and size are bounded."""

import base64
import re
import struct
import zlib

import numpy as np
import numpy.typing as npt
import pytest
import torch

from heddle.config import TransformerConfig
from heddle.look import AttentionPass, trace
from heddle.look.thumbnails import thumbnails
from heddle.model import build


def attended(heads: int, length: int) -> AttentionPass:
    """The only layer of a small decoder."""
    stack = {"depth": 1, "block": {"mixer": {"heads": heads}}}
    torch.manual_seed(0)
    config = TransformerConfig.of({"vocab_size": 9, "dim": 2 * heads, "context": 512, "decoder": stack})
    tokens = torch.randint(9, (1, length))
    return trace(build(config).eval(), tokens, attention="*").attention["decoder.0.mixer"]


def pictures(html: str) -> list[npt.NDArray[np.uint8]]:
    """The pixels of the PNG files in a text, read without the code that wrote them."""
    maps = []
    for data in re.findall(r"data:image/png;base64,([^\"]*)", html):
        file = base64.b64decode(data)
        assert file[:8] == b"\x89PNG\r\n\x1a\n"
        chunks, at = {}, 8
        while at < len(file):
            (length,) = struct.unpack(">I", file[at : at + 4])
            body = file[at + 4 : at + 8 + length]
            assert struct.unpack(">I", file[at + 8 + length : at + 12 + length])[0] == zlib.crc32(body)
            chunks[body[:4]] = body[4:]
            at += 12 + length
        width, height = struct.unpack(">II", chunks[b"IHDR"][:8])
        rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, 1 + 3 * width)
        assert (rows[:, 0] == 0).all()
        maps.append(rows[:, 1:].reshape(height, width, 3))
    return maps


def test_the_pixels_are_the_weights_and_masked_pairs_have_their_own_colour() -> None:
    layer = attended(heads=2, length=6)
    html = layer._repr_html_()
    maps = pictures(html)
    assert [each.shape for each in maps] == [(6, 6, 3)] * 2
    for head, pixels in enumerate(maps):
        weights = layer.weights(heads=head)[0, 0].numpy()
        assert (pixels[~np.tri(6, dtype=bool)] == (0xF3, 0xD9, 0xC4)).all()
        low, high = 255, 16  # red, of the weights 0 and 1
        shares = (low - pixels[..., 0].astype(float)) / (low - high)
        np.testing.assert_allclose(shares[np.tri(6, dtype=bool)], weights[np.tri(6, dtype=bool)], atol=0.005)
    assert 'alt="head 1: 6 queries × 6 keys"' in html
    assert "currentColor" not in html  # the pictures bring their own ground, so they are the same in the dark


@pytest.mark.parametrize(("heads", "length"), [(2, 400), (24, 16)])
def test_a_notebook_gets_a_bounded_number_of_small_pictures(heads: int, length: int) -> None:
    html = attended(heads, length)._repr_html_()
    maps = pictures(html)
    assert len(maps) == min(heads, 12)
    assert max(max(each.shape[:2]) for each in maps) <= 40
    assert len(html) < 60_000
    assert ("of 24 heads" in html) == (heads == 24)


def test_a_cell_of_a_large_map_is_its_largest_weight() -> None:
    layer = attended(heads=2, length=100)
    small, weights = thumbnails(layer, side=10), layer.weights()[0]
    blocks = weights.unfold(1, 10, 10).unfold(2, 10, 10).amax((-1, -2))
    visible = torch.ones(10, 10, dtype=torch.bool).tril()
    torch.testing.assert_close(small[:, visible].float() / 254, blocks[:, visible], atol=0.003, rtol=0)
    assert (small[:, ~visible] == 255).all()
