"""One daemon at a time has a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainyard.fleet.daemon.daemon import only_daemon
from trainyard.fleet.errors import FleetError


def test_a_second_daemon_is_refused_also_where_the_lock_was_deleted(tmp_path: Path) -> None:
    with only_daemon(tmp_path):
        for _ in range(2):
            with pytest.raises(FleetError, match="a daemon runs in"), only_daemon(tmp_path):
                pass
            (tmp_path / "daemon.lock").unlink()
    with only_daemon(tmp_path):
        pass
