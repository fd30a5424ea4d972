"""The definition of generation: for each token, the whole text through the model. Every faster way is compared with it."""

from collections.abc import Sequence

import torch

from heddle.checks import SEED, checked
from heddle.config.decoding import SamplingConfig
from heddle.errors import HeddleError
from heddle.generate.constrain import Guide
from heddle.generate.processors import Ends
from heddle.generate.stream import DecodingRules
from heddle.model.evaluating import evaluating
from heddle.model.transformer import Transformer
from heddle.nn.layout import Layout


@checked(seed=SEED)
def naive(
    model: Transformer,
    prompt: Sequence[int],
    sampling: SamplingConfig,
    end_of_text: Ends = None,
    source: Sequence[int] | None = None,
    seed: int | None = None,
    guide: Guide | None = None,
) -> list[int]:
    """The tokens that continue one prompt, its end of text included, without a cache. Arguments as in `Engine.submit`.

    Raises:
        HeddleError: as in `DecodingRules` and `DecodingRules.open`, or no token can be drawn.
    """
    decoding, device = DecodingRules(model, sampling, end_of_text), model.device
    text = decoding.open(0, prompt, sampling.seed if seed is None else seed, source)
    text.guide = guide
    read = None if text.source is None else torch.tensor([text.source], device=device)
    finish, begun = None, len(text.visible())
    while finish is None:
        layout = Layout.whole(1, len(text.visible()), device)
        if model.decoder is not None and model.decoder.prefix:
            layout = layout.prefixed(torch.tensor([[begun]], device=device))
        with torch.inference_mode(), evaluating(model):
            hidden = model(torch.tensor([text.visible()], device=device), layout, read).hidden
            (found,) = decoding.draw(model.logits(hidden[:, -1]), [text])
        if found.broken:
            raise HeddleError(found.broken)
        text.ids.append(found.id)
        finish = decoding.finish(text)
        if decoding.is_full(text):
            decoding.shorten(text)
            begun = len(text.visible())
    return text.ids[text.given :]
