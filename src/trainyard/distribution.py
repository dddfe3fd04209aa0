"""The distribution that holds this package: its name on the package index, its version, its extras."""

from __future__ import annotations

__all__ = ["NAME", "VERSION", "install_command"]

NAME = "trainyard-ml"
"""On the package index, ``trainyard`` is a package of another author."""

VERSION = "0.1.0"


def install_command(extra: str) -> str:
    """Return the shell command that installs this package with an extra.

    Parameters
    ----------
    extra : a name of ``[project.optional-dependencies]`` in ``pyproject.toml``, such as ``server``.
    """
    return f"pip install '{NAME}[{extra}]'"
