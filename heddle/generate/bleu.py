"""BLEU and chrF of translations, computed by sacrebleu and reported with its signature (Post 2018)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from heddle.checks import checked
from heddle.display import displayed
from heddle.errors import HeddleError


@displayed()
@dataclass(frozen=True)
class TranslationScore:
    """How near translations are to their references.

    Attributes:
        bleu: BLEU, 0 to 100 (Papineni et al. 2002).
        chrf: chrF2, 0 to 100 (Popović 2015).
        bleu_signature: sacrebleu's settings. Only scores with the same signature are comparable.
        chrf_signature: likewise.
        texts: number of scored translations.
    """

    bleu: float
    chrf: float
    bleu_signature: str
    chrf_signature: str
    texts: int


def metrics(tokenize: str, lowercase: bool) -> tuple[Any, Any]:
    """sacrebleu's BLEU and chrF with these settings, as in `score_translations`.

    Raises:
        HeddleError: the tokenization is unknown, or a library or file that it needs is missing.
    """
    from sacrebleu.metrics import BLEU, CHRF

    if tokenize not in BLEU.TOKENIZERS:
        raise HeddleError(f"sacrebleu has no tokenization {tokenize!r}: {', '.join(sorted(BLEU.TOKENIZERS))}")
    try:
        return BLEU(tokenize=tokenize, lowercase=lowercase, force=True), CHRF(lowercase=lowercase)
    except Exception as error:  # each tokenization raises what its library raises
        reason = " ".join(str(error).split())
        raise HeddleError(f"sacrebleu cannot use the tokenization {tokenize!r}: {reason}") from None


@checked()
def score_translations(
    translations: Sequence[str], references: Sequence[str], tokenize: str = "13a", lowercase: bool = False
) -> TranslationScore:
    """BLEU and chrF of a corpus, one reference for each translation.

    Args:
        translations: the model's translations.
        references: the correct ones.
        tokenize: sacrebleu's tokenization for BLEU; `none` for tokenized texts.
        lowercase: whether to ignore case.

    Raises:
        HeddleError: there are no translations, the numbers of translations and references differ, or as in `metrics`.
    """
    bleu, chrf = metrics(tokenize, lowercase)
    if len(translations) != len(references) or not translations:
        raise HeddleError(
            f"{len(translations)} translations and {len(references)} references: give one reference for each"
        )
    scores = [metric.corpus_score(list(translations), [list(references)]).score for metric in (bleu, chrf)]
    signatures = [str(metric.get_signature()) for metric in (bleu, chrf)]
    return TranslationScore(scores[0], scores[1], signatures[0], signatures[1], len(translations))
