"""One scheduler at a time has a folder of jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainyard.cli import main as cli
from trainyard.fleet.errors import FleetError
from trainyard.fleet.run import backends
from trainyard.fleet.run.only_scheduler import only_scheduler


def test_a_second_one_is_refused_also_where_the_lock_was_deleted(tmp_path: Path) -> None:
    with only_scheduler(tmp_path, tmp_path / "jobs"):
        for _ in range(2):
            for folder in (tmp_path, tmp_path / "jobs"):  # another daemon, or a run there
                with pytest.raises(FleetError, match="a daemon or a run has"), only_scheduler(folder, folder):
                    pass
            (tmp_path / "scheduler.lock").unlink()
    for folder in (tmp_path, tmp_path / "jobs"):
        with only_scheduler(folder, folder):
            pass


def test_a_run_leaves_the_jobs_of_another_scheduler_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "check_runnable", lambda *_: None)  # which takes seconds
    (tmp_path / "jobs.yaml").write_text(
        "jobs:\n- {name: a, num_devices: 1, arrival_s: 0, model: gpt-tiny, batch_size: 4, steps: 8}\n"
    )
    folder = tmp_path / "fleet"
    command = ("fleet", "run", "--trace", str(tmp_path / "jobs.yaml"), "--cluster", "1x1xlocal")
    with only_scheduler(folder, folder):
        before = set(folder.iterdir())
        assert cli.main((*command, "--folder", str(folder))) == 2
        assert set(folder.iterdir()) == before
    assert f"a daemon or a run has {folder} already; stop it" in capsys.readouterr().err
