"""Plans, simulations and trainings in a session of Python and in a notebook."""

from __future__ import annotations

from functools import singledispatch

from trainyard.job.plan import Plan
from trainyard.job.planning import PlanComparison, Planned
from trainyard.job.run.config import StepMetrics, TrainResult
from trainyard.job.simulation.result import Simulation
from trainyard.job.sizes import per_second_text
from trainyard.report.comparison_page import comparison_page
from trainyard.report.league import Contender, league_rows, ranked
from trainyard.report.page import Table, tables_html
from trainyard.report.plan_page import plan_page
from trainyard.report.prediction import (
    RUNNER_UP_COLUMNS,
    contender_of,
    mesh_text,
    runner_up_rows,
    simulation_facts,
)
from trainyard.report.shown.undescribed import undescribed_error
from trainyard.report.units import bytes_text, count_text, number_text, percent_text, seconds_text

__all__ = ["html_of", "page_of", "text_of"]

_SHOWN_STEPS = 10


@singledispatch
def text_of(shown: object) -> str:
    """One to three lines with the figures that matter."""
    raise undescribed_error(shown)


@text_of.register
def _(plan: Plan) -> str:
    return f"<Plan {_plan_text(plan)}>"


@text_of.register
def _(simulation: Simulation) -> str:
    return f"<Simulation of {_plan_text(simulation.plan)}\n {_simulation_text(simulation)}>"


@text_of.register
def _(planned: Planned) -> str:
    others = count_text(len(planned.runners_up), "runner-up").replace("runner-ups", "runners-up")
    return (
        f"<Planned {_plan_text(planned.plan)}\n {_simulation_text(planned.simulation)}\n"
        f" found in {seconds_text(planned.seconds)}, {others}>"
    )


@text_of.register
def _(comparison: PlanComparison) -> str:
    fastest = next((each for each in _contenders(comparison) if each.fits), None)
    best = "none has a plan that fits" if fastest is None else f"best {fastest.name}, {fastest.what}"
    step = "" if fastest is None else f": {seconds_text(fastest.step_s or 0.0)} a step"
    return f"<PlanComparison of {', '.join(comparison.strategies)}\n {best}{step}>"


@text_of.register
def _(result: TrainResult) -> str:
    if not result.metrics:
        return f"<TrainResult: no step was left to do after step {result.first_step}>"
    first, last = result.metrics[0], result.metrics[-1]
    name = next(iter(first.losses))
    lines = [
        f"<TrainResult: steps {first.step + 1} to {last.step + 1}, {name.partition(':')[2] or name} "
        f"{number_text(first.losses[name], 4)} to {number_text(last.losses[name], 4)}, {_rate(last)}"
    ]
    if result.restarts:
        lines.append(f" {count_text(len(result.restarts), 'restart')}")
    if result.checkpoint is not None:
        lines.append(f" checkpoint {result.checkpoint}")
    return "\n".join(lines) + ">"


@singledispatch
def html_of(shown: object) -> str:
    """Tables for a notebook."""
    raise undescribed_error(shown)


@html_of.register
def _(plan: Plan) -> str:
    return tables_html([_plan_table(plan)])


@html_of.register
def _(simulation: Simulation) -> str:
    return tables_html([_simulation_table(simulation), _plan_table(simulation.plan)])


@html_of.register
def _(planned: Planned) -> str:
    tables = [_simulation_table(planned.simulation), _plan_table(planned.plan)]
    if planned.runners_up:
        rows = runner_up_rows(planned.runners_up, planned.simulation)
        tables.append(Table("Also considered", RUNNER_UP_COLUMNS, rows))
    return tables_html(tables)


@html_of.register
def _(comparison: PlanComparison) -> str:
    return tables_html([Table("Strategies", *league_rows(_contenders(comparison)))])


@html_of.register
def _(result: TrainResult) -> str:
    metrics = result.metrics
    every = max(1, -(-len(metrics) // _SHOWN_STEPS))
    shown = [each for place, each in enumerate(metrics) if place % every == 0 or place == len(metrics) - 1]
    names = tuple(metrics[0].losses) if metrics else ()
    rows = tuple(
        (
            str(each.step + 1),
            *(number_text(each.losses[name], 4) for name in names),
            number_text(each.grad_norm, 4),
            seconds_text(each.seconds),
            _rate(each),
        )
        for each in shown
    )
    columns = ("step", *(name.partition(":")[2] or name for name in names), "grad norm", "time", "speed")
    return tables_html([Table("Training", columns, rows)])


@singledispatch
def page_of(shown: object) -> str:
    """A page with figures."""
    raise undescribed_error(shown)


@page_of.register
def _(simulation: Simulation) -> str:
    return plan_page(simulation.plan, simulation)


@page_of.register
def _(planned: Planned) -> str:
    return plan_page(planned.plan, planned.simulation, planned.runners_up)


@page_of.register
def _(comparison: PlanComparison) -> str:
    contenders = _contenders(comparison)
    plans = [each.plan for each in comparison if isinstance(each, Planned)]
    title = f"{plans[0].model} on {plans[0].cluster}" if plans else "Strategies"
    best = next((each.name for each in contenders if each.fits), "none fits")
    return comparison_page(title, contenders, {"best": best})


def _contenders(comparison: PlanComparison) -> tuple[Contender, ...]:
    pairs = zip(comparison.strategies, comparison, strict=True)
    return ranked([contender_of(name, each) for name, each in pairs])


def _plan_text(plan: Plan) -> str:
    by = f" by {'+'.join(plan.made_by)}" if plan.made_by else ""
    return (
        f"of {plan.model} on {plan.cluster}{by}: {mesh_text(plan)}; {plan.num_rows} rows a step, {plan.dtype}"
    )


def _simulation_text(simulation: Simulation) -> str:
    mfu = simulation.plausible_mfu
    share = "" if mfu is None else f", MFU {percent_text(mfu)}"
    rank = max(range(len(simulation.memory)), key=lambda i: simulation.peak_bytes[i])
    used, limit = simulation.peak_bytes[rank], simulation.memory_limit_bytes[rank]
    fits = "" if simulation.fits else ", does not fit"
    return (
        f"{seconds_text(simulation.step_s)} a step ({per_second_text(simulation.rows_per_s)} rows/s){share}; "
        f"memory of a device {bytes_text(used)} of {bytes_text(limit)}{fits}"
    )


def _plan_table(plan: Plan) -> Table:
    return Table("Plan", ("reasons",), tuple((line,) for line in plan.explain().splitlines()))


def _simulation_table(simulation: Simulation) -> Table:
    return Table("Time and memory of a step", ("what", "predicted"), tuple(simulation_facts(simulation)))


def _rate(metrics: StepMetrics) -> str:
    if metrics.tokens_per_s:
        return f"{metrics.tokens_per_s:,.0f} tokens/s"
    return f"{metrics.rows_per_s:,.1f} rows/s"
