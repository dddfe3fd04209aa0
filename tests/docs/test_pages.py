"""Every command and every Python line of the documentation runs, and prints what the page says."""

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pages import (
    PAGES,
    ROOT,
    Block,
    blocks_of,
    files_of,
    folder_of_reader,
    matches,
    measures,
    run,
    same_anywhere,
    scripts_of,
    shell_blocks_of,
    told,
)

BLOCKS = {page: blocks_of(page.read_text()) for page in PAGES}


def with_marks(*marks: str) -> list[Path]:
    return [page for page in PAGES if any(block.mark in marks for block in BLOCKS[page])]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def follow(page: Path, folder: Path, *marks: str) -> None:
    """Run the blocks of a page with any of the marks, in order, in a folder that has the examples."""
    blocks = [block for block in BLOCKS[page] if block.mark in marks]
    assert all(block.commands for block in blocks)
    with folder_of_reader(page.read_text(), folder) as run_command:
        for block in blocks:
            for command, expected in block.commands:
                done = run_command(command)
                said = f"$ {command}\n{done.stdout}\n--- the page says ---\n{expected}"
                assert done.returncode == (2 if expected.startswith("error:") else 0), said
                if block.mark == "local":
                    assert same_anywhere(expected, done.stdout), said
                else:
                    assert matches(expected, done.stdout, numbers=not measures(command)), said


@pytest.mark.parametrize("page", with_marks(""), ids=name)
def test_commands(page, tmp_path):
    follow(page, tmp_path, "")


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=name(page), marks=[pytest.mark.long] if page.name.startswith("guide-") else [])
        for page in with_marks("slow")
    ],
)
def test_slow_commands(page, tmp_path):
    follow(page, tmp_path, "", "slow")


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("page", with_marks("local"), ids=name)
def test_commands_on_this_machine(page, tmp_path):
    follow(page, tmp_path, "", "local")


@pytest.mark.parametrize("page", with_marks("make"), ids=name)
def test_make_targets_exist(page):
    for command, _ in (c for block in BLOCKS[page] if block.mark == "make" for c in block.commands):
        if command.startswith("source "):
            continue  # see the test below
        assert command.startswith("make ")
        done = run(f"make -n {command.removeprefix('make ').partition('#')[0]}", ROOT, timeout_s=60)
        assert done.returncode == 0, done.stdout


def test_make_run_trains_as_the_readme_and_the_example_show():
    commands = [command for block in BLOCKS[ROOT / "README.md"] for command, _ in block.commands]
    shown = next(command for command in commands if command.startswith("trainyard train "))
    assert f"/bin/{shown}\n" in run("make -n run", ROOT, timeout_s=60).stdout
    assert f"    {shown}\n" in (ROOT / shown.split()[2]).read_text()


