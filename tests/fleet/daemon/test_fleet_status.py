"""`trainyard fleet status` of a daemon: jobs by user, state and node, a summary, and events in order of time."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from daemons import answering
from seeded import NOW_S, seeded_daemon

from trainyard.cli import main as cli
from trainyard.fleet.daemon.app import Api
from trainyard.fleet.daemon.users import Users


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with answering(Api(seeded_daemon(tmp_path_factory.mktemp("status")), Users())) as found:
        yield found


@pytest.fixture
def told(url: str, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run the command; what it prints."""

    def run(*options: str) -> str:
        assert cli.main(("fleet", "status", "--server", url, *options)) == 0
        return re.sub(" +$", "", capsys.readouterr().out, flags=re.M)

    return run


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ((), ["a", "b", "c"]),
        (("--user", "ann"), ["a", "c"]),
        (("--state", "waiting,ended"), ["b", "c"]),
        (("--node", "0"), ["a"]),
        (("--node", "1", "--user", "bob"), []),
        (("--user", "ann", "--state", "waiting"), ["c"]),
    ],
)
def test_jobs_are_listed_by_what_is_asked(
    told: Callable[..., str], options: tuple[str, ...], names: list[str]
) -> None:
    assert [job["name"] for job in json.loads(told(*options, "--json"))["jobs"]] == names
    shown = told(*options)
    assert shown.startswith("2x2xlocal under fifo: 2 of 4 devices in use\n")
    assert re.findall(r"^ ([abc]) +(?:ann|bob) ", shown, re.M) == names
    assert ("no such jobs" in shown) == (not names)


def test_users_and_nodes_are_summed_up(told: Callable[..., str]) -> None:
    shown = re.sub(" +", " ", told("--summary"))
    assert "\n ann 1 1 0 2 7.0 s\n bob 0 0 1 0 7.0 s\n" in shown
    assert "\n 0 local 1 of 2 1\n 1 local 1 of 2 1\n" in shown
    found = json.loads(told("--summary", "--json"))
    assert found["by_user"][0] == {
        "user": "ann", "waiting": 1, "running": 1, "over": 0, "num_devices": 2, "attained_device_s": 7.0
    }  # fmt: skip
    assert [node["num_devices_in_use"] for node in found["by_node"]] == [1, 1]
    of_bob = json.loads(told("--summary", "--user", "bob", "--json"))
    assert [node["num_jobs"] for node in of_bob["by_node"]] == [0, 0]


def test_events_come_in_order_of_time(told: Callable[..., str]) -> None:
    found: list[dict[str, Any]] = json.loads(told("--events", "4", "--json"))["events"]
    assert [(event["job"], event["what"], NOW_S - event["at_s"]) for event in found] == [
        ("a", "leaves", 3000.0),
        ("b", "runs", 3000.0),
        ("b", "ends", 2000.0),
        ("a", "runs", 1800.0),
    ]
    shown = told("--events", "9", "--user", "bob")
    assert re.findall(r"^ \d{4}-\d\d-\d\d \d\d:\d\d:\d\d +b +(\S+)", shown, re.M) == [
        "arrives",
        "runs",
        "ends",
    ]
    assert told("--events", "0") == "no events\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--node", "2"), "--node 2: the nodes of 2x2xlocal are 0 to 1"),
        (("--state", "over"), "state is one of waiting, running, "),
        (("--events", "5", "--summary"), "leave --state, --node and --summary out"),
        (("--events", "5", "--node", "1"), "leave --state, --node and --summary out"),
        (("--events", "-1"), "--events -1: allowed is 0 to 1,000,000"),
    ],
)
def test_what_cannot_be_is_one_line(
    url: str, options: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(("fleet", "status", "--server", url, *options)) == 2
    shown = capsys.readouterr().err
    assert said in shown
    assert shown.count("\n") == 1
