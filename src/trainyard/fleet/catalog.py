"""The catalog of level 2: every published system, one entry each, by name.

This is the only place where a policy's name means anything. The command line, the documentation and the conformance suite
are made from these entries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trainyard.fleet.entry import Entry
from trainyard.fleet.errors import FleetError
from trainyard.fleet.own_policy import OwnPolicy, checked_policy
from trainyard.fleet.policies.antman import AntMan
from trainyard.fleet.policies.drf import drf
from trainyard.fleet.policies.edf import EDF
from trainyard.fleet.policies.elasticflow.policy import ElasticFlow
from trainyard.fleet.policies.fair_share import fair_share
from trainyard.fleet.policies.gandiva import Gandiva
from trainyard.fleet.policies.gavel.finish_time import FinishTimeFairness
from trainyard.fleet.policies.gavel.objectives import (
    GavelFifo,
    LeastCost,
    LeastMakespan,
    MaxMinFairness,
    MostThroughput,
)
from trainyard.fleet.policies.gavel.water_filling import Hierarchical, WaterFilling
from trainyard.fleet.policies.hived.policy import hived
from trainyard.fleet.policies.optimus import Optimus
from trainyard.fleet.policies.pollux.policy import Pollux
from trainyard.fleet.policies.queues import fifo, las, sjf, srtf
from trainyard.fleet.policies.sia.policy import Sia
from trainyard.fleet.policies.synergy import Synergy
from trainyard.fleet.policies.tiresias.policy import tiresias
from trainyard.fleet.policy import Policy
from trainyard.fleet.snapshot import Need
from trainyard.naming import Names

__all__ = ["CATALOG", "Entry", "find", "parse_policies", "parse_policy", "split_policies"]


_BATCHES = "batch sizes and learning rates"
_FIFO: Mapping[str, Mapping[str, Any]] = {
    "first fit": {"backfill": True},
    "easy": {"backfill": "easy"},
    "conservative": {"backfill": "conservative"},
    "preemptible partition": {"backfill": True, "preemptible": ("night",)},
}
_QUEUEING = 'L. Kleinrock, "Queueing Systems, Volume 2", Wiley 1976'


def _queue(
    name: str,
    factory: Callable[..., Policy],
    title: str,
    variants: Mapping[str, Mapping[str, Any]],
    *needs: Need,
) -> Entry:
    """The orders in which one queue is served."""
    test = "tests/fleet/test_queues.py"
    return Entry(name, factory, title, _QUEUEING, "exact", test, needs=needs, variants=variants)


_GAVEL = 'Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads", OSDI 2020'
_GAVEL_LEAVES_OUT = (
    "measuring: speeds are known, also those of pairs of jobs that share devices (section 3.1), or some of them are, "
    "from which the estimator of section 6 finds the others. Pairs are left out that do less together than in turns"
)


def _of_gavel(
    name: str,
    factory: Callable[..., Policy],
    title: str,
    needs: tuple[Need, ...],
    **variants: Mapping[str, Any],
) -> Entry:
    """All policies of Gavel decide in rounds of six minutes, and may take all types for alike."""
    aware = {} if factory in (LeastCost, MostThroughput) else {"types alike": {"aware": False}}
    named = {text.replace("_", " "): setting for text, setting in variants.items()}
    return Entry(
        name,
        factory,
        title,
        _GAVEL,
        "simplified",
        "tests/fleet/policies/test_gavel.py",
        left_out=_GAVEL_LEAVES_OUT,
        needs=needs,
        variants={
            **aware,
            "space sharing": {"space_sharing": True},
            "estimated": {"space_sharing": "estimated"},
            "HiGHS": {"solver": "highs"},
            **named,
        },
    )


CATALOG: tuple[Entry, ...] = (
    _queue("fifo", fifo, "First in, first out", _FIFO),
    _queue("sjf", sjf, "Shortest job first, without taking devices away", {}, "length", "speed"),
    _queue(
        "srtf",
        srtf,
        "Shortest remaining time first",
        {
            "by device time": {"by_device_time": True},
            "ties as before": {"by_device_time": True, "steady": True},
        },
        "length",
        "speed",
    ),
    _queue("las", las, "Least attained service first", {"by device time": {"by_device_time": True}}),
    Entry(
        "fair_share",
        fair_share,
        "Slurm's Fair Tree: jobs of accounts and users with the least decayed usage for their shares first",
        'Cox and Morrison, "Fair Tree Fairshare Algorithm", Brigham Young University 2014, in Slurm since 14.11',
        "simplified",
        "tests/fleet/policies/test_fair_share.py",
        left_out="accounts within accounts, users beside accounts, and shares taken from the parent; the other factors "
        "of Slurm's priority, such as age and size; usage is devices times time, without processors and memory",
        variants={
            "first fit": {"backfill": True},
            "by account": {"by": "account"},
            "no decay": {"half_life_s": None},
        },
    ),
    Entry(
        "drf",
        drf,
        "Dominant resource fairness over devices, processors and memory: the user with the smallest share first",
        'Ghodsi et al., "Dominant Resource Fairness: Fair Allocation of Multiple Resource Types", NSDI 2011',
        "simplified",
        "tests/fleet/policies/test_drf.py",
        left_out="weights by resource: a user has one weight. Devices of all types are one resource. A task is a job, "
        "whose devices must satisfy the placement; the paper only counts resources",
        variants={"first fit": {"backfill": True}, "by account": {"by": "account"}},
    ),
    Entry(
        "tiresias",
        tiresias,
        "Queues by attained devices times time; skewed models consolidated",
        'Gu et al., "Tiresias: A GPU Cluster Manager for Distributed Deep Learning", NSDI 2019',
        "simplified",
        "tests/fleet/policies/test_tiresias.py",
        left_out="measuring skew from network traffic: it is computed from the tensors of a training, and goes by the "
        "name of the model for a job of a trace; learning PackLimit from jobs that ended: it is given",
        variants={
            "gittins": {"samples": (200.0, 400.0, 1000.0, 4000.0, 20000.0, 100000.0)},
            "starvation guard": {"promote_knob": 1.0},
        },
    ),
    Entry(
        "gandiva",
        Gandiva,
        "Time slices, packing with undo, migration, growing on idle devices",
        'Xiao et al., "Gandiva: Introspective Cluster Scheduling for Deep Learning", OSDI 2018',
        "simplified",
        "tests/fleet/policies/test_gandiva.py",
        left_out="memory of packed jobs; packing of jobs of several devices; migration for locality among nodes of one "
        "job. The paper states its packing and migration heuristics in prose: the order of candidates is ours",
        variants={"time slicing only": {"pack": False, "migrate": False, "grow": False}},
    ),
    Entry(
        "antman",
        AntMan,
        "Opportunistic jobs in the time that guaranteed ones leave their devices idle",
        'Xiao et al., "AntMan: Dynamic Scaling on GPU Clusters for Deep Learning", OSDI 2020',
        "simplified",
        "tests/fleet/policies/test_antman.py",
        left_out="scaling of memory (section 3.2); the topology inside a node; how busy a device is comes from the "
        "job and is not measured over the last seconds; more than one opportunistic job on a device. Where trainings are "
        "real, nothing on a device enforces shares: both jobs run their kernels as they come",
        needs=("guaranteed",),
        variants={"any device": {"busiest": 1.0}},
        simulated_only="shares of devices",
    ),
    Entry(
        "elasticflow",
        ElasticFlow,
        "Deadlines are kept or refused: least shares reserved, spare devices where they cost least",
        'Gu et al., "ElasticFlow: An Elastic Serverless Training Platform for Distributed Deep Learning", ASPLOS 2023',
        "simplified",
        "tests/fleet/policies/test_elasticflow.py",
        left_out="planning for the time that is lost when devices change; buddies of several nodes, which are any nodes",
        needs=("speed", "length", "deadline"),
    ),
    Entry(
        "edf",
        EDF,
        "Earliest deadline first, on as many devices as make a job faster",
        'Liu and Layland, "Scheduling Algorithms for Multiprogramming in a Hard-Real-Time Environment", JACM 1973',
        "exact",
        "tests/fleet/policies/test_elasticflow.py",
        needs=("speed", "deadline"),
        place="packed",
    ),
    Entry(
        "synergy",
        Synergy,
        "CPUs and memory of nodes by need, but nobody below a proportional share",
        'Mohan et al., "Looking Beyond GPUs for DNN Scheduling on Multi-Tenant Clusters", OSDI 2022',
        "simplified",
        "tests/fleet/policies/test_synergy.py",
        left_out="optimistic profiling, which measures some CPU counts and calculates the effect of memory from the hit "
        "rate of the cache: demands are sought in the true profile; the optimal allocation by linear programming, the "
        "paper's upper bound. What processors and memory are worth to real trainings is not predicted: each has its "
        "proportional share, and only devices are as decided",
        needs=("speed",),
        variants={
            "proportional": {"allocation": "fair"},
            "srtf": {"order": "srtf"},
            "las": {"order": "las"},
        },
        simulated_only="shares of CPUs and memory",
    ),
    Entry(
        "optimus",
        Optimus,
        "Devices by the time that one more saves, with convergence and speed learnt online",
        'Peng et al., "Optimus: An Efficient Dynamic Resource Scheduler for Deep Learning Clusters", EuroSys 2018',
        "simplified",
        "tests/fleet/policies/test_optimus.py",
        left_out="parameter servers: devices exchange gradients, so that servers and workers are one number; with them "
        "asynchronous training, the division of parameters and data (section 5), and stragglers",
        needs=("speed", "reports"),
    ),
    Entry(
        "pollux",
        Pollux,
        "Devices by goodput, fitted online; batch sizes adapt to them; genetic search",
        'Qiao et al., "Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning", OSDI 2021',
        "simplified",
        "tests/fleet/policies/test_pollux.py",
        left_out="growing and shrinking of the cluster (section 4.2.2); devices are of one type, as in the paper. Real "
        "trainings keep batch size and learning rate on any devices, so that their losses are those of an undisturbed "
        "run: only devices adapt",
        needs=("reports",),
        variants={"sum of speedups": {"fairness": 1.0}},
        simulated_only=_BATCHES,
    ),
    Entry(
        "sia",
        Sia,
        "One configuration of devices for every job by an integer program over goodputs on every type",
        'Jayaram Subramanya et al., "Sia: Heterogeneity-aware, goodput-optimized ML-cluster scheduling", SOSP 2023',
        "simplified",
        "tests/fleet/policies/test_sia.py",
        left_out="jobs that are parallel in other ways than over data; reservations; the time of trials. Restarts cost "
        "all jobs the same; with over 500 options the program is solved to 5e-4 of its optimum. Real trainings keep "
        "batch size and learning rate on any devices",
        needs=("reports",),
        variants={"sum of goodputs": {"power": 1.0}},
        simulated_only=_BATCHES,
    ),
    _of_gavel("gavel_max_min", MaxMinFairness, "Max-min fairness over types of device", ("speed", "weight")),
    _of_gavel(
        "gavel_water_filling", WaterFilling, "Max-min fairness that is Pareto efficient", ("speed", "weight")
    ),
    _of_gavel(
        "gavel_hierarchical",
        Hierarchical,
        "Fairness among virtual clusters, fairness or first come, first served within",
        ("speed", "weight"),
        fifo_within={"inner": "fifo"},
    ),
    _of_gavel("gavel_makespan", LeastMakespan, "Least makespan over types of device", ("speed", "length")),
    _of_gavel(
        "gavel_finish_time",
        FinishTimeFairness,
        "Finish-time fairness over types of device",
        ("speed", "length"),
    ),
    _of_gavel("gavel_fifo", GavelFifo, "First in, first out over types of device", ("speed",)),
    _of_gavel(
        "gavel_cost",
        LeastCost,
        "Most throughput per dollar, with deadlines or without",
        ("speed",),
        deadlines={"slo": True},
    ),
    _of_gavel("gavel_throughput", MostThroughput, "Most throughput of all jobs together", ("speed",)),
    Entry(
        "hived",
        hived,
        "Virtual clusters of cells, bound when they are used; opportunistic jobs on what is idle",
        'Zhao et al., "HiveD: Sharing a GPU Cluster for Deep Learning with Guarantees", OSDI 2020',
        "simplified",
        "tests/fleet/policies/test_hived.py",
        left_out="waiting for preempted jobs to stop, and taking that back, since they stop at once; nodes that are "
        "suggested for a single job: those that are away are so for all; jobs that can never fit are refused and do not "
        "wait; a job on a node that a new configuration lacks starts anew and does not run on uncounted. "
        "The scheduler inside a virtual cluster, which the paper leaves open, is that of the authors' program: of jobs "
        "of lower priority it preempts those on the first cells, not the least urgent, which they then preempt",
        needs=("guaranteed", "priority"),
    ),
)
"""All systems of level 2."""

_NAMES: Names[Policy] = Names(
    CATALOG,
    "policy",
    "policies",
    "tiresias(promote_knob=8),fifo,FILE.py:NAME",
    FleetError,
    (int, float, str, tuple),
    "a number, text in quotes, a tuple of them, True, False or None",
    OwnPolicy,
)


def find(name: str) -> Entry | OwnPolicy:
    """The entry of a name, or where a policy of the user's own is: ``FILE.py:NAME``.

    Raises
    ------
    FleetError
        If there is none; the message lists the known names, close ones first.
    """
    entry = _NAMES.find(name)
    assert isinstance(entry, Entry | OwnPolicy)
    return entry


def parse_policies(text: str) -> tuple[tuple[str, Policy], ...]:
    """Read policies from text: names joined by commas, each with options in parentheses if it has any.

    Parameters
    ----------
    text : ``"fifo, tiresias(thresholds=(3250, 7200))"``. Options are Python literals by keyword. A policy of the user's
        own is ``FILE.py:NAME``; that file is run, and what is named may take options, too.

    Returns
    -------
    Pairs of the name (with its options) and the policy.

    Raises
    ------
    ValueError
        If a name or an option is unknown, the text has another form, there is no such file, or what it defines is no
        policy.

    Examples
    --------
    >>> [name for name, _ in parse_policies("fifo, tiresias(thresholds=(3250, 7200))")]
    ['fifo', 'tiresias(thresholds=(3250, 7200))']
    """
    return tuple((name, checked_policy(name, made)) for name, made in _NAMES.parse(text, ","))


def split_policies(text: str) -> tuple[str, ...]:
    """The names of policies with their options, each once, as text that `parse_policy` reads; none is made.

    Examples
    --------
    >>> split_policies("fifo, tiresias(thresholds=(3250, 7200)), mine.py:shares(half_life_s=60)")
    ('fifo', 'tiresias(thresholds=(3250, 7200))', 'mine.py:shares(half_life_s=60)')
    """
    return tuple(dict.fromkeys(_NAMES.split(text, ",")))


def parse_policy(text: str) -> Policy:
    """Read one policy, as `parse_policies` does.

    Examples
    --------
    >>> parse_policy("srtf(by_device_time=True)").preempts
    True
    """
    policies = parse_policies(text)
    if len(policies) != 1:
        raise FleetError(f"one policy is wanted, got {len(policies)} in {text!r}; name one of them")
    return policies[0][1]
