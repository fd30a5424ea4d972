"""Random models out of every choice there is (`tests/choices.py`), proved.

python -m tests.prove.draws [HOW_MANY]      proves as many, and counts the alarms
"""

import sys
from collections.abc import Iterator

from tests.choices import drawn


def alarms(many: int) -> Iterator[tuple[int, str]]:
    """Seeds and checks of what a sound heddle is blamed for; there should be none."""
    from heddle.model import build
    from heddle.prove import prove
    from heddle.prove.subject import awaken

    for seed in range(many):
        for verdict in prove(awaken(build(drawn(seed), seed=seed), seed), seed=seed).verdicts:
            if not verdict.holds:
                yield (
                    seed,
                    f"{verdict.check}: {verdict.error:.1e} beside {verdict.bound:.1e} {verdict.layer} {verdict.detail}",
                )


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    found = list(alarms(count))
    for seed, text in found:
        print(seed, text)
    print(f"{count} random models, {len(found)} alarms")
    sys.exit(bool(found))
