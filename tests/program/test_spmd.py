"""What parts of tables and scores compute, and refuse."""

from __future__ import annotations

import pytest
import torch

from trainyard.program.spmd import embed_part, nll_part

TABLE = torch.arange(8.0).view(4, 2)


@pytest.mark.parametrize("outside", [-1, 8])
def test_an_index_outside_of_the_whole_table_is_refused_on_every_rank(outside: int) -> None:
    for first_row in (0, 4):
        found = embed_part(TABLE, torch.tensor([0, 5]), first_row, 8)
        assert found.tolist() == [[[0.0, 1.0], [0.0, 0.0]], [[0.0, 0.0], [2.0, 3.0]]][first_row // 4]
        with pytest.raises(RuntimeError, match=r"an index is not in 0\.\.7"):
            embed_part(TABLE, torch.tensor([0, outside]), first_row, 8)


@pytest.mark.parametrize("outside", [-1, 8])
def test_so_is_a_target_that_is_not_the_one_to_ignore(outside: int) -> None:
    scores = torch.zeros(3, 4)
    loss, weight = nll_part(scores, torch.tensor([0, 7, -100]), None, -100, 4, 8)
    assert (loss.item(), weight.item()) == (0.0, 1.0)
    with pytest.raises(RuntimeError, match=r"a target is not in 0\.\.7"):
        nll_part(scores, torch.tensor([0, outside, -100]), None, -100, 4, 8)
