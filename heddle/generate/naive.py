"""The reference loop without a cache: each token is a forward pass over the whole text. Faster loops are compared with it."""

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
    """Generate the tokens after one prompt, including the end of text, without a cache. Arguments as in `Engine.submit`.

    Raises:
        HeddleError: as in `DecodingRules` and `DecodingRules.new_sequence`, or no valid token can follow.
    """
    rules, device = DecodingRules(model, sampling, end_of_text), model.device
    sequence = rules.new_sequence(0, prompt, sampling.seed if seed is None else seed, source)
    sequence.guide = guide
    encoder_input = None if sequence.source is None else torch.tensor([sequence.source], device=device)
    finish, prefix_length = None, len(sequence.visible())
    while finish is None:
        layout = Layout.whole(1, len(sequence.visible()), device)
        if model.decoder is not None and model.decoder.prefix:
            layout = layout.prefixed(torch.tensor([[prefix_length]], device=device))
        with torch.inference_mode(), evaluating(model):
            hidden = model(torch.tensor([sequence.visible()], device=device), layout, encoder_input).hidden
            (event,) = rules.sample(model.logits(hidden[:, -1]), [sequence])
        if event.error:
            raise HeddleError(event.error)
        sequence.ids.append(event.token)
        finish = rules.finish(sequence)
        if rules.is_full(sequence):
            rules.shorten(sequence)
            prefix_length = len(sequence.visible())
    return sequence.ids[sequence.prompt_length :]
