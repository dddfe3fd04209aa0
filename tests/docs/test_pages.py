"""Every command and every Python line of the documentation runs, and prints what the page says."""

import doctest
import re
from pathlib import Path

import pytest
from pages import PAGES, ROOT, Block, blocks_of, matches, only_local, run

BLOCKS = {page: blocks_of(page.read_text()) for page in PAGES}


def with_marks(*marks: str) -> list[Path]:
    return [page for page in PAGES if any(block.mark in marks for block in BLOCKS[page])]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def follow(blocks: list[Block], folder: Path) -> None:
    """Run blocks in order in a folder that has the examples."""
    (folder / "examples").symlink_to(ROOT / "examples")
    for block in blocks:
        for command, expected in block.commands:
            done = run(command, folder, timeout_s=500)
            told = f"$ {command}\n{done.stdout}\n--- the page says ---\n{expected}"
            assert done.returncode == (2 if expected.startswith("error:") else 0), told
            if block.mark == "local":
                assert matches(only_local(expected), only_local(done.stdout)), told
            else:
                assert matches(expected, done.stdout), told


@pytest.mark.parametrize("page", with_marks(""), ids=name)
def test_commands(page, tmp_path):
    follow([block for block in BLOCKS[page] if block.mark == ""], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("page", with_marks("slow", "local"), ids=name)
def test_slow_commands(page, tmp_path):
    follow([block for block in BLOCKS[page] if block.mark != "make"], tmp_path)


@pytest.mark.parametrize("page", with_marks("make"), ids=name)
def test_make_targets_exist(page):
    for command, _ in (c for block in BLOCKS[page] if block.mark == "make" for c in block.commands):
        assert command.startswith("make ")
        done = run(f"make -n {command.removeprefix('make ').partition('#')[0]}", ROOT, timeout_s=60)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("page", [p for p in PAGES if ">>>" in p.read_text()], ids=name)
def test_python(page):
    failed, tried = doctest.testfile(str(page), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert tried > 0
    assert failed == 0


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{name(page)} links to {target}, which is not there"


@pytest.mark.parametrize(
    ("expected", "given", "same"),
    [
        ("step 12.3 ms", "step  4.10 s", True),
        ("a\n...\nd", "a\nb\nc\nd", True),
        ("plan ... of it", "plan anything of it", True),
        ("a\nb", "a\nc", False),
        ("data 4 x tensor 2", "data 8 x tensor 1", True),
        ("does fit", "does not fit", False),
    ],
)
def test_comparison(expected, given, same):
    assert matches(expected, given) is same


def test_blocks_are_found():
    page = "<!-- slow -->\n```console\n$ a b\nout\n$ c\n```\ntext\n```console\n$ d\n```\n"
    assert blocks_of(page) == (Block("slow", (("a b", "out\n"), ("c", ""))), Block("", (("d", ""),)))
