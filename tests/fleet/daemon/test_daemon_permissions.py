"""Commands of users: a daemon runs none unless its operator says so, and then only what was allowed."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from test_daemon_restarts import CLUSTER, World

from trainyard.fleet.daemon.app import Api
from trainyard.fleet.daemon.daemon import Daemon
from trainyard.fleet.daemon.permissions import Permissions
from trainyard.fleet.daemon.refusal import Refusal
from trainyard.fleet.daemon.store import Store
from trainyard.fleet.daemon.tables import State
from trainyard.fleet.daemon.users import Users
from trainyard.fleet.errors import FleetError
from trainyard.fleet.scheduler import scheduler_of
from trainyard.fleet.workload.command import Command
from trainyard.fleet.workload.job import declared_job
from trainyard.fleet.workload.training import Training
from trainyard.fleet.workload.training_job import training_job

USERS = Users({"token-of-root": "root", "token-of-ann": "ann"}, frozenset({"root"}))
ADMINS = Permissions(frozenset({"root"}))


def daemon_of(folder: Path, permissions: Permissions) -> Daemon:
    store, world = Store(f"sqlite:///{folder / 'state.sqlite'}"), World(random.Random(0), 0.0)
    return Daemon(CLUSTER, scheduler_of("fifo"), world, store, folder, permissions=permissions)


def submitted(daemon: Daemon, user: str, **job: Any) -> tuple[int, str]:
    """Status and error of a job that a user submits."""
    client = TestClient(Api(daemon, USERS).app(), "http://localhost")
    form = {"name": user, "num_devices": 1, "length_s": 5, "folder": "/", "command": "pwd"} | job
    headers = {"content-type": "application/json", "authorization": f"Bearer token-of-{user}"}
    answer = client.post("/jobs", content=json.dumps(form), headers=headers)
    return answer.status_code, answer.json().get("error", "")


def test_by_default_nobody_brings_commands(tmp_path: Path) -> None:
    daemon = daemon_of(tmp_path, Permissions())
    for user in ("root", "ann"):
        status, error = submitted(daemon, user)
        assert status == 403
        assert "this daemon runs trainings of the zoo's models only" in error
    assert list(daemon.store.jobs()) == []


def test_administrators_may_and_others_may_not(tmp_path: Path) -> None:
    daemon = daemon_of(tmp_path, ADMINS)
    status, error = submitted(daemon, "ann")
    assert (status, "which only administrators may run here" in error) == (403, True)
    assert submitted(daemon, "root") == (201, "")


def test_a_permission_that_is_taken_away_holds_no_longer(tmp_path: Path) -> None:
    assert submitted(daemon_of(tmp_path, ADMINS), "root")[0] == 201
    daemon = daemon_of(tmp_path, Permissions())
    for _ in range(3):
        daemon._turn_safely()
    record = daemon.job("root")
    assert record.state is State.FAILED
    assert "this daemon runs trainings of the zoo's models only" in record.reason


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder of programs, one of them, and a link in it that leads out of it."""
    folder = tmp_path / "programs"
    (folder / "sub").mkdir(parents=True)
    (folder / "train.sh").write_text("echo trained\n")
    (folder / "out").symlink_to("/bin/sh")
    return folder


@pytest.mark.parametrize(
    ("line", "folder", "is_allowed"),
    [
        ("./train.sh --lr 0.1 a,b", "", True),
        ("../train.sh", "sub", True),
        ("{}/train.sh x=1", "", True),
        ("train.sh", "", False),  # the shell would look for it elsewhere
        ("/bin/sh -i", "", False),
        ("./out -i", "", False),
        ("./gone.sh", "", False),
        ("./train.sh", "..", False),
        ("{}/train.sh", "/", False),
        ("./train.sh x; id", "", False),
        ("./train.sh $(id)", "", False),
        ("./train.sh `id`", "", False),
        ("./train.sh > x", "", False),
        ("./train.sh\nid", "", False),
        ("./train.sh & id", "", False),
    ],
)
def test_everybody_may_run_programs_of_a_folder(
    programs: Path, line: str, folder: str, is_allowed: bool
) -> None:
    permissions = Permissions.granted(Users(), admin_commands=False, folders=str(programs))
    command = Command(line.format(programs), str(programs / folder))
    job = declared_job("a", 0.0, 1, 5.0, command=command)
    if is_allowed:
        permissions.check(job, "ann")
    else:
        with pytest.raises(
            Refusal, match=r"its command is to be a program of .*/programs and plain words"
        ) as refusal:
            permissions.check(job, "ann")
        assert refusal.value.status == 403


def test_what_an_operator_cannot_allow(tmp_path: Path) -> None:
    with pytest.raises(FleetError, match="--admin-commands is for administrators, and there are none"):
        Permissions.granted(Users({"token-of-ann": "ann"}), admin_commands=True, folders="")
    with pytest.raises(FleetError, match="there is no folder /nowhere"):
        Permissions.granted(USERS, admin_commands=False, folders="/nowhere")
    tmp_path.chmod(0o777)
    with pytest.raises(FleetError, match="every user of this machine may change"):
        Permissions.granted(USERS, admin_commands=False, folders=str(tmp_path))


def test_files_of_models_need_the_same_permission(programs: Path) -> None:
    """Such a job is refused before its file could run: what it would do is not looked at."""
    (programs / "own.py").write_text("raise SystemExit('it ran')\n")
    inside, outside = (training_job("a", 0.0, 1, Training(str(path), 8, 5)) for path in (
        programs / "own.py", programs.parent / "own.py"
    ))  # fmt: skip
    with pytest.raises(
        Refusal, match="job 'a' has a Python file, and this daemon runs trainings of the zoo's"
    ):
        Permissions().check(inside, "ann")
    ADMINS.check(outside, "root")
    everybody = Permissions.granted(Users(), admin_commands=False, folders=str(programs))
    everybody.check(inside, "ann")
    with pytest.raises(Refusal, match=r"job 'a': its file is to lie in .*/programs"):
        everybody.check(outside, "ann")


def test_a_file_is_not_run_before_it_is_allowed(tmp_path: Path, programs: Path) -> None:
    (programs / "own.py").write_text("raise SystemExit('it ran')\n")
    told = {"model": str(programs / "own.py"), "steps": 5, "batch_size": 8}
    form = {"command": None, "length_s": None, "folder": None}
    status, error = submitted(daemon_of(tmp_path, ADMINS), "ann", **form, **told)
    assert (status, "has a Python file, which only administrators may run here" in error) == (403, True)


def test_a_file_is_not_looked_at_when_its_permission_was_taken_away(tmp_path: Path, programs: Path) -> None:
    """A new daemon predicts how fast waiting jobs are before it restores them, and to do so it runs their files."""
    daemon, file = daemon_of(tmp_path, Permissions()), str(programs / "own.py")
    form = {"name": "a", "num_devices": 1, "model": file, "steps": 5, "batch_size": 8}
    daemon.store.add(training_job("a", 0.0, 1, Training(file, 8, 5)), "ann", json.dumps(form), 0.0)
    with pytest.raises(
        Refusal, match="job 'a' has a Python file, and this daemon runs trainings of the zoo's"
    ):
        daemon._look_at(daemon.job("a"))
