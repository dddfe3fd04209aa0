"""The server as a process: engines, HTTP in front of them, and their end by a signal."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn

from trainyard.processes import ProcessLimits
from trainyard.serve.errors import ServeError
from trainyard.serve.router import Router, round_robin
from trainyard.serve.run.engine_client import EngineClient
from trainyard.serve.run.engine_process import EngineFactory
from trainyard.serve.run.limited_tokenizer import LimitedTokenizer
from trainyard.serve.run.open_files import allow_open_files
from trainyard.serve.run.pooling import has_pooling
from trainyard.serve.run.routed_engines import RoutedEngines
from trainyard.serve.run.server.api_keys import ApiKeys
from trainyard.serve.run.server.api_server import ApiServer, ServerLimits
from trainyard.serve.run.server.hosted_model import HostedModel
from trainyard.serve.run.server.http_protocol import BoundedHttpProtocol
from trainyard.serve.run.server.reasoning import reasoning_tokens
from trainyard.serve.run.server.served_models import NamedAdapter, ServedModels
from trainyard.serve.run.step_watch import STEP_LIMITS

__all__ = ["HttpServer", "OnReady", "ServerOptions", "listening", "serve"]

_LOG = logging.getLogger("trainyard.server")
_GRACE_S = 3  # for answers that are already written
_MOST_CONNECTIONS = 4096
_KEEP_ALIVE_S = 30
_HEADER_TIMEOUT_S = 10.0
_MOST_UNREAD_MS = 60_000
_NOT_SERVED = "%s is not served, the other models are: %s"


OnReady = Callable[[str, Mapping[str, int]], None]


@dataclass(frozen=True)
class ServerOptions:
    """What a server is told beside its models.

    Attributes
    ----------
    host, port : where it listens; port 0 takes one that is free.
    keys : who may ask.
    limits : what they may take.
    drain_s : at its end, for requests that run.
    logs_prompts : whether what clients send is logged.
    tool_call_parser : name of the format in which the models write calls of tools; "" if that is not known.
    reasoning_parser : name of the format in which the models write their reasoning; "" if they have none.
    max_retries : how often a request is begun anew whose engine ended.
    adapters : that it begins with.
    reads_priority : whether the policy of the engines may depend on the priorities of requests.
    adapter_root : folder below which clients may name adapters to load; None if they may not load and unload any.
    router : chooses the replica of a model that serves a request.
    step_limits : on the process of an engine between two steps, as of `EngineClient`.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    keys: ApiKeys = field(default_factory=ApiKeys)
    limits: ServerLimits = field(default_factory=ServerLimits)
    drain_s: float = 30.0
    logs_prompts: bool = False
    tool_call_parser: str = ""
    max_retries: int = 0
    adapters: tuple[NamedAdapter, ...] = ()
    reads_priority: bool = True
    adapter_root: Path | None = None
    router: Router = round_robin
    step_limits: ProcessLimits = STEP_LIMITS
    reasoning_parser: str = ""


class HttpServer(uvicorn.Server):
    """Leaves signals to whoever runs it: uvicorn would raise them again at its end, and that would end the process."""

    def __init__(
        self,
        app: Any,
        max_connections: int = _MOST_CONNECTIONS,
        header_timeout_s: float = _HEADER_TIMEOUT_S,
    ) -> None:
        protocol: Any = partial(
            BoundedHttpProtocol, max_connections=max_connections, header_timeout_s=header_timeout_s
        )
        config = uvicorn.Config(
            app,
            http=protocol,
            log_level="warning",
            lifespan="off",
            access_log=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_GRACE_S,
        )
        super().__init__(config)

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()


