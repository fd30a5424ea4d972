"""Checks for common problems in the user's data: counts, places and advice."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from math import exp, log
from typing import Any

from heddle.config.data import Labels
from heddle.data.sources.examples import MESSAGES, NO_LABEL, Example
from heddle.data.sources.notes import FILES, OTHER, Note, Notes, Place, Places
from heddle.text.chat_template import ANSWERS

# Invisible characters: zero-width space and no-break space, soft hyphen, directions, and control characters. Joiners are not among
# them, since emoji and several scripts need them.
INVISIBLE = re.compile(
    "[\u200b\u2060\ufeff\u00ad\u200e\u200f\u202a-\u202e\u2066-\u2069\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]"
)
# UTF-8 read as Latin-1 or Windows-1252 (é as Ã©, ’ as â€™), and replacement characters.
MOJIBAKE = re.compile("[ÃÂ][\u0080-\u00bf]|â€[\u0080-\u00bf˜™œš“”¢¦]|ï»¿|\ufffd")

MARKUP = re.compile(r"\s*(<!DOCTYPE|<html|<\?xml|<body|<head)\b", re.IGNORECASE)
WINDOWS = re.compile(r"\r\n|\A[^\r]*\r\Z")  # the second: a text that was a line, without its line feed
RETURNS = re.compile(r"\r[^\n]")
COMMENT = "#"
QUOTED = re.compile(r'\s*"[^"]*"\s*')
QUOTES = 0.1  # a larger share of quoted texts suggests that the file quotes its fields
NONE = frozenset(("", "-", "_", "?", "n/a", "na", "nan", "none", "null", "unlabeled", "unlabelled", "-1"))
"""Labels that often mean that there is none, in lower case."""

RARE = 20.0  # a class this many times rarer than the largest deserves a remark
SWAPPED = 3.0  # nats per side: each side's words are 20 times likelier on the other side
MANY = 0.01  # a larger share of untranslated or repeated records is wrong
SHORT = 40  # characters of a labelled text that people may well write again, such as a review of one word

WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Finding:
    """A kind of problem in the data.

    Attributes:
        name: its kind, a word or two.
        wrong: whether it spoils training or evaluation; otherwise it is a remark.
        count: how often it occurs.
        of: how many items were checked.
        where: an example place.
        problem: a description, to follow the counts.
        advice: what to do.
        places: the files, and the first places in each.
    """

    name: str
    wrong: bool
    count: int
    of: int
    where: str
    problem: str
    advice: str
    places: tuple[Place, ...] = ()

    def lines(self) -> list[str]:
        """The finding in one line, then a line for each file if it occurs several times."""
        listed = [f"    {place}" for place in self.places] if self.count > 1 else []
        return [self.line(), *listed, *(["    and in more files"] if len(listed) == FILES else [])]

    def line(self) -> str:
        """The finding in one line."""
        sort = "wrong" if self.wrong else "remark"
        place = f", first {self.where}" if self.where else ""
        return f"{sort}: {self.name}: {self.count:,} of {self.of:,} {self.problem}{place}; {self.advice}"


class Findings(Places):
    """Counts and places of problems, by name."""

    def finding(self, name: str, wrong: bool, of: int, message: str, advice: str) -> Iterator[Finding]:
        """The finding of this name, if it occurred."""
        if self.counts[name]:
            yield Finding(name, wrong, self.counts[name], of, self.first[name], message, advice, self.listed(name))


def of_notes(notes: Notes) -> Iterator[Finding]:
    """Findings from the notes of a pass: malformed items and skipped files."""
    for note in notes:
        yield _of_note(note, notes.files if note.kind == OTHER else notes.read + notes.malformed)


def _of_note(note: Note, of: int) -> Finding:
    malformed = note.left_out and note.kind not in (OTHER, NO_LABEL)
    message = f"items cannot be read: {note.message}" if malformed else note.message
    advice = note.advice or "fix it, or leave it out: skip_invalid=true"
    return Finding(note.kind, malformed, note.count, of, note.where, message, advice, note.places)


class TextLint:
    """Checks texts for damage and duplicates.

    Args:
        unit: name of an item in messages: `document` or `record`.
        special: the special tokens of the tokenizer.
    """

    def __init__(self, unit: str, special: Iterable[str] = ()) -> None:
        self.unit, self.total = unit, 0
        longest_first = sorted(special, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self.places = Findings()
        self._parts: dict[bytes, set[str]] = {}  # the parts that each text is in
        self._labels: dict[bytes, Any] = {}  # the first label of each text

    def add(self, texts: Iterable[str], where: str, part: str = "train", label: Any = None) -> None:
        """Check a document, or the texts and the label of a record."""
        texts = list(texts)
        self.total += 1
        if any(not text.strip() for text in texts):
            self.places.add("empty", where)
            return
        patterns = {
            "invisible characters": INVISIBLE, "mojibake": MOJIBAKE, "special tokens": self._special, "markup": MARKUP,
            "CRLF": WINDOWS, "carriage returns": RETURNS,
        }  # fmt: skip
        for name, pattern in patterns.items():
            if any(pattern.search(text) for text in texts):
                self.places.add(name, where)
        if any(QUOTED.fullmatch(text) for text in texts):
            self.places.add("quoted texts", where)
        digest = sha256("\0".join(texts).encode()).digest()[:12]
        parts = self._parts.setdefault(digest, set())
        if label is not None and self._labels.setdefault(digest, label) != label:
            self.places.add("different labels", where)
        if part in parts:
            short = label is not None and sum(map(len, texts)) <= SHORT
            self.places.add("short duplicates" if short else "duplicates", where)
        elif parts:
            self.places.add("overlap", where)
        parts.add(part)

    def findings(self) -> Iterator[Finding]:
        """The findings in all texts added so far."""
        find, of, unit = self.places.finding, self.total, self.unit
        yield from find("empty", False, of, f"{unit}s have an empty text", "they are left out")
        repeated = self.places.counts["duplicates"] > MANY * of
        yield from find("duplicates", repeated, of, f"{unit}s repeat an earlier one of their part", "remove them")
        yield from find(
            "short duplicates", False, of, f"{unit}s repeat an earlier one of their part, in at most {SHORT} characters",
            "keep them if people often write such texts",
        )  # fmt: skip
        yield from find(
            "different labels", True, of, f"{unit}s have the texts of an earlier one, and another label",
            "decide which label is correct",
        )  # fmt: skip
        yield from find(
            "overlap",
            True,
            of,
            f"{unit}s are in both parts",
            "remove them from one part, or the score measures memorisation",
        )
        yield from find(
            "mojibake", True, of, f"{unit}s have characters such as Ã© or \\ufffd", "decode the file as UTF-8 again"
        )
        yield from find(
            "invisible characters",
            False,
            of,
            f"{unit}s have zero-width, directional or control characters",
            "remove them",
        )
        yield from find(
            "special tokens", False, of, f"{unit}s have a special token of the tokenizer written out, as ordinary text",
            "remove it, unless it is intended",
        )  # fmt: skip
        yield from find(
            "markup",
            False,
            of,
            f"{unit}s are HTML or XML, with their markup",
            "extract their text, unless markup is to be learned",
        )
        if self.places.counts["quoted texts"] > QUOTES * of:
            yield from find(
                "quoted texts", False, of, f"{unit}s have a text in quotes, which are part of the text",
                "remove them; .csv files quote fields, .tsv files only where needed",
            )  # fmt: skip
        yield from find(
            "CRLF", False, of, f"{unit}s have Windows line ends", "convert them with dos2unix, unless they are intended"
        )
        yield from find(
            "carriage returns", False, of, f"{unit}s have carriage returns alone, which end no line",
            "convert them with tr '\\r' '\\n', unless they are intended",
        )  # fmt: skip


class RecordLint:
    """Checks records: their texts, labels, and whether source and target are swapped.

    Args:
        read: called for each pass; yields every record with its part.
        special: the special tokens of the tokenizer.
    """

    def __init__(self, read: Callable[[], Iterator[tuple[str, Example]]], special: Iterable[str] = ()) -> None:
        self._read = read
        self.texts, self.places = TextLint("record", special), Findings()
        self._texts_of_pairs: dict[bytes, bytes] = {}  # the first text of each pair
        self._sides: dict[str, Counter[str]] = {"source": Counter(), "target": Counter()}
        self._classes: dict[str, Counter[str]] = {"train": Counter(), "validation": Counter()}
        self._first_label: dict[str, str] = {}
        self._first_texts: dict[bytes, str] = {}
        self._answered: Counter[str] = Counter()  # conversations with an answer, by part
        self._comment_tags: Counter[str] = Counter()  # tags of words that are the sign of comments
        self._comment_places: dict[str, str] = {}

    def findings(self, labels: Labels) -> Iterator[Finding]:
        """Read all records, twice if they have a source and a target, and yield the findings.

        Args:
            labels: kind of the labels.
        """
        several = labels == "several"
        for part, example in self._read():
            self._check(part, example, classes=labels not in ("numbers", "roles"))
            if several and not example.label:
                self.places.add("no label", example.origin)
        if sum(self._sides["source"].values()):
            self._find_swaps()
        yield from self.texts.findings()
        find, of = self.places.finding, self.texts.total
        for field in ("source", "target", "text", "pair", "negative"):
            yield from find(f"empty {field}", False, of, f"records have an empty {field}", "they are left out")
        same = self.places.counts["equal sides"] > MANY * of
        yield from find(
            "equal sides", same, of, "records have a target that equals the source", "remove what is not translated"
        )
        yield from find(
            "swapped sides", True, of,
            f"records have words on each side that are over {exp(SWAPPED):.0f} times likelier on the other",
            "exchange source and target there",
        )  # fmt: skip
        yield from find(
            "shared source", False, of, "validation records have a first text of the training part",
            "split by it if the score should be of unseen ones",
        )  # fmt: skip
        yield from find(
            "equal pairs", False, of, "records have a pair that an earlier one has with another text",
            "these are not negatives of each other, so a group compares fewer than it has",
        )  # fmt: skip
        yield from find(
            "equal negatives", True, of, "records have a negative that equals their text or their pair", "remove them"
        )
        yield from find(
            "no answer", 0 in self._answered.values(), of, f"conversations have no message of the role {ANSWERS!r}",
            "these have no target: add the answers, or leave them out",
        )  # fmt: skip
        yield from find(
            "no label", False, of, "records have no label", "keep them if they are examples without any label"
        )  # fmt: skip
        yield from self._class_findings(several)

    def _check(self, part: str, example: Example, classes: bool) -> None:
        texts = dict(zip(example.texts, example.written(), strict=True))
        for field, text in texts.items():
            if not text.strip():
                self.places.add(f"empty {field}", example.origin)
        label = example.label if classes or example.label is None else ""  # numbers may differ slightly
        self.texts.add(texts.values(), example.origin, part, label)
        if example.empty:
            return
        if MESSAGES in example.texts:
            answered = ANSWERS in (example.label or ())
            self._answered[part] += answered
            if not answered:
                self.places.add("no answer", example.origin)
        if "target" in texts:
            if texts["source"].strip() == texts["target"].strip():
                self.places.add("equal sides", example.origin)
            for side, counts in self._sides.items():
                counts.update(_words(texts[side]))
        if "pair" in texts and example.label is None:
            self._check_pair(texts, example.origin)
        if len(texts) > 1:
            first = sha256(next(iter(texts.values())).encode()).digest()[:12]
            if self._first_texts.setdefault(first, part) == "train" and part == "validation":
                self.places.add("shared source", example.origin)
        if classes and example.label is not None:
            labels = example.label if isinstance(example.label, tuple) else (example.label,)
            self._classes[part].update(filter(None, labels))
            for label in labels:
                self._first_label.setdefault(f"{part} {label}", example.origin)
            words = example.texts.get("text")
            for word, label in zip(words, labels, strict=True) if isinstance(words, tuple) else ():
                if word == COMMENT:
                    self._comment_tags[label] += 1
                    self._comment_places.setdefault(label, example.origin)

    def _check_pair(self, texts: Mapping[str, str], where: str) -> None:
        """Check a pair for texts that equal others with which they are contrasted."""
        text, pair = (sha256(texts[field].encode()).digest()[:12] for field in ("text", "pair"))
        if self._texts_of_pairs.setdefault(pair, text) != text:
            self.places.add("equal pairs", where)
        if texts.get("negative", "\0") in (texts["text"], texts["pair"]):
            self.places.add("equal negatives", where)

    def _find_swaps(self) -> None:
        """Find records whose sides both consist of words that other records have on the opposite side."""
        source, target = self._sides["source"], self._sides["target"]
        for _, example in self._read():
            if example.empty:
                continue
            source_words, target_words = (_words(text) for text in example.written()[:2])
            of_source = _nats(source_words, source, target, target_words)
            of_target = _nats(target_words, target, source, source_words)
            if of_source < -SWAPPED and of_target < -SWAPPED:
                self.places.add("swapped sides", example.origin)

    def _class_findings(self, several: bool) -> Iterator[Finding]:
        train, validation = self._classes["train"], self._classes["validation"]
        if not train:
            return
        total = sum(train.values())
        if len(train) == 1 and not several:
            only = next(iter(train))
            yield Finding("one class", True, total, total, "", f"labels are {only!r}", "classes need at least two")
        yield from self._unlabelled(train, total)
        suspicious = [
            tag
            for tag, count in self._comment_tags.items()
            if tag not in ("", COMMENT) and count == train[tag] + validation[tag]
        ]
        if suspicious:
            count, of = sum(self._comment_tags[tag] for tag in suspicious), total + sum(validation.values())
            yield Finding(
                "comments", True, count, of, self._comment_places[suspicious[0]],
                f"words are {COMMENT!r} with a tag that no other word has, such as {suspicious[0]!r}, as in a comment of two words",
                f"remove these lines, or the space after {COMMENT}",
            )  # fmt: skip
        once = [label for label, count in train.items() if count == 1]
        if once:
            where = self._first_label[f"train {once[0]}"]
            yield Finding(
                "labels seen once", False, len(once), len(train), where,
                f"classes have one training label, such as {once[0]!r}", "join them, or give more",
            )  # fmt: skip
        unknown = [label for label in validation if label not in train]
        if unknown:
            where = self._first_label[f"validation {unknown[0]}"]
            yield Finding(
                "unknown labels", True, len(unknown), len(validation), where,
                f"classes of the validation part are not in the training part, such as {unknown[0]!r}",
                "give more records with them, or leave them out",
            )  # fmt: skip
        (most, largest), (least, smallest) = train.most_common()[0], train.most_common()[-1]
        if largest > RARE * smallest:
            yield Finding(
                "class imbalance", False, largest, total, "",
                f"labels are {most!r}, and {smallest:,} {least!r}", "compare the score with that of always predicting the largest",
            )  # fmt: skip

    def _unlabelled(self, train: Counter[str], total: int) -> Iterator[Finding]:
        """Labels that probably mean that a record has no label, among others that do not."""
        numbers = [label for label in train if label.lstrip("-").isdecimal()]
        for label, count in train.items():
            of_numbers = label == "-1" and len(numbers) == len(train) and not any(int(each) < -1 for each in numbers)
            signs = label == "-" and "+" in train
            few = len([each for each in numbers if int(each) > 0]) < 2  # -1, 0 and 1 may be three classes
            if label.lower() in NONE and not signs and (label != "-1" or (of_numbers and not few)):
                yield Finding(
                    "no label", True, count, total, self._first_label[f"train {label}"],
                    f"labels are {label!r}, which often means that a record has no label",
                    f"leave these records out: unlabelled={label}",
                )  # fmt: skip


def _words(text: str) -> Counter[str]:
    return Counter(word.lower() for word in WORD.findall(text))


def _nats(words: Counter[str], here: Counter[str], there: Counter[str], opposite: Counter[str]) -> float:
    """How many nats likelier a text's words are on its own side than on the other, by the counts of the other records.

    Args:
        words: counts of the text.
        here: counts of all texts on its side.
        there: counts of all texts on the other side.
        opposite: counts of the text on the other side of the same record.
    """
    # The record's own words are subtracted, or it would support itself. The 0.5 makes an unseen word neutral.
    return sum(
        count * log((here[word] - count + 0.5) / (there[word] - opposite[word] + 0.5)) for word, count in words.items()
    )
