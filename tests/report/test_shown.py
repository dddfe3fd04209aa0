"""Results in a session of Python and in a notebook: short, with the figures that matter, and escaped."""

import re
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch import nn

import trainyard as ty
from trainyard.job.planning import Infeasible
from trainyard.job.run.config import StepMetrics
from trainyard.shown import Shown, ShownOnPage

METRICS = [
    StepMetrics(step, {"loss": 3.0 - step / 10}, 1.5, 0.25, 16.0, 0.0, (10,), (0,), False)
    for step in range(25)
]


@pytest.fixture(scope="module")
def planned():
    model = ty.Model(
        "two <b>layers</b>", nn.Linear(4, 4), lambda m, b: m(b["x"]).sum(), {"x": torch.zeros(8, 4)}
    )
    return ty.plan(model, "1x2xA100-80G", "data_parallel")


@pytest.fixture(scope="module")
def comparison(planned):
    return ty.compare(planned.task.model, "1x2xA100-80G", ["data_parallel", "gpipe", "expert_parallel"])


@pytest.fixture(scope="module")
def fleet():
    return ty.fleet.simulate(ty.fleet.draw_jobs("2x4", num_jobs=20), "2x4", ["fifo", "srtf"], keep_spans=True)


@pytest.fixture(scope="module")
def served():
    return ty.serve.simulate(
        ty.serve.draw_requests(2.0, 10, prompt_tokens=100, output_tokens=20, ttft_s=5.0),
        "gpt2",
        "1x1xA100-80G",
    )


def _kinds():
    """All kinds of results, also of modules that nothing has imported yet."""
    package = Path(ty.__file__).parent
    for path in package.rglob("*.py"):
        if re.search(r"class \w+\(Shown", path.read_text()):
            import_module(".".join(path.relative_to(package.parent).with_suffix("").parts))
    kinds = (*Shown.__subclasses__(), *ShownOnPage.__subclasses__())
    return sorted(set(kinds) - {ShownOnPage}, key=lambda kind: kind.__name__)


@pytest.mark.parametrize("kind", _kinds())
def test_every_kind_of_result_is_described(kind):
    module = import_module(f"trainyard.report.shown.{kind.__module__.split('.')[1]}")
    names = ["text_of", "html_of", *(["page_of"] if issubclass(kind, ShownOnPage) else [])]
    for describe in (getattr(module, name) for name in names):
        if hasattr(describe, "dispatch"):
            assert describe.dispatch(kind) is not describe.dispatch(object)
            with pytest.raises(TypeError, match="does not describe int; register the type there"):
                describe(3)


def test_inputs():
    assert repr(ty.parse_cluster("2x8xV100+1x4")) == "<Cluster 2x8xV100+1x4: 3 nodes with 16 V100, 4 device>"
    model = ty.Model("line", nn.Linear(2, 3), lambda m, b: m(b).sum(), torch.zeros(4, 2))
    assert repr(model) == "<Model line: Linear, 9 parameters, float32 (4, 2)>"
    assert repr(ty.capture(model)).startswith("<Program line: ")
    assert repr(ty.capture(model)).endswith(" ops, 9 parameters, 4 rows>")


def test_plans(planned):
    said = "of two <b>layers</b> on 1x2xA100-80G by data_parallel: 2 data; 8 rows a step, float32"
    assert repr(planned.plan) == f"<Plan {said}>"
    first, second = repr(planned.simulation).splitlines()
    assert first == f"<Simulation of {said}"
    assert " a step (" in second
    assert "memory of a device" in second
    assert repr(planned).splitlines()[:2] == [f"<Planned {said}", second.removesuffix(">")]


def test_simulations_say_that_they_do_not_fit(planned):
    short = replace(planned.simulation, memory_limit_bytes=(1,) * len(planned.simulation.memory))
    assert repr(short).endswith(" of 1 B, does not fit>")


def test_comparisons(comparison):
    first, second = repr(comparison).splitlines()
    assert first == "<PlanComparison of data_parallel, gpipe, expert_parallel"
    assert second.startswith(" best ")
    assert second.endswith(" a step>")
    rows = {row["strategies"]: row for row in comparison.rows()}
    assert rows["data_parallel"]["step_s"] == comparison[0].simulation.step_s
    assert rows["expert_parallel"]["fits"] is False
    assert rows["expert_parallel"]["reason"] == comparison[2].reason
    assert comparison.best in comparison
    infeasible = type(comparison)(["gpipe"], [Infeasible("gpipe", "no")])
    assert infeasible.best is None
    assert repr(infeasible) == "<PlanComparison of gpipe\n none has a plan that fits>"


def test_trainings():
    result = ty.TrainResult(tuple(METRICS), 0, (), (), Path("run/checkpoint"))
    assert repr(result) == (
        "<TrainResult: steps 1 to 25, loss 3 to 0.6, 16.0 rows/s\n checkpoint run/checkpoint>"
    )
    assert result._repr_html_().count("<tr>") == 1 + 9
    assert "<td class=number>25</td>" in result._repr_html_()
    nothing = ty.TrainResult((), 25, (), (), None)
    assert repr(nothing) == "<TrainResult: no step was left to do after step 25>"
    assert "<table>" in nothing._repr_html_()


def test_fleets_and_servers(fleet, served):
    assert repr(fleet).splitlines()[0] == "<FleetComparison of 20 jobs on 2x4 under fifo, srtf"
    assert repr(fleet["fifo"]).startswith("<FleetRun of fifo on 2x4: 20 jobs, mean JCT ")
    assert repr(served).splitlines()[0] == "<ServingComparison of vllm on 1 replica of gpt2"
    assert "10 requests served, 0 refused" in repr(served["vllm"])
    assert repr(served["vllm"]).endswith("SLO met 100.0 %>")


def test_tables_and_pages_are_those_of_reports(planned, comparison, fleet, served, tmp_path):
    for shown in (planned, planned.simulation, comparison, fleet, served):
        assert 1 <= len(repr(shown).splitlines()) <= 3
        assert "<table>" in shown._repr_html_()
        page = shown.save_page(tmp_path / "page.html").read_text()
        assert page == shown.page()
        assert page.startswith("<!DOCTYPE html>")
    for shown in (planned.plan, planned.task.model, fleet["fifo"], served["vllm"], ty.parse_cluster("2x4")):
        assert "<table>" in shown._repr_html_()


def test_names_in_notebooks_are_text(planned):
    for shown in (planned, planned.plan, planned.task.model):
        assert "<b>" not in shown._repr_html_()
        assert "two &lt;b&gt;layers&lt;/b&gt;" in shown._repr_html_()
