"""The colours of all pages: what each stands for, colours of series, and the ones that differ in light and dark."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from zlib import crc32

__all__ = ["COLORS", "SERIES", "THEMES", "color_of", "series_color"]

THEMES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "light": {
            "ink": "#222222", "faint": "#5f6368", "paper": "#ffffff", "line": "#e5e5e5", "idle": "#e2e2e2",
            "low": "#f1f4f8", "middle": "#8fb0d3", "high": "#1f4e86", "bad": "#b00020", "best": "#e6f2e6",
        },
        "dark": {
            "ink": "#e4e6e8", "faint": "#a3a8ae", "paper": "#16181b", "line": "#34383d", "idle": "#42464c",
            "low": "#1f242a", "middle": "#3f6a9b", "high": "#a8ccf5", "bad": "#ff8f8f", "best": "#20362a",
        },
    }
)  # fmt: skip
"""Colours by theme and name. A figure says ``theme:ink``, a style ``var(--ink)``."""

COLORS: Mapping[str, str] = MappingProxyType(
    {
        "forward": "#4c78a8",
        "backward": "#f58518",
        "weight_gradient": "#e45756",
        "recompute": "#eeca3b",
        "optimizer": "#8a63b0",
        "encode": "#9d755d",
        "communication": "#1b9e77",
        "all_reduce": "#54a24b",
        "all_gather": "#88d27a",
        "reduce_scatter": "#2f6f3e",
        "all_to_all": "#b5bd3a",
        "broadcast": "#bfe3b4",
        "send": "#3fb8cf",
        "swap_out": "#ff9da6",
        "swap_in": "#d67195",
        "other": "#8c8c8c",
        "parameters": "#5f7fd9",
        "older weights": "#a3b4ee",
        "gradients": "#b8560f",
        "activations": "#d9a7c7",
        "temporaries": "#cdbd8c",
        "communication buffers": "#8fd0bb",
        "context": "#aab4be",
        "fragmentation": "#5e6a75",
        "prefill": "#6aaee0",
        "decode": "#35a79c",
        "bubble": "theme:idle",
        "idle": "theme:idle",
        "waiting": "theme:idle",
    }
)
"""Colours by what they stand for: work, messages, memory, and what becomes of a request."""

SERIES = ("#2f7fd1", "#e0566a", "#1a9c5b", "#a566d0", "#d98a1f", "#12aebd", "#c74a94", "#8f9c1a", "#80604a")
"""Colours that tell policies, devices, models or jobs apart, in the order in which they are used."""

_MORE = ("#7570b3", "#a6761d", "#e7298a", "#66a61e", "#d95f02", "#4b8f8c")


def color_of(name: str) -> str:
    """The colour of a kind of work or memory; one name has one colour on all pages, also a name of a user's own."""
    return COLORS.get(name) or _MORE[crc32(name.encode()) % len(_MORE)]


def series_color(number: int) -> str:
    """The colour of one of several series; they begin again after the last."""
    return SERIES[number % len(SERIES)]
