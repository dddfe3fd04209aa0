"""The process of an engine: an error in a user's policy, or in a model, is one line that names the place."""

from __future__ import annotations

import itertools
import multiprocessing
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path

import pytest
import torch
from tests.serve.run.tiny_models import made
from transformers import PreTrainedModel

from trainyard import user_file
from trainyard.serve.requests.request import Request
from trainyard.serve.run.engine import EngineOptions
from trainyard.serve.run.engine_process import AddRequest, EngineFailed, EngineReady, EngineSpec, engine_main
from trainyard.serve.run.pretrained import load_causal_pretrained
from trainyard.serve.run.sampling import SamplingParams
from trainyard.serve.run.step_watch import StepProgress

_POLICY = """
from trainyard.serve.policies.vllm import vllm


class Own:
    repeats = "never"

    def __init__(self, fails_at):
        self.fails_at, self.vllm = fails_at, vllm()

    def start(self):
        return self.vllm.start()

    def decide(self, draft, state):
        names = [each.request.name for each in draft.waiting]
        if self.fails_at in names:
            return names / 2
        return self.vllm.decide(draft, state)
"""
_FAULT = "own.py, line 17, in decide: TypeError: unsupported operand type"


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineSpec]:
    """An engine with a policy of the user's that fails at the request ``bad``; interrupts are as before after it."""
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(_POLICY)
    made("llama").save_pretrained(tmp_path / "llama")
    handler = signal.getsignal(signal.SIGINT)
    yield EngineSpec(tmp_path / "llama", "own.py:Own(fails_at='bad')", EngineOptions(100, 8))
    signal.signal(signal.SIGINT, handler)


def _progress() -> StepProgress:
    return StepProgress(multiprocessing.get_context("spawn"))


def test_a_policy_that_fails_at_a_request_ends_the_process_with_one_line(spec: EngineSpec):
    ours, theirs = Pipe()
    with ours, theirs:
        ours.send(AddRequest(0, Request("bad", 0.0, 1, 5, prompt_ids=(1,)), SamplingParams(), frozenset()))
        with pytest.raises(SystemExit, match=rf"^error: {_FAULT}"):
            engine_main(theirs, spec.make_engine, _progress())
        assert isinstance(ours.recv(), EngineReady)


def test_a_policy_that_fails_at_the_start_is_the_reason(spec: EngineSpec):
    at_start = replace(spec, policy="own.py:Own(fails_at='greedy')")  # a request that warms up
    ours, theirs = Pipe()
    with ours, theirs:
        engine_main(theirs, at_start.make_engine, _progress())
        said = ours.recv()
    assert isinstance(said, EngineFailed)
    assert said.why.startswith(_FAULT)


def _failing_later(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    """A model that fails at its third pass: when its shapes are known, and it serves nothing yet."""
    model = load_causal_pretrained(folder, dtype)
    calls = itertools.count()

    def fail(*given: object) -> None:
        if next(calls) == 2:
            raise AttributeError("'Odd' object has no attribute\n'weight'")

    model.register_forward_hook(fail)
    return model


def test_a_model_that_fails_before_it_serves_is_one_line_about_its_folder(
    spec: EngineSpec, monkeypatch: pytest.MonkeyPatch
):
    # Another test may have loaded a user's file from this folder; the model here would be one beside it.
    for name in [name for name in sys.modules if name.startswith(user_file._PREFIX)]:
        monkeypatch.delitem(sys.modules, name)
    failing = replace(spec, policy="vllm", load=_failing_later)
    ours, theirs = Pipe()
    with ours, theirs:
        engine_main(theirs, failing.make_engine, _progress())
        said = ours.recv()
    assert isinstance(said, EngineFailed)
    assert said.why == (
        f"{spec.folder} cannot be computed: AttributeError: 'Odd' object has no attribute 'weight'; give another model, "
        "or a smaller cache"
    )