def serve(
    models: Mapping[str, Sequence[EngineFactory]],
    options: ServerOptions,
    on_ready: OnReady,
    failed: dict[str, str] | None = None,
) -> bool:
    """Serve until SIGTERM or SIGINT; return whether all running requests then ended in time.

    Parameters
    ----------
    models : how each replica is computed, by the name of the model.
    on_ready : is told the address, once models can be asked, and the longest sequence of each in tokens. Models that
        could not be loaded are not among them.
    failed : why other models are not served, by name; gets those of ``models`` that cannot be loaded.

    Raises
    ------
    ServeError
        If it cannot be listened there, no model can be loaded, or one does not reason as it should.
    """
    options.keys.check_host(options.host)
    allow_open_files(2 * _MOST_CONNECTIONS)
    tokenizers = {name: LimitedTokenizer(factories[0].folder) for name, factories in models.items()}
    if options.reasoning_parser:
        for name, factories in models.items():
            if not has_pooling(factories[0].folder):
                reasoning_tokens(options.reasoning_parser, tokenizers[name].local)
    with listening(options.host, options.port) as listener:
        return asyncio.run(
            _serve(models, tokenizers, options, listener, on_ready, {} if failed is None else failed)
        )


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens. The system ends connections of it whose other side reads nothing for a minute, on Linux.

    Raises
    ------
    ServeError
        If that is not possible there.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        found = socket.create_server((host, port), family=family, backlog=1024)
    except (OSError, OverflowError) as error:
        raise ServeError(
            f"cannot listen on {host}, port {port}: {error}; give another --host or --port"
        ) from error
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # connections have it from the socket that listens
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _MOST_UNREAD_MS)
    return found


async def _serve(
    models: Mapping[str, Sequence[EngineFactory]],
    tokenizers: Mapping[str, LimitedTokenizer],
    options: ServerOptions,
    listener: socket.socket,
    on_ready: OnReady,
    failed: dict[str, str],
) -> bool:
    engines = {
        name: RoutedEngines(
            [EngineClient(factory.make_engine, options.step_limits) for factory in factories],
            options.router,
            options.max_retries,
        )
        for name, factories in models.items()
    }
    for name, why in failed.items():
        _LOG.error(_NOT_SERVED, name, why)
    api = _api(engines, tokenizers, options)
    api.served.failed = failed
    server = HttpServer(api.app)
    ending = asyncio.Event()

    def end() -> None:
        if ending.is_set():  # asked again: at once
            server.should_exit = True
        ending.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    starting = asyncio.create_task(_start(engines, api.served, options.adapters))
    waiting = asyncio.create_task(ending.wait())
    try:
        await asyncio.wait((starting, serving, waiting), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            lengths = {name: engine.max_model_len for name, engine in engines.items() if name not in failed}
            on_ready(_address(options.host, listener.getsockname()[1]), lengths)
            await asyncio.wait((serving, waiting), return_when=asyncio.FIRST_COMPLETED)
            draining = asyncio.create_task(api.drain(options.drain_s))
            await asyncio.wait((serving, draining), return_when=asyncio.FIRST_COMPLETED)
            draining.cancel()
        return not api.num_open
    finally:
        starting.cancel()
        waiting.cancel()
        # Requests that still run end with an error, which their clients are told.
        await asyncio.gather(
            *(engine.close() for engine in engines.values()), *(each.close() for each in tokenizers.values())
        )
        server.should_exit = True
        await serving


def _api(
    engines: Mapping[str, RoutedEngines], tokenizers: Mapping[str, LimitedTokenizer], options: ServerOptions
) -> ApiServer:
    parser, reads_priority = options.tool_call_parser, options.reads_priority
    models = {
        name: HostedModel(
            name,
            tokenizers[name].local,
            engine,
            parser,
            reads_priority=reads_priority,
            limited_tokenizer=tokenizers[name],
            reasoning_parser=options.reasoning_parser,
        )
        for name, engine in engines.items()
    }
    api = ApiServer(
        models,
        options.keys,
        options.limits,
        adapter_root=options.adapter_root,
        logs_prompts=options.logs_prompts,
    )
    api.served.awaited.update(each.name for each in options.adapters)
    return api


async def _start(
    engines: Mapping[str, RoutedEngines], served: ServedModels, adapters: tuple[NamedAdapter, ...]
) -> None:
    """Start all engines, and load the adapters. Models that cannot be loaded are noted, and do not end the others.

    Raises
    ------
    ServeError
        If no model can be loaded, or an adapter of one that is loaded cannot.
    """
    started = await asyncio.gather(*(engine.start() for engine in engines.values()), return_exceptions=True)
    errors = {name: result for name, result in zip(engines, started, strict=True) if result is not None}
    for error in errors.values():
        if len(errors) == len(engines) or not isinstance(error, ServeError):
            raise error
    for name, error in errors.items():
        served.failed[name] = str(error)
        _LOG.error(_NOT_SERVED, name, error)
    for adapter in adapters:
        if adapter.base in served.failed:
            served.awaited.discard(adapter.name)
        else:
            await served.load_adapter(*adapter)


def _address(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
