"""Training on a Dataset or a DataLoader: the plain loop's losses, on several processes and after a resumption."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import one_rank
import plans
import pytest
import torch
from data_sets import LENGTH, Columns, Rows, StatefulLoader, Stream
from one_rank import ROWS
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from trainyard.job.run.step.data import DataError
from trainyard.job.run.step.row_order import epoch_order
from trainyard.job.run.train import train

STEPS = 5


def plain_losses(batches: list[list[int]]) -> list[float]:
    """Losses of the plain loop over rows of a data set."""
    model, losses = one_rank.model(), []
    optimizer = torch.optim.AdamW(model.module.parameters(), lr=one_rank.OPTIMIZER.lr, weight_decay=0.0)
    for indices in batches:
        read = [Rows()[i] for i in indices]
        loss = model.loss(model.module, {name: torch.stack([r[name] for r in read]) for name in ("x", "y")})
        assert isinstance(loss, Tensor)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return losses


def losses_of(steps: list[Any]) -> list[float]:
    return [step.losses["loss:loss"] for step in steps]


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_loader_trains_as_the_plain_loop(shuffle: bool) -> None:
    orders = [epoch_order(LENGTH, 7, e).tolist() if shuffle else list(range(LENGTH)) for e in range(3)]
    batches = [order[i : i + ROWS] for order in orders for i in (0, ROWS)][:STEPS]
    loader = DataLoader(
        Rows(), ROWS, shuffle, drop_last=True, generator=torch.Generator().manual_seed(7), num_workers=shuffle
    )
    _, steps = one_rank.run(None, STEPS, data=loader)
    assert losses_of(steps) == pytest.approx(plain_losses(batches), rel=1e-5)
    assert all(0.0 < step.data_s < step.seconds for step in steps)


SOURCES: dict[str, Callable[[], Any]] = {
    "dataset": lambda: Rows(noise=True),
    "columns": Columns,
    "loader": lambda: DataLoader(Rows(noise=True), ROWS, shuffle=True, drop_last=True),
    "iterable": Stream,
    "stateful": lambda: StatefulLoader(ROWS),
}


@pytest.mark.parametrize("name", SOURCES)
def test_a_resumed_run_goes_on_with_the_batch_that_comes_next(name: str, tmp_path: Path) -> None:
    _, whole = one_rank.run(None, STEPS, data=SOURCES[name]())
    one_rank.run(tmp_path, 3, data=SOURCES[name]())
    source = SOURCES[name]()
    ready, rest = one_rank.run(tmp_path, STEPS, resume=True, data=source)
    assert losses_of(rest) == pytest.approx(losses_of(whole[3:]), rel=1e-6)
    if name == "iterable":
        (note,) = ready.notes
        assert note.startswith("the data has no index and no saved position: read anew up to step 3, in ")
    else:
        assert not ready.notes
    if name == "stateful":
        assert source.num_read == STEPS - 3


def test_a_stream_that_was_changed_is_refused(tmp_path: Path) -> None:
    one_rank.run(tmp_path, 3, data=Stream())
    with pytest.raises(DataError, match="of step 2 is not the same as when the checkpoint was written"):
        one_rank.run(tmp_path, STEPS, resume=True, data=Stream(ROWS))


class Tokens(Dataset[dict[str, Tensor]]):
    """Rows for the tiny GPT."""

    def __len__(self) -> int:
        return 3 * plans.ROWS

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        tokens = torch.randint(0, 128, (17,), generator=torch.Generator().manual_seed(index))
        return {"tokens": tokens[:-1], "targets": tokens[1:]}


def test_processes_that_read_their_rows_only_train_as_one_that_reads_all(tmp_path: Path) -> None:
    loader = DataLoader(Tokens(), plans.ROWS, shuffle=True, num_workers=1)
    one = train(plans.MODEL, plans.plan(), Tokens(), plans.config(4))
    two = train(plans.MODEL, plans.plan(data=2, zero=3), loader, plans.config(2, tmp_path))
    rest = train(plans.MODEL, plans.plan(), Tokens(), plans.config(4, tmp_path, resume=True))
    losses = [m.losses["loss:loss"] for m in (*two.metrics, *rest.metrics)]
    assert losses == pytest.approx([m.losses["loss:loss"] for m in one.metrics], rel=1e-5)
