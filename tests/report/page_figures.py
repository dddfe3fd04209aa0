"""The figures of a page, as its script draws them."""

from __future__ import annotations

import html
import json
import re
from typing import Any

Figures = dict[str, tuple[dict[str, Any], str]]


def figures_of(page: str) -> Figures:
    """Figures with their notes, by heading; those with bars have what is said of these as ``bars``."""
    sections = re.findall(
        r'<section id=section\d+><h2>([^<]*)</h2>(?:<p class=note>([^<]*)</p>)?<div id="(figure\d+)"', page
    )
    drawn = {}
    for name, text in re.findall(r"^draw(?:Bars|Timeline)?\('(figure\d+)', (.*)$", page, re.MULTILINE):
        figure, end = json.JSONDecoder().raw_decode(text)
        bars = json.JSONDecoder().raw_decode(text[end + 2 :])[0] if text[end] == "," else {}
        drawn[name] = {**figure, "bars": bars}
    assert len(sections) == len(drawn)
    return {html.unescape(heading): (drawn[name], html.unescape(note)) for heading, note, name in sections}
