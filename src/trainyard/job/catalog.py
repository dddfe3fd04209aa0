"""The catalog of level 1: every published system and our own planner, one entry each, by name.

This is the only place where a strategy's name means anything. The command line, the documentation and the
conformance suite are made from these entries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from trainyard.job.auto.auto import auto
from trainyard.job.plan import PlanError
from trainyard.job.setting import Strategy
from trainyard.job.strategies.memory.sublinear import sublinear
from trainyard.job.strategies.parallel.data_parallel import data_parallel
from trainyard.job.strategies.parallel.expert_parallel import expert_parallel
from trainyard.job.strategies.parallel.gpipe import gpipe
from trainyard.job.strategies.parallel.megatron import megatron
from trainyard.job.strategies.parallel.sequence_parallel import selective_recompute, sequence_parallel
from trainyard.job.strategies.parallel.zero import zero
from trainyard.naming import Names

Family = Literal["parallel", "memory", "comm", "graph", "search"]
Need = Literal[
    "repeated blocks", "transformer blocks", "attention", "experts", "tensor axis", "several devices"
]


@dataclass(frozen=True)
class Entry:
    """One strategy.

    Attributes
    ----------
    name : by which users call it; also the name of its page and in a plan's ``made_by``.
    factory : makes the strategy from keyword hyper-parameters; its defaults are the paper's.
    title : one line.
    paper : authors, title, venue and year, arXiv number.
    family : what it decides on; a ``search`` decides everything, and may try the others.
    fidelity : whether the decision is the paper's, or what is left out is said in ``left_out``; ``own`` where it is of
        no paper.
    needs : what a model, a cluster or the plan so far must have; otherwise the strategy raises `PlanError`.
    variants : settings that the paper compares, by name; keyword arguments of ``factory``.
    after : what the conformance suite applies before it, as text that ``parse_strategies`` reads.
    claim_test : file of the test of the paper's claim, from the repository's root.
    runs : whether its plans are executed on processes, not only simulated.
    """

    name: str
    factory: Callable[..., Strategy]
    title: str
    paper: str
    family: Family
    fidelity: Literal["exact", "simplified", "own"]
    claim_test: str
    left_out: str = ""
    needs: tuple[Need, ...] = ()
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    after: str = ""
    runs: bool = True

    @property
    def module(self) -> str:
        """Dotted name of the file that holds the factory."""
        return self.factory.__module__


_KORTHIKANTI = (
    'Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", MLSys 2023, '
    "arXiv 2205.05198"
)

CATALOG: tuple[Entry, ...] = (
    Entry(
        "data_parallel",
        data_parallel,
        "Replicas that sum their gradients",
        'Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020, '
        "arXiv 2006.15704",
        "parallel",
        "exact",
        "tests/job/strategies/test_data_parallel.py",
        variants={"small buckets": {"bucket_bytes": 4096}},
    ),
    Entry(
        "zero",
        zero,
        "Model state shared by data-parallel ranks",
        'Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC 2020, '
        "arXiv 1910.02054",
        "parallel",
        "exact",
        "tests/job/strategies/test_zero.py",
        left_out="ZeRO-R (section 6): partitioned activation checkpoints, constant-size buffers, "
        "defragmentation; they are about one allocator, not about where tensors lie",
        needs=("several devices",),
        variants={"stage 1": {"stage": 1}, "stage 3": {"stage": 3}},
    ),
    Entry(
        "gpipe",
        gpipe,
        "Microbatches through balanced partitions, recomputed in the backward pass",
        'Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism", '
        "NeurIPS 2019, arXiv 1811.06965",
        "parallel",
        "exact",
        "tests/job/strategies/test_gpipe.py",
        variants={"keep activations": {"recompute": False}, "two stages": {"stages": 2}},
    ),
    Entry(
        "megatron",
        megatron,
        "Tensor-parallel transformers, interleaved pipelines and how to combine them",
        'Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism", '
        'arXiv 1909.08053; Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using '
        'Megatron-LM", SC 2021, arXiv 2104.04473',
        "parallel",
        "simplified",
        "tests/job/strategies/test_megatron.py",
        left_out="padding of a vocabulary that does not divide (it stays whole); measuring the microbatch size "
        "(a parameter, since nothing is timed before there is a plan); the scatter/gather transfer between "
        "stages of section 4.1 (a stage sends what it has)",
        needs=("transformer blocks",),
        variants={
            "tensor": {"tensor": 2, "pipeline": 1},
            "pipeline": {"tensor": 1, "pipeline": 2},
            "tensor and pipeline": {"tensor": 2, "pipeline": 2},
            "tensor and data": {"tensor": 2, "pipeline": 1, "data": 2},
        },
    ),
    Entry(
        "sequence_parallel",
        sequence_parallel,
        "The residual stream shared along the sequence",
        _KORTHIKANTI,
        "parallel",
        "exact",
        "tests/job/strategies/test_sequence_parallel.py",
        needs=("transformer blocks", "tensor axis"),
        after="megatron(tensor=2, pipeline=1, data=1)",
    ),
    Entry(
        "selective_recompute",
        selective_recompute,
        "The core of attention is recomputed",
        _KORTHIKANTI,
        "memory",
        "exact",
        "tests/job/strategies/test_sequence_parallel.py",
        needs=("attention",),
        after="megatron(tensor=2, pipeline=1, data=1)",
    ),
    Entry(
        "expert_parallel",
        expert_parallel,
        "Experts dealt out over data-parallel ranks",
        'Lepikhin et al., "GShard: Scaling Giant Models with Conditional Computation and Automatic Sharding", '
        "ICLR 2021, arXiv 2006.16668",
        "parallel",
        "simplified",
        "tests/job/strategies/test_expert_parallel.py",
        left_out="gating, which is the model's own; experts of different shapes, which are no batched product",
        needs=("experts", "several devices"),
        variants={"two ranks": {"degree": 2}},
    ),
    Entry(
        "sublinear",
        sublinear,
        "Activations kept between segments, recomputed inside",
        'Chen et al., "Training Deep Nets with Sublinear Memory Cost", arXiv 1604.06174',
        "memory",
        "exact",
        "tests/job/strategies/test_sublinear.py",
        left_out="the recursive scheme of O(log n) memory (section 4.4): a plan recomputes a tensor once",
        variants={"two segments": {"segments": 2}, "searched budget": {"budget_bytes": 0}},
    ),
    Entry(
        "auto",
        auto,
        "The fastest plan of a whole space and of the published systems",
        "Trainyard's own, of no paper; the degrees that it searches are those of Narayanan et al., "
        '"Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC 2021, arXiv 2104.04473',
        "search",
        "own",
        "tests/job/test_auto.py",
    ),
)
"""All systems of level 1."""


def published_strategies() -> dict[str, Strategy]:
    """Every published system as its paper has it, by name; not the searches, which try these."""
    return {entry.name: entry.factory() for entry in CATALOG if entry.family != "search"}


_NAMES: Names[Strategy] = Names(
    CATALOG,
    "strategy",
    "strategies",
    "megatron(tensor=4)+zero(stage=1)",
    PlanError,
    (int, float),
    "a number, True, False or None",
)


def find(name: str) -> Entry:
    """The entry of a name.

    Raises
    ------
    PlanError
        If there is none; the message lists the known names, close ones first.
    """
    entry = _NAMES.find(name)
    assert isinstance(entry, Entry)
    return entry


def parse_strategies(text: str) -> tuple[tuple[str, Strategy], ...]:
    """Read strategies from text: names joined by ``+``, each with options in parentheses if it has any.

    Parameters
    ----------
    text : ``"megatron(tensor=4) + selective_recompute"``. Options are Python literals by keyword.

    Returns
    -------
    Pairs of the name (with its options) and the strategy, in the order in which they are applied.

    Raises
    ------
    PlanError
        If a name or an option is unknown, or the text has another form.

    Examples
    --------
    >>> [name for name, _ in parse_strategies("gpipe(stages=4) + zero(stage=1)")]
    ['gpipe(stages=4)', 'zero(stage=1)']
    """
    return _NAMES.parse(text, "+")
