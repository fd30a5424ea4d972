"""What is planted in data is found, with its count and its place, and clean data has no findings."""

import random
from collections.abc import Iterator
from typing import Any

import pytest

from heddle.config.data import Labels
from heddle.data.sources.examples import Example
from heddle.data.sources.lint import Finding, RecordLint, TextLint
from heddle.data.sources.notes import FILES, LINES, Places

NOUNS = [("dog", "hund"), ("cat", "katze"), ("house", "haus"), ("tree", "baum"), ("water", "wasser"), ("child", "kind")]
VERBS = [("sees", "sieht"), ("loves", "liebt"), ("seeks", "sucht"), ("paints", "malt"), ("knows", "kennt")]


def pairs(count: int = 120) -> list[tuple[str, str]]:
    """Sentences in two small languages, each different."""
    draw = random.Random(0)
    rows = []
    for number in range(count):
        one, other, verb = draw.choice(NOUNS), draw.choice(NOUNS), draw.choice(VERBS)
        rows.append(
            (f"the {one[0]} {verb[0]} a {other[0]} {number}", f"das {one[1]} {verb[1]} ein {other[1]} {number}")
        )
    return rows


def lint(rows: list[tuple[str, str]], held: int = 20) -> dict[str, Finding]:
    def read() -> Iterator[tuple[str, Example]]:
        for number, (source, target) in enumerate(rows):
            part = "train" if number < len(rows) - held else "validation"
            yield part, Example({"source": source, "target": target}, None, f"a:{number}")

    return {each.name: each for each in RecordLint(read).findings("classes")}


def test_clean_pairs_have_no_findings() -> None:
    assert lint(pairs()) == {}


def test_swapped_sides_are_counted_and_nothing_else_is() -> None:
    rows = pairs()
    for number in (7, 30, 31):
        rows[number] = rows[number][::-1]
    findings = lint(rows)
    assert set(findings) == {"swapped sides"}
    assert (findings["swapped sides"].count, findings["swapped sides"].where, findings["swapped sides"].wrong) == (
        3,
        "a:7",
        True,
    )
    assert findings["swapped sides"].line() == (
        "wrong: swapped sides: 3 of 120 records have words on each side that are over 20 times likelier on the other, first a:7; "
        "exchange source and target there"
    )


def test_a_pair_does_not_vouch_for_its_own_words() -> None:
    """Words that nobody else has, on one side or on both, say nothing."""
    assert lint([*pairs(), ("qwerty asdf", "zuiop hjkl"), ("Ada Bo Cy Di met", "Ada Bo Cy Di trafen")]) == {}


@pytest.mark.parametrize(
    ("row", "at", "name", "wrong"),
    [
        (("", "das hund"), 5, "empty source", False),
        (("the dog", " \n"), 5, "empty target", False),
        (("the dog", "the dog"), 5, "equal sides", False),
        (("the dog\u200b", "das hund"), 5, "invisible characters", False),
        (("the caf\u00c3\u00a9", "das hund"), 5, "mojibake", True),
        (("the \ufffd", "das hund"), 5, "mojibake", True),
        (("the dog\r\n", "das hund"), 5, "CRLF", False),
        (("the dog\rruns", "das hund"), 5, "carriage returns", False),
        (pairs()[0], 5, "duplicates", False),
        (pairs()[0], 119, "overlap", True),
        ((pairs()[0][0], "anders"), 119, "shared source", False),
    ],
)
def test_a_planted_record_is_found(row: tuple[str, str], at: int, name: str, wrong: bool) -> None:
    rows = pairs()
    rows[at] = row
    finding = lint(rows)[name]
    assert (finding.count, finding.where, finding.wrong) == (1, f"a:{at}", wrong)


def test_what_is_rare_is_a_remark_and_what_is_frequent_is_wrong() -> None:
    rows = pairs()
    for number in range(0, 20, 2):
        rows[number] = (rows[number][0], rows[number][0])
        rows[number + 50] = rows[40]
    findings = lint(rows)
    assert findings["equal sides"].wrong
    assert findings["duplicates"].wrong


