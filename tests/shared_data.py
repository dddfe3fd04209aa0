"""Data that others have published or measured, in a folder beside the checkout, where a machine has it."""

from __future__ import annotations

from pathlib import Path

import pytest

DATA = Path(__file__).parents[2] / "shared" / "data"


def needs_data(path: Path) -> pytest.MarkDecorator:
    """Skip a test where there is no such file or folder."""
    return pytest.mark.skipif(not path.exists(), reason=_reason(path))


def require_data(path: Path) -> Path:
    """Return a path; skip the running test where there is no such file or folder."""
    if not path.exists():
        pytest.skip(_reason(path))
    return path


def _reason(path: Path) -> str:
    return f"needs {path.resolve()}"
