"""Whatever stands in the fields of a job, it is refused in a sentence, or taken and scheduled beside the others."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from test_daemon_restarts import CLUSTER, World, form

from trainyard.fleet.daemon.app import Api
from trainyard.fleet.daemon.daemon import Daemon
from trainyard.fleet.daemon.store import Store
from trainyard.fleet.daemon.tables import State
from trainyard.fleet.daemon.users import Users
from trainyard.fleet.scheduler import scheduler_of
from trainyard.fleet.workload import level1
from trainyard.fleet.workload.own import COLUMNS

VALUES = (
    "", "x" * 2000, "a\x00", "\ud800", "1e308", "-1", "0", "nan", "-inf", 10**400, "9" * 500, True, None, {}, "\n",
    "０１", 5e-324, 2**64,
)  # fmt: skip


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """What level 1 says of trainings takes long, and is said here at once."""
    before = level1._answers
    level1.ask_through(lambda question, _: "" if question.endswith("problem") else 5.0)
    store = Store(f"sqlite:///{tmp_path / 'state.sqlite'}")
    yield Daemon(CLUSTER, scheduler_of("fifo"), World(random.Random(0), 0.0), store, tmp_path)
    level1.ask_through(before)


def test_every_field_may_hold_anything(daemon: Daemon) -> None:
    client = TestClient(Api(daemon, Users()).app(), "http://localhost", raise_server_exceptions=False)
    taken, base = [], json.loads(form("x", 1))
    for column in COLUMNS:
        for number, value in enumerate(VALUES):
            job = {**base, "name": f"{column}-{number}", column: value}
            answer = client.post(
                "/jobs", content=json.dumps(job), headers={"content-type": "application/json"}
            )
            assert answer.status_code in (201, 403, 409, 422), (column, value, answer.text)
            if answer.status_code == 201:
                taken.append(answer.json()["name"])
            else:
                assert len(answer.json()["error"]) < 4000, (column, value)
    assert len(taken) > 50
    for _ in range(3):
        daemon._turn_safely()
        assert not daemon.problem
    for path in (
        "/jobs",
        "/cluster",
        "/metrics",
        "/events?last=100000",
        *(f"/jobs/{name}" for name in taken),
    ):
        assert client.get(path).status_code == 200
    assert {record.state for record in daemon.store.jobs()} >= {State.RUNNING, State.WAITING}
