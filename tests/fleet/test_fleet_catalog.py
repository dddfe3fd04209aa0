"""The catalog of policies, and policies as text."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest

from trainyard.fleet.catalog import CATALOG, Entry, find, parse_policies, parse_policy
from trainyard.fleet.errors import FleetError

ROOT = Path(__file__).parents[2]
ENTRIES = pytest.mark.parametrize("entry", CATALOG, ids=lambda e: e.name)


@ENTRIES
def test_entry_is_complete(entry: Entry) -> None:
    file = ROOT / entry.claim_test
    assert file.exists(), f"write {entry.claim_test}, a test of what the paper of {entry.name} claims"
    claims = file.read_text()
    assert re.search(rf"\b{entry.name}\b", claims), f"{entry.claim_test} does not speak of {entry.name}"
    assert re.search(r"\b(19|20)\d\d\b", entry.paper)
    assert entry.left_out or entry.fidelity == "exact", f"say what {entry.name} leaves out, and why"
    note = re.search(r"^Fidelity: (\w+)", importlib.import_module(entry.module).__doc__ or "", re.MULTILINE)
    assert note is not None, f"{entry.module} has no fidelity note"
    assert note[1] == entry.fidelity
    for variant in entry.variants.values():
        entry.factory(**variant)


def test_names_are_unique() -> None:
    assert len({entry.name for entry in CATALOG}) == len(CATALOG)


@pytest.mark.parametrize("module", ["catalog", "policies.tiresias.policy"])
def test_examples(module: str) -> None:
    results = doctest.testmod(importlib.import_module(f"trainyard.fleet.{module}"))
    assert results.attempted
    assert not results.failed


@ENTRIES
@pytest.mark.parametrize("name", ["needs", "preempts"])
def test_what_a_policy_says_of_itself_is_no_option(entry: Entry, name: str) -> None:
    with pytest.raises(FleetError, match=f"{entry.name} has no option '{name}'; its options: "):
        parse_policy(f"{entry.name}({name}=False)")


def test_options_reach_the_policy() -> None:
    (first, policy), (second, _) = parse_policies("tiresias(promote_knob=8, thresholds=(10, 20.5)), fifo")
    assert (first, second) == ("tiresias(promote_knob=8, thresholds=(10, 20.5))", "fifo")
    assert policy == find("tiresias").factory(promote_knob=8, thresholds=(10, 20.5))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tirseias", "unknown policy 'tirseias'; known: tiresias, "),
        ("conservative", "unknown policy 'conservative'; it is an option: fifo(backfill='conservative')"),
        (
            "backfill",
            "unknown policy 'backfill'; it is an option: fifo(backfill=...), fair_share(backfill=...), ",
        ),
        ("tiresias(knob=3)", "options: thresholds, promote_knob"),
        ("tiresias(3)", "cannot read policies"),
        ("tiresias(promote_knob=x)", "must be a number"),
        ("tiresias(promote_knob='x')", "tiresias(promote_knob='x')"),
        ("antman(quotas={'a': 1})", "must be a number, text in quotes, a tuple of them"),
        ("antman(quotas=3)", "quotas of antman: 3 is no pair of a virtual cluster and a number of devices"),
        ("antman(quotas=('a', 1))", "quotas of antman: 'a' is no pair"),
        ("antman(quotas=(('a', 'b'),))", "quotas of antman: ('a', 'b') is no pair"),
        ("antman(quotas=(('a', -1),))", "('a', -1) is no pair"),
        ("antman(quotas=(('a', True),))", "('a', True) is no pair"),
        ("antman(quotas=((1, 1),))", "(1, 1) is no pair"),
        ("antman(quotas=(('a', 1), ('a', 2)))", "virtual cluster 'a' is there twice; give each once"),
        ("gavel_hierarchical(weights=3)", "weights of gavel_hierarchical: 3 is no pair"),
        (
            "gavel_hierarchical(weights=(('a', 0),))",
            "('a', 0) is no pair of a virtual cluster and a weight from",
        ),
        (
            "gavel_hierarchical(inners=(('a', 'las'),))",
            "('a', 'las') is no pair of a virtual cluster and 'fairness' or",
        ),
        (
            "gavel_hierarchical(inner='las')",
            "option inner of gavel_hierarchical must be 'fairness' or 'fifo'",
        ),
        ("hived(quotas=3)", "quotas of hived are tuples of a virtual cluster, devices of a cell, and cells"),
        ("hived(quotas=(('a', 8),))", "got (('a', 8),)"),
        ("fifo sjf", "joined by ,"),
        ("", "cannot read"),
        ("fifo, sjf", "one policy is wanted, got 2"),
        ("__import__('os')", "cannot read"),
    ],
)
def test_unreadable_policies_are_refused(text: str, said: str) -> None:
    with pytest.raises(FleetError, match=re.escape(said)):
        parse_policy(text)
