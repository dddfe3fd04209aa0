"""What a rank holds beside tensors, against hand-computed and measured bytes."""

import pytest

from trainyard.cost.overhead import Communicator, communication_buffer_bytes, fragmentation_bytes
from trainyard.hardware.overhead import NO_OVERHEAD
from trainyard.hardware.parse import parse_cluster

MIB = 2**20


def buffers(cluster: str, *groups: tuple[tuple[int, ...], set[str]]) -> int:
    """Of rank 0."""
    found = [Communicator(ranks, frozenset(kinds)) for ranks, kinds in groups]
    return communication_buffer_bytes(parse_cluster(cluster), 0, found)


def test_a_group_has_its_channels_to_its_neighbours() -> None:
    # 24 channels of 14 MiB on NVLink 3, 2 over PCIe; the trees of an all-reduce need the other direction, too.
    assert buffers("1x8xA100-80G", ((0, 1), {"all_reduce"})) == 24 * 14 * MIB
    assert buffers("1x8xA100-80G", (tuple(range(8)), {"all_gather"})) == 24 * 14 * MIB
    assert buffers("1x8xA100-80G", (tuple(range(8)), {"all_reduce", "all_gather"})) == 48 * 14 * MIB
    assert buffers("1x4xT4", ((0, 1, 2, 3), {"all_reduce"})) == 4 * 14 * MIB


def test_a_group_across_nodes_has_two_channels_for_each_device_of_the_node() -> None:
    assert buffers("2x8xA100-80G", ((0, 8), {"all_gather"})) == 2 * 14 * MIB
    assert buffers("2x8xA100-80G", (tuple(range(16)), {"all_gather"})) == 16 * 14 * MIB
    assert buffers("2x8xA100-80G", ((0, 8), {"send"})) == 14 * MIB
    # Two to each of the seven peers here; those to the other node share one pool.
    assert buffers("2x8xA100-80G", (tuple(range(16)), {"all_to_all"})) == 2 * (7 + 1) * 14 * MIB


def test_measured_all_to_all_of_8_h100() -> None:
    """3.28 GB more after the first all-to-all (NVIDIA/nccl issue 1685)."""
    assert buffers("1x8xH100", (tuple(range(8)), {"all_to_all"})) == pytest.approx(3.28e9, rel=0.01)


def test_measured_all_reduce_of_4_a100() -> None:
    """688 MB for a group of more than two of four A100 (NVIDIA/nccl issue 964)."""
    assert buffers("1x4xA100-80G", ((0, 1, 2, 3), {"all_reduce"})) == pytest.approx(688e6, rel=0.03)


def test_processors_hold_nothing_beside_tensors() -> None:
    assert buffers("1x4xTPUv3", ((0, 1, 2, 3), {"all_reduce"})) == 0
    assert fragmentation_bytes(NO_OVERHEAD, 10**9) == 0


def test_fragments_are_a_share_of_what_comes_and_goes() -> None:
    assert (
        fragmentation_bytes(parse_cluster("1x1xA100-80G").device(0).overhead, 10**9) == 22 * MIB + 5 * 10**7
    )