def reviews(*records: tuple[str, str], part: str = "train", labels: Labels = "classes") -> dict[str, Finding]:
    """Labelled texts, the last in `part`, among a hundred others."""
    others = [(f"review number {number} says this and that of the loom", "xy"[number % 2]) for number in range(100)]

    def read() -> Iterator[tuple[str, Example]]:
        for number, (text, label) in enumerate([*others, *records]):
            where = part if number == len(others) + len(records) - 1 else "train"
            yield where, Example({"text": text}, label, f"a:{number}")

    return {each.name: each for each in RecordLint(read).findings(labels)}


def test_short_labelled_texts_may_come_again() -> None:
    """Unless they are in both parts, or have another label; a long one may not."""
    findings = reviews(*[("Great!", "x")] * 9)
    assert set(findings) == {"short duplicates"}
    assert (findings["short duplicates"].count, findings["short duplicates"].wrong) == (8, False)
    assert reviews(*[("Great!" * 7, "x")] * 9)["duplicates"].wrong
    assert reviews(("Great!", "x"), ("Great!", "x"), part="validation")["overlap"].wrong
    contradicting = reviews(*[("Great!", "x")] * 3, ("Great!", "y"))["different labels"]
    assert (contradicting.count, contradicting.where, contradicting.wrong) == (1, "a:103", True)
    assert set(reviews(("Great!", "4.5"), ("Great!", "5"), labels="numbers")) == {"short duplicates"}
    assert lint([*pairs(), *[("yes", "ja")] * 9], held=0)["duplicates"].wrong


def labelled(train: list[Any], validation: list[Any], labels: Labels = "classes") -> dict[str, Finding]:
    def read() -> Iterator[tuple[str, Example]]:
        for part, written in (("train", train), ("validation", validation)):
            for number, label in enumerate(written):
                yield part, Example({"text": f"{part} text {number}"}, label, f"{part}:{number}")

    return {each.name: each for each in RecordLint(read).findings(labels)}


@pytest.mark.parametrize(
    ("words", "tags", "named"),
    [
        (("#", "the", "warp"), ("newdoc", "O", "B"), "newdoc"),
        (("#", "the", "warp"), ("O", "O", "B"), None),  # a number sign
        (("#", "5", "warp"), ("#", "CD", "NN"), None),  # as the Penn Treebank tags it
        (("the", "#"), ("O", ""), None),
    ],
)
def test_comments_that_are_read_as_words_are_named(words: Any, tags: Any, named: str | None) -> None:
    def read() -> Iterator[tuple[str, Example]]:
        for number in range(9):
            yield "train" if number < 7 else "validation", Example({"text": words}, tags, f"a:{number}")

    findings = {each.name: each for each in RecordLint(read).findings("tokens")}
    assert ("comments" in findings) == (named is not None)
    if named is not None:
        line = "wrong: comments: 9 of 27 words are '#' with a tag that no other word has, such as 'newdoc'"
        assert findings["comments"].line().startswith(line)
        assert findings["comments"].where == "a:0"


def test_labels() -> None:
    assert labelled(["x", "y"] * 9, ["x", "y"]) == {}
    assert labelled(["x", "x"], ["x"])["one class"].wrong
    once = labelled(["x"] * 9 + ["y"] * 9 + ["z"], ["x"])["labels seen once"]
    assert (once.count, once.of, once.where, once.wrong) == (1, 3, "train:18", False)
    unknown = labelled(["x", "y"] * 9, ["x", "z", "z"])["unknown labels"]
    assert (unknown.count, unknown.where, unknown.wrong) == (1, "validation:1", True)
    skewed = labelled(["x"] * 61 + ["y"] * 3, ["x"])["class imbalance"]
    assert (skewed.count, skewed.of) == (61, 64)
    assert "class imbalance" not in labelled(["x"] * 60 + ["y"] * 3, ["x"])


def test_several_labels() -> None:
    """One label alone can be learned, for some texts have it and some do not."""
    findings = labelled([("x",), (), ("x", "y"), ("y",)] * 9, [("x",), ("z", "x")], "several")
    assert set(findings) == {"no label", "unknown labels"}
    assert (findings["no label"].count, findings["no label"].of, findings["no label"].where) == (9, 38, "train:1")
    assert (findings["unknown labels"].count, findings["unknown labels"].where) == (1, "validation:1")
    assert "one class" not in labelled([("x",), ()] * 9, [("x",)], "several")


