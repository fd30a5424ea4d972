"""Records are divided by all of their texts, and what is in both parts is counted by all of them and by the first alone."""

from heddle.data.examples import Example
from heddle.data.tally import ExamplesTally


def tallied(rows: list[tuple[str, str]], share: float = 0.3) -> tuple[ExamplesTally, list[str | None]]:
    tally = ExamplesTally(share)
    named = (dict(zip(("source", "target"), row, strict=True)) for row in rows)
    return tally, [tally.add(Example(texts, None, f"a:{number}")) for number, texts in enumerate(named)]


def test_pairs_of_one_source_are_held_out_by_their_targets_too() -> None:
    """About the share of them, and each is told as one whose source the training part has."""
    tally, parts = tallied([("the same source", f"target {number}") for number in range(100)])
    held = parts.count("validation")
    assert held == 34
    described = tally.description()
    assert (described.held_out, described.repeated, described.repeated_first) == (34, 0, 34)


def test_pairs_of_one_target_are_held_out_by_their_sources_too() -> None:
    tally, parts = tallied([(f"source {number}", "the same target") for number in range(100)])
    assert 15 <= parts.count("validation") <= 45
    assert tally.description().repeated_first == 0


def test_equal_records_are_in_one_part() -> None:
    rows = [(f"source {number}", f"target {number}") for number in range(50)]
    tally, parts = tallied(rows * 2)
    assert parts[:50] == parts[50:]
    assert {"train", "validation"} == set(parts)
    assert tally.description().repeated == 0
