"""Commands of users on one node: their variables, how they end, and that no process is left of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from trainyard.fleet import progress as hook
from trainyard.fleet.errors import FleetError
from trainyard.fleet.run.backend import Progress
from trainyard.fleet.run.command_progress import CommandLosses
from trainyard.fleet.run.job_directory import JobDirectory
from trainyard.fleet.run.ranks import Ranks
from trainyard.fleet.workload.command import Command
from trainyard.job.run.processes.logs import MOST_BYTES

PYTHON = sys.executable
ENVIRONMENT = f"{PYTHON} -c 'import json, os; print(json.dumps(dict(os.environ)))'"
LIMIT_S = 300.0


def started(directory: JobDirectory, command: Command, count: int = 1) -> subprocess.Popen[bytes]:
    """The node process of a command that has so many devices of this machine."""
    directory.set_up(command)
    directory.allow()
    devices = ",".join(map(str, range(4, 4 + count)))
    ranks = Ranks(0, count, count, directory.new_meeting(), f"local:{count}", devices, threads=3)
    return subprocess.Popen(ranks.command(directory.path))


def ended(directory: JobDirectory, command: Command, count: int = 1) -> Progress:
    """The progress of a command that was run to its end."""
    started(directory, command, count).wait(LIMIT_S)
    return directory.progress(is_over=True)


def wait_until(holds: Callable[[], bool]) -> None:
    until_s = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < until_s
        time.sleep(0.02)


def told(directory: JobDirectory, rank: int) -> dict[str, str]:
    """The variables that a process of a rank has printed."""
    found: dict[str, str] = json.loads((directory.logs / f"rank-{rank}.log").read_text())
    return found


def test_a_process_for_each_device_has_a_rank(tmp_path: Path) -> None:
    directory = JobDirectory(tmp_path / "a")
    assert ended(directory, Command(ENVIRONMENT, str(tmp_path)), count=2) == Progress(None, ended=True)
    first, second = told(directory, 0), told(directory, 1)
    for rank, found in enumerate((first, second)):
        assert (found["RANK"], found["LOCAL_RANK"]) == (str(rank), str(rank))
        assert (found["WORLD_SIZE"], found["LOCAL_WORLD_SIZE"]) == ("2", "2")
        assert found["CUDA_VISIBLE_DEVICES"] == "4,5"
        assert (found["MASTER_ADDR"], found["OMP_NUM_THREADS"]) == ("127.0.0.1", "3")
        assert (found["TRAINYARD_JOB_DIR"], found["PWD"]) == (str(directory.output), str(tmp_path))
    assert first["MASTER_PORT"] == second["MASTER_PORT"]
    assert 1024 < int(first["MASTER_PORT"]) < 65536


def test_a_launcher_is_started_once_and_told_how_many_processes(tmp_path: Path) -> None:
    directory = JobDirectory(tmp_path / "a")
    assert ended(directory, Command(ENVIRONMENT, str(tmp_path), "node"), count=2).ended
    found = told(directory, 0)
    assert not (directory.logs / "rank-1.log").exists()
    assert found.keys().isdisjoint({"RANK", "LOCAL_RANK"})
    assert (found["PET_NPROC_PER_NODE"], found["PET_NNODES"], found["PET_NODE_RANK"]) == ("2", "1", "0")
    assert (found["PET_MASTER_ADDR"], found["PET_MASTER_PORT"]) == (
        found["MASTER_ADDR"],
        found["MASTER_PORT"],
    )
    assert (found["WORLD_SIZE"], found["NNODES"], found["GROUP_RANK"]) == ("2", "1", "0")


MEETS = """
touch "$TRAINYARD_JOB_DIR/$RANK"
while [ ! -e "$TRAINYARD_JOB_DIR/$((1 - RANK))" ]; do sleep 0.05; done
echo "$MASTER_ADDR:$MASTER_PORT $LOCAL_RANK of $LOCAL_WORLD_SIZE"
"""


def test_two_nodes_of_a_job_meet_and_do_not_end_each_other(tmp_path: Path) -> None:
    """They may be one machine, as in a trial of a cluster manager; the second starts while the first waits for it."""
    directory = JobDirectory(tmp_path / "a")
    directory.set_up(Command(MEETS, str(tmp_path)))
    directory.allow()
    meeting = directory.new_meeting()
    nodes = []
    for number in range(2):
        ranks = Ranks(number, 1, 2, meeting, "local:2", node=number, nodes=2)
        nodes.append(subprocess.Popen(ranks.command(directory.path)))
        wait_until((directory.output / str(number)).exists)
    assert [node.wait(LIMIT_S) for node in nodes] == [0, 0]
    assert directory.progress(is_over=True).ended
    first, second = ((directory.logs / f"rank-{rank}.log").read_text() for rank in range(2))
    assert first == second
    assert first.endswith(" 0 of 1\n")


def test_a_node_that_comes_when_the_first_has_ended_runs_its_command(tmp_path: Path) -> None:
    directory = JobDirectory(tmp_path / "a")
    directory.set_up(Command("echo $RANK", str(tmp_path)))
    directory.allow()
    meeting = directory.new_meeting()
    for number in range(2):
        ranks = Ranks(number, 1, 2, meeting, "local:2", node=number, nodes=2)
        assert subprocess.run(ranks.command(directory.path), timeout=LIMIT_S).returncode == 0
    assert directory.progress(is_over=True).ended
    assert [(directory.logs / f"rank-{rank}.log").read_text() for rank in range(2)] == ["0\n", "1\n"]


def test_a_failure_says_what_was_printed_last(tmp_path: Path) -> None:
    directory = JobDirectory(tmp_path / "a")
    line = "echo one; echo two; echo; echo 'three\x1b[31m'; echo four >&2; exit 3"
    found = ended(directory, Command(line, str(tmp_path)))
    assert (found.ended, found.killed) == (False, False)
    assert found.failure is not None
    assert found.failure.startswith("its command ended with exit code 3; it printed last: three")
    assert found.failure.endswith(" / four")
    assert "\x1b" not in found.failure


def test_a_command_that_was_killed_is_not_to_blame(tmp_path: Path) -> None:
    found = ended(JobDirectory(tmp_path / "a"), Command("sh -c 'kill -9 $$'; exit $?", str(tmp_path)))
    assert found.killed
    assert (found.failure or "").startswith("its command was ended by SIGKILL")


def test_one_process_that_fails_ends_the_others(tmp_path: Path) -> None:
    directory = JobDirectory(tmp_path / "a")
    found = ended(directory, Command('[ "$RANK" = 0 ] || exit 1; exec sleep 600', str(tmp_path)), count=2)
    assert found.failure == "its command ended with exit code 1"


SAVES = """
trap 'sleep 0.5; echo saved > "$TRAINYARD_JOB_DIR/saved"; exit 0' TERM
touch "$TRAINYARD_JOB_DIR/begun"
while :; do sleep 0.05; done
"""


def test_a_command_that_is_to_leave_has_time_to_save(tmp_path: Path) -> None:
    directory = JobDirectory(tmp_path / "a")
    node = started(directory, Command(SAVES, str(tmp_path), grace_s=LIMIT_S))
    wait_until((directory.output / "begun").exists)
    directory.pause.touch()
    assert node.wait(LIMIT_S) == 0
    assert (directory.output / "saved").read_text() == "saved\n"
    # It has returned 0, which is no end: it was asked to.
    assert directory.progress(is_over=True) == Progress(None)


STAYS = """
(trap '' TERM; exec setsid sh -c 'setsid sleep 600 & echo $$ $! > "$TRAINYARD_JOB_DIR/pids"; wait') &
wait
"""


def test_what_does_not_leave_is_killed(tmp_path: Path) -> None:
    """A child and a grandchild, each in a session of its own, ignore the signal, and are killed when time is over."""
    directory = JobDirectory(tmp_path / "a")
    node = started(directory, Command(STAYS, str(tmp_path), grace_s=0.5))
    file = directory.output / "pids"
    wait_until(lambda: file.exists() and file.read_text().endswith("\n"))
    child, grandchild = map(int, file.read_text().split())
    wait_until(lambda: psutil.Process(grandchild).name() == "sleep")
    assert os.getsid(grandchild) == grandchild != os.getsid(child) == child
    directory.pause.touch()
    assert node.wait(LIMIT_S) == 0
    assert directory.groups() == []
    assert not psutil.pid_exists(child)
    assert not psutil.pid_exists(grandchild)


PRINTS = f"""
head -c {MOST_BYTES + 1} /dev/zero
touch "$TRAINYARD_JOB_DIR/printed"
exec sleep 600
"""


def test_the_log_of_a_running_command_stays_short(tmp_path: Path) -> None:
    directory = JobDirectory(tmp_path / "a")
    node = started(directory, Command(PRINTS, str(tmp_path)))
    wait_until((directory.output / "printed").exists)
    wait_until(lambda: (directory.logs / "rank-0.log").stat().st_size < MOST_BYTES)
    assert node.poll() is None
    directory.pause.touch()
    assert node.wait(LIMIT_S) == 0


LEAVES_A_CHILD = """
import os, subprocess, sys
from trainyard.fleet.progress import job_dir
file = job_dir() / "child"
if file.exists():
    sys.exit()
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
file.write_text(str(child.pid))
child.wait()
"""


def test_nothing_outlives_a_node_that_is_killed(tmp_path: Path) -> None:
    """The child of a command has a session of its own and does not hold the job, as torchrun's processes do not."""
    (tmp_path / "train.py").write_text(LEAVES_A_CHILD)
    directory, command = JobDirectory(tmp_path / "a"), Command(f"exec {PYTHON} train.py", str(tmp_path))
    node = started(directory, command)
    child = directory.output / "child"
    wait_until(lambda: child.exists() and child.read_text() != "")
    pid = int(child.read_text())
    node.kill()
    node.wait()
    wait_until(lambda: not directory.groups())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    assert directory.progress(is_over=True).killed
    assert ended(directory, command).ended


