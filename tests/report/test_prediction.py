"""What is said of where the seconds of ops come from."""

from __future__ import annotations

from rich.console import Console

from trainyard.cost.measurements import Entry, Failure, Measurement
from trainyard.cost.ops import Sources
from trainyard.report.prediction import source_facts
from trainyard.report.tables import measured_ops_table


def test_ops_that_were_estimated_or_disturbed_are_counted_and_named():
    assert source_facts(None) == []
    assert source_facts(Sources(12, {}, 0)) == []
    unknown = dict.fromkeys(("mine::swish(float32[8])", "mine::swish(float32[4])"), "no such op")
    large = dict.fromkeys((f"aten.{name}.default()" for name in "abcd"), "too large")
    estimated, disturbed = source_facts(Sources(12, {**unknown, **large}, 3))
    assert estimated[1] == (
        "6 of 18 ops instead of measured: mine::swish: no such op; "
        "aten.a.default, aten.b.default, aten.c.default, ...: too large"
    )
    assert disturbed[1].startswith("3 of 12 ops while other work had the cores")


def test_age_spread_and_failures_of_remembered_ops_are_shown():
    ops = {
        "a": Measurement(1.0, 0.05, 1.0, 1_000.0, other_load=0.4),
        "b": Measurement(1.0, 0.15, 1.0, 8_200.0),
    }
    console = Console(width=120, force_terminal=False)
    with console.capture() as text:
        console.print(
            measured_ops_table({"2x1": Entry(ops, {"c": Failure("no", 1.0)}), "1x2": Entry()}, 8_260.0)
        )
    row = next(line for line in text.get().splitlines() if line.strip().startswith("2x1"))
    assert row.split() == ["2x1", "2", "60.0", "s", "to", "2.0", "h", "10.0", "%", "15.0", "%", "1", "1"]
