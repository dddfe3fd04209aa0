"""`trainyard serve compare`: the same requests, simulated and served on this machine, side by side."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from trainyard.cli.extras import needing_extra
from trainyard.cli.outputs import Output
from trainyard.cli.screen import Outcome, Screen
from trainyard.cli.serve.engine_options import LocalEngineOptions
from trainyard.cli.serve.requests import GivenRequests, RequestOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainyard.serve.run.simulated_and_served import SimulatedAndServed

__all__ = ["Options", "act"]


@dataclass(frozen=True, kw_only=True)
class Options(LocalEngineOptions, RequestOptions):
    """Simulate how a model on this machine serves requests, serve them for real, and show both side by side.

    Step times are measured first. Serving takes as long as the trace. If only the length of a prompt is known, its tokens
    are drawn. Each answer is as long as in the trace.
    """

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]
    """Folder of the model in Hugging Face form, with weights as safetensors."""
    policy: Annotated[str, tyro.conf.arg(metavar="A,B,...")] = "vllm"
    """Batch policies, separated by commas, as in `trainyard serve simulate`."""
    html: Annotated[Path | None, tyro.conf.arg(metavar="FILE"), Output.FILE] = None
    """Write an HTML page with figures."""


def act(options: Options, screen: Screen) -> Outcome:
    """Simulate, serve and compare."""
    with needing_extra("serve compare", "server"):
        from trainyard.serve.run.simulated_and_served import simulated_and_served
    import torch

    from trainyard.report.serve_league import run_document, serve_tables
    from trainyard.report.serve_page import serve_page
    from trainyard.report.simulated_and_served import errors_table
    from trainyard.serve.catalog import parse_policies
    from trainyard.serve.policy import check_no_oracle
    from trainyard.serve.requests.prompts import with_prompt_ids
    from trainyard.serve.run.causal_model import load_causal_model

    for _, policy in parse_policies(options.policy):
        check_no_oracle(policy)
    options.refuse_turns("serve compare")
    given = options.read()
    spec = options.spec(options.model, options.policy)
    torch.set_num_threads(spec.num_threads)
    with screen.waiting(f"loading {options.model}"):
        model = load_causal_model(options.model, spec.dtype, spec.device)
    requests = list(with_prompt_ids(given, model.vocabulary))
    with screen.waiting("simulating and serving") as progress:
        tell = partial(progress, "simulating and serving")
        found = simulated_and_served(options.policy, requests, model, spec.options, tell)
    runs = [run for each in found for run in (each.simulated, each.served)]
    title = f"{given.title}; {model.name} on this machine"
    if options.html is not None:
        facts = {"requests": given.title, "model": model.name, "threads": str(spec.num_threads)}
        screen.keep(serve_page(title, runs, facts, left_out=given.left_out), options.html)
    left_out = given.left_out.lines() if given.left_out is not None else ()
    return Outcome(
        _document(given, found) | {"runs": [run_document(run) for run in runs] if options.json else []},
        (errors_table(title, found), *serve_tables("", runs), *left_out),
    )


def _document(given: GivenRequests, found: Sequence[SimulatedAndServed]) -> dict[str, object]:
    return {
        "requests": given.document,
        "policies": [
            {"policy": each.name, "step_time": asdict(each.step_time), "errors": each.errors()}
            for each in found
        ],
    }