def test_progress_is_what_the_last_line_says(tmp_path: Path) -> None:
    directory = JobDirectory(tmp_path / "a")
    directory.set_up(Command("true", str(tmp_path), steps=100))
    assert directory.progress(is_over=False) == Progress(None)
    directory.progress_file.write_text(
        '{"step": 3}\nrubbish\n{"step": 40, "steps_per_s": 4}\n[1]\n{"step": "x"}\n{"ste'
    )
    assert directory.progress(is_over=False) == Progress(40, step_s=0.25)
    directory.progress_file.write_text('{"step": 1e999, "loss": 1}\n{"step": 400}\n')
    assert directory.progress(is_over=False) == Progress(100)


def test_without_steps_nothing_is_told(tmp_path: Path) -> None:
    directory = JobDirectory(tmp_path / "a")
    directory.set_up(Command("true", str(tmp_path)))
    directory.progress_file.write_text('{"step": 3}\n')
    assert directory.progress(is_over=False) == Progress(None)


def test_losses_are_means_of_epochs_that_are_over(tmp_path: Path) -> None:
    file = tmp_path / "progress.jsonl"
    read = CommandLosses(file, 10, 100)
    assert read.read() == ()
    lines = [(5, 3.0), (10, 2.0), (12, 7.0)]
    file.write_text("".join(f'{{"step": {step}, "loss": {loss}}}\n' for step, loss in lines))
    assert read.read() == ((10.0, 2.5),)
    with file.open("a") as more:  # it goes back to a checkpoint
        more.write('{"step": 5, "loss": 3.0}\n{"step": 10, "loss": 4.0}\n{"step": 25, "loss": 1.0}\n')
    assert read.read() == ((10.0, 3.5), (12.0, 7.0))


