"""Buddy allocation of cells: what was promised can be taken at any time."""

from __future__ import annotations

from itertools import accumulate
from operator import mul

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.fleet.policies.hived.cells import Cell, Chain, Free, find, release, shortage, take


def chain_of(fanouts: list[int], num_top: int) -> Chain:
    sizes = tuple(accumulate([1, *fanouts], mul))
    return Chain(tuple(map(str, sizes)), sizes, len(sizes) - 1, tuple(range(num_top * sizes[-1])))


CHAINS = st.builds(chain_of, st.lists(st.integers(1, 4), max_size=4), st.integers(1, 4))
BINARY = chain_of([2, 2, 2], 2)


def devices(chain: Chain, free: Free) -> list[int]:
    """Free devices; a device in two free cells is there twice."""
    return [d for level, numbers in enumerate(free) for n in numbers for d in chain.slots(Cell(level, n))]


def taken(chain: Chain, free: Free, level: int) -> tuple[Cell, Free]:
    cell = find(chain, free, level, np.zeros(len(chain.devices), np.bool_))
    assert cell is not None
    left = take(chain, free, cell)
    assert left is not None
    return cell, left


@given(CHAINS, st.data())
def test_promised_cells_are_there_whatever_is_taken_and_given_back(chain: Chain, data: st.DataObject) -> None:
    """Virtual clusters take and give back the cells that they were promised, in any order."""
    levels = range(len(chain.sizes))
    promised: list[int] = []
    for level in data.draw(st.lists(st.sampled_from(levels), max_size=20)):
        more = [*promised, level]
        if shortage(chain, chain.all_free, [more.count(each) for each in levels]) is None:
            promised = more
    free, held = chain.all_free, dict[int, Cell]()
    for which in data.draw(st.lists(st.integers(0, max(0, len(promised) - 1)), max_size=60)):
        if not promised:
            break
        if which in held:
            free = release(chain, free, held.pop(which))
        else:
            crowded = np.array(
                data.draw(st.lists(st.booleans(), min_size=len(chain.devices), max_size=len(chain.devices)))
            )
            cell = find(chain, free, promised[which], crowded)
            assert cell is not None
            assert cell.level == promised[which]
            left = take(chain, free, cell)
            assert left is not None
            free, held[which] = left, cell
        used = [d for cell in held.values() for d in chain.slots(cell)]
        assert sorted(devices(chain, free) + used) == list(range(len(chain.devices)))
    for cell in held.values():
        free = release(chain, free, cell)
    assert free == chain.all_free


@given(CHAINS, st.data())
def test_shortage_is_when_cells_run_out(chain: Chain, data: st.DataObject) -> None:
    """The condition is exact: without a shortage all can be taken, largest first, and with one they cannot."""
    wanted = [data.draw(st.integers(0, 6)) for _ in chain.sizes]
    free, missing = chain.all_free, False
    for level in range(chain.top, -1, -1):
        for _ in range(wanted[level]):
            if find(chain, free, level, np.zeros(len(chain.devices), np.bool_)) is None:
                missing = True
                break
            _, free = taken(chain, free, level)
    assert (shortage(chain, chain.all_free, wanted) is not None) == missing


def test_the_smallest_cell_that_suffices_is_split() -> None:
    first, free = taken(BINARY, BINARY.all_free, 0)
    assert first == Cell(0, 0)
    assert free == ((1,), (1,), (1,), (1,)), "one buddy of every level is left, and the other top cell"
    second, free = taken(BINARY, free, 1)
    assert second == Cell(1, 1)
    third, free = taken(BINARY, free, 1)
    assert third == Cell(1, 2)
    free = release(BINARY, free, second)
    assert free == ((1,), (1, 3), (), (1,)), "its buddy is split, so it is not merged"
    free = release(BINARY, free, first)
    assert free == ((), (3,), (0,), (1,)), "it is merged with its buddy, and both with theirs"


def test_crowded_cells_are_taken_last() -> None:
    crowded = np.zeros(16, np.bool_)
    crowded[[0, 1, 9]] = True
    assert find(BINARY, BINARY.all_free, 3, crowded) == Cell(3, 1)
    assert find(BINARY, BINARY.all_free, 0, crowded) == Cell(0, 12)


def test_what_is_not_free() -> None:
    _, free = taken(BINARY, BINARY.all_free, 3)
    assert take(BINARY, free, Cell(1, 0)) is None
    assert take(BINARY, free, Cell(1, 4)) is not None
    _, free = taken(BINARY, free, 2)
    assert find(BINARY, free, 3, np.zeros(16, np.bool_)) is None


@pytest.mark.parametrize(
    ("wanted", "missing"),
    [
        ([0, 0, 0, 2], None),
        ([0, 0, 0, 3], (3, 2)),
        ([0, 0, 3, 1], (2, 2)),
        ([8, 0, 0, 1], None),
        ([1, 4, 0, 1], (0, 0)),
    ],
)
def test_shortage_by_level(wanted: list[int], missing: tuple[int, int] | None) -> None:
    assert shortage(BINARY, BINARY.all_free, wanted) == missing
