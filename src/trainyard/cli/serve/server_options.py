"""Options of a server: its clients, its limits and its adapters."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from trainyard.cli.bounds import COUNT, PORT, TOKENS
from trainyard.cli.quantities import Duration, Size

__all__ = ["AdapterOptions", "ClientOptions", "LimitOptions"]


@dataclass(frozen=True, kw_only=True)
class ClientOptions:
    """Options about the clients of a server."""

    heading = "clients"
    host: Annotated[str, tyro.conf.arg(metavar="HOST")] = "127.0.0.1"
    """Address to listen on; an address that other machines can reach needs keys."""
    port: Annotated[int, tyro.conf.arg(metavar="N"), PORT] = 8000
    """Port to listen on; 0 takes a free one."""
    api_key: Annotated[str | None, tyro.conf.arg(metavar="NAME=KEY,...")] = None
    """Clients and their keys, separated by commas. Other users of this machine can see them; --api-key-file is safer."""
    api_key_file: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Clients and their keys: lines NAME=KEY; readable by you alone."""
    log_prompts: bool = False
    """Log the prompts of clients; by default prompts are never written anywhere."""


@dataclass(frozen=True, kw_only=True)
class LimitOptions:
    """Limits on requests, and on the time and processes that they use."""

    heading = "limits"
    max_num_queued_reqs: Annotated[int, tyro.conf.arg(metavar="N"), TOKENS] = 1024
    """Requests of a model that may wait for their first token; more are refused with status 429."""
    max_num_queued_tokens: Annotated[int | None, tyro.conf.arg(metavar="N"), TOKENS] = None
    """Prompt tokens of a model that may wait for their first token; by default there is no limit."""
    max_body: Size = 8 * 2**20
    """Largest body of a request; larger ones are refused with status 413."""
    deadline: Duration | None = None
    """Longest time of a whole request, such as 2min; a longer one is cancelled. By default there is no limit."""
    max_retries: Annotated[int, tyro.conf.arg(metavar="N"), COUNT] = 0
    """Number of times that a request begins anew when the process that computes it ends, in another replica or in the
    restarted process. With 0 the request ends with an error."""
    step_cpu: Duration = 30.0
    """CPU time that the process of a model may use for one layer of a step. A process that uses more is ended and started
    again."""
    step_idle: Duration = 600.0
    """Longest time that the process of a model may use no CPU while it has requests. A process that uses none for longer
    is ended and started again."""
    drain: Duration = 30.0
    """Time that running requests may go on when the server is told to stop."""


@dataclass(frozen=True, kw_only=True)
class AdapterOptions:
    """LoRA adapters of a server."""

    heading = "adapters"
    lora_modules: Annotated[str | None, tyro.conf.arg(metavar="NAME=FOLDER,...")] = None
    """LoRA adapters, in folders as PEFT saves them, separated by commas. A request uses one by its NAME, as a model.
    If several models are served: NAME=MODEL:FOLDER."""
    lora_root: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None
    """Folder from which clients may load adapters while the server runs; they may then also unload adapters. By
    default they may do neither."""
    max_cpu_loras: Annotated[int, tyro.conf.arg(metavar="N"), COUNT] = 64
    """Adapters that may be in memory at once; more are refused."""
