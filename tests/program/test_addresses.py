"""Addresses of ops: unique, the same for other numbers of rows and blocks, and patterns that stand for many."""

from __future__ import annotations

import re
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.job.task import Task
from trainyard.program.addresses import AddressError, address
from trainyard.program.patterns import is_like
from trainyard.program.program import Program
from trainyard.zoo.registry import build


@cache
def program(rows: int = 4, name: str = "gpt-tiny") -> Program:
    return Task(build(name, 8)).program(rows)


@pytest.mark.parametrize("name", ["gpt-tiny", "moe-tiny", "resnet-tiny"])
def test_every_op_has_an_address_of_its_own(name: str) -> None:
    found = program(8, name)
    ops = [n for n in found.graph.nodes if n.op == "call_function"]
    assert list(found.addresses.nodes.values()) == ops
    assert all(found.addresses.find(address(n)) == (n,) for n in ops)


def test_the_number_counts_ops_of_one_name_in_a_module_and_pass() -> None:
    found = program(8).addresses.nodes
    forward = [a for a in found if re.match(r"blocks\.1\.attention:bmm", a)]
    assert forward == ["blocks.1.attention:bmm", "blocks.1.attention:bmm.2"]
    backward = [a for a in found if re.match(r"blocks\.1\.attention\.out:backward\.mm", a)]
    assert backward == ["blocks.1.attention.out:backward.mm", "blocks.1.attention.out:backward.mm.2"]
    assert ":add" in found


def test_a_microbatch_has_the_addresses_of_the_batch() -> None:
    """Ops that are written out differently, such as the mean of the loss, do not count in those that are not."""
    whole, part = program(8).addresses, program(2).addresses
    assert not [a for a in whole.nodes if a.startswith("blocks") and a not in part.nodes]
    common = [a for a in part.nodes if a in whole.nodes]
    assert [whole.nodes[a].target for a in common if a.startswith("blocks")] == [
        part.nodes[a].target for a in common if a.startswith("blocks")
    ]


@pytest.mark.parametrize(
    ("pattern", "path", "is_so"),
    [
        ("blocks.*.mlp", "blocks.3.mlp", True),
        ("blocks.*.mlp", "blocks.3.0.mlp", False),
        ("blocks.1*", "blocks.12", True),
        ("*.*ten*on", "blocks.attention", True),
        ("*", "", False),
        ("**", "", True),
        ("**", "blocks.0.mlp", True),
        ("blocks.3.**", "blocks.3", True),
        ("blocks.3.**", "blocks.30", False),
        ("**.mlp", "blocks.3.mlp", True),
        ("**.3.**.up", "blocks.3.mlp.up", True),
        ("**.3.**.up", "blocks.3", False),
        ("a*a", "a", False),
    ],
)
def test_patterns_of_paths(pattern: str, path: str, is_so: bool) -> None:
    assert is_like(pattern, path) == is_so


def test_patterns_of_ops() -> None:
    found = program(8).addresses

    def count(pattern: str) -> int:
        return len(found.find(pattern))

    assert count("blocks.*:gelu") == 2
    assert count("blocks.*.attention:bmm*") == 4
    assert count("blocks.*.attention.out:*") == 8
    assert count("blocks.*.attention.out:backward.mm*") == 4
    assert count("**:*") + count("**:backward.*") == len(found.nodes)
    assert found.names(["blocks.0:gelu", "blocks.*:gelu"]) == {"blocks.0:gelu", "blocks.1:gelu"}


@pytest.mark.parametrize(
    ("name", "close"),
    [
        ("blocks.0:glu", "blocks.*:gelu"),
        ("blocks.7:gelu", "blocks.*:gelu"),
        ("blocks.*.atention:bmm", "blocks.*.attention:bmm"),
        ("gelu", ""),
        ("", ""),
    ],
)
def test_an_address_of_nothing_is_refused_with_those_that_are_close(name: str, close: str) -> None:
    with pytest.raises(
        AddressError, match=f"{re.escape(repr(name))} is no op.*; there are .*{re.escape(close)}"
    ):
        program(8).addresses.find(name)


@given(st.data())
def test_a_set_of_ops_is_written_shortly_and_means_the_same(data: st.DataObject) -> None:
    found = program(8).addresses
    everything = list(found.nodes)
    patterns = ["blocks.*:gelu", "blocks.0.**:*", "**:backward.*", "blocks.*.attention:*", "tokens:*"]
    drawn = data.draw(st.sets(st.sampled_from(patterns)))
    some = data.draw(st.sets(st.sampled_from(everything), max_size=20))
    left_out = data.draw(st.sets(st.sampled_from(everything), max_size=2))
    names = (found.names(drawn) | some) - left_out
    short = found.shortened(found.nodes[name] for name in sorted(names))
    assert found.names(short) == names
    assert len(short) <= len(names)


def test_what_repeats_is_written_once() -> None:
    found = program(8).addresses
    assert found.shortened(found.find("blocks.*:gelu")) == ("blocks.*:gelu",)
    assert found.shortened(found.find("**:*")) == ("**:*",)
    assert found.shortened(found.find("blocks.*.attention:*")) == ("blocks.*.attention:*",)
    assert found.shortened(found.find("tokens:*")) == ("tokens:embedding",)
    assert found.shortened(found.find("blocks.1:gelu")) == ("blocks.1:gelu",)