@pytest.mark.skipif(
    not (Path(sys.prefix) / "bin/activate").exists(),
    reason="needs a Python in a virtual environment: make install",
)
def test_the_readme_puts_the_command_on_the_path_before_it_shows_it(tmp_path):
    (tmp_path / ".venv").symlink_to(sys.prefix)
    commands = [command for block in BLOCKS[ROOT / "README.md"] for command, _ in block.commands]
    first = next(i for i, command in enumerate(commands) if command.startswith("trainyard "))
    lines = [command for command in commands[:first] if command.startswith("source ")]
    done = subprocess.run(
        ["/bin/bash", "-c", "\n".join([*lines, "command -v trainyard"])],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == str(Path(sys.prefix) / "bin/trainyard"), done.stderr


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_newcomer_copies_the_lines_of_the_readme_into_a_shell(tmp_path):
    """All but `make test` in one shell, in a fresh clone without an environment."""
    subprocess.run(["git", "clone", "-q", ROOT, tmp_path / "trainyard"], check=True)
    commands = [command for block in BLOCKS[ROOT / "README.md"] for command, _ in block.commands]
    lines = [command for command in commands if not command.startswith("make test")]
    path = os.pathsep.join(p for p in os.environ["PATH"].split(os.pathsep) if not p.startswith(sys.prefix))
    environment = {name: os.environ[name] for name in os.environ if name not in ("VIRTUAL_ENV", "PYTHONPATH")}
    done = subprocess.run(
        ["/bin/bash", "-e", "-c", "\n".join(lines)],
        cwd=tmp_path / "trainyard",
        env={**environment, "PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert "loss " in done.stdout
    assert "srtf" in done.stdout


@pytest.mark.parametrize("page", [p for p in PAGES if ">>>" in p.read_text()], ids=name)
def test_python(page, tmp_path, monkeypatch):
    for name, body in files_of(page.read_text()).items():
        (tmp_path / name).write_text(body)
    monkeypatch.syspath_prepend(tmp_path)  # a page's Python imports the page's files
    failed, tried = doctest.testfile(str(page), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert tried > 0
    assert failed == 0


@pytest.mark.parametrize("page", [p for p in PAGES if scripts_of(p.read_text())], ids=name)
def test_scripts(page, tmp_path):
    for script in scripts_of(page.read_text()):
        done = subprocess.run(
            [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout


@pytest.mark.parametrize("page", [p for p in PAGES if shell_blocks_of(p.read_text())], ids=name)
def test_commands_without_outputs_are_run_elsewhere_or_it_is_said_why_not(page):
    for mark, commands in shell_blocks_of(page.read_text()):
        how, _, what = mark.partition(": ")
        assert how in ("run by", "not run"), f"say above it by which test it is run, or why not:\n{commands}"
        assert what
        assert how == "not run" or "follow_guide(" in (ROOT / what).read_text()


def links_of(page: Path) -> list[str]:
    """Files and folders to which a page links."""
    found = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text())
    return [target for target in found if "://" not in target]


@pytest.mark.parametrize("page", [p for p in PAGES if links_of(p)], ids=name)
def test_links(page):
    assert [target for target in links_of(page) if not (page.parent / target).exists()] == []


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


@pytest.mark.parametrize(
    ("expected", "given", "same"),
    [
        ("fifo   12.5 min\n────", "fifo 12.5 min\n──────────\n", True),
        ("fifo   12.5 min", "fifo   12.4 min", False),
        ("a 1\n...\nb 2", "a 1\nanything 3\nb 2", True),
        ("a 1\n...\nb 2", "a 1\nanything 3\nb 4", False),
    ],
)
def test_comparison_of_numbers(expected, given, same):
    assert matches(expected, given, numbers=True) is same


@pytest.mark.parametrize(
    ("command", "does"),
    [
        ("trainyard fleet profile gpt2 --cluster 2x4xV100-32G --save gpt2.csv", False),
        ("trainyard simulate plan.yaml", False),
        ("trainyard train gpt-tiny --steps 2", True),
        ("trainyard plan gpt-tiny --cluster local:2", True),
        ("trainyard fleet run --trace jobs.yaml --cluster 1x2xlocal", True),
        ("trainyard serve bench --url http://127.0.0.1:8000", True),
    ],
)
def test_commands_that_measure_are_told_apart(command, does):
    assert measures(command) is does


def test_blocks_are_found():
    page = "<!-- slow -->\n```console\n$ a b\nout\n$ c\n```\ntext\n```console\n$ d\n```\n"
    assert blocks_of(page) == (Block("slow", (("a b", "out\n"), ("c", ""))), Block("", (("d", ""),)))


PAGE_WITH_FILE = """<!-- file: jobs.txt -->
```text
night
```

```console
$ cat jobs.txt
night
```

<!-- file: model.py -->
```python
ROWS = 4
```

```python
print(ROWS)
```
"""


def test_files_of_a_page_are_written_and_are_no_scripts(tmp_path):
    assert files_of(PAGE_WITH_FILE) == {"jobs.txt": "night\n", "model.py": "ROWS = 4\n"}
    assert scripts_of(PAGE_WITH_FILE) == ("print(ROWS)\n",)
    with folder_of_reader(PAGE_WITH_FILE, tmp_path) as run_command:
        assert run_command("cat jobs.txt").stdout == "night\n"


def test_a_program_in_the_background_ends_with_the_page(tmp_path):
    with folder_of_reader("", tmp_path) as run_command:
        assert run_command("sh -c 'echo $$ > pid && exec sleep 1000' &").returncode == 0
        assert (
            run_command("until kill -0 $(cat pid); do sleep 0.1; done 2> /dev/null; echo runs").stdout
            == "runs\n"
        )
    assert run("kill -0 $(cat pid)", tmp_path, timeout_s=60).returncode == 1


TABLE = """trainings under fifo

 job     JCT   state
 ───────────────────
 wide    7 s   ended
 other   9 s   running
"""


@pytest.mark.parametrize(
    ("given", "same"),
    [
        (TABLE.replace("7 s", "12.5 s"), True),
        (TABLE.replace("JCT", "time"), False),
        (TABLE.replace("ended", "failed"), False),
        (TABLE.replace("running", "waiting"), True),
        (TABLE.replace(" other ", " another "), False),
        (TABLE + " third   1 s   running\n", False),
        (TABLE + "\n" + TABLE, False),
        ("", False),
    ],
)
def test_tables_of_this_machine(given, same):
    assert same_anywhere(TABLE, given) is same


def test_events_of_this_machine():
    page = "    6.7 s  wide ends\n    6.7 s  short runs on devices 0\n   12.3 s  short ends\n"
    assert same_anywhere(page, "    2.0 s  short ends\n    6.7 s  wide ends\n")
    assert not same_anywhere(page, "    2.0 s  short ends\n    6.7 s  wide fails\n")
    assert not same_anywhere("step time  1 ms\n", "")


def test_a_page_that_leaves_lines_out_still_promises_what_it_shows():
    assert same_anywhere(f"...\n{TABLE}", f"{TABLE.replace('job', 'plan')}\n{TABLE}")
    assert not same_anywhere(f"...\n{TABLE}", TABLE.replace("job", "plan"))


def test_heads_may_break_anywhere():
    assert told(" a b   c\n ────────\n x   1\n") == told(" a\n b    c\n ──────\n x   1\n")
