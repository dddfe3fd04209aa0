"""Hooks of MkDocs: pages and files outside `docs/` that the documentation links to are part of the site."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
HOME = ROOT / "README.md"
_LINK = re.compile(r"\]\((?P<target>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the README as the first page, and each file outside `docs/` that a page links to."""
    added: set[Path] = set()
    waiting = [HOME, *_linked(path for file in files.documentation_pages() if (path := _source_of(file)))]
    while waiting:
        path = waiting.pop()
        if path in added or path.is_relative_to(DOCS):
            continue
        added.add(path)
        files.append(File.generated(config, _uri(path), abs_src_path=str(path)))
        if path.suffix == ".md":
            waiting += _linked([path])
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead the links of a page to where their files are in the site."""
    source = _source_of(page.file)
    folder = os.path.dirname(page.file.src_uri)

    def link(match: re.Match[str]) -> str:
        path = (source.parent / match["target"]).resolve()
        if not _can_be_published(path):
            return match[0]
        return f"]({os.path.relpath(_uri(path), folder or '.')}{match['anchor'] or ''})"

    return _LINK.sub(link, markdown)


def _linked(pages: Iterator[Path] | list[Path]) -> list[Path]:
    """Return the files that pages link to."""
    targets = (
        (page.parent / match["target"]).resolve()
        for page in pages
        for match in _LINK.finditer(page.read_text(encoding="utf-8"))
    )
    return [path for path in targets if _can_be_published(path)]


def _can_be_published(path: Path) -> bool:
    return path.is_relative_to(ROOT) and path.is_file()


def _source_of(file: File) -> Path:
    assert file.abs_src_path is not None
    return Path(file.abs_src_path)


def _uri(path: Path) -> str:
    """Return where a file is in the site, as MkDocs names sources."""
    if path == HOME:
        return "index.md"
    return path.relative_to(DOCS if path.is_relative_to(DOCS) else ROOT).as_posix()