def test_a_script_reports_every_half_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 10.1, 10.6, 10.7])
    monkeypatch.setattr(hook, "_last", hook._LastLine())
    monkeypatch.setattr(hook.time, "monotonic", lambda: next(clock))
    hook.report(1, loss=9.0)  # outside of a fleet
    monkeypatch.setenv("TRAINYARD_JOB_DIR", str(tmp_path))
    for step, loss in ((20, 5.0), (21, 4.0), (26, 2.0), (27, 1.0)):
        hook.report(step, loss=loss)
    monkeypatch.setenv("RANK", "1")
    hook.report(99, loss=9.0)
    first, second = map(json.loads, (tmp_path / "progress.jsonl").read_text().splitlines())
    assert first == {"step": 20, "loss": 5.0}
    assert second == {"step": 26, "steps_per_s": pytest.approx(10.0), "loss": 3.0}


def test_a_folder_of_another_command(tmp_path: Path) -> None:
    directory = JobDirectory(tmp_path / "a")
    directory.set_up(Command("true", str(tmp_path)))
    directory.set_up(Command("true", str(tmp_path)))
    with pytest.raises(FleetError, match="belongs to another training or command"):
        directory.set_up(Command("false", str(tmp_path)))


def test_a_command_has_ended_when_it_has_on_all_nodes(tmp_path: Path) -> None:
    directory = JobDirectory(tmp_path / "a")
    directory.set_up(Command("true", str(tmp_path)))
    directory.end(0, 2, 3)
    assert not directory.has_ended()
    directory.end(2, 1, 3)
    assert directory.has_ended()
    directory.allow()
    assert not directory.has_ended()
