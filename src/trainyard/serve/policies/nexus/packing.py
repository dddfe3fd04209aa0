"""Squishy bin packing: sessions on GPUs, each with a batch in every duty cycle (Algorithm 1)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from trainyard.serve.errors import ServeError
from trainyard.serve.policies.nexus.profile import BatchingProfile

__all__ = ["PackedDevice", "Session", "alone", "num_full", "pack", "together"]

_NEAR = 1e-9


@dataclass(frozen=True)
class Session:
    """Requests for a model with one objective.

    Attributes
    ----------
    name : of the session.
    profile : of its model.
    objective_s : longest latency (L).
    rate_per_s : requests (R).
    weight_bytes : of its model, on every GPU that has the session.
    """

    name: str
    profile: BatchingProfile
    objective_s: float
    rate_per_s: float
    weight_bytes: float = 0.0


@dataclass(frozen=True)
class PackedDevice:
    """A GPU: in every duty cycle, a batch of each of its sessions.

    Attributes
    ----------
    sessions : each with the part of its rate that this GPU serves.
    batches : of each.
    duty_s : length of the cycle (d).
    """

    sessions: tuple[Session, ...]
    batches: tuple[int, ...]
    duty_s: float

    @property
    def occupancy(self) -> float:
        """Part of the cycle in which the GPU works."""
        busy_s = sum(s.profile.latency(b) for s, b in zip(self.sessions, self.batches, strict=True))
        return busy_s / self.duty_s

    @property
    def weight_bytes(self) -> float:
        """Weights of all its sessions."""
        return sum(s.weight_bytes for s in self.sessions)


def pack(sessions: tuple[Session, ...], device_bytes: float = math.inf) -> tuple[PackedDevice, ...]:
    """GPUs for all sessions: full ones first, then what is left of each session, the largest first, where it fits best.

    Parameters
    ----------
    device_bytes : memory of a GPU for weights.

    Raises
    ------
    ServeError
        If no batch of a session keeps its objective, or its weights are more than a GPU has memory for.
    """
    nodes, residual = [], []
    for session in sessions:
        full, count = _full(session, device_bytes)
        nodes += [full] * count
        rest = session.rate_per_s - count * full.sessions[0].rate_per_s
        if rest > _NEAR:
            residual.append(alone(replace(session, rate_per_s=rest)))
    merged: list[PackedDevice] = []
    for node in sorted(residual, key=lambda n: -n.occupancy):
        fits = [
            (both, i)
            for i, other in enumerate(merged)
            if (both := together(other, node, device_bytes)) is not None
        ]
        if fits:
            both, i = max(fits, key=lambda f: f[0].occupancy)
            merged[i] = both
        else:
            merged.append(node)
    return (*nodes, *merged)


def num_full(sessions: tuple[Session, ...], device_bytes: float = math.inf) -> int:
    """Count the GPUs that `pack` fills with one session; parameters and errors are those of `pack`.

    Where rates are far too large for the GPUs that there are, this says so without a list of all that would be needed.
    """
    return sum(_full(session, device_bytes)[1] for session in sessions)


def _full(session: Session, device_bytes: float) -> tuple[PackedDevice, int]:
    """A GPU with the largest batches of a session one after the other, and how many of these its rate fills."""
    batches = _batches_of(session, device_bytes)
    full_s = session.profile.latency(batches[-1])
    most = batches[-1] / full_s
    full = PackedDevice((replace(session, rate_per_s=most),), (batches[-1],), full_s)
    return full, int(session.rate_per_s / most + _NEAR)


def _batches_of(session: Session, device_bytes: float) -> tuple[int, ...]:
    """Batches that keep the objective: a request waits for one batch, and then for its own."""
    batches = session.profile.within(session.objective_s / 2)
    if not batches:
        raise ServeError(
            f"session {session.name!r}: no batch meets its objective of {session.objective_s:g} s; allow more time"
        )
    if session.weight_bytes > device_bytes:
        raise ServeError(
            f"session {session.name!r}: its weights have {session.weight_bytes:.6g} bytes, and a device has memory for "
            f"{device_bytes:.6g}; use larger devices"
        )
    return batches


def alone(session: Session) -> PackedDevice:
    """The largest batch that is gathered and computed within the objective; a batch of 1 waits for nobody."""
    rate, profile = session.rate_per_s, session.profile
    fits = [b for b in profile.batches if profile.latency(b) + b / rate <= session.objective_s + _NEAR]
    batch = max(fits, default=1)
    duty_s = batch / rate if fits else session.objective_s - profile.latency(1)
    return PackedDevice((session,), (batch,), duty_s)


def together(one: PackedDevice, other: PackedDevice, device_bytes: float = math.inf) -> PackedDevice | None:
    """Two GPUs' sessions on one, in the shorter cycle; None if they do not fit."""
    duty_s, sessions = min(one.duty_s, other.duty_s), (*one.sessions, *other.sessions)
    batches = tuple(max(math.ceil(duty_s * s.rate_per_s - _NEAR), 1) for s in sessions)
    both = PackedDevice(sessions, batches, duty_s)
    fits = both.occupancy <= 1 + _NEAR and both.weight_bytes <= device_bytes
    return both if fits else None
