"""Published systems beside our own plans: each that could be faster is simulated before one is chosen."""

from __future__ import annotations

from functools import partial

import numpy as np

from trainyard.job.auto.trials import Trials
from trainyard.job.model_state import model_state_bytes, state_of
from trainyard.job.plan import Plan
from trainyard.job.remesh import DATA, TENSOR
from trainyard.job.setting import Setting, apply, first_plan
from trainyard.job.tables import OpTable
from trainyard.program.patterns import is_like
from trainyard.program.program import tensor_of

# What captures and lowers, in ops of whole programs, as for our own plans: a search must repeat.
_MAX_OPS = 24_000


def try_published(setting: Setting, trials: Trials) -> None:
    """Simulate every published system as its paper has it, where it may be better.

    Left out without a simulation are systems that have no plan here, whose plan was simulated already, whose model state
    alone does not fit, and whose ops alone take longer than the best plan so far. Where one that leaves devices idle is
    the best of all, one device without any system is tried, too.
    """
    task = setting.task
    known_rows = {t.plan.rows_per_microbatch for t in trials.found} or {task.num_rows}
    whole, num_ops = len(task.program(min(known_rows)).nodes), 0
    for i, (name, strategy) in enumerate(setting.published.items(), 1):
        # A system may need a program of its own, and its lowering.
        if num_ops + 2 * whole > _MAX_OPS:
            trials.untried.append(name)
            continue
        setting.progress("simulating published systems", f"{name}, {i} of {len(setting.published)}")
        plan = trials.make(name, partial(apply, ((name, strategy),), setting))
        if plan is None:
            continue
        num_ops += whole * (plan.rows_per_microbatch not in known_rows)
        known_rows.add(plan.rows_per_microbatch)
        if not _is_allowed(setting, plan) or trials.knows(plan):
            continue
        if not _state_fits(setting, plan):
            trials.too_large.append(name)
        elif _may_be_best(setting, trials, plan):
            trials.simulate(name, plan)
            num_ops += whole
    if trials.best is not None and trials.best.plan.num_ranks < setting.cluster.num_devices:
        trials.simulate("one device", first_plan(setting))


def _is_allowed(setting: Setting, plan: Plan) -> bool:
    if setting.all_devices and plan.num_ranks < setting.cluster.num_devices:
        return False
    return plan.num_microbatches == 1 or setting.task.splits


def _state_fits(setting: Setting, plan: Plan) -> bool:
    """Return whether the smallest share of parameters, gradients and optimizer state of a rank fits a device."""
    program = setting.task.program(plan.rows_per_microbatch)
    num_parts = plan.mesh.size(TENSOR) * plan.pipeline
    placed = plan.placed_along(DATA)
    if any(is_like(name, i.path) for name in placed for i in program.params):  # experts, say
        num_parts *= plan.mesh.size(DATA)
    trained = sum(tensor_of(program.nodes[i.node]).numel() for i in program.params if i.trainable)
    divided, num_ranks = plan.state.divided, plan.mesh.size(*plan.state.summed_over)
    state = state_of(setting.task.weight_types, setting.task.optimizer, divided)
    needed = model_state_bytes(trained / num_parts, state, divided=divided, num_ranks=num_ranks)
    return needed <= max(device.usable_bytes for device in setting.cluster.devices)


def _may_be_best(setting: Setting, trials: Trials, plan: Plan) -> bool:
    """Return whether its ops, divided evenly and without waits, take less time than the best step so far.

    Seconds are taken to be as wrong here as the estimate was where it was most too high.
    """
    best = trials.best
    if best is None:
        return True
    devices = set(setting.cluster.devices)
    again = setting.task.program(plan.rows_per_microbatch).addresses.names(plan.recomputed)
    ops_s = min(_computing_s(setting.op_table(plan.rows_per_microbatch, d), again) for d in devices)
    least_s = plan.num_microbatches * ops_s / plan.num_ranks
    return least_s * min(1.0, trials.time_ratio) < best.simulation.step_s


def _computing_s(ops: OpTable, recompute: frozenset[str]) -> float:
    again = np.array([name in recompute for name in ops.names])
    return float(ops.seconds.sum() + ops.seconds[again].sum())
