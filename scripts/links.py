"""Links out of the documentation: each is listed in docs/links.toml with the last day on which it could be opened.

python -m scripts.links            lists new links, and drops those that no page has any more; without network
python -m scripts.links --open     also opens each one, writes today's date beside it, and prints those that fail
"""

import re
import sys
import tomllib
import urllib.request
from datetime import date
from pathlib import Path

ROOT = Path(__file__).parents[1]
LISTED = ROOT / "docs" / "links.toml"
BESIDE = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
LINK = re.compile(r"https?://[^\s<>()\[\]`\"'{}|]+")
LOCAL = re.compile(r"https?://(localhost|127\.0\.0\.1|0\.0\.0\.0|[A-Z]+)\b")
NEVER = "never opened"
HEAD = f"""# Links that leave the documentation, written by: python -m scripts.links
# A date is the last day on which `python -m scripts.links --open` could open the link. It needs a network.
# "{NEVER}": no run could open it yet, or none was made since the link was written.
"""


def links(text: str) -> set[str]:
    """The addresses in a page; a full stop, comma or semicolon after one is not a part of it."""
    return {link.rstrip(".,;:*") for link in LINK.findall(text) if not LOCAL.match(link)}


def pages() -> list[Path]:
    """What becomes the site, and the pages beside it. Generated ones have no links of their own."""
    docs, lessons = ROOT / "docs", ROOT / "heddle" / "lessons" / "pages"
    inside = [path for path in docs.rglob("*.md") if not {"_build", "reference"} & set(path.parts)]
    return [*inside, *lessons.glob("*.md"), *(ROOT / name for name in BESIDE)]


def used() -> set[str]:
    """Every link of every page."""
    return {link for path in pages() for link in links(path.read_text(encoding="utf-8"))}


def listed() -> dict[str, date | str]:
    """The list."""
    return tomllib.loads(LISTED.read_text(encoding="utf-8")) if LISTED.exists() else {}


def text(days: dict[str, date | str]) -> str:
    """The list as it is written."""
    lines = [
        f'"{link}" = {day if isinstance(day, date) else chr(34) + day + chr(34)}\n'
        for link, day in sorted(days.items())
    ]
    return HEAD + "".join(lines)


def leads_somewhere(link: str) -> bool:
    """Whether a link can be opened now."""
    request = urllib.request.Request(link, headers={"User-Agent": "heddle-docs"})
    try:
        with urllib.request.urlopen(request, timeout=20) as response:
            return bool(response.status < 400)
    except (OSError, ValueError):
        return False


def main() -> int:
    """Write the list; with --open, open the links too."""
    known = listed()
    days = {link: known.get(link, NEVER) for link in used()}
    dead = []
    if "--open" in sys.argv:
        dead = [link for link in sorted(days) if not leads_somewhere(link)]
        days |= dict.fromkeys(days.keys() - set(dead), date.today())
    LISTED.write_text(text(days), encoding="utf-8")
    print("\n".join(dead))
    return len(dead) > 0


if __name__ == "__main__":
    sys.exit(main())
