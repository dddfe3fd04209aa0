"""Memory of a device that no tensor can have: of the driver, the framework, the communication library, the allocator.

The figures of the presets are read off public reports. PyTorch's message that memory ran out says what the driver
reports as the size, what the process has, what the allocator gave out, and what it keeps and cannot give out; what the
process has beside those two is the context.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from trainyard.hardware.errors import HardwareError

__all__ = ["NO_OVERHEAD", "MemoryOverhead"]


@dataclass(frozen=True)
class MemoryOverhead:
    """What a device's memory holds beside tensors. All zero where a process has nothing of the kind, as on processors.

    Parameters
    ----------
    driver_bytes
        Kept by the driver: the nominal size less what the CUDA runtime reports as the size.
    context_bytes
        Of one process: the CUDA context with the kernels it has loaded, and the workspace of cuBLAS.
    channels
        Channels of a communicator within a node, for collectives [1]_.
    peer_channels
        Channels of a communicator within a node to each peer, for sends and all-to-all [1]_.
    network_channels
        Channels of a communicator across nodes: to each peer, and for collectives per device of the node [1]_.
    channel_bytes
        Buffers of one channel between two ranks, both directions, on each of them.
    segment_bytes
        Units in which the allocator gets memory for tensors that it packs: one of each is partly used [2]_. That
        tensors begin at multiples of 512 bytes is less.
    fragmented_fraction
        What the allocator keeps in pieces that fit no tensor, as a fraction of the memory that is given out and taken
        back within a step.

    References
    ----------
    .. [1] NCCL 2.19 to 2.29, ``NCCL_DEBUG=INFO``: "coll channels", "p2p channels per peer".
    .. [2] PyTorch, ``c10/core/AllocatorConfig.h``.
    """

    driver_bytes: int = 0
    context_bytes: int = 0
    channels: int = 0
    peer_channels: int = 0
    network_channels: int = 0
    channel_bytes: int = 0
    segment_bytes: int = 0
    fragmented_fraction: float = 0.0

    def __post_init__(self) -> None:
        for each in fields(self):
            if getattr(self, each.name) < 0:
                raise HardwareError(f"{each.name} is {getattr(self, each.name)}; allowed: zero or more")
        if self.fragmented_fraction >= 1:
            raise HardwareError(
                f"fragmented_fraction is {self.fragmented_fraction}; allowed: a fraction in [0, 1)"
            )


NO_OVERHEAD = MemoryOverhead()
"""Of a device whose memory is all for tensors.

That is so of a process on the processors of this machine, but for 5 MiB: processes are forked from one that has loaded
PyTorch and share its pages, and what gloo copies aside is counted as memory of the op.
"""
