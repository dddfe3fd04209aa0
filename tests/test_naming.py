"""Names with options, as text."""

from __future__ import annotations

import warnings

import pytest

from trainyard.job.catalog import parse_strategies
from trainyard.job.plan import PlanError


def test_an_option_stands_once() -> None:
    with pytest.raises(PlanError, match="option stage of zero stands twice"):
        parse_strategies("zero(stage=3, stage=2)")


def test_a_text_that_python_would_warn_of_is_refused_and_no_more() -> None:
    with warnings.catch_warnings(action="error"), pytest.raises(PlanError, match="option stage of zero"):
        parse_strategies("zero(stage=1if 1else 2)")
