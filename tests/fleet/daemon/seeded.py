"""A state with a history whose times are known, and a daemon that shows it at one moment."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from trainyard.fleet.daemon.store import Store
from trainyard.fleet.run.event import Event, Happening
from trainyard.fleet.run.job_directory import JobDirectory
from trainyard.fleet.run.past import Done
from trainyard.fleet.scheduler import scheduler_of
from trainyard.fleet.workload.job import Grant, Job
from trainyard.fleet.workload.own import read_form
from trainyard.fleet.workload.runnable import runnable_of
from trainyard.hardware.parse import parse_cluster

NOW_S = 1_700_010_000.0
WINDOW_S = 3600.0
CLUSTER = "2x2xlocal"
# Job, devices, and seconds before now from which and until which it had them; None until now.
SPANS = [("a", (0, 1), 4000.0, 3000.0), ("b", (2,), 3000.0, 2000.0), ("a", (0, 2), 1800.0, None)]
LOSSES = [5.0 - 0.1 * step + (0.3 if step % 3 else 0.0) for step in range(20)]
SECONDS = [0.5 + 0.01 * step for step in range(20)]
REASON = "asks for 4 devices, 2 are free; it is the 1st of those that wait"
OWNERS = {"a": "ann", "b": "bob", "c": "ann"}


def added(store: Store, name: str, num_devices: int, now_s: float) -> Job:
    """A job that is submitted."""
    form = {"name": name, "num_devices": num_devices, "model": "gpt-tiny", "batch_size": 4, "steps": 20}
    text = json.dumps(form)
    job = read_form(text, Path("form"))
    store.add(job, OWNERS[name], text, now_s)
    return job


def seeded_daemon(folder: Path) -> Any:
    """A daemon with two jobs that ran and one that waits: what its interface reads of it, at `NOW_S`."""
    store = Store(f"sqlite:///{folder / 'state.sqlite'}")
    jobs = {name: added(store, name, size, NOW_S - 5000.0) for name, size in (("a", 2), ("b", 1), ("c", 4))}
    happened = []
    for name, devices, start_s, end_s in SPANS:
        happened.append((start_s, name, Happening.RUNS, devices))
        if end_s is not None:
            what = Happening.ENDS if name == "b" else Happening.LEAVES
            happened.append((end_s, name, what, devices))
    for ago_s, name, what, devices in sorted(happened, reverse=True, key=lambda each: each[0]):
        store.write_event(Event(NOW_S - ago_s, jobs[name], what, Grant(devices)), Done(5.0, 6.0, 7.0))
    store.note_reason("c", REASON)
    directory = JobDirectory(folder / "jobs" / "a")
    directory.set_up(runnable_of(jobs["a"]))
    lines = [
        {"step": step, "losses": {"loss": loss}, "seconds": seconds}
        for step, (loss, seconds) in enumerate(zip(LOSSES, SECONDS, strict=True))
    ]
    (directory.logs / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return SimpleNamespace(
        cluster=parse_cluster(CLUSTER),
        store=store,
        scheduler=scheduler_of("fifo"),
        problem="",
        clock=lambda: NOW_S,
        directory=lambda name: JobDirectory(folder / "jobs" / name),
    )
