"""Names with options, as text."""

from __future__ import annotations

import warnings

import pytest

from trainyard.fleet.catalog import split_policies
from trainyard.fleet.errors import FleetError
from trainyard.fleet.scheduler import scheduler_of
from trainyard.job.catalog import parse_strategies
from trainyard.job.plan import PlanError


def test_an_option_stands_once() -> None:
    with pytest.raises(PlanError, match="option stage of zero stands twice"):
        parse_strategies("zero(stage=3, stage=2)")


def test_a_text_that_python_would_warn_of_is_refused_and_no_more() -> None:
    with warnings.catch_warnings(action="error"), pytest.raises(PlanError, match="option stage of zero"):
        parse_strategies("zero(stage=1if 1else 2)")


@pytest.mark.parametrize(
    "text",
    [
        "las(quantum_s='x')",
        "las(quantum_s=None)",
        "las(quantum_s=True)",
        "fifo(backfill=1)",
        "tiresias(promote_knob=(1,))",
        "tiresias(thresholds=-1)",
        "tiresias(thresholds=(1, 'x'))",
        "tiresias(samples=(3250))",
    ],
)
def test_an_option_of_another_kind_is_refused(text: str) -> None:
    with pytest.raises(FleetError, match=r"option [a-z_]+ of [a-z]+ must be [aT]"):
        scheduler_of(text)


@pytest.mark.parametrize("text", ["las(quantum_s=60)", "fifo(backfill=True)", "tiresias(promote_knob=None)"])
def test_an_option_of_its_kind_is_taken(text: str) -> None:
    assert scheduler_of(text).text == text


@pytest.mark.parametrize(
    "text", ["tiresias(thresholds=(1, 2.5))", "tiresias(samples=())", "hived(config='é.yaml')"]
)
def test_a_tuple_of_its_kind_and_any_letters_in_quotes_are_read(text: str) -> None:
    assert split_policies(text) == (text,)


@pytest.mark.parametrize("text", ["ｚero", "zero(ｓtage=1)"])
def test_letters_that_only_look_alike_are_others(text: str) -> None:
    with pytest.raises(PlanError, match="cannot read strategies from"):
        parse_strategies(text)
