"""The events that a client reads of a daemon: the newest first, and as many as it asks for."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from test_daemon_restarts import CLUSTER, World, form

from trainyard.fleet.daemon.app import Api
from trainyard.fleet.daemon.daemon import Daemon
from trainyard.fleet.daemon.store import Store
from trainyard.fleet.daemon.users import Users
from trainyard.fleet.scheduler import scheduler_of
from trainyard.fleet.workload.own import read_form

NUM_JOBS = 60


@pytest.fixture
def client(tmp_path: Path) -> TestClient:
    """Client of a daemon to which jobs were submitted, one a second; each submission is an event."""
    store = Store(f"sqlite:///{tmp_path / 'state.sqlite'}")
    for number in range(NUM_JOBS):
        text = form(f"job{number}", 1)
        store.add(read_form(text, Path("form")), "", text, float(number))
    daemon = Daemon(CLUSTER, scheduler_of("fifo"), World(random.Random(0), 0.0), store, tmp_path)
    return TestClient(Api(daemon, Users()).app(), "http://localhost")


@pytest.mark.parametrize(
    ("path", "num_events"), [("/events", 50), ("/events?last=3", 3), ("/events?last=1000", NUM_JOBS)]
)
def test_the_newest_events_come_first(client: TestClient, path: str, num_events: int) -> None:
    events = client.get(path).json()["events"]
    assert [event["at_s"] for event in events] == [float(NUM_JOBS - 1 - i) for i in range(num_events)]
