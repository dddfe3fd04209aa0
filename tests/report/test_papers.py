"""The pages of the published systems are made from the catalog, and the committed ones are up to date."""

from pathlib import Path

import pytest

from trainyard.job.catalog import CATALOG
from trainyard.report.papers import pages, write_pages

FOLDER = Path(__file__).parents[2] / "docs" / "systems"
PAGES = pages()


def test_there_is_a_page_per_system_and_no_other() -> None:
    assert {p.name for p in FOLDER.glob("*.md")} == set(PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_page_is_up_to_date(name: str) -> None:
    assert (FOLDER / name).read_text() == PAGES[name], (
        "python -c 'from pathlib import Path; from trainyard.report.papers import write_pages; "
        'write_pages(Path("docs/systems"))\' writes the pages again'
    )


@pytest.mark.parametrize("entry", CATALOG, ids=lambda e: e.name)
def test_page_says_what_matters(entry) -> None:
    text = PAGES[f"{entry.name}.md"]
    for part in (entry.paper, entry.fidelity, entry.claim_test, entry.name, *entry.variants):
        assert part in text
    assert f"]({entry.name}.md)" in PAGES["index.md"]


def test_pages_of_systems_that_are_gone_are_removed(tmp_path: Path) -> None:
    (tmp_path / "gone.md").write_text("")
    write_pages(tmp_path)
    assert {p.name for p in tmp_path.glob("*")} == set(PAGES)
