"""Static traces of Synergy, and how sensitive its models are to CPUs and memory.

Mohan et al., "Looking Beyond GPUs for DNN Scheduling on Multi-Tenant Clusters", OSDI 2022; msr-fiddle/synergy. A trace
has no header: job_id, model, arrival in seconds, iterations, gpus.

``model_sensitivity.json`` gives, by ``<model>_<gpus>``, the seconds of an iteration at the proportional share of a node
(3 CPUs and 62.5 GB per GPU), and the throughput relative to that by CPUs per GPU (``CPUS``) and memory per GPU
(``MEMORY_GB``). As the authors' simulator does, gangs of every size take the table of one GPU.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from trainyard.fleet.errors import FleetError
from trainyard.fleet.workload.job import Grant, Job, Spot
from trainyard.fleet.workload.readers.formats import Format
from trainyard.fleet.workload.readers.table import Table
from trainyard.reading import parse_json, raised_as, read_text, shortened
from trainyard.reading.head import Head
from trainyard.reading.left_out import LeftOut
from trainyard.reading.rows import Row

CPUS = (1, 2, 3, 4, 5, 6, 9, 12, 24)
"""CPUs per GPU of every row of a table."""
MEMORY_GB = (20.83, 62.5, 125.0, 187.5, 250.0)
"""Memory per GPU of every column of a table, in 10^9 bytes."""
SHARE_CPUS, SHARE_BYTES = 3.0, 62.5e9
"""The proportional share of a GPU on the authors' nodes of 8 GPUs, 24 CPUs and 500 GB."""

_COLUMNS = ("job_id", "model", "arrival", "iterations", "gpus")


@dataclass(frozen=True)
class Sensitivity:
    """How fast a model runs, in iterations per second.

    Attributes
    ----------
    iteration_s : at the proportional share.
    relative : throughput by row of ``CPUS`` and column of ``MEMORY_GB``, where 1 is at the proportional share.
    spread : factor where devices are on more than one node.
    """

    iteration_s: float
    relative: tuple[tuple[float, ...], ...]
    spread: float
    batch_size: int

    def speedup(self, cpus: float, memory_bytes: float) -> float:
        """Throughput with so much per GPU: of the largest class that it fills; below the smallest, in proportion."""
        row = bisect_right(CPUS, cpus) - 1
        # A hundredth of slack: classes are rounded, and a third of 62.5 GB is to count as 20.83.
        column = max(bisect_right(MEMORY_GB, memory_bytes / 1e9 * 1.01) - 1, 0)
        return self.relative[row][column] if row >= 0 else self.relative[0][column] * cpus / CPUS[0]


@dataclass(frozen=True)
class SynergyProfile:
    """A job of a model on so many devices.

    Attributes
    ----------
    num_devices : of the gang; on others it runs proportionally.
    """

    sensitivity: Sensitivity
    num_devices: int

    def work_per_s(self, spot: Spot, grant: Grant) -> float:
        cpus = grant.cpus / spot.num_devices if grant.cpus else SHARE_CPUS
        memory_bytes = grant.memory_bytes / spot.num_devices if grant.memory_bytes else SHARE_BYTES
        gang = grant.share * spot.num_devices / self.num_devices
        spread = self.sensitivity.spread if spot.num_nodes > 1 else 1.0
        return gang * spread * self.sensitivity.speedup(cpus, memory_bytes) / self.sensitivity.iteration_s


def read_sensitivities(path: Path) -> dict[str, Sensitivity]:
    """Models by name.

    Raises
    ------
    FleetError
        If it is no such file.
    """
    try:
        with raised_as(FleetError):
            tables: Mapping[str, Mapping[str, object]] = parse_json(read_text(path), path)
        found = {
            name.removesuffix("_1"): _sensitivity(t) for name, t in tables.items() if name.endswith("_1")
        }
    except FleetError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise FleetError(
            f"{path}: not a table of sensitivities ({shortened(repr(error))}); allowed is '<model>_1': iter_time, tput, "
            "placement_penalty, batch"
        ) from error
    return found


def _sensitivity(table: Mapping[str, object]) -> Sensitivity:
    relative = tuple(tuple(float(x) for x in row) for row in table["tput"])  # type: ignore[attr-defined]
    if len(relative) != len(CPUS) or {len(row) for row in relative} != {len(MEMORY_GB)}:
        raise ValueError(f"{table['name']}: tput must have {len(CPUS)} rows of {len(MEMORY_GB)}")
    iteration_s, spread = (float(table[key]) for key in ("iter_time", "placement_penalty"))  # type: ignore[arg-type]
    if iteration_s <= 0 or spread < 0 or min(map(min, relative)) < 0:
        raise ValueError(f"{table['name']}: iter_time must be above 0, and nothing below it")
    return Sensitivity(iteration_s, relative, spread, int(table["batch"]))  # type: ignore[call-overload]


def read_synergy(path: Path, profiles: Path | None = None, left_out: LeftOut | None = None) -> Iterator[Job]:
    """Jobs of a trace. They ask for devices only: CPUs and memory make them faster, as their profiles say.

    Parameters
    ----------
    profiles : ``model_sensitivity.json``.
    """
    assert profiles is not None
    models = read_sensitivities(profiles)

    def job(row: Row, arrival_s: float) -> Job:
        name, size = row.fields["model"], row.count("gpus", 1)
        if name not in models:
            raise row.error("model", ", ".join(models))
        model = models[name]
        return Job(
            row.fields["job_id"],
            arrival_s,
            size,
            float(row.count("iterations", 1)),
            SynergyProfile(model, size),
            model=name,
            batch_size=model.batch_size,
        )

    table = Table(path, _COLUMNS, _COLUMNS, left_out=left_out)
    return table.in_order(lambda row: row.number("arrival"), job, "job_id")


def _matches(head: Head) -> bool:
    fields = head.first.split(",")
    numbers = (
        [fields[k].strip().replace(".", "", 1).isdigit() for k in (0, 2, 3, 4)]
        if len(fields) == 5
        else [False]
    )
    return all(numbers) and not fields[1].strip().isdigit()


FORMAT = Format(
    "synergy",
    "Synergy: CSV of models and iterations, without a header",
    _matches,
    read_synergy,
    profiles="model_sensitivity.json",
    needs_profiles=True,
)
