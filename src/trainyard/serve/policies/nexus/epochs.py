"""From one epoch to the next: sessions stay where they are, as far as they still fit (the end of section 6.1).

To load a model takes longer than many batches of it. So what was packed before is not packed anew when rates change.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from trainyard.serve.policies.nexus.packing import PackedDevice, Session, alone, pack, together

__all__ = ["repack"]

_NEAR = 1e-9


def repack(
    before: tuple[PackedDevice, ...], sessions: tuple[Session, ...], device_bytes: float = math.inf
) -> tuple[PackedDevice, ...]:
    """The GPUs of the next epoch.

    1. Each GPU keeps as much of its sessions as it served and is still asked for. Where they no longer fit, since
       objectives or profiles changed, it gives up those that occupy it least.
    2. What is left of a session goes on a GPU that already has it, then on any other where it fits best.
    3. What fits nowhere is packed on GPUs of its own. GPUs without a session are given up.

    Parameters
    ----------
    before : GPUs of the last epoch.
    sessions : with their rates in the next one.
    device_bytes : memory of a GPU for weights.

    Raises
    ------
    ServeError
        As `trainyard.serve.policies.nexus.packing.pack`.
    """
    pack(sessions, device_bytes)  # refuses what cannot be served at all
    wanted = {session.name: session for session in sessions}
    left_per_s = {session.name: session.rate_per_s for session in sessions}
    nodes: list[PackedDevice] = []
    for node in before:
        kept = _kept(node, wanted, left_per_s, device_bytes)
        if kept is not None:
            nodes.append(kept)
            for session in kept.sessions:
                left_per_s[session.name] -= session.rate_per_s
    rest = []
    for name, rate in left_per_s.items():
        if rate > _NEAR:
            session = replace(wanted[name], rate_per_s=rate)
            if not _added(nodes, session, device_bytes):
                rest.append(session)
    return (*nodes, *pack(tuple(rest), device_bytes))


def _kept(
    node: PackedDevice,
    wanted: Mapping[str, Session],
    left_per_s: Mapping[str, float],
    device_bytes: float,
) -> PackedDevice | None:
    """A GPU with what it keeps of its sessions; None if it keeps none."""
    kept = [
        replace(wanted[session.name], rate_per_s=min(session.rate_per_s, left_per_s[session.name]))
        for session in node.sessions
        if left_per_s.get(session.name, 0.0) > _NEAR
    ]
    if tuple(kept) == node.sessions:
        return node
    kept.sort(key=lambda session: -alone(session).occupancy)
    while kept:
        found = _on_one(kept, device_bytes)
        if found is not None:
            return found
        kept.pop()
    return None


def _on_one(sessions: list[Session], device_bytes: float) -> PackedDevice | None:
    """Sessions on one GPU, in the shortest of their cycles; None if they do not fit."""
    found: PackedDevice | None = alone(sessions[0])
    assert found is not None
    if found.occupancy > 1 + _NEAR or found.weight_bytes > device_bytes:
        return None
    for session in sessions[1:]:
        found = together(found, alone(session), device_bytes) if found is not None else None
    return found


def _added(nodes: list[PackedDevice], session: Session, device_bytes: float) -> bool:
    """Put a session on the GPU where it fits best, and one that has it before others; False if it fits on none."""
    found = []
    for place, node in enumerate(nodes):
        there = {each.name: each for each in node.sessions}
        own = there.pop(session.name, None)
        rate = session.rate_per_s + (own.rate_per_s if own is not None else 0.0)
        both = _on_one([*there.values(), replace(session, rate_per_s=rate)], device_bytes)
        if both is not None:
            found.append((own is not None, both.occupancy, place, both))
    if not found:
        return False
    *_, place, both = max(found, key=lambda each: each[:3])
    nodes[place] = both
    return True
