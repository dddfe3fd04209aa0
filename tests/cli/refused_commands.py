"""What all tests of input that cannot be used check."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from trainyard.cli import main as cli


def check_refused(arguments: Iterable[str], said: Iterable[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A command ends with exit code 2 and one line that says all of this."""
    code = cli.main(tuple(arguments))
    out, err = capsys.readouterr()
    assert code == 2, err
    assert out == ""
    assert "Traceback" not in err
    assert err.startswith("error: ")
    assert len(err.strip().splitlines()) == 1
    assert len(err) < 2000, "what was given is repeated whole"
    for word in said:
        assert word in err
