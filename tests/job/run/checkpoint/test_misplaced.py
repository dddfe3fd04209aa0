"""What lies in a folder of checkpoints under the name of one, and is none, is passed over with a note."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import one_rank
import pytest

from trainyard.job.run.checkpoint.saved import (
    complete_steps,
    damage,
    newest_complete,
    path_of,
    read_run,
    saved_steps,
    write_run,
)
from trainyard.job.run.errors import CheckpointError

STEPS = 5


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with checkpoints of steps 2 and 4."""
    folder = tmp_path_factory.mktemp("kept")
    one_rank.run(folder, 4, checkpoint_every=2)
    return folder


@pytest.fixture
def folder(kept: Path, tmp_path: Path) -> Path:
    """A copy to put something into."""
    return Path(shutil.copytree(kept, tmp_path / "copy", symlinks=True))


def empty(path: Path) -> None:
    path.mkdir()


def of_another_step(path: Path) -> None:
    shutil.copytree(path_of(path.parent, 2), path)


def a_link_to_another_step(path: Path) -> None:
    path.symlink_to(path_of(path.parent, 2).name)


def saying(**described: Any) -> Callable[[Path], None]:
    """A checkpoint with these words in ``run.json``, and a checksum that agrees."""

    def put(path: Path) -> None:
        shutil.copytree(path_of(path.parent, 4), path)
        write_run(path, read_run(path) | {"step": int(path.name.removeprefix("step-"))} | described)

    return put


def of_more_ranks(path: Path) -> None:
    """Of which the files of one were lost."""
    files = read_run(path_of(path.parent, 4))["files"]
    saying(files=files | {"rank-00001.safetensors": files["rank-00000.safetensors"]})(path)


PASSED_OVER: dict[str, tuple[Callable[[Path], None], str]] = {
    "empty": (empty, "run.json is missing"),
    "of another step": (of_another_step, "has another name than when it was written: it is of step 2"),
    "a link to another step": (a_link_to_another_step, "has another name .*: it is of step 2"),
    "of more ranks": (of_more_ranks, r"rank-00001\.safetensors is missing"),
    "a step below 0": (saying(step=-6), "4 updates in -6 steps"),
    "a step of many digits": (saying(step=10**4000), r"4 updates in \d+\.\.\.\d+ steps"),
    "a step that is no number": (saying(step=float("nan")), "step is nan"),
    "a step that is text": (saying(step="6"), "step is '6'"),
    "a step that is true": (saying(step=True), "step is True"),
    "no step": (saying(step=None), "step is None"),
    "updates below 0": (saying(num_updates=-1), "-1 updates"),
    "more updates than steps": (saying(num_updates=10**400), "updates in"),
    "settings in a list": (saying(settings=[]), r"settings is \[\]"),
    "fields in a text": (saying(fields="param"), "fields is 'param'"),
    "a program of many numbers": (saying(program=[1] * 10_000), r"program is \[1, 1, .*\.\.\.\]"),
}


NEXT, HUGE = 6, 10**18 - 1


@pytest.mark.parametrize("what", PASSED_OVER)
def test_a_folder_that_holds_no_such_checkpoint_is_passed_over(what: str, folder: Path) -> None:
    put, why = PASSED_OVER[what]
    for step in (NEXT, HUGE):
        put(path_of(folder, step))
    assert saved_steps(folder) == [HUGE, NEXT, 4, 2]
    assert newest_complete(folder) == path_of(folder, 4)  # at which the caller looks
    ready, _ = one_rank.run(folder, STEPS, resume=True, keep=2)
    assert ready.step == 4
    for step, note in zip((HUGE, NEXT), ready.notes, strict=True):
        assert re.match(f"passed over: {path_of(folder, step)}.*{why}", note), note
        assert len(note) < 1000
    # They go with the next checkpoint; what a link leads to stays.
    assert complete_steps(folder) == saved_steps(folder) == [5, 4]
    assert not any(os.path.lexists(path_of(folder, step)) for step in (NEXT, HUGE))


@pytest.mark.parametrize("what", [what for what in PASSED_OVER if not what.startswith("a link")])
def test_nothing_goes_on_from_one_alone(what: str, folder: Path) -> None:
    PASSED_OVER[what][0](path_of(folder, NEXT))
    for step in (2, 4):
        shutil.rmtree(path_of(folder, step))
    said = f"no undamaged checkpoint: .*step-00000006.*{PASSED_OVER[what][1]}"
    with pytest.raises(CheckpointError, match=said):
        newest_complete(folder)
    with pytest.raises(CheckpointError, match=said):
        one_rank.run(folder, STEPS, resume=True)


def a_loop(path: Path) -> None:
    path.symlink_to(path.name)


def a_link_to_nothing(path: Path) -> None:
    path.symlink_to("nothing")


IGNORED: dict[str, Callable[[Path], None]] = {
    "a file": Path.touch,
    "a loop": a_loop,
    "a link": a_link_to_nothing,
}


@pytest.mark.parametrize("what", IGNORED)
@pytest.mark.parametrize("name", ["step-00000005", ".step-00000005.tmp", ".step-00000005.old"])
def test_what_is_no_folder_is_no_checkpoint_and_in_nobodys_way(what: str, name: str, folder: Path) -> None:
    IGNORED[what](folder / name)
    assert saved_steps(folder) == [4, 2]
    ready, _ = one_rank.run(folder, STEPS, resume=True)
    assert (ready.step, ready.notes) == (4, ())
    assert complete_steps(folder) == [5, 4]
    assert sorted(os.listdir(folder)) == ["step-00000004", "step-00000005"]


@pytest.mark.parametrize(
    "name", ["step-4", "step-000000004", "step-x", "step-", "step-" + "9" * 30, "step-4 (copy)"]
)
def test_other_names_are_no_checkpoints_and_take_no_places_of_them(name: str, folder: Path) -> None:
    shutil.copytree(path_of(folder, 4), folder / name)
    assert saved_steps(folder) == [4, 2]
    ready, _ = one_rank.run(folder, 4, resume=True)
    assert (ready.step, ready.notes) == (4, ())
    one_rank.run(folder, STEPS, resume=True)
    assert complete_steps(folder) == [5, 4]
    assert (folder / name).is_dir()


def test_one_that_cannot_be_removed_takes_no_place_of_a_checkpoint(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_another_step(path_of(folder, NEXT + 1))
    removed = shutil.rmtree
    monkeypatch.setattr(
        shutil, "rmtree", lambda path, **how: None if "7" in Path(path).name else removed(path, **how)
    )
    ready, _ = one_rank.run(folder, NEXT, resume=True, keep=1, checkpoint_every=1)
    assert ready.step == 4
    assert complete_steps(folder) == [NEXT]


@contextmanager
def as_nobody() -> Iterator[None]:
    """Within it, this process is of a user for whom modes of files hold."""
    if own := os.geteuid() == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        if own:
            os.seteuid(0)


@pytest.mark.parametrize("name", [".", "run.json", "run.json.crc32", "rank-00000.safetensors"])
def test_one_that_may_not_be_read_is_passed_over(name: str, kept: Path) -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(shutil.copytree(kept, Path(made) / "copy"))
        for path in (Path(made), folder, *folder.rglob("*")):
            path.chmod(0o755)
        unreadable = path_of(folder, 4) / name
        unreadable.chmod(0)
        with as_nobody():
            problem = damage(path_of(folder, 4))
            assert problem is not None
            assert "Permission denied" in problem
            assert damage(path_of(folder, 2)) is None
        unreadable.chmod(0o700)
