"""`trainyard serve run`: serve models on this machine, by the APIs of OpenAI and Anthropic."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

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
from trainyard.cli.serve.server_options import AdapterOptions, ClientOptions, LimitOptions
from trainyard.cli.serve.trained_models import with_trained_models
from trainyard.serve.errors import ServeError

if TYPE_CHECKING:
    from trainyard.serve.placement import Placement
    from trainyard.serve.run.engine_process import EngineFactory
    from trainyard.serve.run.server.server import OnReady, ServerOptions

__all__ = ["Options", "act"]


@dataclass(frozen=True, kw_only=True)
class Options(
    ReplicaOptions, LocalEngineOptions, AdapterOptions, ClientOptions, LimitOptions, ChunkOption, Common
):
    """Serve models on this machine, by the APIs of OpenAI and Anthropic, until stopped; running requests are finished.

    With --json, the first line of the output is a document with the address, printed when all models are ready.
    """

    models: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="MODELS")]
    """Folders of models in Hugging Face form, with weights as safetensors. Requests name a model by its folder, or by the
    NAME of NAME=FOLDER. A folder in the form of sentence-transformers (with modules.json) gives embeddings. A folder of
    `trainyard train --checkpoint` is the model at its newest step, and FOLDER/step-00000020 at that one. A name that is
    no folder is a model of the zoo, such as gpt2, with random weights and one token per byte."""
    model_file: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Python file that MODELS of `trainyard train FILE` were trained from. It is run to make the model."""
    policy: Annotated[str, tyro.conf.arg(metavar="NAME")] = "vllm"
    """Batch policy of every model that generates text, as in `trainyard serve simulate`, such as sarathi or vllm+vtc.
    Models that give embeddings have turbotransformers."""
    engine: Literal["torch", "simulated", "vllm"] = "torch"
    """torch computes the models on this machine. simulated waits for as long as the models would take on --cluster, and
    always answers the same text. vllm serves one model by vLLM's own engine and server, in batches that the policy
    makes; the policy must preempt by recompute."""
    vllm_python: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """With --engine vllm: Python of its environment; by default .venv-vllm/bin/python, which `make vllm` makes."""
    cluster: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """With --engine simulated: the cluster whose first devices serve each replica, such as 1xH100."""
    tool_call_parser: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Format in which the models write tool calls: hermes, for Hermes and Qwen models. Without it, tools are called only
    if a request has tool_choice "required" or names a function."""
    reasoning_parser: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Format in which the models write their reasoning: qwen3 or deepseek_r1. Answers of chats then have it apart, as
    reasoning and reasoning_content. Without this option, reasoning is part of the text."""


def act(options: Options, screen: Screen) -> Outcome:
    """Serve."""
    if options.device != "cpu" and options.engine != "torch":
        raise ServeError(f"--engine {options.engine} has no --device; leave it out")
    models = _models(options)
    with needing_extra("serve run", "server"), screen.waiting("loading PyTorch and transformers"):
        import trainyard.serve.run.server.server  # noqa: F401
    from trainyard.serve.catalog import parse_policies
    from trainyard.serve.policy import check_no_oracle

    options = replace(options, policy=options.chunked(options.policy))
    policies = parse_policies(options.policy)
    if len(policies) != 1:
        raise ServeError(f"--policy {options.policy!r} names several; a server has one policy")
    check_no_oracle(policies[0][1])
    server_options = _server_options(options)
    logging.basicConfig(format="%(asctime)s %(message)s")
    logging.getLogger("trainyard.server").setLevel(logging.INFO)

    with tempfile.TemporaryDirectory(prefix="trainyard-trained-") as folder:
        failed: dict[str, str] = {}
        if options.engine != "simulated":
            models = with_trained_models(models, options.model_file, Path(folder), screen.say, failed)
        return _served(options, models, server_options, screen, failed)


def _served(
    options: Options,
    models: Mapping[str, str],
    server_options: ServerOptions,
    screen: Screen,
    failed: dict[str, str],
) -> Outcome:
    """Serve models of folders and of the zoo; tell clients which of them failed, and why."""
    from trainyard.serve.run.server.server import serve

    def on_ready(address: str, lengths: Mapping[str, int]) -> None:
        if options.json:
            print(
                json.dumps({"address": address, "max_model_len": dict(lengths), "failed": failed}), flush=True
            )
        loading.close()
        told = ", ".join(f"{name} (up to {length:,} tokens)" for name, length in lengths.items())
        screen.say(f"serving {told} on {address}/v1")
        if drawn:
            screen.say(f"random weights, so that answers mean nothing: {', '.join(drawn)}")

    loading = ExitStack()
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
    with tempfile.TemporaryDirectory(prefix="trainyard-models-") as folder, loading:
        screen.say(f"loading {', '.join(models)}")
        loading.enter_context(screen.waiting("loading models"))
        engines = _engine_factories(options, models, drawn, placement, Path(folder), failed)
        for note in simulation_notes(placement) if options.engine == "simulated" else ():
            screen.say(note)
        return Outcome({"drained": serve(engines, server_options, on_ready, failed)})


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
    from trainyard.serve.catalog import reads_priority
    from trainyard.serve.router import router_of
    from trainyard.serve.run.server.api_keys import ApiKeys
    from trainyard.serve.run.server.api_server import ServerLimits
    from trainyard.serve.run.server.reasoning import REASONING_FORMATS
    from trainyard.serve.run.server.server import ServerOptions
    from trainyard.serve.run.server.tools.tool_use import TOOL_CALL_FORMATS

    keys = ApiKeys.read(between_commas(options.api_key or ""), options.api_key_file)
    keys.check_host(options.host)
    limits = ServerLimits(
        options.max_num_queued_reqs,
        options.max_num_queued_tokens,
        options.max_body,
        options.deadline or float("inf"),
        options.max_cpu_loras,
    )
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
        options.drain,
        options.log_prompts,
        parser,
        options.max_retries,
        reads_priority=reads_priority(options.policy),
        adapter_root=options.lora_root,
        router=router_of(options.router, may_move=False),
        step_limits=ProcessLimits(
            options.step_cpu,
            idle_s=options.step_idle,
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
        raise ServeError(
            "no model is given; give a folder in Hugging Face form, or a model of the zoo such as gpt2"
        )
    if (options.engine == "simulated") != (options.cluster is not None):
        raise ServeError("--engine simulated and --cluster go together; give both or neither")
    if options.engine != "vllm" and options.vllm_python is not None:
        raise ServeError("--vllm-python goes with --engine vllm; leave it out")
    return given


def _engine_factories(
    options: Options,
    models: Mapping[str, str],
    drawn: Mapping[str, str],
    placement: Placement,
    folder: Path,
    failed: dict[str, str],
) -> Mapping[str, Sequence[EngineFactory]]:
    """How each replica of each model is computed, by the name of the model."""
    if options.cluster is None:
        return local_engines(options, models, drawn, options.policy, placement, folder, failed)
    if options.placement is not None:
        from trainyard.hardware.parse import parse_cluster

        check_devices(placement, parse_cluster(options.cluster))
    return simulated_engines(options, models, options.policy, options.cluster, placement, folder, failed)


def _drawn(options: Options, models: Mapping[str, str]) -> dict[str, str]:
    """Those of the models that are computed with random weights, for there is no folder."""
    if options.engine != "torch":
        return {}
    return {name: model for name, model in models.items() if not Path(model).exists()}
