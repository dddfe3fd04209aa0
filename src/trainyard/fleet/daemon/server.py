"""The server: the daemon's thread, and HTTP beside it."""

from __future__ import annotations

import atexit
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from multiprocessing import util

import uvicorn

from trainyard.fleet.daemon.app import Api
from trainyard.fleet.daemon.daemon import Daemon
from trainyard.fleet.daemon.limits import protocol, reserve_descriptors
from trainyard.fleet.daemon.users import Users
from trainyard.fleet.errors import FleetError

_SHUTDOWN_S = 10  # for requests that are being answered
_LAST_TURN_S = 60.0


class _Server(uvicorn.Server):
    """Leaves signals to whoever runs it: uvicorn would raise them again at its end, and that would end the process."""

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()


def serve(daemon: Daemon, users: Users, host: str, port: int, say: Callable[[str], None]) -> None:
    """Serve until a signal to end or to interrupt comes; jobs that run go on.

    Parameters
    ----------
    port : 0 takes one that is free.
    say : hears the address, once it is open.

    Raises
    ------
    FleetError
        If it cannot be listened there.
    """
    users.check_host(host)
    # When Python ends, it would wait for the processes that backends started until these end.
    atexit.unregister(util._exit_function)  # type: ignore[attr-defined]
    app = Api(daemon, users).app()
    with _listening(host, port) as listener:
        speaks = protocol(reserve_descriptors())
        config = uvicorn.Config(
            app,
            http=speaks,
            log_level="warning",
            lifespan="off",
            access_log=False,
            timeout_graceful_shutdown=_SHUTDOWN_S,
        )
        server = _Server(config)
        thread = threading.Thread(target=daemon.run, daemon=True, name="scheduling")
        with _ended_by_signals(server):
            thread.start()
            address = f"[{host}]" if ":" in host else host
            say(f"http://{address}:{listener.getsockname()[1]}")
            try:
                server.run(sockets=[listener])
            finally:
                daemon.stop()
            # What takes longer is a prediction or a policy, and as little is lost as in a crash.
            thread.join(_LAST_TURN_S)


@contextmanager
def _ended_by_signals(server: uvicorn.Server) -> Iterator[None]:
    """Within it, signals have a server end."""
    ending = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, server.handle_exit) for number in ending}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _listening(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise FleetError(
            f"cannot listen on {host}, port {port}: {error}; give another --host or --port"
        ) from error
