"""The reference is what the docstrings say, and all that is public has a docstring."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest
from pages import ROOT

import trainyard


def test_reference_is_up_to_date():
    command = [sys.executable, "docs/build_reference.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


PACKAGES = trainyard, trainyard.fleet, trainyard.serve
NAMES = [(package, name) for package in PACKAGES for name in package.__all__]


@pytest.mark.parametrize(("package", "name"), NAMES, ids=[f"{p.__name__}.{n}" for p, n in NAMES])
def test_public_names_exist_and_are_documented(package, name):
    thing = getattr(package, name)
    assert inspect.getdoc(thing)
    where = thing.__name__ if inspect.ismodule(thing) else thing.__module__
    assert where.startswith("trainyard.")
    assert name in dir(package)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_type_checkers_see_what_python_sees(package):
    """Every lazily imported name is imported under TYPE_CHECKING from the same module."""
    source = Path(package.__file__).read_text()
    for name, module in package._HOME.items():
        home = package.__name__ if module == f"{package.__name__}.{name}" else module
        assert f"from {home} import {name} as {name}" in source
    assert sorted(package._HOME) == sorted(package.__all__)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_no_public_name_is_that_of_a_submodule(package):
    """Whoever imports a submodule would replace the name."""
    folder = Path(package.__file__).parent
    names = {name for name, module in package._HOME.items() if module != f"{package.__name__}.{name}"}
    assert not [name for name in names if (folder / name).is_dir() or (folder / f"{name}.py").exists()]


def test_each_part_is_imported_when_it_is_first_used():
    """``import trainyard`` alone loads neither PyTorch nor a level."""
    code = (
        "import sys, trainyard as ty; assert 'torch' not in sys.modules and 'trainyard.fleet' not in sys.modules; "
        "print(ty.fleet.FleetError.__name__, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "FleetError False\n", done.stderr


def test_unknown_names_list_the_known():
    with pytest.raises(AttributeError, match="parse_cluster"):
        trainyard.nothing_of_the_kind  # noqa: B018
    with pytest.raises(AttributeError, match=r"trainyard\.fleet has no 'nothing'; it has .*read_jobs"):
        trainyard.fleet.nothing  # noqa: B018
