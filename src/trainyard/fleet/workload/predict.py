"""The table of a model's speeds on a cluster, which other schedulers have their users measure: level 1 predicts it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainyard.fleet.errors import FleetError
from trainyard.fleet.workload.job import Job, Spot
from trainyard.fleet.workload.questions import predicted_steps_per_s
from trainyard.fleet.workload.speeds import Speeds, spots
from trainyard.fleet.workload.training import cluster_text
from trainyard.hardware.cluster import Cluster

if TYPE_CHECKING:
    from trainyard.program.model import Model


@dataclass(frozen=True)
class Throughput:
    """How fast a model trains in one place.

    Attributes
    ----------
    spot : the devices.
    steps_per_s : steps of the whole batch in a second; 0 where it cannot run.
    reason : why it cannot.
    """

    spot: Spot
    steps_per_s: float
    reason: str = ""


def throughput_table(
    model: Model,
    cluster: Cluster,
    strategies: str = "data_parallel",
    dtype: str = "float32",
    num_devices: Iterable[int] = (),
    tell: Callable[[int, int], None] = lambda done, count: None,
) -> tuple[Throughput, ...]:
    """Predict how fast a model trains on every type and number of devices of a cluster, within a node and over nodes.

    Parameters
    ----------
    model : any that level 1 takes: of the zoo or your own, with its loss and the batch of one step.
    strategies : how it is spread over devices, as ``parse_strategies`` reads them.
    num_devices : to ask for; by default the divisors of the batch's rows, and the powers of two.
    tell : hears how many of the places are done.

    Raises
    ------
    FleetError
        If level 1 does not know a type of device, or no type has so many.
    PlanError
        If there are no such strategies.
    """
    from trainyard.hardware import parse_cluster
    from trainyard.job.catalog import parse_strategies
    from trainyard.job.task import Task

    parse_strategies(strategies)
    task, most = Task(model, dtype), int(cluster.devices_of_type.max())
    counts = sorted(set(num_devices)) or [
        n for n in range(1, most + 1) if task.num_rows % n == 0 or n.bit_count() == 1
    ]
    if counts[0] < 1 or counts[-1] > most:
        raise FleetError(
            f"numbers of devices are from 1 to {most}, what cluster {cluster.name!r} has of one type; got "
            f"{', '.join(map(str, counts))}"
        )
    places = tuple(spots(cluster, counts))
    clusters = [parse_cluster(cluster_text([(s.device_type, n) for n in s.per_node])) for s in places]
    table = []
    for spot, cluster in zip(places, clusters, strict=True):
        table.append(Throughput(spot, *predicted_steps_per_s(task, cluster, strategies)))
        tell(len(table), len(places))
    return tuple(table)


def predicted_job(name: str, model: Model, num_steps: int, table: Sequence[Throughput]) -> Job:
    """A job that trains a model for so many steps, as fast as a table says; it can be resized within that.

    Raises
    ------
    FleetError
        If the model runs nowhere; the message says why.
    """
    from trainyard.program.batch import batch_rows

    runs = [entry for entry in table if entry.steps_per_s > 0]
    if not runs:
        raise FleetError(f"{model.name} runs nowhere on this cluster: {table[-1].reason}")
    sizes = sorted(entry.spot.num_devices for entry in runs)
    # Types on which only larger gangs run are left out: no policy shall start it where it stands still.
    kinds = dict.fromkeys(e.spot.device_type for e in runs if e.spot.num_devices == sizes[0])
    runs = [entry for entry in runs if entry.spot.device_type in kinds]
    return Job(
        name,
        0.0,
        sizes[0],
        float(num_steps),
        Speeds.of((entry.spot, entry.steps_per_s) for entry in runs),
        min_devices=sizes[0],
        max_devices=max(entry.spot.num_devices for entry in runs),
        device_types=tuple(kinds),
        model=model.name,
        batch_size=batch_rows(model.batch, model.whole),
    )
