"""`trainyard fleet daemon`: a daemon that takes jobs over HTTP and runs them."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from trainyard.cli.bounds import PORT
from trainyard.cli.extras import needing_extra
from trainyard.cli.fleet.running import RunningOptions
from trainyard.cli.quantities import Duration
from trainyard.cli.screen import Outcome, Screen

__all__ = ["Options", "act"]

_LAST_WORDS = "no more is scheduled; jobs that run go on, and the same command finds them again"


@dataclass(frozen=True, kw_only=True)
class Options(RunningOptions):
    """Take jobs over HTTP and run them under a policy, until interrupted; jobs that run then go on.

    Started again on the same folder, after a crash too, it finds every job again: those that still run are left to run,
    the others go on from their checkpoints.
    """

    state: Annotated[str | None, tyro.conf.arg(metavar="URL")] = None
    """Database of the state, such as postgresql://USER@HOST/NAME, by default a file of SQLite in the folder. A password
    is not for a command line: keep it in ~/.pgpass, or give the address in the variable TRAINYARD_STATE."""
    host: Annotated[str, tyro.conf.arg(metavar="HOST")] = "127.0.0.1"
    """Address to listen on; one that other machines reach needs --token-file."""
    port: Annotated[int, tyro.conf.arg(metavar="N"), PORT] = 8470
    """Port to listen on; 0 takes one that is free."""
    token_file: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Users that may submit jobs: lines 'user:token' or 'user:token:admin'; readable by you alone. Without it, everybody
    on this machine may."""
    admin_commands: bool = False
    """Let administrators submit jobs with a command of their own, which runs with all rights of the daemon's user."""
    command_folders: Annotated[str, tyro.conf.arg(metavar="DIR:DIR")] = ""
    """Let every user submit jobs whose command is a program in one of these folders, with plain words behind it."""
    idle_limit: Duration = 600.0
    """Time in which the process that measures a new job may use no CPU, because it is stopped or this machine is busy.
    Then it is ended, and the job is measured again later."""


def act(options: Options, screen: Screen) -> Outcome:
    """Serve."""
    with needing_extra("fleet daemon", "daemon"):
        from trainyard.fleet.daemon.address import state_address
        from trainyard.fleet.daemon.daemon import Daemon
        from trainyard.fleet.daemon.journal import log_to
        from trainyard.fleet.daemon.permissions import Permissions
        from trainyard.fleet.daemon.server import serve
        from trainyard.fleet.daemon.store import Store
        from trainyard.fleet.daemon.users import Users
    from trainyard.fleet.run.backend import BackendOptions
    from trainyard.fleet.run.backends import make_backend
    from trainyard.fleet.run.only_scheduler import only_scheduler
    from trainyard.fleet.scheduler import scheduler_of
    from trainyard.fleet.workload.level1 import Level1Processes, ask_through
    from trainyard.hardware.parse import parse_cluster
    from trainyard.private import only_for_user

    cluster, scheduler = (
        parse_cluster(options.cluster),
        scheduler_of(options.policy, options.placement, options.round),
    )
    users, folder = Users.read(options.token_file), options.folder.resolve()
    users.check_host(options.host)
    permissions = Permissions.granted(users, options.admin_commands, options.command_folders)
    state = state_address(options.state, folder)
    ask_through(Level1Processes(idle_s=options.idle_limit))
    with only_for_user(), only_scheduler(folder, folder / "jobs"):
        log_to(folder / "daemon.log")
        how = BackendOptions(shares=scheduler.shares, limits=options.limits)
        backend = make_backend(options.backend, cluster, folder / "jobs", how)
        store = Store(state)
        store.claim(folder=str(folder), cluster=cluster.name, backend=options.backend)
        daemon = Daemon(cluster, scheduler, backend, store, folder / "jobs", permissions=permissions)
        with ExitStack() as ending:

            def begin(url: str) -> None:
                screen.say(f"serving on {url}; it has a page too")
                ending.callback(screen.say, _LAST_WORDS)

            serve(daemon, users, options.host, options.port, begin)
    return Outcome({})
