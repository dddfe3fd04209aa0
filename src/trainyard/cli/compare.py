"""`trainyard compare`: rank strategies on the same model and cluster."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro

from trainyard.cli.bounds import ROWS
from trainyard.cli.lists import between_commas
from trainyard.cli.outputs import Output
from trainyard.cli.screen import Common, Outcome, Screen
from trainyard.cli.step_options import Precision, StepOptions

__all__ = ["Options", "act"]


@dataclass(frozen=True)
class Options(StepOptions, Common):
    """Rank strategies on the same model and cluster, by predicted step time."""

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """Name of a model such as gpt2, a Python file that defines model(), or a Hugging Face config.json."""
    cluster: Annotated[str, tyro.conf.arg(metavar="C")]
    """Cluster to plan for: NODESxDEVICESxNAME such as 4x8xA100-80G, local:2 (measured), or a YAML file."""
    strategies: Annotated[str, tyro.conf.arg(metavar="A,B,...")]
    """Strategies to compare, separated by commas; each may combine several with +."""
    rows: Annotated[int | None, tyro.conf.arg(metavar="N"), ROWS] = None
    """Rows of the batch of one step, for a model by name."""
    dtype: Precision = "float32"
    html: Annotated[Path | None, tyro.conf.arg(metavar="FILE"), Output.FILE] = None
    """Write a page with figures of time and memory."""


def act(options: Options, screen: Screen) -> Outcome:
    """Compare."""
    from trainyard.hardware import parse_cluster

    with screen.waiting("loading PyTorch"):
        from trainyard.job.catalog import parse_strategies
        from trainyard.job.planning import compare, load_model
    from trainyard.report.comparison_page import comparison_page
    from trainyard.report.league import league_table, ranked
    from trainyard.report.prediction import contender_of

    names = tuple(dict.fromkeys(between_commas(options.strategies)))
    for name in names:
        parse_strategies(name)  # before minutes of work: a misspelt name is an error, not a result
    if not names:
        raise ValueError(
            "no strategies given; --strategies takes names separated by commas, such as auto,zero"
        )
    cluster = parse_cluster(options.cluster)
    cluster.require_known()
    with screen.waiting(f"planning with {len(names)} strategies") as progress:
        model = load_model(options.model, options.rows)
        optimizer = options.optimizer_config(options.model)
        found = compare(model, cluster, names, options.dtype, options.statistics, optimizer, progress)
    contenders = ranked([contender_of(name, each) for name, each in zip(names, found, strict=True)])
    title = f"{options.model} on {cluster.name}"
    if options.html is not None:
        best = contenders[0].name if contenders[0].fits else "none fits"
        facts = {"model": options.model, "cluster": cluster.name, "dtype": options.dtype, "best": best}
        screen.keep(comparison_page(title, contenders, facts), options.html)
    document = {
        "model": options.model,
        "cluster": cluster.name,
        "contenders": [{**asdict(c), "peak_bytes": c.peak_bytes} for c in contenders],
    }
    failure = (
        ""
        if any(c.fits for c in contenders)
        else f"none of the strategies has a plan that fits {cluster.name}"
    )
    return Outcome(document, (league_table(title, contenders),), failure)
