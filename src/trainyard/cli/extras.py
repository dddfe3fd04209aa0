"""Commands that need more than what is always installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from trainyard.distribution import install_command

__all__ = ["needing_extra"]


@contextmanager
def needing_extra(command: str, extra: str) -> Iterator[None]:
    """Say what to install if an import within the context fails.

    Parameters
    ----------
    command : that imports, such as ``serve run``.
    extra : of the package, such as ``server``.

    Raises
    ------
    ValueError
        If a module is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ValueError(
            f"`trainyard {command}` needs {error.name!r}, which is not installed: {install_command(extra)}"
        ) from error
