"""Entries of a batch that are declared whole: every rank and microbatch gets all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from test_capture import assert_captured
from torch import Tensor, nn

from trainyard.job.lower.lower import lower
from trainyard.job.planning import plan
from trainyard.job.run.step.data import DataError, by_path, check_batch
from trainyard.job.run.step.executor import Executor
from trainyard.program.batch import batch_rows
from trainyard.program.capture import CaptureError, capture
from trainyard.program.model import Model
from trainyard.zoo import load_model_file

EDGES = torch.tensor([[0, 1, 2, 3, 3], [1, 2, 3, 0, 1]])


def loss(module: nn.Module, batch: Any) -> Tensor:
    h = module(batch["x"])
    source, target = batch["graph"]["edges"]
    return (h + torch.zeros_like(h).index_add(0, target, h[source])).square().mean()


def graph(whole: tuple[str, ...] = ("graph",)) -> Model:
    batch = {"x": torch.linspace(-1, 1, 24).view(4, 6), "graph": {"edges": EDGES}}
    return Model("graph", nn.Linear(6, 6), loss, batch, whole)


@pytest.mark.parametrize("whole", [("graph",), ("graph.edges",), ("batch.graph.edges",)])
def test_entries_are_whole_by_their_paths(whole: tuple[str, ...]) -> None:
    program = assert_captured(graph(whole))
    assert {i.path for i in program.inputs if i.whole} == {"batch.graph.edges"}
    assert program.num_rows == 4
    assert program.nodes[program.input_of("batch.graph.edges").node].meta["val"].shape == (2, 5)


def test_whole_entries_are_given_whole_to_data_parallel_ranks() -> None:
    planned = plan(graph(), "1x2xA100-80G", "data_parallel").plan
    assert planned.stages[0].rows == ("data",)


def test_an_executor_cuts_rows_but_no_whole_entry() -> None:
    """A table of more rows than the batch has."""
    batch = {"x": torch.arange(4), "table": torch.linspace(-1, 1, 54).view(9, 6)}
    model = Model(
        "table", nn.Linear(6, 1), lambda m, b: m(b["table"][b["x"] + 5]).square().mean(), batch, ("table",)
    )
    planned = plan(model, "1x1xA100-80G", "data_parallel")
    lowered = lower(planned.task.program(4), planned.plan)
    values = {**model.module.state_dict(), **lowered.program.constants}
    executor = Executor(lowered, 0, values.__getitem__, torch.device("cpu"))
    found = executor.step(by_path(batch), 0).losses["loss:loss"]
    assert found == pytest.approx(model.loss(model.module, batch).item(), rel=1e-6)


def test_data_is_checked_against_the_size_of_a_whole_entry() -> None:
    program = capture(graph())
    check_batch(by_path(graph().batch), program, 4)
    other = {"x": torch.zeros(4, 6), "graph": {"edges": EDGES[:, :4]}}
    with pytest.raises(DataError, match=r"batch\.graph\.edges is torch\.int64 \(2, 4\).*\(2, 5\)"):
        check_batch(by_path(other), program, 4)


def test_a_batch_that_is_all_whole_is_one_row() -> None:
    batch = graph().batch
    assert batch_rows(batch, ("x", "graph")) == 1
    assert batch_rows(batch, ("graph",)) == 4


@pytest.mark.parametrize(
    ("whole", "why"),
    [
        ((), r"same number of rows .*'batch\.graph\.edges': 2.*whole = \(\"edge_index\",\)"),
        (("edges",), "whole names 'edges', which the batch does not have; it has x, graph.edges"),
    ],
)
def test_what_is_declared_wrongly_is_refused_with_how_to_do_it(whole: Any, why: str) -> None:
    with pytest.raises(CaptureError, match=why):
        capture(graph(whole))


def test_a_file_declares_it_beside_its_model(tmp_path: Path) -> None:
    file = tmp_path / "graph_model.py"
    lines = [
        "import torch",
        'whole = ("edges",)',
        "def model():",
        '    batch = {"x": torch.ones(4, 6), "edges": torch.zeros(2, 5)}',
        '    return torch.nn.Linear(6, 6), (lambda m, b: m(b["x"]).mean()), batch',
    ]
    file.write_text("\n".join(lines))
    assert load_model_file(file).whole == ("edges",)
    file.write_text(
        "\n".join([*lines[:2], "from trainyard import Model", *lines[2:]]).replace(
            "return ", 'return Model("a", '
        )
        + ")"
    )
    assert load_model_file(file).whole == ("edges",)
