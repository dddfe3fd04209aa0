"""Write the README as it reads on the package index, where files of the repository are not beside it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(?P<picture>!?)\[(?P<text>[^\]]+)\]\((?P<target>[^)]+)\)")


class LongDescription(MetadataHookInterface):
    """The field ``readme`` of the distribution."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Fill in the field."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": without_file_links(text)}


def without_file_links(text: str) -> str:
    """Return a page without pictures, whose links to files are their text, followed by the path if the text is none."""
    return _LINK.sub(_unlinked, text)


def _unlinked(link: re.Match[str]) -> str:
    text, target = link["text"], link["target"]
    if "://" in target or target.startswith("#"):
        return link[0]
    if link["picture"]:
        return ""
    return text if text == f"`{target}`" else f"{text} (`{target}`)"
