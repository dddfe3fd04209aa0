"""Texts that end an answer: found wherever the pieces of the answer are cut, and nothing is lost before them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trainyard.serve.run.server.stop_strings import StopStrings

_TEXT = st.text("ab", max_size=12)
_STOPS = st.lists(st.text("ab", min_size=1, max_size=4), max_size=3)


@given(st.lists(_TEXT, max_size=6), _STOPS)
def test_an_answer_is_what_stands_before_the_first_stop(pieces, stops):
    search, found, is_stopped = StopStrings(stops), "", False
    for piece in pieces:
        certain, is_stopped = search.take(piece)
        found += certain
        if is_stopped:
            break
    if not is_stopped:
        found += search.rest()
    whole = "".join(pieces)
    assert is_stopped == any(stop in whole for stop in stops)
    assert not any(stop in found for stop in stops)
    assert whole.startswith(found)
    if is_stopped:
        assert any(whole[len(found) :].startswith(stop) for stop in stops)
    else:
        assert found == whole


@given(st.lists(_TEXT, max_size=6), _STOPS)
def test_only_what_may_begin_a_stop_is_held_back(pieces, stops):
    search, found = StopStrings(stops), ""
    for num, piece in enumerate(pieces, 1):
        certain, is_stopped = search.take(piece)
        if is_stopped:
            return
        found += certain
        held = "".join(pieces[:num])[len(found) :]
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)


def test_a_stop_over_several_pieces():
    search = StopStrings(["###", "END"])
    assert [search.take(piece) for piece in ("one#", "#two", "E", "ND", "")] == [
        ("one", False),
        ("##two", False),
        ("", False),
        ("", True),
        ("", False),
    ]
