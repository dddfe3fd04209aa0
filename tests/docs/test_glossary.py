"""The glossary explains words that the other pages use, each once."""

from __future__ import annotations

import re
from collections import Counter

from pages import PAGES, ROOT

GLOSSARY = ROOT / "docs" / "glossary.md"
TEXT = "\n".join(page.read_text() for page in PAGES if page != GLOSSARY).lower()
ROWS = re.findall(r"^\| (?P<term>[^|]+) \| (?P<meaning>[^|]+) \|$", GLOSSARY.read_text(), re.M)


def forms_of(term: str) -> list[str]:
    """What pages may say: each name, without the `to` of a verb."""
    return [name.removeprefix("to ").replace("_", " ") for name in term.lower().split(", ")]


def test_every_term_is_used_elsewhere() -> None:
    terms = [term for term, _ in ROWS if term != "term"]
    assert len(terms) > 40
    text = TEXT.replace("_", " ")
    assert [name for term in terms for name in forms_of(term) if not re.search(rf"\b{name}", text)] == []


def test_no_term_is_explained_twice() -> None:
    assert [
        term for term, count in Counter(term for term, _ in ROWS).items() if count > 1 and term != "term"
    ] == []


def test_every_meaning_is_one_sentence() -> None:
    assert [m for t, m in ROWS if t != "term" and not re.fullmatch(r"[A-Z`][^.]*\.", m)] == []
