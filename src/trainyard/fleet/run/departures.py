"""Jobs on their way out: told to leave their devices, which nobody else gets until they have; nobody waits for them."""

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
    tell : hears what is final of a job once it has left.

    Attributes
    ----------
    trouble : why the backend could not be told or asked at the last `look`; "" if it could.
    """

    def __init__(self, backend: Backend, tell: Callable[[Event], None]) -> None:
        self.backend, self.tell = backend, tell
        self.trouble = ""
        # Devices of each; None where they are not known.
        self._held: dict[str, frozenset[int] | None] = {}
        # Those that the backend could not be told of yet, and whether they lost nodes.
        self._untold: dict[str, bool] = {}
        self._final: dict[str, Event] = {}
        # Devices of jobs of which it is not known whether they run; None where these are not known, either.
        self._reserved: dict[str, frozenset[int] | None] = {}

    @property
    def ending(self) -> frozenset[str]:
        """Jobs that are out for good, and of which something is left."""
        return frozenset(self._final)

    def is_leaving(self, name: str) -> bool:
        """Whether something is left of a job that was to leave."""
        return name in self._held

    def leave(self, name: str, devices: frozenset[int] | None, is_lost: bool = False) -> None:
        """Have a job leave.

        Parameters
        ----------
        devices : that it has; None where they are not known.
        is_lost : nodes of it may not answer any more.
        """
        self.release(name)
        self._held[name], self._untold[name] = devices, is_lost
        if self._has_left(name):
            del self._held[name]

    def lose(self, devices: Set[int]) -> None:
        """Note that devices are on nodes that were lost, for jobs that have them and could not be told to leave yet."""
        for name in self._untold:
            self._untold[name] |= not devices.isdisjoint(self._held[name] or ())

    def reserve(self, name: str, devices: frozenset[int] | None) -> None:
        """Let nobody have devices that a job may have, until it is known again or leaves; None is all devices."""
        self._reserved[name] = devices

    def release(self, name: str) -> None:
        """Nothing is reserved for a job any more."""
        self._reserved.pop(name, None)

    def watch(self, name: str) -> None:
        """Watch a job that a backend knows to be leaving, if any of it is left."""
        if not self.backend.has_left(name):
            self._held[name] = self.backend.held(name)

    def end(self, event: Event) -> None:
        """Tell the last that is to be told of a job, once it has left."""
        self._final[event.job.name] = event
        self._tell_final()

    def look(self) -> None:
        """See who has left."""
        self.trouble = ""
        self._held = {name: devices for name, devices in self._held.items() if not self._has_left(name)}
        self._tell_final()

    def blocks(self, name: str, grant: Grant) -> bool:
        """Whether a job cannot start on devices yet: it or who had them has not left."""
        every = (*self._held.values(), *self._reserved.values())
        return name in self._held or any(d is None or not d.isdisjoint(grant.devices) for d in every)

    def _tell_final(self) -> None:
        for name in [name for name in self._final if name not in self._held]:
            self.tell(self._final.pop(name))

    def _has_left(self, name: str) -> bool:
        """Whether a job has left; it is told to, if that was not possible before."""
        try:
            if name in self._untold:
                self.backend.leave(name, self._untold[name])
                del self._untold[name]
            return self.backend.has_left(name)
        except Exception as error:
            self.trouble = one_line(error)
            return False
