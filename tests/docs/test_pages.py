"""The documents hold together: links resolve, no page is an orphan, nothing of one machine is in them."""

import re
from pathlib import Path

import pytest

from tests.docs.documents import PAGES, README, ROOT, anchor, headings, links, read

# A working folder, somebody's home, a virtual environment outside the checkout.
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:home|root|tmp|work|Users)\b")
SCRIPTS = [path for path in sorted((ROOT / "examples").iterdir()) if path.is_file()]


def local_links(page: Path) -> list[str]:
    return [link for link in links(read(page)) if not re.match(r"[a-z]+:", link)]


@pytest.mark.parametrize(
    ("page", "link"),
    [pytest.param(page, link, id=f"{page.name} {link}") for page in PAGES for link in local_links(page)],
)
def test_link_leads_somewhere(page: Path, link: str) -> None:
    path, _, fragment = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    assert target.exists()
    assert target.is_relative_to(ROOT)
    if fragment:
        assert fragment in [anchor(heading) for heading in headings(read(target))]


def test_every_page_is_reached_from_the_readme() -> None:
    reached, todo = {README}, [README]
    while todo:
        page = todo.pop()
        for link in local_links(page):
            target = (page.parent / link.partition("#")[0]).resolve()
            if target.suffix == ".md" and target not in reached:
                reached.add(target)
                todo.append(target)
    assert set(PAGES) <= reached


@pytest.mark.parametrize("path", [*PAGES, *SCRIPTS], ids=lambda path: path.name)
def test_page_names_no_path_of_a_machine(path: Path) -> None:
    assert MACHINE_PATH.findall(read(path)) == []


@pytest.mark.parametrize(
    "page", sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md")), ids=lambda page: page.name
)
def test_decision_has_the_five_parts_on_one_page(page: Path) -> None:
    title, *parts = headings(read(page))
    assert title
    assert parts == ["Context", "Decision", "Price", "Refused", "What enforces it"]
    assert len(read(page).splitlines()) <= 80


def test_heading_becomes_the_address_that_a_forge_gives_it() -> None:
    assert anchor("`POST /v1/jobs/{job_id}/complete`") == "post-v1jobsjob_idcomplete"
    assert anchor("Leases and the fencing token") == "leases-and-the-fencing-token"
