"""Small changes of packed devices, drawn by chance: what a local search tries one after the other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from trainyard.serve.policies.nexus.packing import PackedDevice, Session

__all__ = ["moved_sessions"]

_FEWEST_REQUESTS_PER_S = 1e-9


@dataclass
class _Held:
    """A session on a device while devices are changed."""

    session: Session
    batch: int


_Device = list[_Held]


def moved_sessions(
    nodes: tuple[PackedDevice, ...], num_devices: int, device_bytes: float, random: Random
) -> tuple[PackedDevice, ...]:
    """Devices after one change: another batch, or a session that moves, spreads or is exchanged.

    Parameters
    ----------
    num_devices : that may be used; empty ones are not among ``nodes``.
    device_bytes : memory of each for weights.

    Returns
    -------
    The same devices if what was drawn does not fit.
    """
    devices = [
        [_Held(session, batch) for session, batch in zip(node.sessions, node.batches, strict=True)]
        for node in nodes
    ]
    devices += [[] for _ in range(min(num_devices - len(nodes), 1))]
    change = random.choice((_other_batch, _moved, _spread, _spread, _exchanged))
    at = random.choice([i for i, device in enumerate(devices) if device])
    change(devices, at, random)
    if any(sum(h.session.weight_bytes for h in device) > device_bytes for device in devices):
        return nodes
    return tuple(_packed(device) for device in devices if device)


def _other_batch(devices: list[_Device], at: int, random: Random) -> None:
    held = random.choice(devices[at])
    most = held.session.profile.batches[-1]
    other = random.choice((held.batch - 1, held.batch + 1, held.batch // 2, held.batch * 2))
    held.batch = min(max(other, 1), most)


def _moved(devices: list[_Device], at: int, random: Random) -> None:
    to = random.randrange(len(devices))
    if to != at:
        held = devices[at].pop(random.randrange(len(devices[at])))
        _put(devices[to], held)


def _spread(devices: list[_Device], at: int, random: Random) -> None:
    """A part of a session's requests goes to another device."""
    to = random.randrange(len(devices))
    if to != at:
        held, part = random.choice(devices[at]), random.choice((0.125, 0.25, 0.5))
        session = held.session
        _put(devices[to], _Held(replace(session, rate_per_s=part * session.rate_per_s), held.batch))
        held.session = replace(session, rate_per_s=(1 - part) * session.rate_per_s)


def _exchanged(devices: list[_Device], at: int, random: Random) -> None:
    to = random.randrange(len(devices))
    if to != at and devices[to]:
        one, other = (devices[i].pop(random.randrange(len(devices[i]))) for i in (at, to))
        _put(devices[to], one)
        _put(devices[at], other)


def _put(device: _Device, held: _Held) -> None:
    """A session on a device; what this one had of it before comes together with it."""
    for there in device:
        if there.session.name == held.session.name:
            rate_per_s = there.session.rate_per_s + held.session.rate_per_s
            there.session = replace(there.session, rate_per_s=rate_per_s)
            there.batch = max(there.batch, held.batch)
            return
    device.append(held)


def _packed(device: _Device) -> PackedDevice:
    """The cycle is the time in which the first batch has come, and at least as long as all batches take."""
    come_s = min(h.batch / max(h.session.rate_per_s, _FEWEST_REQUESTS_PER_S) for h in device)
    busy_s = sum(h.session.profile.latency(h.batch) for h in device)
    return PackedDevice(tuple(h.session for h in device), tuple(h.batch for h in device), max(come_s, busy_s))
