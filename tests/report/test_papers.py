"""The pages of the published systems are made from the catalog, and the committed ones are up to date."""

from functools import cache
from pathlib import Path

import pytest

from trainyard.report import papers
from trainyard.report.papers import pages, write_pages
from trainyard.report.systems import LEVELS

FOLDER = Path(__file__).parents[2] / "docs" / "systems"
NAMES = ("index.md", *(f"{system.name}.md" for level in LEVELS for system in level.systems))
made = cache(pages)  # computes tables of all systems


def test_there_is_a_page_per_system_and_no_other() -> None:
    assert {p.name for p in FOLDER.glob("*.md")} == set(NAMES) == set(made())


@pytest.mark.parametrize("name", NAMES)
def test_page_is_up_to_date(name: str) -> None:
    assert (FOLDER / name).read_text() == made()[name], (
        "python -c 'from pathlib import Path; from trainyard.report.papers import write_pages; "
        'write_pages(Path("docs/systems"))\' writes the pages again'
    )


@pytest.mark.parametrize(
    ("level", "system"), [pytest.param(level, s, id=s.name) for level in LEVELS for s in level.systems]
)
def test_page_says_what_matters(level, system) -> None:
    text = made()[f"{system.name}.md"]
    for part in (
        system.paper,
        system.fidelity,
        system.claim_test,
        system.name,
        level.title,
        *system.variants,
    ):
        assert part in text
    sources = [table.source for table in level.tables(system.name)]
    assert sources
    assert [source for source in sources if source not in text] == []
    assert f"]({system.name}.md)" in made()["index.md"]


def test_pages_of_systems_that_are_gone_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(papers, "pages", made)
    (tmp_path / "gone.md").write_text("")
    write_pages(tmp_path)
    assert {p.name for p in tmp_path.glob("*")} == set(NAMES)
