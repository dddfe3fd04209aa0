"""The page of the daemon in a browser that stays open: it shows what happens, by itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from browser import CHROMIUM, opened
from daemons import TRAINING, Running, answering, serving

from trainyard.fleet.daemon.app import Api
from trainyard.fleet.daemon.store import Store
from trainyard.fleet.daemon.users import Users
from trainyard.fleet.scheduler import scheduler_of
from trainyard.hardware.parse import parse_cluster
from trainyard.private import write_private

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="needs Chromium: none is on the PATH, and CHROMIUM is not set"
)

ANN = "ann-has-this-token"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("page")
    tokens = folder / "tokens"
    write_private(tokens, f"ann:{ANN}\n")
    options = ("--cluster", "1x1xlocal", "--policy", "fifo", "--token-file", str(tokens))
    with serving(folder / "fleet", *options) as running:
        yield running


@pytest.mark.slow
def test_it_shows_jobs_start_and_end(daemon: Running, tmp_path: Path) -> None:
    """Without being loaded again, and without anybody doing anything in it."""
    with opened(f"{daemon.url}/#token={ANN}", tmp_path) as page:
        page.wait("running", "none")
        page.wait("about", "0 of 1 devices in use")
        page.value("window.first = true")
        daemon.ask("POST", "/jobs", {"name": "long", **TRAINING, "steps": 1_000_000}, ANN)
        daemon.ask("POST", "/jobs", {"name": "brief", **TRAINING, "steps": 3}, ANN)
        page.wait("running", "long", "gpt-tiny", "steps/s")
        assert page.value("document.querySelectorAll('#running svg circle').length") == 2, "loss and speed"
        page.wait("queue", "brief", "0 are free")
        page.wait("nodes", "0: long")
        page.wait("about", "1 of 1 devices in use")
        daemon.ask("DELETE", "/jobs/long", token=ANN)
        page.wait("over", "long", "cancelled", "brief", "ended")
        page.wait("running", "none")
        page.wait("nodes", "0: free")
        page.wait("history", "brief", "ends")
        drawn = "[...document.querySelectorAll('#timeline rect')].map(bar => bar.dataset.job)"
        assert sorted(page.value(drawn)) == ["brief", "long"]
        assert page.value("window.first") is True
        assert page.text("errors") == ""


def test_a_token_is_asked_for_and_taken(daemon: Running, tmp_path: Path) -> None:
    with opened(daemon.url, tmp_path) as page:
        page.wait("errors", "a token is needed")
        assert page.is_shown("login")
        assert "devices in use" not in page.text("about")
        page.value("document.getElementById('token').focus()")
        page.ask("Input.insertText", text=ANN)
        page.value("document.querySelector('#login button').click()")
        page.wait("about", "1x1xlocal under fifo")
        assert not page.is_shown("login")
        assert page.text("errors") == ""


def test_a_node_that_is_away_is_shown(tmp_path: Path) -> None:
    """It goes and comes back while the page is open."""
    cluster, store = parse_cluster("2x1xlocal"), Store(f"sqlite:///{tmp_path / 'state.sqlite'}")
    daemon = SimpleNamespace(
        cluster=cluster, store=store, scheduler=scheduler_of("fifo"), problem=None, clock=lambda: 1.0
    )
    with answering(Api(daemon, Users.read(None))) as url, opened(url, tmp_path) as page:
        assert "away" not in page.wait("nodes", "node 0, local", "node 1, local")
        daemon.cluster = cluster.without({1})
        assert "node 0, local: away" not in page.wait("nodes", "node 1, local: away")
        page.wait("about", "0 of 1 devices in use")
        daemon.cluster = cluster
        page.wait("about", "0 of 2 devices in use")
        assert "away" not in page.text("nodes")
