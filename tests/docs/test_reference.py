"""The reference is what the docstrings say, and all that is public has a docstring."""

import inspect
import subprocess
import sys

import pytest
from pages import ROOT

import trainyard


def test_reference_is_up_to_date():
    command = [sys.executable, "docs/build_reference.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", trainyard.__all__)
def test_public_names_exist_and_are_documented(name):
    thing = getattr(trainyard, name)
    assert inspect.getdoc(thing)
    assert thing.__module__.startswith("trainyard.")
    assert name in dir(trainyard)


def test_type_checkers_see_what_python_sees():
    """Every lazily imported name is imported under TYPE_CHECKING from the same module."""
    source = (ROOT / "src" / "trainyard" / "__init__.py").read_text()
    for name, module in trainyard._HOME.items():
        assert f"from {module} import {name} as {name}" in source
    assert sorted(trainyard._HOME) == sorted(trainyard.__all__)


def test_unknown_names_list_the_known():
    with pytest.raises(AttributeError, match="parse_cluster"):
        trainyard.nothing_of_the_kind  # noqa: B018
