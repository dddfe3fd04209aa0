"""The agenda gives out what is due first, whatever was put in, moved and taken out before."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trainyard.engine.agenda import drop_first, expect

_ITEMS = 8
_changes = st.lists(
    st.one_of(st.none(), st.tuples(st.integers(0, _ITEMS - 1), st.integers(0, 4))), max_size=60
)


@given(_changes)
def test_first_is_what_is_due_first(changes: list[tuple[int, int] | None]) -> None:
    """Compared with the least of a dictionary; `None` takes the first item out."""
    due_s, heap = np.zeros(_ITEMS), np.zeros(_ITEMS, np.int64)
    place, size = np.full(_ITEMS, -1), 0
    known: dict[int, float] = {}
    for change in changes:
        if change is not None:
            item, when_s = change
            known[item] = float(when_s)
            size = expect(due_s, heap, place, size, item, float(when_s))
        elif known:
            first = min(known, key=lambda item: (known[item], item))
            assert heap[0] == first
            del known[first]
            size = drop_first(due_s, heap, place, size)
        assert size == len(known)
        assert {item for item in range(_ITEMS) if place[item] >= 0} == set(known)
        assert all(heap[place[item]] == item for item in known)
