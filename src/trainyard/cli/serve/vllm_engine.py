"""A model that `trainyard serve run` serves by vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.cli.serve.engine_options import LocalEngineOptions
from trainyard.serve.errors import ServeError

if TYPE_CHECKING:
    from trainyard.serve.run.server.server import ServerOptions
    from trainyard.serve.run.vllm.server import VllmServer

__all__ = ["vllm_server"]

_BLOCK_TOKENS = 32  # on processors, vLLM has blocks of multiples of that


def vllm_server(
    options: LocalEngineOptions,
    policy: str,
    models: Mapping[str, str],
    server: ServerOptions,
    python: Path | None,
) -> VllmServer:
    """How the model is served.

    Parameters
    ----------
    models : folders by name; one.
    server : where it listens and who may ask; its limits must be the default.
    python : of vLLM's environment; by default that of `make vllm`.

    Raises
    ------
    ServeError
        If something is asked that vLLM's server does not do, or the policy does not drive vLLM.
    """
    from trainyard.serve.run.server.server import ServerOptions, listening
    from trainyard.serve.run.vllm.server import VllmServer

    if len(models) != 1:
        raise ServeError(f"--engine vllm serves one model; given are {', '.join(models)}")
    done = ServerOptions(
        server.host, server.port, server.keys, drain_s=server.drain_s, reads_priority=server.reads_priority
    )
    if server != done:
        raise ServeError(
            "--engine vllm has vLLM's own server, which does not do --max-num-queued-reqs, --max-num-queued-tokens, "
            "--max-body, --deadline, --max-retries, --step-cpu, --step-idle, --tool-call-parser, "
            "--reasoning-parser, --log-prompts and --router; leave them out"
        )
    if options.host_cache_memory is not None:
        raise ServeError("--engine vllm swaps no requests out; leave --host-cache-memory out")
    ((name, folder),) = models.items()
    with listening(server.host, server.port) as listener:
        port = listener.getsockname()[1]
    made = VllmServer(
        python or Path(".venv-vllm/bin/python"),
        name,
        options.spec(Path(folder), policy, block_tokens=_BLOCK_TOKENS, checks_weights=False),
        server.host,
        port,
        tuple(server.keys.by_key),
        server.drain_s,
    )
    _ = made.config  # refuses a policy before anything starts
    return made
