"""Whatever stands for f, the commands are the same: train, write, evaluate."""

import pytest

from .conftest import TINY, Heddle

MIXER = "model.decoder.block.mixer.kind="
FAMILIES = {
    "transformer": "heads=2",
    "conv": f"{MIXER}convolution",
    "rnn": f"{MIXER}recurrent",
    "linear": f"{MIXER}linear",
}
SIZES = [word for word in TINY if not word.startswith(("heads", "steps", "evaluate_every"))]


@pytest.mark.lecture("L0-04", "L0-74")
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_trained_writes_and_is_evaluated(heddle: Heddle, corpus: str, family: str) -> None:
    trained = heddle("train", corpus, *SIZES, FAMILIES[family], "steps=20", "--name", family, "--json")
    assert trained.code == 0, trained.err
    words = ["generate", family, "--prompt", "we", "--max-tokens", "5", "--temperature", "0"]
    written = heddle(*words)
    assert (written.code, written.out.startswith("we")) == (0, True)
    assert heddle(*words, "--seed", "7").out == written.out, "where nothing is drawn, no seed counts"
    assert heddle("eval", family, "--json").json["loss"] == trained.json["validation"]["loss"]
