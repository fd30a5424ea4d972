"""Records are divided by all of their texts, and what is in both parts is counted by all of them and by the first alone."""

from heddle.data.record_stats import RecordStats
from heddle.data.sources.examples import Example


def tallied(rows: list[tuple[str, str]], share: float = 0.3) -> tuple[RecordStats, list[str | None]]:
    tally = RecordStats(share)
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


def test_a_share_that_holds_out_nothing_holds_out_one_and_its_copies() -> None:
    """The next tally does so at once, and no other record with it."""
    rows = [(f"source {number}", "target") for number in range(6)] * 2
    tally, parts = tallied(rows, 1e-9)
    assert set(parts) == {"train"}
    described = tally.description()
    assert (described.held_out, described.records, described.repeated) == (2, 12, 0)
    again = RecordStats(1e-9, below=described.below)
    held = [again.add(Example({"source": source, "target": target}, None, "")) for source, target in rows]
    assert held.count("validation") == 2
    assert again.description().held_out == 2


def test_empty_records_count_as_blank_where_they_are_the_users_to_evaluate_on() -> None:
    tally = RecordStats(None)
    for part, text in (("train", " "), ("train", "a"), ("validation", ""), ("validation", "b"), ("validation", "\n")):
        tally.add(Example({"text": text}, None, f"{part} {text!r}", part))
    described = tally.description()
    assert (described.empty, described.blank, described.first_empty) == (3, 2, "train ' '")
