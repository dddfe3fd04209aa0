"""Jobs on their way out: no other job gets their devices until they have left; the driver does not wait for that."""

from __future__ import annotations

from collections.abc import Callable, Set

from trainyard.fleet.errors import one_line
from trainyard.fleet.run.backend import Backend
from trainyard.fleet.run.event import Event
from trainyard.fleet.workload.job import Grant

__all__ = ["Departures"]


class Departures:
    """Jobs that are to leave a backend's devices.

    Parameters
    ----------
    tell : gets the last event of a job once the job has left.

    Attributes
    ----------
    trouble : why the backend could not be told or asked at the last `look`; "" if it could.
    """

    def __init__(self, backend: Backend, tell: Callable[[Event], None]) -> None:
        self.backend, self.tell = backend, tell
        self.trouble = ""
        # Devices of each leaving job; None where they are not known.
        self._held: dict[str, frozenset[int] | None] = {}
        # Leaving jobs that the backend could not be told of yet, and whether they lost nodes.
        self._untold: dict[str, bool] = {}
        self._lost: Set[int] = frozenset()
        self._final: dict[str, Event] = {}
        # Devices of jobs that may run or not; None where the devices are not known, either.
        self._reserved: dict[str, frozenset[int] | None] = {}

    @property
    def ending(self) -> frozenset[str]:
        """Jobs that have ended for good and have not left their devices yet."""
        return frozenset(self._final)

    def is_leaving(self, name: str) -> bool:
        """Whether a job that was to leave has not left yet."""
        return name in self._held

    def leave(self, name: str, devices: frozenset[int] | None) -> None:
        """Have a job leave.

        Parameters
        ----------
        devices : devices of the job; None where they are not known.
        """
        self.release(name)
        self._held[name], self._untold[name] = devices, not self._lost.isdisjoint(devices or ())
        if self._has_left(name):
            del self._held[name]

    def lose(self, devices: Set[int]) -> None:
        """Note all devices whose nodes are lost now; the backend is told which leaving jobs lost nodes."""
        self._lost = devices
        for name in self._untold:
            self._untold[name] |= not devices.isdisjoint(self._held[name] or ())

    def reserve(self, name: str, devices: frozenset[int] | None) -> None:
        """Reserve devices that a job may have, until the job is released or leaves; None is all devices."""
        self._reserved[name] = devices

    def release(self, name: str) -> None:
        """Reserve nothing for a job any more."""
        self._reserved.pop(name, None)

    def watch(self, name: str) -> None:
        """Keep others from the devices of a job that is leaving, unless it has left."""
        if not self.backend.has_left(name):
            self._held[name] = self.backend.held(name)

    def end(self, event: Event) -> None:
        """Tell the last event of a job once the job has left."""
        self._final[event.job.name] = event
        self._tell_final()

    def look(self) -> None:
        """Ask the backend which jobs have left, and tell their last events."""
        self.trouble = ""
        self._held = {name: devices for name, devices in self._held.items() if not self._has_left(name)}
        self._tell_final()

    def blocks(self, name: str, grant: Grant) -> bool:
        """Whether a job cannot start on devices yet: the job itself, or another that may have them, has not left."""
        every = (*self._held.values(), *self._reserved.values())
        return name in self._held or any(d is None or not d.isdisjoint(grant.devices) for d in every)

    def _tell_final(self) -> None:
        for name in [name for name in self._final if name not in self._held]:
            self.tell(self._final.pop(name))

    def _has_left(self, name: str) -> bool:
        """Whether a job has left; tell it to leave first if the backend could not be told before."""
        try:
            if name in self._untold:
                self.backend.leave(name, self._untold[name])
                del self._untold[name]
            return self.backend.has_left(name)
        except Exception as error:
            self.trouble = one_line(error)
            return False
