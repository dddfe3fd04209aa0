"""Training with data of other packages: exact, and resumed exactly."""

from __future__ import annotations

from pathlib import Path

import one_rank
import pytest
import torch
from data_sets import LENGTH, Rows
from one_rank import ROWS
from test_train_on_datasets import losses_of

from trainyard.job.run.step.row_order import epoch_order

STEPS = 5


@pytest.mark.slow
def test_a_dataset_of_hugging_face_is_read_as_its_rows(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="needs datasets: pip install 'trainyard-ml[dev]'")
    rows = [Rows()[i] for i in range(LENGTH)]
    columns = {name: torch.stack([row[name] for row in rows]).tolist() for name in ("x", "y")}
    table = datasets.Dataset.from_dict(columns).with_format("torch")
    _, expected = one_rank.run(None, STEPS, data=Rows())
    one_rank.run(tmp_path, 3, data=table)
    _, rest = one_rank.run(tmp_path, STEPS, resume=True, data=table)
    assert losses_of(rest) == pytest.approx(losses_of(expected[3:]), rel=1e-6)
    # A stream has no index: the run reads it anew, in its own order.
    _, streamed = one_rank.run(None, 2, data=table.to_iterable_dataset())
    _, in_order = one_rank.run(None, 2, data=[rows[i] for i in _places_in_order()])
    assert losses_of(streamed) == pytest.approx(losses_of(in_order), rel=1e-6)


def _places_in_order() -> list[int]:
    """The rows from which the shuffled order of the first epoch makes the plain one."""
    order = epoch_order(LENGTH, 0, 0).tolist()
    return [order.index(place) for place in range(LENGTH)]


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_stateful_loader_of_torchdata_goes_on_where_it_was(num_workers: int, tmp_path: Path) -> None:
    torchdata = pytest.importorskip(
        "torchdata.stateful_dataloader", reason="needs torchdata: pip install 'trainyard-ml[dev]'"
    )

    def loader() -> object:
        torch.manual_seed(3)
        return torchdata.StatefulDataLoader(
            Rows(), ROWS, shuffle=True, drop_last=True, num_workers=num_workers
        )

    _, whole = one_rank.run(None, STEPS, data=loader())
    one_rank.run(tmp_path, 3, data=loader())
    ready, rest = one_rank.run(tmp_path, STEPS, resume=True, data=loader())
    assert losses_of(rest) == pytest.approx(losses_of(whole[3:]), rel=1e-6)
    assert not ready.notes
