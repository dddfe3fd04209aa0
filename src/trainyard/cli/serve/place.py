"""`trainyard serve place`: which models are on which devices of a cluster, by one or more policies."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import tyro

from trainyard.cli.bounds import BURSTINESS, RATE, REQUESTS, SEED
from trainyard.cli.outputs import Output
from trainyard.cli.quantities import Duration, Size, quantity
from trainyard.cli.screen import Common, Outcome, Screen

if TYPE_CHECKING:
    from trainyard.hardware.cluster import Cluster
    from trainyard.reading.left_out import LeftOut
    from trainyard.serve.placing.compare import CannotPlace, PlacementRun
    from trainyard.serve.placing.problem import ModelToPlace
    from trainyard.serve.policies.alpaserve.problem import Arrivals

__all__ = ["Options", "act"]

_RATE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?(?:e-?\d{1,2})?)/s", re.ASCII)
_DRAWN = {"num": 5000, "burstiness": 1.0, "seed": 0}
_OF_TRACES = ("format", "limit", "time_scale", "strict")


@dataclass(frozen=True, kw_only=True)
class Options(Common):
    """Place many models on a cluster, and simulate how many requests meet their objectives."""

    models: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODELS")]
    """Models, separated by commas, each as name:rate:objective: resnet50:200/s:50ms,gpt2:20/s:80ms.
    A model is a name of the zoo, a Python file, or a profile of Nexus (FILE.txt)."""
    cluster: Annotated[str, tyro.conf.arg(metavar="C")]
    """The devices, all of one type: NODESxDEVICESxTYPE, such as 1x4xA100-80G; or a YAML file."""
    policy: Annotated[str, tyro.conf.arg(metavar="A,B,...")] = "alpaserve,nexus,replicate,auto"
    """Placement policies, separated by commas, with options in parentheses."""
    requests: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Instead of rates: a trace whose requests name their models."""
    format: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Format of the trace; by default recognised by its contents."""
    limit: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Take only the first requests of the trace."""
    time_scale: Annotated[float | None, tyro.conf.arg(metavar="X")] = None
    """Multiply the trace's arrival times: 0.5 is twice the load."""
    strict: bool = False
    """Stop at the first row of the trace that cannot be read; by default such rows are left out and counted."""
    num: Annotated[int | None, tyro.conf.arg(metavar="N"), REQUESTS] = None
    """About how many requests to draw, for all models together; by default 5000."""
    burstiness: Annotated[float | None, tyro.conf.arg(metavar="X"), BURSTINESS] = None
    """Coefficient of variation of the gaps between drawn requests: 1 (default) is Poisson, more is bursty."""
    seed: Annotated[int | None, tyro.conf.arg(metavar="N"), SEED] = None
    """Random seed of drawn requests; by default 0."""
    e2e: Duration | None = None
    """Objective for the end-to-end time, such as 100ms, of models without one of their own."""
    dtype: Annotated[str, tyro.conf.arg(metavar="NAME")] = "bfloat16"
    """Type of the weights and of the computation: float32, float16 or bfloat16."""
    weight_memory: Size | None = None
    """Memory of each device for weights, such as 10GB; by default all that a server may use."""
    html: Annotated[Path | None, tyro.conf.arg(metavar="FILE"), Output.FILE] = None
    """Write a page with a picture of each placement."""
    save: Annotated[Path | None, tyro.conf.arg(metavar="FILE"), Output.FILE] = None
    """Write the best placement to a file, which `serve run --placement` reads."""


class _Asked(NamedTuple):
    """A model as it is asked for; None where something is not given."""

    source: str
    rate_per_s: float | None
    objective_s: float | None

    @property
    def name(self) -> str:
        return Path(self.source).stem if self.source.endswith((".txt", ".py")) else self.source


class _Given(NamedTuple):
    """Requests to place by, those to measure by, and what they are."""

    history: Arrivals
    served: Arrivals
    title: str
    left_out: LeftOut | None = None


def act(options: Options, screen: Screen) -> Outcome:
    """Place."""
    from trainyard.hardware.parse import parse_cluster
    from trainyard.report.serve_place import place_document, place_tables
    from trainyard.report.serve_place_page import serve_place_page
    from trainyard.serve.errors import ServeError
    from trainyard.serve.placement_document import placement_text
    from trainyard.serve.placing.compare import compare_placements
    from trainyard.serve.placing.policies import parse_placers
    from trainyard.serve.placing.problem import PlacingProblem, mean_rates

    asked, cluster = _asked(options), parse_cluster(options.cluster)
    if len({device.name for device in cluster.devices}) > 1:
        raise ServeError(f"{options.cluster} has devices that are not alike; give a cluster of like ones")
    parse_placers(options.policy)
    given = _requests(options, asked)
    mean_rates(given.history, len(asked))  # refuses requests without a rate before any work
    device_bytes = _weight_bytes(options, cluster)
    models = _models(options, screen, asked, cluster)
    problem = PlacingProblem(models, cluster.num_devices, device_bytes, given.history)
    with screen.waiting("placing") as progress:
        runs, cannot = compare_placements(options.policy, problem, given.served, partial(progress, "placing"))
    if given.left_out is not None and given.left_out.warning:
        screen.say(given.left_out.warning)
    title = f"{len(models)} model{'s' * (len(models) > 1)} on {options.cluster}: {given.title}"
    if options.html is not None and runs:
        screen.keep(serve_place_page(title, problem, runs, cannot), options.html)
    failure = _failure(models, runs, cannot)
    if options.save is not None and not failure:
        screen.keep(placement_text(runs[0].placed.placement), options.save, "placement")
    document = {
        "cluster": options.cluster,
        "requests": given.title,
        "rows": given.left_out.document("requests") if given.left_out is not None else None,
        **place_document(problem, runs, cannot),
    }
    lines = given.left_out.lines() if given.left_out is not None else ()
    return Outcome(document, (*place_tables(title, problem, runs, cannot), *lines), failure)


