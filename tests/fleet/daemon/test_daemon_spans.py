"""Which jobs had which devices, and what is asked of a part of the jobs only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from seeded import LOSSES, NOW_S, SECONDS, added, seeded_daemon

from trainyard.fleet.daemon import app as apps
from trainyard.fleet.daemon.app import Api
from trainyard.fleet.daemon.store import Store
from trainyard.fleet.daemon.users import Users
from trainyard.fleet.run.event import Event, Happening
from trainyard.fleet.span import Span
from trainyard.fleet.workload.job import Grant

TOKENS = {"token-of-ann": "ann", "token-of-bob": "bob", "token-of-eve": "eve"}


@pytest.fixture
def client(tmp_path: Path) -> TestClient:
    users = Users(TOKENS, frozenset({"eve"}))
    return TestClient(Api(seeded_daemon(tmp_path), users).app(), "http://localhost")


def asked(client: TestClient, path: str, user: str = "ann", status: int = 200) -> Any:
    answer = client.get(path, headers={"authorization": f"Bearer token-of-{user}"})
    assert answer.status_code == status, answer.text
    return answer.json()


@pytest.mark.parametrize(
    ("path", "spans"),
    [
        ("/spans?within_s=2500", [("a", 1800, None, [[0, 1], [2, 1]]), ("b", 3000, 2000, [[2, 1]])]),
        ("/spans?within_s=1", [("a", 1800, None, [[0, 1], [2, 1]])]),
        ("/spans?last=1", [("a", 1800, None, [[0, 1], [2, 1]])]),
        ("/spans?last=0", []),
    ],
)
def test_spans_of_a_window_come_newest_first(
    client: TestClient, path: str, spans: Sequence[tuple[str, int, int | None, list[list[int]]]]
) -> None:
    found = asked(client, path)
    assert found["now_s"] == NOW_S
    assert [
        (s["job"], NOW_S - s["start_s"], None if s["end_s"] is None else NOW_S - s["end_s"], s["devices"])
        for s in found["spans"]
    ] == spans
    assert found["is_cut"] == ("last" in path)


@pytest.mark.parametrize("within", ["nan", "-5", "inf"])
def test_no_window_is_an_error_of_the_daemon(client: TestClient, within: str) -> None:
    assert len(asked(client, f"/spans?within_s={within}")["spans"]) == (3 if within == "inf" else 1)


def test_an_answer_is_bounded_however_devices_are_scattered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apps, "_MOST_RUNS", 5)
    spans = [Span(f"job{i}", 1.0, math.inf, (0, 2, 3, 4)) for i in range(9)]
    found = apps.spans_document(spans, 0.0, 2.0, most=100)
    assert [span["job"] for span in found["spans"]] == ["job0", "job1"]
    assert found["spans"][0]["devices"] == [[0, 1], [2, 3]]
    assert found["is_cut"]
    assert not apps.spans_document(spans[:2], 0.0, 2.0, most=100)["is_cut"]


def test_a_job_that_stays_goes_on_with_its_span(tmp_path: Path) -> None:
    """As a new daemon finds it; of a state without spans, the span begins then."""
    store = Store(f"sqlite:///{tmp_path / 'state.sqlite'}")
    a, b = (added(store, name, 2, 1.0) for name in ("a", "b"))
    store.write_event(Event(2.0, a, Happening.RUNS, Grant((0, 1))), None)
    store.write_event(Event(5.0, a, Happening.STAYS, Grant((0, 1))), None)
    store.write_event(Event(6.0, b, Happening.STAYS, Grant((2, 3))), None)
    store.write_event(Event(7.0, a, Happening.ENDS, Grant((0, 1))), None)
    store.fail("b", "its form cannot be read", 8.0)
    assert store.spans(0.0, 9) == [Span("b", 6.0, 8.0, (2, 3)), Span("a", 2.0, 7.0, (0, 1))]
    assert store.spans(7.0, 9) == [Span("b", 6.0, 8.0, (2, 3))]


def test_a_job_that_runs_anew_where_it_was_has_a_second_span(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'state.sqlite'}")
    a = added(store, "a", 2, 1.0)
    for now_s in (2.0, 5.0):
        store.write_event(Event(now_s, a, Happening.RUNS, Grant((0, 1))), None)
    assert store.spans(0.0, 9) == [Span("a", 5.0, math.inf, (0, 1)), Span("a", 2.0, 5.0, (0, 1))]


def test_an_event_that_is_written_twice_makes_one_span(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'state.sqlite'}")
    event = Event(2.0, added(store, "a", 2, 1.0), Happening.RUNS, Grant((0, 1)))
    for _ in range(2):
        store.write_event(event, None, "key")
    assert len(store.spans(0.0, 9)) == 1


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("/jobs", ["a", "b", "c"]),
        ("/jobs?user=ann", ["a", "c"]),
        ("/jobs?user=bob&last=0", []),
        ("/jobs?user=ann&last=0", ["a", "c"]),
        ("/jobs?user=nobody", []),
        ("/jobs?user=%00", []),
        ("/jobs?state=ended", ["b"]),
        ("/jobs?state=ended,%20waiting", ["b", "c"]),
        ("/jobs?state=running&user=ann", ["a"]),
    ],
)
def test_jobs_of_a_user_or_in_a_state(client: TestClient, path: str, names: list[str]) -> None:
    assert [job["name"] for job in asked(client, path)["jobs"]] == names


def test_a_state_that_there_is_not(client: TestClient) -> None:
    said = asked(client, "/jobs?state=running,over", status=422)["error"]
    assert said.startswith(
        "state is one of waiting, running, cancelling, cancelled, ended, refused, failed, or"
    )
    assert said.endswith("not 'running,over'")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/curves?user=bob", "/curves has no parameter 'user'; its parameters: last"),
        ("/jobs/a/log?line=3", "/jobs/a/log has no parameter 'line'; its parameters: lines"),
        ("/jobs/a?last=3", "/jobs/a has no parameter 'last'; it has none"),
        ("/jobs?state=running&state=waiting", "parameter state is there 2 times; give it once"),
    ],
)
def test_a_parameter_that_there_is_not(client: TestClient, path: str, said: str) -> None:
    assert asked(client, path, status=422)["error"] == said


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/events?user=bob", ["b ends", "b runs", "b arrives"]),
        ("/events?user=ann&last=1", ["a runs"]),
        ("/events?job=c", ["c arrives"]),
        ("/events?job=b&user=ann", []),
        ("/events?job=%00", []),
    ],
)
def test_events_of_a_user_or_a_job(client: TestClient, path: str, told: list[str]) -> None:
    assert [f"{event['job']} {event['what']}" for event in asked(client, path)["events"]] == told


@pytest.mark.parametrize(
    ("user", "names"), [("ann", ["a"]), ("bob", ["b"]), ("eve", ["a", "b"])], ids=["ann", "bob", "admin"]
)
def test_curves_are_of_jobs_whose_log_one_may_read(client: TestClient, user: str, names: list[str]) -> None:
    curves = asked(client, "/curves", user)["curves"]
    assert list(curves) == names
    if "a" in curves:
        points = [[step + 1, LOSSES[step], pytest.approx(1 / SECONDS[step])] for step in range(20)]
        assert curves["a"] == points
    assert curves.get("b", []) == [], "it has no folder any more"


def test_curves_begin_with_jobs_that_run(client: TestClient) -> None:
    assert list(asked(client, "/curves?last=1", "eve")["curves"]) == ["a"]
    assert asked(client, "/curves?last=-3", "eve")["curves"] == {}


def test_no_more_curves_are_read_at_once_than_allowed(tmp_path: Path) -> None:
    api = Api(seeded_daemon(tmp_path), Users())
    client = TestClient(api.app(), "http://localhost")
    with ExitStack() as held:
        for _ in range(4):
            held.enter_context(api._readers.taken())
        answer = client.get("/curves")
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
        assert client.get("/jobs").status_code == 200
    assert client.get("/curves").status_code == 200
