"""Looking for cycles of garbage rarely."""

from __future__ import annotations

import gc

import pytest

from trainyard.garbage import collecting_rarely


def test_collections_are_rare_within_and_as_before_afterwards():
    before = gc.get_threshold()
    with collecting_rarely():
        within = gc.get_threshold()
    assert within > before
    assert gc.get_threshold() == before


def test_an_error_leaves_collections_as_before():
    before = gc.get_threshold()
    with pytest.raises(RuntimeError, match="its own"), collecting_rarely():
        raise RuntimeError("its own")
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0
