"""One worker of the communication measurement.

``python -m trainyard.hardware.measure_gloo FOLDER WORLD RANK``, started by `trainyard.hardware.measure`; the
first worker writes ``result.json`` into the folder.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

__all__ = ["main"]

# Of a process for the others, on a busy machine; who started them ends them before, when none of them works any more.
_LONGEST_WAIT = timedelta(hours=1)
# (bytes, repetitions): few of the large ones, which vary less and take longer
_SIZES = ((2**10, 40), (2**14, 40), (2**17, 24), (2**20, 16), (2**23, 9))


def _calls(num_floats: int, rank: int, members: list[int], group: Any) -> dict[str, Callable[[], object]]:
    """The collectives on tensors of a size, by kind; sizes are counted as in `collective_cost`."""
    import torch
    import torch.distributed as dist

    num_members = len(members)
    full = torch.ones(num_floats)
    part = torch.ones(num_floats // num_members)
    other = torch.empty_like(full)

    def send() -> None:
        if rank == members[0]:
            dist.send(full, members[1])
        elif rank == members[1]:
            dist.recv(other, members[0])

    return {
        "all_reduce": lambda: dist.all_reduce(full, group=group),
        "all_gather": lambda: dist.all_gather_into_tensor(other, part, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, full, group=group),
        "all_to_all": lambda: dist.all_to_all_single(other, full, group=group),
        "broadcast": lambda: dist.broadcast(full, members[0], group=group),
        "send": send,
    }


def _measure_group(rank: int, members: list[int], group: Any) -> list[dict[str, Any]]:
    """Mean seconds of every kind and size in one group; the slowest member counts.

    The mean, because a step has many collectives and pays for the slow ones, too: on a machine that is shared they
    take up to ten times the median.
    """
    import torch
    import torch.distributed as dist

    samples: list[dict[str, Any]] = []
    for num_bytes, repeats in _SIZES:
        for kind, call in _calls(num_bytes // 4, rank, members, group).items():
            call()
            dist.barrier(group)
            began_s = time.perf_counter()
            for _ in range(repeats):
                call()
            # One that returns early (the root of a broadcast) waits in the next: the slowest member counts.
            seconds = torch.tensor((time.perf_counter() - began_s) / repeats, dtype=torch.float64)
            dist.all_reduce(seconds, dist.ReduceOp.MAX, group=group)
            samples.append(
                {
                    "kind": kind,
                    "num_processes": len(members),
                    "num_bytes": num_bytes,
                    "seconds": seconds.item(),
                }
            )
    return samples


def main(arguments: list[str]) -> None:
    """Join the group, measure, and write the result.

    Parameters
    ----------
    arguments
        Folder, number of workers, rank.
    """
    folder, num_workers, rank = Path(arguments[0]), int(arguments[1]), int(arguments[2])
    import torch
    import torch.distributed as dist

    from trainyard.hardware.interface import use_interface
    from trainyard.hardware.measure import PROCESS_COUNTS

    use_interface()
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'store'}",
        rank=rank,
        world_size=num_workers,
        timeout=_LONGEST_WAIT,
    )
    samples: list[dict[str, Any]] = []
    for count in PROCESS_COUNTS:
        members = list(range(count))
        group = dist.new_group(members)
        if rank in members:
            samples += _measure_group(rank, members, group)
        dist.barrier()
    if rank == 0:
        (folder / "result.json").write_text(json.dumps(samples))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
