"""How results are shown in a session of Python and in a notebook: modules of `trainyard.report.shown` describe them."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

__all__ = ["Shown", "ShownOnPage"]


class Shown:
    """A result or an input with a short ``repr``, and with tables in a notebook."""

    def __repr__(self) -> str:
        return str(_describer(self).text_of(self))

    def _repr_html_(self) -> str:
        return str(_describer(self).html_of(self))


class ShownOnPage(Shown):
    """A result of which figures can be drawn, too."""

    def page(self) -> str:
        """One self-contained HTML page with figures and tables, as ``--html`` of the command line writes it."""
        return str(_describer(self).page_of(self))

    def save_page(self, path: str | Path) -> Path:
        """Write the page to a file, and return its path."""
        file = Path(path)
        file.write_text(self.page(), encoding="utf-8")
        return file


def _describer(shown: Shown) -> Any:
    """The module for the part of Trainyard that defines the class; by name, for reports know results, not the reverse."""
    home = next(kind.__module__ for kind in type(shown).__mro__ if kind.__module__.startswith("trainyard."))
    return importlib.import_module(f"trainyard.report.shown.{home.split('.')[1]}")