def test_joiners_and_accents_are_ordinary() -> None:
    look = TextLint("document")
    for number, text in enumerate(["été naïve Ã A", "👩‍👩‍👧", "می‌خواهم", "tab\tand\nline", "Â© is rare"]):
        look.add([text], f"a:{number}")
    assert [(each.name, each.where) for each in look.findings()] == [("mojibake", "a:4")]


def looked_at(*texts: str, special: tuple[str, ...] = ()) -> dict[str, Finding]:
    look = TextLint("document", special)
    for number, text in enumerate(texts):
        look.add([text], f"a:{number}")
    return {each.name: each for each in look.findings()}


def test_special_tokens_that_are_written_out_are_named() -> None:
    texts = ["a <|endoftext|> b", "ordinary [MASK]", "[CLS"]
    finding = looked_at(*texts, special=("<|endoftext|>", "[MASK]", "[CLS]"))["special tokens"]
    assert (finding.count, finding.wrong, [str(place) for place in finding.places]) == (2, False, ["a (2): 0, 1"])
    assert looked_at(*texts) == {}


def test_texts_in_quotes_are_named_if_they_are_a_habit_of_the_file() -> None:
    others = [f'text {number} says "so"' for number in range(27)]
    assert looked_at(*others, '"a"', '"b"', '"c"') == {}
    finding = looked_at(*others, '"a"', '"b"', '"c"', '"d"')["quoted texts"]
    assert (finding.count, finding.of, finding.where) == (4, 31, "a:27")


@pytest.mark.parametrize(
    ("labels", "named"),
    [
        (["entailment", "neutral", "-"], "-"),
        (["0", "1", "2", "-1"], "-1"),
        (["a", "b", "None"], "None"),
        (["-", "+"], None),
        (["-1", "0", "1"], None),
        (["-1", "1"], None),
        (["-2", "-1", "0", "1", "2"], None),
        (["O", "B-X", "_"], "_"),
    ],
)
def test_labels_that_mean_none_are_named(labels: list[str], named: str | None) -> None:
    findings = labelled(labels * 9, labels[:1])
    assert ("no label" in findings) == (named is not None)
    if named is not None:
        assert (findings["no label"].count, findings["no label"].of) == (9, 9 * len(labels))
        assert findings["no label"].advice == f"leave these records out: unlabelled={named}"


def test_equal_texts_that_are_told_apart_are_named() -> None:
    """Few answers to many questions; negatives that are right."""

    def read() -> Iterator[tuple[str, Example]]:
        for number in range(120):
            texts = {
                "text": f"question {number}",
                "pair": f"answer {number % 4}",
                "negative": f"answer {max(4, number)}",
            }
            yield "train", Example(texts | ({"negative": "answer 1"} if number == 5 else {}), None, f"a:{number}")

    findings = {each.name: each for each in RecordLint(read).findings("classes")}
    assert (findings["equal pairs"].count, findings["equal pairs"].where) == (116, "a:4")
    assert (
        findings["equal negatives"].count,
        findings["equal negatives"].where,
        findings["equal negatives"].wrong,
    ) == (
        1,
        "a:5",
        True,
    )


def test_places_are_listed_by_file_and_bounded() -> None:
    places = Places()
    for number in range(FILES + 5):
        for line in range(LINES + 2):
            places.add("x", f"f{number}.txt:{line}")
    listed = places.listed("x")
    assert (len(listed), places.counts["x"]) == (FILES, (FILES + 5) * (LINES + 2))
    assert str(listed[3]) == "f3.txt (7): 0, 1, 2, 3, 4, …"
    assert (listed[3].count, listed[3].first) == (7, ("0", "1", "2", "3", "4"))


@pytest.mark.parametrize(("length", "name"), [(40, "short duplicates"), (41, "duplicates")])
def test_a_labelled_text_of_forty_characters_is_short(length: int, name: str) -> None:
    lint = TextLint("record")
    for number in range(2):
        lint.add(["a" * length], f"a:{number}", label="x")
    assert [each.name for each in lint.findings()] == [name]


@pytest.mark.parametrize(("quoted", "named"), [(10, False), (11, True)])
def test_more_than_a_tenth_in_quotes_is_a_habit(quoted: int, named: bool) -> None:
    lint = TextLint("document")
    for number in range(100):
        lint.add([f'"text {number}"' if number < quoted else f"text {number}"], f"a:{number}")
    assert [each.name for each in lint.findings()] == ["quoted texts"] * named
