"""The server: the daemon's thread, and HTTP beside it."""

from __future__ import annotations

import atexit
import socket
import threading
from collections.abc import Callable
from multiprocessing import util

import uvicorn

from trainyard.fleet.serve.app import Api
from trainyard.fleet.serve.daemon import Daemon
from trainyard.fleet.serve.limits import protocol, reserve_descriptors
from trainyard.fleet.serve.users import Users
from trainyard.fleet.site import FleetError


def serve(daemon: Daemon, users: Users, host: str, port: int, say: Callable[[str], None]) -> None:
    """Serve until interrupted; jobs that run go on.

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
    # When Python ends, it would wait for the processes that engines started until these end.
    atexit.unregister(util._exit_function)  # type: ignore[attr-defined]
    app = Api(daemon, users).app()
    with _listening(host, port) as listener:
        speaks = protocol(reserve_descriptors())
        config = uvicorn.Config(app, http=speaks, log_level="warning", lifespan="off", access_log=False)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=daemon.run, daemon=True, name="scheduling")
        thread.start()
        address = f"[{host}]" if ":" in host else host
        say(f"http://{address}:{listener.getsockname()[1]}")
        try:
            server.run(sockets=[listener])
        finally:
            daemon.stop()
        thread.join()


def _listening(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise FleetError(
            f"cannot listen on {host}, port {port}: {error}; give another --host or --port"
        ) from error
