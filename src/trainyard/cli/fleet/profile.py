"""`trainyard fleet profile`: predict how fast a model trains on all devices of a cluster, as a profile for jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from trainyard.cli.bounds import ROWS, STEPS
from trainyard.cli.outputs import Output, writing
from trainyard.cli.screen import Common, Outcome, Screen
from trainyard.cli.step_options import Precision

if TYPE_CHECKING:
    from rich.table import Table

    from trainyard.fleet.workload.predict import Throughput

__all__ = ["Options", "act"]


@dataclass(frozen=True)
class Options(Common):
    """Predict the speed of a model on every type and number of devices of a cluster, within a node and over nodes."""

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """Name of a model such as gpt2, or a Python file that defines model()."""
    cluster: Annotated[str, tyro.conf.arg(metavar="C")]
    """NODESxDEVICESxTYPE with types as `trainyard hardware` lists them, pools joined by +."""
    strategies: Annotated[str, tyro.conf.arg(metavar="auto|A+B")] = "data_parallel"
    """Strategies that spread the model over devices, joined by +: published systems, or auto, which searches."""
    rows: Annotated[int | None, tyro.conf.arg(metavar="N"), ROWS] = None
    """Rows of the batch of one step, for a model by name. They are divided over the devices."""
    dtype: Precision = "float32"
    devices: Annotated[str, tyro.conf.arg(metavar="N,N,...")] = ""
    """Numbers of devices to ask for; by default all over which the rows divide, and powers of two."""
    steps: Annotated[int, tyro.conf.arg(metavar="N"), STEPS] = 1000
    """Steps of the job that --save writes."""
    save: Annotated[Path | None, tyro.conf.arg(metavar="FILE"), Output.FILE] = None
    """Write a job with these speeds, CSV or YAML: a trace for `fleet simulate`, or a line to copy into yours."""


def act(options: Options, screen: Screen) -> Outcome:
    """Predict and show."""
    from trainyard.fleet.errors import FleetError
    from trainyard.fleet.workload.own import write_jobs
    from trainyard.fleet.workload.predict import predicted_job, throughput_table
    from trainyard.hardware.parse import parse_cluster
    from trainyard.job.planning import load_model

    if options.steps < 1:
        raise FleetError(f"a job has at least one step, got --steps {options.steps}")
    cluster, counts = parse_cluster(options.cluster), _numbers(options.devices)
    with screen.waiting("predicting") as progress:
        model = load_model(options.model, options.rows)
        table = throughput_table(
            model,
            cluster,
            options.strategies,
            options.dtype,
            counts,
            lambda done, count: progress("predicting", f"{done} of {count} places done"),
        )
    job = predicted_job(Path(options.model).stem, model, options.steps, table)
    if options.save is not None:
        with writing("job", options.save):
            write_jobs([job], options.save)
        screen.say(f"job {job.name} written to {options.save}")
    document = {
        "model": model.name,
        "cluster": cluster.name,
        "strategies": options.strategies,
        "dtype": options.dtype,
        "rows": job.batch_size,
        "throughputs": [_entry(entry) for entry in table],
        "speeds": str(job.profile),
    }
    title = (
        f"{model.name}, {job.batch_size} rows a step, by {options.strategies} on {cluster.name}: predicted"
    )
    return Outcome(document, (_table(title, table, job.batch_size),))


def _numbers(text: str) -> tuple[int, ...]:
    from trainyard.fleet.errors import FleetError
    from trainyard.reading import shown
    from trainyard.reading.limits import MOST_DEVICES

    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() and len(part) <= len(str(MOST_DEVICES)) for part in parts):
        raise FleetError(
            f"--devices {shown(text)} is not numbers separated by commas; write for example 1,2,4"
        )
    return tuple(map(int, parts))


def _entry(entry: Throughput) -> dict[str, Any]:
    return {
        "device_type": entry.spot.device_type,
        "num_devices": entry.spot.num_devices,
        "num_nodes": entry.spot.num_nodes,
        "devices_per_node": entry.spot.per_node,
        "steps_per_s": entry.steps_per_s,
        "reason": entry.reason,
    }


def _table(title: str, table: Sequence[Throughput], num_rows: int) -> Table:
    """One row per place; those where the model cannot run say why."""
    from trainyard.report.tables import make_table
    from trainyard.report.units import number_text

    rows: list[tuple[str, ...]] = []
    for entry in table:
        runs = entry.steps_per_s > 0
        rows.append(
            (
                entry.spot.device_type,
                "" if runs else entry.reason,
                str(entry.spot.num_devices),
                str(entry.spot.num_nodes),
                number_text(entry.steps_per_s, 4) if runs else "-",
                number_text(entry.steps_per_s * num_rows, 4) if runs else "-",
            )
        )
    if not any(row[1] for row in rows):
        rows = [(row[0], *row[2:]) for row in rows]
        return make_table(title, ("type", "devices", "nodes", "steps/s", "rows/s"), rows)
    return make_table(title, ("type", "cannot run", "devices", "nodes", "steps/s", "rows/s"), rows, 2)
