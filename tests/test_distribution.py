"""The distribution has one name, in messages, documentation and metadata, and extras that exist."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from trainyard.distribution import NAME, VERSION, install_command

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

_INSTALLER = re.compile(r"\b(?:pip3?|pipx|uv tool) install\b|\buv add\b|\bpip (?:wheel|download)\b")
_REQUIREMENT = re.compile(r"""(?:^|[\s'"`])(?P<name>trainyard[\w.-]*)(?=$|[\s'"`\[<>=~!;,])""")
_END = re.compile(r"[;&|)`]")  # of a command
_WITH_EXTRA = re.compile(r"\b(?P<name>trainyard[\w-]*)\\*\[(?:\w+,?|\{[\w.]+\})+\\*\]")
_LOOKED_UP = re.compile(
    r"""\b(?:version|metadata|distribution|requires)\(\s*['"](?P<name>trainyard[\w.-]*)['"]"""
)
_EXTRAS = re.compile(
    r"""trainyard-ml\\*\[([\w,]+)|install_command\(['"](\w+)|needing_extra\("[^"]+", "(\w+)"\)"""
)


def installed_by(text: str) -> Iterator[str]:
    """Names under which a text installs Trainyard."""
    for installer in _INSTALLER.finditer(text):
        command = _END.split(text[installer.end() :].partition("\n")[0])[0]
        yield from (match["name"] for match in _REQUIREMENT.finditer(command))
    yield from (match["name"] for match in _WITH_EXTRA.finditer(text))


def looked_up_by(text: str) -> Iterator[str]:
    """Names under which code looks for Trainyard among what is installed."""
    yield from (match["name"] for match in _LOOKED_UP.finditer(text))


def with_other_names(find: Callable[[str], Iterable[str]]) -> dict[str, set[str]]:
    """Names other than the distribution's in each file that has any."""
    return {name: wrong for name, text in texts() if (wrong := set(find(text)) - {NAME})}


def texts() -> Iterator[tuple[str, str]]:
    """All text files of the repository but this one, and records, which say what once was."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("needs a clone of the repository: git lists no files")
    for name in listed.stdout.split("\0"):
        path = ROOT / name
        if name and path.is_file() and not path.samefile(__file__) and "records" not in path.parts:
            yield name, path.read_text(errors="replace")


def test_no_text_installs_the_package_of_another_author() -> None:
    assert with_other_names(installed_by) == {}


def test_no_code_looks_for_the_package_of_another_author() -> None:
    assert with_other_names(looked_up_by) == {}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("run: pip install 'trainyard[ray]'", {"trainyard"}),
        ('(`pip install "trainyard[{name}]"`)', {"trainyard"}),
        ("needs 'x':\npip install -c pins trainyard", {"trainyard"}),
        ("match=r'trainyard\\[ray,dev\\]'", {"trainyard"}),
        ("uv add trainyard>=0.1", {"trainyard"}),
        ("pip install 'trainyard_core'", {"trainyard_core"}),
        ("pip install 'trainyard-ml[ray]'; trainyard fleet run", {NAME}),
        ("`pip install torch` before `trainyard run`", set()),
        ("trainyard.rows[a]", set()),
    ],
)
def test_names_are_found(text: str, names: set[str]) -> None:
    assert set(installed_by(text)) == names


def test_the_name_is_that_of_the_project() -> None:
    assert PROJECT["name"] == NAME
    assert install_command("ray") == f"pip install '{NAME}[ray]'"


def test_extras_that_messages_name_exist() -> None:
    found = {match[match.lastindex or 0] for _, text in texts() for match in _EXTRAS.finditer(text)}
    named = {extra for names in found for extra in names.split(",")}
    assert {"server", "daemon", "postgres", "ray", "kernels"} <= named
    assert named <= set(PROJECT["optional-dependencies"])


def test_the_changelog_says_what_this_version_is() -> None:
    versions = re.findall(r"^## (\d\S*)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert versions[0].rstrip(",") == VERSION


def test_the_license_is_the_one_that_the_project_names() -> None:
    assert PROJECT["license"] == "Apache-2.0"
    for name in PROJECT["license-files"]:
        assert (
            "Apache License\n                           Version 2.0, January 2004"
            in (ROOT / name).read_text()
        )


def test_make_install_says_how_the_command_gets_on_the_path(tmp_path: Path) -> None:
    """Where all is installed, which a file newer than what is to be installed says, nothing but this is printed."""
    (tmp_path / ".installed").touch()
    done = subprocess.run(
        ["make", "--no-print-directory", "install", f"VENV={tmp_path}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.stdout == f"To have `trainyard` on the PATH of this shell: source {tmp_path}/bin/activate\n"
