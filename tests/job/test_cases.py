"""Models that users wrote: one step under every kind of plan on two ranks is that of plain PyTorch on one device."""

from __future__ import annotations

import re
import runpy
import warnings
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from mixtures import CONFIGS, mixture
from one_step import check_equal, own_part, plain, stepped, trained

from trainyard.hardware.parse import parse_cluster
from trainyard.job.plan import Plan, PlanError, parse_plan
from trainyard.job.planning import make_setting, plan_task
from trainyard.job.run.processes.fork_server import run_ranks
from trainyard.job.setting import first_plan
from trainyard.job.task import Task
from trainyard.processes import ProcessLimits
from trainyard.program.capture import CaptureError
from trainyard.program.model import Model

FOLDER = Path(__file__).parent / "cases"
STRATEGIES = ("data_parallel", "zero(stage=3)", "gpipe", "megatron(tensor=2)", "auto")

REFUSED = {
    "embedding_max_norm": "max_norm",
    "experts_hit_loop": r"experts_hit_loop\.py:\d+",
    "moving_teacher": r"teacher\.weight",
    "sparse_embeddings": "sparse",
}
"""Models that cannot be captured, and what the message has to name."""

DRAWN = {"dropout_recompute", "vae"}
"""Models that draw random numbers, other ones than PyTorch does: one rank is what others are compared with."""

IN_CI = (
    "buffer_slice_write",
    "checkpoint_blocks",
    "contrastive",
    "experts_by_sort",
    *CONFIGS,
    "paramlist_slice",
    "ragged_tokens",
    "tied_head",
    "vae",
)
EVERYWHERE = sorted(
    {*CONFIGS, *(path.stem for path in FOLDER.glob("*.py"))} - set(REFUSED) - {"stateful_loader"}
)


@cache
def task_of(name: str) -> Task:
    warnings.filterwarnings("ignore", category=FutureWarning)
    if name in CONFIGS:
        return Task(mixture(name))
    case = runpy.run_path(str(FOLDER / f"{name}.py"))
    torch.manual_seed(0)
    whole = {"whole": case["whole"]} if "whole" in case else {}
    return Task(Model(name, case["module"](), case["loss"], case["data"](0), **whole))


def one_device(task: Task) -> tuple[float, dict[str, torch.Tensor]]:
    """What a plan has to give."""
    if task.model.name in DRAWN:
        return trained(task, first_plan(make_setting(task, parse_cluster("1x1xA100-80G"))))
    return plain(task.model)


def plans_of(name: str) -> dict[str, Plan | str]:
    """A plan of every strategy on two ranks, or why it does not apply."""
    found: dict[str, Plan | str] = {}
    for strategies in STRATEGIES:
        try:
            place = parse_cluster("1x2xA100-80G")
            found[strategies] = plan_task(task_of(name), place, strategies, all_devices=True).plan
        except PlanError as error:
            found[strategies] = str(error)
    return found


def _rank(rank: int, texts: Mapping[tuple[str, str], str]) -> dict[tuple[str, str], str]:
    """Under each plan, what is wrong; nothing if nothing is."""
    torch.set_num_threads(1)
    answers = {}
    for (name, strategies), text in texts.items():
        task = task_of(name)
        wanted_loss, wanted = one_device(task)
        loss, grads, executor = stepped(task, parse_plan(text), rank)
        own = {path: own_part(executor, path, whole) for path, whole in wanted.items() if path in grads}
        try:
            check_equal((loss, grads), (wanted_loss, own))
            answers[name, strategies] = ""
        except AssertionError as error:
            answers[name, strategies] = str(error)
    return answers


def check_cases(names: tuple[str, ...]) -> dict[tuple[str, str], str]:
    """Train every case one step under every strategy; returns the refusals."""
    plans = {(name, s): plan for name in names for s, plan in plans_of(name).items()}
    refused = {key: plan for key, plan in plans.items() if isinstance(plan, str)}
    texts = {key: plan.to_text() for key, plan in plans.items() if isinstance(plan, Plan)}
    assert all(plan.num_ranks <= 2 for plan in plans.values() if isinstance(plan, Plan))
    for answers in run_ranks(2, _rank, texts, limits=ProcessLimits(60 + 60 * len(names))):
        wrong = {key: said for key, said in answers.items() if said}
        assert not wrong, wrong
    return refused


@pytest.mark.slow
def test_a_step_under_every_plan_is_that_of_one_device() -> None:
    refused = check_cases(IN_CI)
    # What cannot apply says so; data parallelism always does.
    assert not [key for key in refused if key[1] in ("data_parallel", "auto")], refused


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", EVERYWHERE)
def test_every_case_under_every_plan(name: str) -> None:
    check_cases((name,))


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_trained_is_refused_by_name(name: str) -> None:
    with pytest.raises(CaptureError, match=re.compile(REFUSED[name])):
        task_of(name).program(task_of(name).num_rows)


def test_a_graph_is_refused_with_how_to_declare_its_edges() -> None:
    task: Any = task_of("graph_edges")
    with pytest.raises(CaptureError, match="whole"):
        Task(Model("graph", task.model.module, task.model.loss, task.model.batch)).num_rows  # noqa: B018
