"""Links out of the documentation are listed in docs/links.toml. No test opens them: `make test` needs no network."""

from datetime import date

from scripts.links import LISTED, NEVER, links, listed, text, used


def test_every_link_is_listed() -> None:
    known = listed()
    assert sorted(used() - known.keys()) == [], "list them: python -m scripts.links"
    assert sorted(known.keys() - used()) == [], "no page has these any more: python -m scripts.links"
    assert all(isinstance(day, date) or day == NEVER for day in known.values())
    assert LISTED.read_text(encoding="utf-8") == text(known)


def test_a_link_ends_where_its_address_ends() -> None:
    page = "See [one](https://a.org/b), `https://b.org/x`; https://c.org/y. http://127.0.0.1:8000/v1 http://HOST/v1"
    assert links(page) == {"https://a.org/b", "https://b.org/x", "https://c.org/y"}


def test_a_day_is_written_as_a_day() -> None:
    lines = text({"https://b.org": NEVER, "https://a.org": date(2026, 1, 2)}).splitlines()
    assert [line for line in lines if not line.startswith("#")] == [
        '"https://a.org" = 2026-01-02',
        '"https://b.org" = "never opened"',
    ]
