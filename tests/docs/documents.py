"""The documents of this checkout, cut up for tests."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PROTOCOL = ROOT / "docs" / "protocol.md"
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "clients").glob("*/README.md")),
    *sorted((ROOT / "examples").glob("*/README.md")),
]

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def prose(text: str) -> str:
    """Return the text without its fenced blocks."""
    return _FENCE.sub("", text)


def headings(text: str) -> list[str]:
    return _HEADING.findall(prose(text))


def section(text: str, heading: str) -> str:
    """Return what stands under a heading, up to the next one of its level or above.

    The heading is given with its number signs. Raises KeyError when there is none.
    """
    level = heading.partition(" ")[0]
    start = re.search(rf"^{re.escape(heading)}$", text, re.MULTILINE)
    if start is None:
        raise KeyError(heading)
    end = re.compile(rf"^#{{1,{len(level)}}} ", re.MULTILINE).search(text, start.end())
    return text[start.end() : end.start() if end else None]


def code(text: str, language: str) -> str:
    """Return the fenced blocks of a language, one after the other."""
    return "".join(block for name, block in _FENCE.findall(text) if name == language)


def rows(text: str) -> Iterator[list[str]]:
    """Yield the cells of each row of each table, heads included."""
    for line in prose(text).splitlines():
        if line.startswith("|") and not line.startswith("|-"):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def links(text: str) -> list[str]:
    return _LINK.findall(prose(text))


def anchor(heading: str) -> str:
    """Return the address that a forge gives to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