def _failure(
    models: Sequence[ModelToPlace], runs: Sequence[PlacementRun], cannot: Sequence[CannotPlace]
) -> str:
    """Why there is no placement that serves requests for every model; "" if there is one."""
    if not runs:
        return f"no policy could place the models: {cannot[0].name}: {cannot[0].why}"
    placed = {each.replica.model for run in runs for each in run.placed.replicas}
    asked = [each.name for each, num in zip(models, runs[0].placed.num_asked, strict=True) if num]
    if asked and not any(sum(run.placed.num_good) for run in runs):
        return "no request meets its objective under any policy; give longer objectives or more devices"
    if missing := [name for name in asked if name not in placed]:
        return (
            f"no policy has a place for {', '.join(missing)}; give devices with more memory, or more of them"
        )
    return ""


def _asked(options: Options) -> tuple[_Asked, ...]:
    """The models, each with what stands after its name."""
    from trainyard.reading.quantities import parse_seconds
    from trainyard.serve.errors import ServeError

    found = []
    for text in options.models.split(","):
        source, *more = (part.strip() for part in text.split(":"))
        rates = [match for part in more if (match := _RATE.fullmatch(part))]
        times = [part for part in more if not _RATE.fullmatch(part)]
        if (
            not source
            or len(rates) > 1
            or len(times) > 1
            or not all(RATE.allow(float(rate[1])) for rate in rates)
        ):
            raise ServeError(
                f"model {text.strip()!r}: allowed are a name, its requests per second ({RATE}) and its objective, "
                "such as resnet50:200/s:50ms"
            )
        objective_s = quantity(f"model {source}", times[0], parse_seconds) if times else options.e2e
        found.append(_Asked(source, float(rates[0][1]) if rates else None, objective_s))
    names = [each.name for each in found]
    if len(set(names)) < len(names):
        raise ServeError(f"models {', '.join(names)}: one stands there twice; name each once")
    for each in found:
        if each.objective_s is None:
            raise ServeError(
                f"model {each.source}: give an objective, as {each.source}:50ms, or --e2e for all"
            )
    return tuple(found)


def _requests(options: Options, asked: tuple[_Asked, ...]) -> _Given:
    """Read the requests of a trace, or draw a set to place by and another to measure by."""
    from trainyard.report.units import count_text
    from trainyard.serve.errors import ServeError
    from trainyard.serve.placing.problem import arrivals_of, drawn_arrivals
    from trainyard.serve.requests.read import read_requests

    kind, others = ("drawn requests", _OF_TRACES) if options.requests is None else ("a trace", tuple(_DRAWN))
    for name in others:
        if (given := getattr(options, name)) is not None and given is not False:
            raise ServeError(f"--{name.replace('_', '-')} says nothing of {kind}; leave it out")
    for each in asked:
        if (each.rate_per_s is None) == (options.requests is None):
            raise ServeError(
                f"model {each.source}: give its requests a second, as {each.source}:200/s, or --requests FILE"
                if options.requests is None
                else f"model {each.source}: its requests are those of --requests; leave its rate out"
            )
    if options.requests is None:
        rates = [each.rate_per_s or 0.0 for each in asked]
        how = {name: getattr(options, name) for name in _DRAWN}
        num, cv, seed = (_DRAWN[name] if value is None else value for name, value in how.items())
        history, served = (drawn_arrivals(rates, int(num), cv, 2 * int(seed) + i) for i in range(2))
        return _Given(
            history, served, f"{count_text(len(served.model), 'request')} drawn at {sum(rates):g}/s"
        )
    scale = 1.0 if options.time_scale is None else options.time_scale
    trace = read_requests(
        options.requests, options.format, options.limit, strict=options.strict, time_scale=scale
    )
    arrivals = arrivals_of(list(trace), [each.name for each in asked])
    title = f"{options.requests.name}: {count_text(len(arrivals.model), 'request')}"
    return _Given(arrivals, arrivals, title, trace.left_out)


def _models(
    options: Options, screen: Screen, asked: tuple[_Asked, ...], cluster: Cluster
) -> tuple[ModelToPlace, ...]:
    from trainyard.serve.placing.forward_pass import forward_pass, measured_pass
    from trainyard.serve.placing.problem import ModelToPlace

    found = []
    for each in asked:
        with screen.waiting(f"working out the seconds of {each.source}"):
            is_measured = each.source.endswith(".txt")
            forward = (
                measured_pass(Path(each.source))
                if is_measured
                else forward_pass(each.source, cluster, options.dtype)
            )
        found.append(ModelToPlace(each.name, forward, each.objective_s or 0.0))
    return tuple(found)


def _weight_bytes(options: Options, cluster: Cluster) -> float:
    from trainyard.hardware.devices import DeviceSpec
    from trainyard.reading.quantities import bytes_as_given
    from trainyard.report.units import bytes_text
    from trainyard.serve.deploy import usable_bytes
    from trainyard.serve.errors import ServeError

    if options.weight_memory is not None:
        given, device = options.weight_memory, cluster.devices[0]
        if isinstance(device, DeviceSpec) and given > device.usable_bytes:
            raise ServeError(
                f"--weight-memory {bytes_as_given(given)}: allowed is at most what a device has, "
                f"{bytes_text(device.usable_bytes)}"
            )
        return float(given)
    return float(usable_bytes(cluster.devices[0]))
