"""Reservations and qualities of service in the file of a cluster."""

from __future__ import annotations

import pytest

from trainyard.fleet.what_if import parse_what_if
from trainyard.hardware.errors import HardwareError
from trainyard.hardware.parse import cluster_from_dict, cluster_from_yaml
from trainyard.hardware.reservations import Reservation

TEXT = """\
cluster: 4x2
reservations:
- {from_s: 10, until_s: 20, nodes: 2-3, users: [ann], accounts: [vision]}
- {from_s: 30, until_s: 40, nodes: 0}
qos: {high: 100, low: -5}
"""


def test_they_are_read_and_written() -> None:
    cluster = cluster_from_yaml(TEXT)
    kept, maintenance = cluster.reservations
    assert kept == Reservation(10, 20, frozenset({2, 3}), ("ann",), ("vision",))
    assert [kept.is_for(*who) for who in (("ann", ""), ("bob", "vision"), ("bob", ""))] == [True, True, False]
    assert not maintenance.is_for("", "")
    assert cluster.qos == (("high", 100), ("low", -5))
    again = cluster_from_dict(cluster.to_dict())
    assert (again.reservations, again.qos) == (cluster.reservations, cluster.qos)
    assert again.fingerprint() != cluster_from_yaml("cluster: 4x2").fingerprint()


def test_nodes_that_a_what_if_takes_away_are_not_reserved() -> None:
    fewer = parse_what_if("-2x2").cluster(cluster_from_yaml(TEXT))
    assert [each.nodes for each in fewer.reservations] == [{0}]
    assert fewer.qos == (("high", 100), ("low", -5))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "reservations: [{from_s: 10, until_s: 10, nodes: 0}]",
            "'until_s'.*allowed is a time after from_s, 10",
        ),
        ("reservations: [{from_s: 10, until_s: 20}]", "'nodes' is missing; allowed is nodes such as"),
        ("reservations: [{from_s: 10, until_s: 20, nodes: 4}]", "from 0 to 3"),
        ("reservations: [{from_s: 10, until_s: 20, nodes: 0, user: ann}]", "no such field; there are from_s"),
        ("reservations: [{from_s: 10, until_s: 20, nodes: 0, users: ann}]", "'users'.*a list"),
        ("reservations: [{from_s: 10, until_s: 20, nodes: 0, users: []}]", "leave it out for nobody"),
        ("reservations: {from_s: 10}", "a list"),
        ("qos: {high: 0.5}", "'high'.*a whole number"),
        ("qos: [high]", "a mapping"),
    ],
)
def test_what_cannot_be_read(line: str, said: str) -> None:
    with pytest.raises(HardwareError, match=said):
        cluster_from_yaml(f"cluster: 4x2\n{line}\n")
