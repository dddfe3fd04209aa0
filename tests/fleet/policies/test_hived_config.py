"""Configuration files of HiveD and OpenPAI."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainyard.fleet.errors import FleetError
from trainyard.fleet.policies.hived.config import read_hived
from trainyard.fleet.policies.hived.virtual import VirtualCell
from trainyard.hardware.cluster import Node

SMALL: dict[str, Any] = {
    "webServerAddress": "9096",
    "physicalCluster": {
        "skuTypes": {"K": {"gpu": 1, "cpu": 5, "memory": "54Gi"}},
        "cellTypes": {
            "K-NODE": {"childCellType": "K", "childCellNumber": 4, "isNodeLevel": True},
            "K-POOL": {"childCellType": "K-NODE", "childCellNumber": 2},
        },
        "physicalCells": [
            {
                "cellType": "K-POOL",
                "cellChildren": [{"cellAddress": "n1", "pinnedCellId": "mine"}, {"cellAddress": "n2"}],
            },
            {
                "cellType": "K-NODE",
                "cellAddress": 10.5,
                "cellChildren": [{"cellAddress": i} for i in (7, 5, 3, 1)],
            },
        ],
    },
    "virtualClusters": {
        "a": {"virtualCells": [{"cellType": "K-POOL.K-NODE", "cellNumber": 1}]},
        "b": {
            "virtualCells": [{"cellType": "K-NODE.K", "cellNumber": 3}],
            "pinnedCells": [{"pinnedCellId": "mine"}],
        },
        "guests": {},
    },
}


def write(path: Path, value: object) -> Path:
    file = path / "hived.yaml"
    file.write_text(value if isinstance(value, str) else yaml.safe_dump(value))
    return file


def test_a_small_file(tmp_path: Path) -> None:
    layout = read_hived(write(tmp_path, SMALL))
    assert layout.cluster.nodes == (Node.named("K", 4),) * 3
    assert layout.node_names == ("n1", "n2", "10.5")
    pool, node = layout.chains
    assert (pool.names, pool.sizes, pool.node_level) == (("K", "K-NODE", "K-POOL"), (1, 4, 8), 1)
    # Devices are numbered by their addresses, cells are as the file has them.
    assert (pool.devices, node.devices) == ((0, 1, 2, 3, 4, 5, 6, 7), (11, 10, 9, 8))
    assert layout.virtual_clusters == ("a", "b", "guests")
    assert layout.virtual_cells == (
        VirtualCell("a", 0, 1),
        *[VirtualCell("b", 1, 0)] * 3,
        VirtualCell("b", 0, 1, "mine", 0),
    )


def test_the_same_inside_a_file_of_openpai(tmp_path: Path) -> None:
    inside = {"hivedscheduler": {"config": yaml.safe_dump(SMALL)}, "rest-server": {}}
    assert (
        read_hived(write(tmp_path, inside)).virtual_cells == read_hived(write(tmp_path, SMALL)).virtual_cells
    )


def test_default_addresses_count_through_the_parts_of_a_node(tmp_path: Path) -> None:
    types = {
        "M": {"childCellType": "S", "childCellNumber": 2, "isNodeLevel": True},
        "S": {"childCellType": "K", "childCellNumber": 2},
    }
    cells = [
        {
            "cellType": "M",
            "cellAddress": "n",
            "cellChildren": [{}, {"cellChildren": [None, {"cellAddress": 9}]}],
        }
    ]
    file = {"physicalCluster": {"cellTypes": types, "physicalCells": cells}, "virtualClusters": {"a": {}}}
    (chain,) = read_hived(write(tmp_path, file)).chains
    assert chain.devices == (0, 1, 2, 3)


PHYSICAL, POOL = ("physicalCluster",), ("physicalCluster", "physicalCells", 0)
NODE = ("physicalCluster", "physicalCells", 1)
TYPES, OWNER = ("physicalCluster", "cellTypes"), ("virtualClusters", "a")
_LEVELS = ["K-POOL", *(f"L{n}" for n in range(40))]
DEEP = {name: {"childCellType": child, "childCellNumber": 1} for name, child in pairwise(_LEVELS)}


@pytest.mark.parametrize(
    ("where", "value", "said"),
    [
        ((), "physicalCluster: [", "line 2: not YAML"),
        ((), "!!python/object/apply:os.system [exit]", "not YAML without code"),
        ((), "[1]", "top level: [1] is not a mapping"),
        (PHYSICAL, 3, "physicalCluster: 3 is not a mapping"),
        (
            (*TYPES, "K-NODE", "isNode"),
            True,
            "cellTypes.K-NODE: unknown key 'isNode'; there are childCellType, ",
        ),
        (
            (*TYPES, "K-NODE", "childCellNumber"),
            0,
            "childCellNumber: 0 is not a whole number from 1 to 1000000",
        ),
        ((*TYPES, "K-NODE", "childCellNumber"), 10**6, "at most 1000000 devices"),
        ((*TYPES, "K-NODE", "childCellType"), "K-POOL", "it holds itself"),
        (TYPES, DEEP, "L30.childCellType: 'L31' is not at most 32 types below each other"),
        (
            (*TYPES, "K-NODE", "isNodeLevel"),
            False,
            "one type with isNodeLevel: true among K-POOL, K-NODE; there are 0",
        ),
        ((*TYPES, "K-POOL", "isNodeLevel"), True, "there are 2"),
        ((*POOL, "cellType"), "J", "physicalCells[0].cellType: 'J' is not one of cellTypes: K-NODE, K-POOL"),
        (
            (*POOL, "cellChildren", 0),
            {"cellAddress": "n1", "cellType": "K"},
            "cellChildren[0].cellType: 'K' is not K-NODE",
        ),
        (
            (*POOL, "cellChildren", 0),
            {},
            "cellChildren[0]: K-NODE is a node, give its name as cellAddress",
        ),
        ((*POOL, "cellChildren", 1, "cellAddress"), "n1", "node 'n1' has device 0 of type K already"),
        ((*POOL, "cellChildren", 1, "pinnedCellId"), "mine", "another cell has it"),
        ((*POOL, "cellChildren"), [{"cellAddress": "n1"}], "is not a list of 2 cells, which K-POOL has"),
        ((*POOL, "cellChildren"), "n1", "cellChildren: 'n1' is not a list"),
        (
            (*PHYSICAL, "physicalCells", 1, "cellChildren", 0, "cellAddress"),
            "x",
            "is not the number of a device in its node",
        ),
        ((*PHYSICAL, "physicalCells"), [], "a list with at least one cell"),
        (
            (*OWNER, "virtualCells", 0, "cellType"),
            "J.K",
            "begins with that of a physical cell: K-POOL, K-NODE",
        ),
        ((*OWNER, "virtualCells", 0, "cellType"), "K-POOL.K", "as far as wanted: K-POOL.K-NODE.K"),
        (
            (*OWNER, "virtualCells", 0, "cellNumber"),
            2,
            "have 2 cells of type K-NODE; beside pinned and larger ones ",
        ),
        ((*OWNER, "virtualCells", 0, "cellNumber"), "2", "cellNumber: '2' is not a whole number"),
        (
            (*OWNER, "pinnedCells"),
            [{"pinnedCellId": "yours"}],
            "'yours' is not the pinnedCellId of a physical cell",
        ),
        (
            (*OWNER, "pinnedCells"),
            [{"pinnedCellId": "mine"}],
            "pinned cell 'mine' of virtual cluster 'b' overlaps",
        ),
        (("virtualClusters",), {1: {}}, "line 29: key 1 is not text; write it in quotes"),
    ],
)
def test_wrong_files(tmp_path: Path, where: tuple[str | int, ...], value: Any, said: str) -> None:
    file: Any = yaml.safe_load(yaml.safe_dump(SMALL))
    if where:
        part = file
        for key in where[:-1]:
            part = part[key]
        part[where[-1]] = value
    else:
        file = value
    path = write(tmp_path, file)
    with pytest.raises(FleetError, match=re.escape(said)) as error:
        read_hived(path)
    assert str(path) in str(error.value)


def test_files_that_are_not_there_or_hold_themselves(tmp_path: Path) -> None:
    with pytest.raises(FleetError, match="cannot read"):
        read_hived(tmp_path / "none.yaml")
    with pytest.raises(FleetError, match="too deep in each other"):
        read_hived(write(tmp_path, "[" * 2000))
    text = yaml.safe_dump(SMALL).replace(
        "  - cellAddress: 10.5", "  - &x\n    pinnedCellId: *x\n    cellAddress: 10.5"
    )
    with pytest.raises(FleetError, match=r"line 17: alias \*x contains itself"):
        read_hived(write(tmp_path, text))
