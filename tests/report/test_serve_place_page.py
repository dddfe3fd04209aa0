"""The page of placements: its pictures are the placements, and a browser shows them without errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from page_figures import figures_of
from web_browser import errors_shown, rendered

from trainyard.report.serve_place import device_rows
from trainyard.report.serve_place_page import _beside, serve_place_page
from trainyard.serve.placement import Replica
from trainyard.serve.placing.compare import CannotPlace, PlacementRun, compare_placements
from trainyard.serve.placing.decisions import ModelOnDevices, PlacedModels
from trainyard.serve.placing.forward_pass import ForwardPass
from trainyard.serve.placing.problem import ModelToPlace, PlacingProblem, drawn_arrivals
from trainyard.serve.policies.alpaserve.problem import ParallelConfig
from trainyard.serve.policies.nexus.profile import BatchingProfile

Placed = tuple[PlacingProblem, tuple[PlacementRun, ...], tuple[CannotPlace, ...]]


@pytest.fixture(scope="module")
def placed() -> Placed:
    """Three models on four devices, each of which has room for one."""
    profile = BatchingProfile((1, 2, 4, 8), (0.02, 0.03, 0.05, 0.09))
    forward = ForwardPass(profile, 2e9, {ParallelConfig(1): (0.02,), ParallelConfig(2): (0.01, 0.01)})
    models = tuple(ModelToPlace(name, forward, 0.1) for name in ("a", "b<i>", "c"))
    arrivals = drawn_arrivals((20.0, 10.0, 5.0), 800, 3.0)
    problem = PlacingProblem(models, 4, 2e9, arrivals)
    runs, _ = compare_placements("alpaserve(num_moves=20), nexus, replicate", problem, arrivals)
    return problem, runs, (CannotPlace("other", "it is <too> slow"),)


def test_pictures_have_a_mark_for_each_model_of_a_device(placed: Placed) -> None:
    problem, runs, cannot = placed
    figures = figures_of(serve_place_page("title", problem, runs, cannot))
    assert list(figures) == ["Devices and models", "Load of devices"]
    figure, _ = figures["Devices and models"]
    for place, run in enumerate(runs):
        own = [each for each in figure["data"] if each["xaxis"] == f"x{place + 1}"]
        marks = {(x, y) for each in own for x, y in zip(each["x"], each["y"], strict=True)}
        names = [model.name for model in problem.models]
        assert marks == {
            (names.index(r.replica.model), device) for r in run.placed.replicas for device in r.devices
        }


def test_bars_are_the_time_in_which_devices_compute(placed: Placed) -> None:
    problem, runs, cannot = placed
    figure, _ = figures_of(serve_place_page("title", problem, runs, cannot))["Load of devices"]
    span_s = float(problem.arrivals.arrival_s[-1])
    for run, bars in zip(runs, figure["data"], strict=True):
        busy_s = np.array(bars["x"]) / 100 * span_s
        assert busy_s == pytest.approx(np.array(run.placed.busy_s), rel=1e-6)
        # A request alone takes 0.02 s of device time, split or not; in a batch it takes less, down to 0.09 / 8 s.
        least_s = 0.09 / 8 if run.name == "nexus" else 0.02
        num_good = sum(run.placed.num_good)
        assert least_s * num_good - 1e-4 <= busy_s.sum() <= 0.02 * num_good + 1e-4


@pytest.mark.parametrize(("num", "columns"), [(1, 1), (3, 3), (6, 4)])
def test_plots_beside_each_other_have_a_place_and_axes_each(placed: Placed, num: int, columns: int) -> None:
    drawn = _beside((placed[1] * 2)[:num], 4, "time")
    corners = set()
    for place in range(num):
        number = str(place + 1)
        x, y = (drawn[f"{kind}axis{number if place else ''}"] for kind in "xy")
        assert (x["anchor"], y["anchor"]) == (f"y{number}", f"x{number}")
        corners.add((x["domain"][0], y["domain"][1]))
    assert len(corners) == num
    assert {left for left, _ in corners} == {column / columns for column in range(columns)}


def test_only_devices_with_a_cycle_say_how_long_it_is() -> None:
    """One placement may have devices that batch and groups that do not."""
    pair = ModelOnDevices(Replica("a", pipeline_stages=2), (0, 1))
    batched = ModelOnDevices(Replica("b"), (2,), batch=4, cycle_s=0.05)
    for replicas, columns, cycles in (
        ((pair, batched), 3, ["", "50.0 ms"]),
        ((batched,), 3, ["50.0 ms"]),
        ((pair,), 2, ["a (2 stages)"]),
    ):
        head, rows = device_rows(PlacedModels(replicas, (1, 1), (1, 1), 0.01))
        assert len(head) == columns
        assert [row[-1] for row in rows] == cycles
        assert all(len(row) == columns for row in rows)


def test_a_browser_shows_it(placed: Placed, tmp_path: Path) -> None:
    document = rendered(serve_place_page("title <b>", *placed), tmp_path)
    assert errors_shown(document) == ""
    assert document.count('class="main-svg"') >= 3
    assert "it is &lt;too&gt; slow" in document
