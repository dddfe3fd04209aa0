"""`trainyard serve run`: serve models on this machine, by the APIs of OpenAI and Anthropic."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from trainyard.cli.bounds import COUNT, PORT, TOKENS
from trainyard.cli.extras import needing_extra
from trainyard.cli.lists import between_commas
from trainyard.cli.screen import Common, Outcome, Screen
from trainyard.cli.serve.chunk_option import ChunkOption
from trainyard.cli.serve.engine_options import LocalEngineOptions
from trainyard.cli.serve.lora_modules import parse_lora_modules
from trainyard.cli.serve.replica_engines import (
    ReplicaOptions,
    check_devices,
    local_engines,
    simulated_engines,
    simulation_notes,
)
from trainyard.cli.serve.requests import quantity
from trainyard.cli.serve.trained_models import with_trained_models
from trainyard.serve.errors import ServeError

if TYPE_CHECKING:
    from trainyard.serve.placement import Placement
    from trainyard.serve.run.engine_process import EngineFactory
    from trainyard.serve.run.server.server import OnReady, ServerOptions

__all__ = ["Options", "act"]


@dataclass(frozen=True, kw_only=True)
class Options(ReplicaOptions, LocalEngineOptions, ChunkOption, Common):
    """Serve models on this machine, by the APIs of OpenAI and Anthropic, until interrupted; running ones are finished.

    With --json, the first line of the output is a document with the address, printed when all models are ready.
    """

    models: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="MODELS")]
    """Folders of models in Hugging Face form, with weights as safetensors. Requests name a model by its folder, or by the
    NAME of NAME=FOLDER. A folder in the form of sentence-transformers (with modules.json) gives embeddings. A folder of
    `trainyard train --checkpoint` is the model at its newest step, and FOLDER/step-00000020 at that one. A name that is
    no folder is a model of the zoo, such as gpt2, with random weights and one token per byte."""
    model_file: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Python file of the models of runs that were trained from one; it is run."""
    policy: Annotated[str, tyro.conf.arg(metavar="NAME")] = "vllm"
    """Batch policy of every model that generates text, as in `trainyard serve simulate`, such as sarathi or vllm+vtc.
    Models that give embeddings have turbotransformers."""
    engine: Literal["torch", "simulated", "vllm"] = "torch"
    """torch computes the models on this machine. simulated only takes the time that they would take on --cluster, and
    always answers the same text. vllm serves one model by vLLM's own engine and server, in batches that the policy
    makes; the policy must preempt by recompute."""
    vllm_python: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """With --engine vllm: Python of its environment; by default .venv-vllm/bin/python, which `make vllm` makes."""
    cluster: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """With --engine simulated: the cluster whose first devices serve each replica, such as 1xH100."""
    host: Annotated[str, tyro.conf.arg(metavar="HOST")] = "127.0.0.1"
    """Address to listen on; an address that other machines can reach needs keys."""
    port: Annotated[int, tyro.conf.arg(metavar="N"), PORT] = 8000
    """Port to listen on; 0 takes a free one."""
    api_key: Annotated[str | None, tyro.conf.arg(metavar="NAME=KEY,...")] = None
    """Clients and their keys, separated by commas. Other users of this machine can see them; --api-key-file is safer."""
    api_key_file: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Clients and their keys: lines NAME=KEY; readable by you alone."""
    max_num_queued_reqs: Annotated[int, tyro.conf.arg(metavar="N"), TOKENS] = 1024
    """Requests of a model that may wait for their first token; more are refused with status 429."""
    max_num_queued_tokens: Annotated[int | None, tyro.conf.arg(metavar="N"), TOKENS] = None
    """Prompt tokens of a model that may wait for their first token; by default there is no limit."""
    max_body: Annotated[str, tyro.conf.arg(metavar="SIZE")] = "8MiB"
    """Largest body of a request; larger ones are refused with status 413."""
    deadline: Annotated[str | None, tyro.conf.arg(metavar="TIME")] = None
    """Longest time of a whole request, such as 2min; a longer one is cancelled. By default there is no limit."""
    max_retries: Annotated[int, tyro.conf.arg(metavar="N"), COUNT] = 0
    """If the process of a model ends, it is started again; begin its requests anew, in another replica or in the next
    process, each up to so many times. With 0 they end with an error."""
    step_cpu: Annotated[str, tyro.conf.arg(metavar="TIME")] = "30s"
    """CPU time that the process of a model may use for one layer of a step. A process that uses more is ended and started
    again."""
    step_idle: Annotated[str, tyro.conf.arg(metavar="TIME")] = "10min"
    """How long the process of a model may use no CPU while it has requests, because it is stopped or this machine is
    busy. Then it is ended and started again."""
    drain: Annotated[str, tyro.conf.arg(metavar="TIME")] = "30s"
    """How long running requests may go on when the server is told to stop."""
    tool_call_parser: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Format in which the models write tool calls: hermes, for Hermes and Qwen models. Without it, tools are called only
    if a request has tool_choice "required" or names a function."""
    reasoning_parser: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Format in which the models write their reasoning: qwen3 or deepseek_r1. Answers of chats then have it apart, as
    reasoning and reasoning_content. Without it, it is part of the text."""
    lora_modules: Annotated[str | None, tyro.conf.arg(metavar="NAME=FOLDER,...")] = None
    """LoRA adapters, in folders as PEFT saves them, separated by commas. A request uses one by its NAME, as a model.
    If several models are served: NAME=MODEL:FOLDER."""
    lora_root: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None
    """Folder from which clients may load adapters while the server runs; they may then also unload adapters. By
    default they may do neither."""
    max_cpu_loras: Annotated[int, tyro.conf.arg(metavar="N"), COUNT] = 64
    """Adapters that may be in memory at once; more are refused."""
    log_prompts: bool = False
    """Log what clients send; by default that is never written anywhere."""


def act(options: Options, screen: Screen) -> Outcome:
    """Serve."""
    with needing_extra("serve run", "server"):
        import trainyard.serve.run.server.server  # noqa: F401
    from trainyard.serve.catalog import parse_policies
    from trainyard.serve.policy import check_no_oracle

    options = replace(options, policy=options.chunked(options.policy))
    policies = parse_policies(options.policy)
    if len(policies) != 1:
        raise ServeError(f"--policy {options.policy!r} names several; a server has one policy")
    check_no_oracle(policies[0][1])
    if options.device != "cpu" and options.engine != "torch":
        raise ServeError(f"--engine {options.engine} has no --device; leave it out")
    server_options = _server_options(options)
    logging.basicConfig(format="%(asctime)s %(message)s")
    logging.getLogger("trainyard.server").setLevel(logging.INFO)

    models = _models(options)
    with tempfile.TemporaryDirectory(prefix="trainyard-trained-") as folder:
        if options.engine != "simulated":
            models = with_trained_models(models, options.model_file, Path(folder), screen.say)
        return _served(options, models, server_options, screen)


def _served(
    options: Options, models: Mapping[str, str], server_options: ServerOptions, screen: Screen
) -> Outcome:
    """Serve models of folders and of the zoo."""
    from trainyard.serve.run.server.server import serve

    def on_ready(address: str, lengths: Mapping[str, int]) -> None:
        if options.json:
            print(json.dumps({"address": address, "max_model_len": dict(lengths)}), flush=True)
        told = ", ".join(f"{name} (up to {length:,} tokens)" for name, length in lengths.items())
        screen.say(f"serving {told} on {address}/v1")
        if drawn:
            screen.say(f"random weights, so that answers mean nothing: {', '.join(drawn)}")

    drawn, placement = _drawn(options, models), options.placed(models)
    if options.lora_modules is not None or options.lora_root is not None:
        if options.engine != "torch" or any(len(group.devices) > 1 for group in placement.groups):
            raise ServeError(
                "adapters are for --engine torch without --tp; leave --lora-modules and --lora-root out"
            )
        adapters = parse_lora_modules(options.lora_modules or "", models)
        server_options = replace(server_options, adapters=adapters)
    if options.engine == "vllm":
        return _served_by_vllm(options, models, placement, server_options, on_ready)
    with tempfile.TemporaryDirectory(prefix="trainyard-models-") as folder:
        screen.say(f"loading {', '.join(models)}")
        engines = _engine_factories(options, models, drawn, placement, Path(folder))
        for note in simulation_notes(placement) if options.engine == "simulated" else ():
            screen.say(note)
        return Outcome({"drained": serve(engines, server_options, on_ready)})


def _served_by_vllm(
    options: Options,
    models: Mapping[str, str],
    placement: Placement,
    server_options: ServerOptions,
    on_ready: OnReady,
) -> Outcome:
    from trainyard.cli.serve.vllm_engine import vllm_server
    from trainyard.serve.run.vllm.server import serve_vllm

    if len(placement.groups) > 1 or len(placement.groups[0].devices) > 1:
        raise ServeError(
            "--engine vllm has one process for a model; leave --tp, --replicas and --placement out"
        )
    server = vllm_server(options, options.policy, models, server_options, options.vllm_python)
    length = server.spec.options.max_model_len
    return Outcome({"drained": serve_vllm(server, lambda url: on_ready(url, {server.name: length or 0}))})


def _server_options(options: Options) -> ServerOptions:
    from trainyard.processes import ProcessLimits
    from trainyard.reading import listed
    from trainyard.reading.quantities import parse_bytes, parse_seconds
    from trainyard.serve.catalog import reads_priority
    from trainyard.serve.router import router_of
    from trainyard.serve.run.server.api_keys import ApiKeys
    from trainyard.serve.run.server.api_server import ServerLimits
    from trainyard.serve.run.server.reasoning import REASONING_FORMATS
    from trainyard.serve.run.server.server import ServerOptions
    from trainyard.serve.run.server.tools.tool_use import TOOL_CALL_FORMATS

    deadline_s = float("inf")
    if options.deadline is not None:
        deadline_s = quantity("--deadline", options.deadline, parse_seconds)
    keys = ApiKeys.read(between_commas(options.api_key or ""), options.api_key_file)
    keys.check_host(options.host)
    limits = ServerLimits(
        options.max_num_queued_reqs,
        options.max_num_queued_tokens,
        quantity("--max-body", options.max_body, parse_bytes),
        deadline_s,
        options.max_cpu_loras,
    )
    drain_s = quantity("--drain", options.drain, parse_seconds)
    parser = options.tool_call_parser or ""
    if parser and parser not in TOOL_CALL_FORMATS:
        raise ServeError(f"--tool-call-parser {parser!r} is not known; known are {listed(TOOL_CALL_FORMATS)}")
    reasoning = options.reasoning_parser or ""
    if reasoning and reasoning not in REASONING_FORMATS:
        raise ServeError(
            f"--reasoning-parser {reasoning!r} is not known; known are {listed(REASONING_FORMATS)}"
        )
    if options.lora_root is not None and not options.lora_root.is_dir():
        raise ServeError(f"--lora-root {options.lora_root} is no folder; give one")
    return ServerOptions(
        options.host,
        options.port,
        keys,
        limits,
        drain_s,
        options.log_prompts,
        parser,
        options.max_retries,
        reads_priority=reads_priority(options.policy),
        adapter_root=options.lora_root,
        router=router_of(options.router, may_move=False),
        step_limits=ProcessLimits(
            quantity("--step-cpu", options.step_cpu, parse_seconds),
            idle_s=quantity("--step-idle", options.step_idle, parse_seconds),
        ),
        reasoning_parser=reasoning,
    )


def _models(options: Options) -> dict[str, str]:
    """Folders of the models, or their names of the zoo, by the names that requests call them by."""
    given: dict[str, str] = {}
    for text in options.models:
        before, _, after = text.partition("=")
        model = after or before
        name = before if after else Path(model).resolve().name
        if name in given:
            raise ServeError(f"two models are called {name!r}; give one another name: NAME={model}")
        given[name] = model
    if not given:
        raise ServeError("no model is given; give a folder in Hugging Face form")
    if (options.engine == "simulated") != (options.cluster is not None):
        raise ServeError("--engine simulated and --cluster go together; give both or neither")
    if options.engine != "vllm" and options.vllm_python is not None:
        raise ServeError("--vllm-python goes with --engine vllm; leave it out")
    return given


def _engine_factories(
    options: Options, models: Mapping[str, str], drawn: Mapping[str, str], placement: Placement, folder: Path
) -> Mapping[str, Sequence[EngineFactory]]:
    """How each replica of each model is computed, by the name of the model."""
    if options.cluster is None:
        return local_engines(options, models, drawn, options.policy, placement, folder)
    if options.placement is not None:
        from trainyard.hardware.parse import parse_cluster

        check_devices(placement, parse_cluster(options.cluster))
    return simulated_engines(options, models, options.policy, options.cluster, placement, folder)


def _drawn(options: Options, models: Mapping[str, str]) -> dict[str, str]:
    """Those of the models that are computed with random weights, for there is no folder."""
    if options.engine != "torch":
        return {}
    return {name: model for name, model in models.items() if not Path(model).exists()}
