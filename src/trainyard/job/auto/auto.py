"""Our own planner: the fastest plan of a whole space of plans and of the published systems.

It is of no paper. The space is the product of what three papers choose by rules or by hand: degrees of pipeline, data and
tensor parallelism, microbatches and schedules (Narayanan et al., SC 2021, arXiv 2104.04473), recomputation and sequence
parallelism (Korthikanti et al., MLSys 2023, arXiv 2205.05198), and stages of ZeRO (Rajbhandari et al., SC 2020,
arXiv 1910.02054). Every point of it is estimated, from the costs of the model's blocks and in closed form. The best by
estimate are simulated as they would run, and so are the published systems that could be faster.

Fidelity: own. What it claims is that no plan of its space and of the published systems is faster, as far as the
estimate tells which are worth a simulation.
"""

from __future__ import annotations

from trainyard.job.auto.search import search
from trainyard.job.plan import Plan, PlanError
from trainyard.job.setting import Setting, Strategy


def auto() -> Strategy:
    """Search for the fastest plan that fits.

    It decides everything, so it comes first; what follows changes the plan that it found. The next best plans are
    reported to the setting.

    Returns
    -------
    Strategy
        It raises `DoesNotFitError` if no plan fits the memory of the devices, and `PlanError` if the batch divides over
        no mesh of them or another strategy decided something before it.

    Examples
    --------
    >>> from trainyard import load_model, parse_cluster
    >>> from trainyard.job.planning import make_setting
    >>> from trainyard.job.setting import apply
    >>> from trainyard.job.task import Task
    >>> setting = make_setting(Task(load_model("vgg-tiny", 8)), parse_cluster("1x1xA100-80G"))
    >>> plan = apply((("auto", auto()),), setting)
    >>> plan.made_by, plan.reasons[0]
    (('auto',), 'Chosen: pipeline 1 x data 1 x tensor 1, 1 microbatch of 8.')
    >>> [other.name for other in setting.runners_up][:1]
    ['pipeline 1 x data 1 x tensor 1, 1 microbatch of 8, full recomputation']
    """

    def strategy(setting: Setting, plan: Plan) -> Plan:
        if plan.made_by:
            before = " + ".join(plan.made_by)
            raise PlanError(f"auto decides everything, and {before} decided before it; give auto first")
        return search(setting)

    return strategy
