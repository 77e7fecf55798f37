"""The pages beside the examples: links resolve, every file is named, nothing of one machine is in them."""

from pathlib import Path

import pytest

from tests.docs.documents import README, ROOT, anchor, code, headings, links, read, section
from tests.docs.test_pages import MACHINE_PATH

FOLDERS = [ROOT / "examples" / name for name in ("fences", "paused-worker")]
FILES = [path for folder in FOLDERS for path in sorted(folder.iterdir()) if path.is_file()]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_page_names_every_file_beside_it_and_leads_nowhere_else(folder: Path) -> None:
    page = folder / "README.md"
    targets = set()
    for link in links(read(page)):
        path, _, fragment = link.partition("#")
        target = (folder / path).resolve()
        assert target.is_relative_to(ROOT)
        assert target.exists()
        targets.add(target)
        if fragment:
            assert fragment in [anchor(heading) for heading in headings(read(target))]
    assert {path for path in FILES if path.parent == folder} <= targets | {page}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_example_names_no_path_of_a_machine(path: Path) -> None:
    assert MACHINE_PATH.findall(read(path)) == []


def test_readme_shows_the_summary_that_the_demonstration_ends_with() -> None:
    summary = code(section(read(README), "## The stale worker"), "text")
    assert "charged twice" in summary
    # The whole output is compared with what the demonstration prints.
    assert summary in code(read(ROOT / "examples" / "paused-worker" / "README.md"), "text")
