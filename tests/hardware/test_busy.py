"""What other processes use of the cores, from given readings of the clocks."""

from __future__ import annotations

import pytest

from trainyard.hardware import busy


@pytest.mark.parametrize(
    ("used_s", "own_s", "share"),
    [(8.0, 8.0, 0.0), (15.0, 5.0, 0.5), (20.0, 0.0, 1.0), (0.0, 3.0, 0.0), (25.0, 0.0, 1.0)],
)
def test_the_share_of_others_is_what_this_process_did_not_use(monkeypatch, used_s, own_s, share):
    readings = iter([(100.0, 50.0, 7.0), (110.0, 50.0 + used_s, 7.0 + own_s)])
    monkeypatch.setattr(busy, "_now", lambda: next(readings))
    monkeypatch.setattr(busy, "_cores", lambda: {0, 1})
    assert busy.OtherLoad().share() == share


def test_a_share_is_one_of_the_cores_that_this_process_may_use():
    assert 0.0 <= busy.other_load_now(0.01) <= 1.0
