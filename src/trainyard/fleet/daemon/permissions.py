"""Permissions to bring code in jobs: nobody has one unless the operator of a daemon allows it."""

from __future__ import annotations

import re
import stat
from dataclasses import dataclass
from pathlib import Path

from trainyard.fleet.daemon.refusal import Refusal
from trainyard.fleet.daemon.users import Users
from trainyard.fleet.errors import FleetError
from trainyard.fleet.workload.command import Command
from trainyard.fleet.workload.job import Job
from trainyard.fleet.workload.training_job import Predicted

__all__ = ["Permissions"]

# None of these means anything to a shell but a space.
_PLAIN_WORDS = re.compile(r"[A-Za-z0-9_@%+=:,./ -]+", re.ASCII)


@dataclass(frozen=True)
class Permissions:
    """Which jobs may bring code. It runs with all rights of the daemon's user.

    Attributes
    ----------
    admins : users who may run any command.
    folders : every user may run the programs that lie in them.
    """

    admins: frozenset[str] = frozenset()
    folders: tuple[Path, ...] = ()

    @classmethod
    def granted(cls, users: Users, admin_commands: bool, folders: str) -> Permissions:
        """Return the permissions that the options of a daemon give.

        Parameters
        ----------
        admin_commands : whether administrators may run any command.
        folders : of programs that everybody may run, separated by colons.

        Raises
        ------
        FleetError
            If there are no administrators, no such folder, or one that every user of this machine may change.
        """
        if admin_commands and not users.admins:
            raise FleetError(
                "--admin-commands is for administrators, and there are none; give --token-file FILE with a line "
                "'user:token:admin'"
            )
        return cls(
            users.admins if admin_commands else frozenset(),
            tuple(_checked(Path(text)) for text in folders.split(":") if text),
        )

    def check(self, job: Job, user: str) -> None:
        """Whether a user may submit a job.

        Raises
        ------
        Refusal
            If it brings code that this user may not run here.
        """
        code = _code_of(job)
        if not code or user in self.admins:
            return
        if not self.admins and not self.folders:
            raise Refusal(
                403,
                f"job {job.name!r} has {code}, and this daemon runs trainings of the zoo's models only; whoever runs "
                "it may allow commands by --admin-commands or --command-folders",
            )
        if not self.folders:
            raise Refusal(403, f"job {job.name!r} has {code}, which only administrators may run here")
        if job.command is None:
            if not self._holds(Path(job.model)):
                raise Refusal(
                    403, f"job {job.name!r}: its file is to lie in {', '.join(map(str, self.folders))}"
                )
        elif not self._is_allowed(job.command):
            raise Refusal(
                403,
                f"job {job.name!r}: its command is to be a program of {', '.join(map(str, self.folders))} and plain "
                "words, started in a folder below these",
            )

    def _is_allowed(self, command: Command) -> bool:
        """Whether a command is a program of the folders with plain words, and runs in them."""
        if not _PLAIN_WORDS.fullmatch(command.line):
            return False
        program = Path(command.folder) / command.line.split()[0]
        is_path = "/" in command.line.split()[0]  # a shell looks for other names elsewhere
        return is_path and self._holds(program) and self._holds(Path(command.folder))

    def _holds(self, path: Path) -> bool:
        """Whether there is such a path, and it lies in a folder when links are followed."""
        try:
            found = path.resolve(strict=True)
        except (OSError, RuntimeError):
            return False
        return any(found.is_relative_to(folder) for folder in self.folders)


def _code_of(job: Job) -> str:
    """The code that a job brings, in words; "" if it brings none."""
    if job.command is not None:
        return "a command"
    is_file = isinstance(job.profile, Predicted) and job.profile.training.is_own
    return "a Python file" if is_file else ""


def _checked(folder: Path) -> Path:
    """A folder of programs, without links."""
    found = folder.resolve()
    if not found.is_dir():
        raise FleetError(f"--command-folders: there is no folder {folder}")
    if found.stat().st_mode & stat.S_IWOTH:
        raise FleetError(
            f"--command-folders: every user of this machine may change {found}, and so what the daemon runs: "
            f"chmod o-w {found}"
        )
    return found
