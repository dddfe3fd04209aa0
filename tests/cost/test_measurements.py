"""Measured seconds: what repeats say, what is believed, and what a file holds."""

from __future__ import annotations

import json

import pytest

from trainyard.cost.measurements import (
    Entry,
    Failure,
    Measurement,
    Measurements,
    implausible,
    over_processes,
    over_repeats,
)


def test_disturbed_repeats_and_occurrences_do_not_count():
    seconds, spread = over_repeats([[30e-3, 2e-6], [1e-6, 2e-6], [3e-6, 40e-3]])
    assert seconds == pytest.approx(1.5e-6)
    assert spread == pytest.approx(2.5 / 1.5 - 1)
    # The second occurrence was disturbed in all repeats.
    assert over_repeats([[1e-6, 30e-3, 1e-6], [1e-6, 30e-3, 1e-6]])[0] == pytest.approx(5e-6 / 3)
    assert over_repeats([[0.0]]) == (0.0, 0.0)


def test_one_process_that_was_disturbed_does_not_count_and_slowing_each_other_does():
    assert over_processes([2.0, 30.0]) == 2.0
    assert over_processes([4.0, 3.0, 2.0, 30.0]) == 3.0


def test_an_op_that_takes_far_longer_than_larger_ones_is_implausible():
    small, middle, large = (f"aten._log_softmax.default(float32[{n}, 4], 1, False)" for n in (8, 64, 512))
    points = {small: (256.0, 29.9e-3), middle: (2048.0, 5e-6), large: (16384.0, 20e-6)}
    assert implausible(points) == {small}
    assert implausible({**points, small: (256.0, 15e-6)}) == frozenset()
    # The largest may be slow, and so may another kind of op unless all larger ones say otherwise.
    assert implausible({**points, small: (256.0, 4e-6), large: (16384.0, 1.0)}) == frozenset()
    alone = {"aten.sort.default(float32[8], 0)": (64.0, 29.9e-3)}
    larger = {f"aten.op{i}.default(float32[{i}])": (100.0 + i, 10e-6) for i in range(5)}
    assert implausible({**alone, **larger}) == set(alone)
    assert implausible(alone) == frozenset()


def test_what_is_implausible_is_measured_twice_and_then_believed():
    small, large = "aten.relu.default(float32[8])", "aten.relu.default(float32[64])"
    entry = Entry({small: Measurement(1e-2, 0.1, 64.0, 1.0), large: Measurement(1e-6, 0.1, 512.0, 1.0)})
    assert entry.doubtful() == {small}
    entry.add(Entry({small: Measurement(2e-2, 0.3, 64.0, 5.0, other_load=0.5)}))
    assert entry.ops[small] == Measurement(1e-2, 0.1, 64.0, 5.0, other_load=0.0, num_measured=2)
    assert entry.doubtful() == frozenset()


def test_what_fails_when_it_is_repeated_is_not_repeated_for_ever():
    entry = Entry({"a": Measurement(1.0, 0.1, 1.0, 1.0, other_load=0.6)})
    for _ in range(3):
        assert entry.disturbed() == {"a"}
        entry.add(Entry(failed={"a": Failure("late", 2.0), "b": Failure("late", 2.0)}))
    assert entry.disturbed() == frozenset()
    assert entry.ops.keys() == {"a"}
    assert entry.failed.keys() == {"b"}


def test_no_op_takes_no_time():
    entry = Entry({"a": Measurement(1.0, 0.1, 1.0, 1.0)}, buffer_ops={"copy": ((1, 2.0), (2, 5.0))})
    nothing = Measurement(0.0, 0.0, 1.0, 2.0)
    entry.add(Entry({"a": nothing, "b": nothing}, buffer_ops={"copy": ((1, 0.0), (2, 0.0))}))
    assert {signature: m.seconds for signature, m in entry.ops.items()} == {"a": 1.0}
    assert entry.buffer_ops == {"copy": ((1, 2.0), (2, 5.0))}


def test_the_quieter_and_quicker_measurement_counts():
    entry = Entry(
        {"a": Measurement(2.0, 0.1, 1.0, 1.0, other_load=0.6)}, buffer_ops={"copy": ((1, 2.0), (2, 5.0))}
    )
    assert entry.busy() == {"a"}
    entry.add(
        Entry(
            {"a": Measurement(1.0, 0.0, 1.0, 2.0)},
            {"a": Failure("late", 2.0)},
            {"copy": ((1, 3.0), (2, 4.0))},
        )
    )
    assert entry.busy() == frozenset()
    assert entry.ops["a"].seconds == 1.0
    assert entry.failed == {}
    assert entry.buffer_ops == {"copy": ((1, 2.0), (2, 4.0))}


def test_a_file_gives_back_what_can_be_believed(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINYARD_CACHE", str(tmp_path))
    sound = Measurement(1e-3, 0.1, 8.0, 100.0, other_load=0.2)
    store = Measurements.read()
    store.of("2x1").add(
        Entry({"a": sound}, {"b": Failure("no such op", 5.0)}, {"copy": ((1, 0.1), (2, 0.2))}, 0.3)
    )
    store.write()
    assert Measurements.read().of("2x1") == store.of("2x1")

    plain = json.loads(store.path.read_text())
    ops = plain["conditions"]["2x1"]["ops"]
    for name, changes in {
        "nan": {"seconds": float("nan")},
        "negative": {"seconds": -1.0},
        "nothing at all": {"seconds": 0.0},
        "absurd": {"seconds": 1e9},
        "text": {"seconds": "soon"},
        "more": {"bogus": 1},
    }.items():
        ops[name] = {**ops["a"], **changes}
    ops["nothing"] = None
    plain["conditions"]["2x1"]["buffer_ops"]["norm"] = [[1, -0.1], [2, 0.2]]
    store.path.write_text(json.dumps(plain))
    assert Measurements.read().of("2x1") == store.of("2x1")
    store.path.write_text(json.dumps({**plain, "version": 3}))
    assert Measurements.read().entries == {}
