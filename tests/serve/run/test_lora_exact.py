"""An engine with adapters generates what `generate` of transformers does with weights into which they were added."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tests.serve.run.tiny_adapters import ATTENTION, WEIGHTS, merged, save_adapter, save_tensors
from tests.serve.run.tiny_models import drawn_prompts, generated_by, made

from trainyard.serve.catalog import parse_policies
from trainyard.serve.errors import ServeError
from trainyard.serve.requests.request import Request
from trainyard.serve.run.causal_model import CausalModel
from trainyard.serve.run.engine import Engine, EngineOptions
from trainyard.serve.run.outputs import NewToken, StepRecord
from trainyard.serve.run.sampling import SamplingParams

_TOKENS, _CLOSE = 16, 1e-4
_PROMPTS = drawn_prompts(10)
_TIGHT = EngineOptions(num_blocks=24, block_tokens=8)
_RUNS = {
    "roomy": ("vllm(max_requests=12)", EngineOptions(num_blocks=400, block_tokens=8)),
    "recomputing": ("vllm", _TIGHT),
    "swapping": (
        "vllm_v0(preempt='swap')",
        EngineOptions(num_blocks=24, block_tokens=8, num_host_blocks=120),
    ),
    "chunks": ("sarathi(chunk_tokens=16)", _TIGHT),
    "longest prefix": ("vllm + longest_prefix", _TIGHT),
}
_NAMES = ("llama", "qwen2", "gpt2")

Tokens = list[list[int]]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Mapping[str, Path]]:
    """Two adapters of each model."""
    found = {}
    for name in _NAMES:
        path, model = tmp_path_factory.mktemp("adapters"), made(name)
        found[name] = {
            "all": save_adapter(path / "all", model, seed=1),
            "attention": save_adapter(path / "attention", model, ATTENTION, rank=2, seed=2, use_rslora=True),
        }
    return found


@pytest.fixture(scope="module", params=_NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def expected(name, folders) -> Mapping[str, list[tuple[list[int], list[float]]]]:
    """What is generated with each adapter and without."""
    models = {"": made(name)} | {key: merged(made(name), folder) for key, folder in folders[name].items()}
    return {key: generated_by(model, _PROMPTS, _TOKENS) for key, model in models.items()}


def _engine(name: str, policy: str, options: EngineOptions, steps: list[StepRecord] | None = None) -> Engine:
    ((_, chosen),) = parse_policies(policy)
    return Engine(
        CausalModel(made(name), name), chosen, options, seen=(steps if steps is not None else []).append
    )


def _served(engine: Engine, adapters: tuple[str, ...]) -> dict[str, Tokens]:
    """Tokens of all prompts with each adapter, all at once."""
    places = {}
    for place, prompt in enumerate(_PROMPTS):
        for adapter in adapters:
            request = Request(
                f"{place} {adapter}", 0.0, len(prompt), _TOKENS, prompt_ids=prompt, adapter=adapter
            )
            places[engine.add(request, SamplingParams(temperature=0.0))] = adapter, place
    found: dict[str, Tokens] = {adapter: [[] for _ in _PROMPTS] for adapter in adapters}
    while engine.has_work:
        for out in engine.step():
            assert isinstance(out, NewToken)
            adapter, place = places[out.request]
            found[adapter][place].append(out.token)
    return found


def _check(found: Tokens, expected: list[tuple[list[int], list[float]]]) -> None:
    for tokens, (wanted, gaps) in zip(found, expected, strict=True):
        first = next((k for k in range(_TOKENS) if tokens[k] != wanted[k]), None)
        assert first is None or gaps[first] < _CLOSE


@pytest.mark.parametrize(
    ("name", "run"),
    [
        pytest.param(name, run, marks=[pytest.mark.slow] * (name != "llama" and run != "swapping"))
        for name in _NAMES
        for run in _RUNS
    ],
    indirect=["name"],
    scope="module",
)
def test_a_batch_of_two_adapters_and_none(name, folders, expected, run):
    steps: list[StepRecord] = []
    engine = _engine(name, *_RUNS[run], steps)
    for adapter, folder in folders[name].items():
        engine.load_adapter(adapter, folder)
    found = _served(engine, ("", "all", "attention"))
    for adapter, tokens in found.items():
        _check(tokens, expected[adapter])
    assert found[""] != found["all"] != found["attention"] != found[""]
    ops = {op.kind for step in steps for op in step.batch.cache_ops}
    assert ("swap in" if run == "swapping" else "share") in ops
    if run in ("recomputing", "swapping", "chunks"):
        assert any(step.batch.preempted for step in steps)


def test_an_adapter_that_is_loaded_in_the_place_of_another_finds_no_blocks_of_it(folders):
    engine = _engine("llama", *_RUNS["roomy"])
    first, second = folders["llama"].values()
    engine.load_adapter("1", first)
    before = _served(engine, ("1",))
    engine.unload_adapter("1")
    with pytest.raises(ServeError, match="was loaded before"):
        engine.load_adapter("1", second)
    engine.load_adapter("2", second)
    assert _served(engine, ("2",))["2"] != before["1"]
    _check(_served(engine, ("2",))["2"], generated_by(merged(made("llama"), second), _PROMPTS, _TOKENS))


@pytest.mark.parametrize("num_samples", [1, 2])
def test_an_adapter_with_values_too_large_ends_its_own_requests_only(folders, tmp_path, num_samples):
    wild = {name: tensor * 1e30 for name, tensor in load_file(folders["llama"]["all"] / WEIGHTS).items()}
    engine = _engine("llama", *_RUNS["recomputing"])
    engine.load_adapter("wild", save_tensors(tmp_path, wild, r=4))
    places, refused = {}, []
    for place, prompt in enumerate(_PROMPTS):
        for adapter, num in (("", 1), ("wild", num_samples)):
            request = Request(
                f"{place} {adapter}",
                0.0,
                len(prompt),
                _TOKENS,
                prompt_ids=prompt,
                adapter=adapter,
                num_samples=num,
            )
            places[engine.add(request, SamplingParams(temperature=0.0))] = adapter, place
    found: Tokens = [[] for _ in _PROMPTS]
    while engine.has_work:
        for out in engine.step():
            adapter, place = places[out.request]
            if isinstance(out, NewToken):
                assert not adapter
                found[place].append(out.token)
            else:
                refused.append((adapter, place))
                assert "not finite numbers" in out.why
                assert out.is_fault_of_model
    assert sorted(refused) == [("wild", place) for place in range(len(_PROMPTS))]
    _check(found, generated_by(made("llama"), _PROMPTS, _TOKENS))
    assert engine.num_free_blocks == _TIGHT.num_blocks


def test_a_model_without_adapters_is_as_it_was(folders):
    model = CausalModel(made("llama"), "llama")
    before = {path: type(each) for path, each in model._model.named_modules()}
    for adapter, folder in folders["llama"].items():
        model.load_adapter(adapter, folder)
    assert {path: type(each) for path, each in model._model.named_modules()} != before
    for adapter in folders["llama"]:
        model.unload_adapter(adapter)
    assert {path: type(each) for path, each in model._model.named_modules()} == before


@pytest.mark.parametrize("ends", ["complete", "cancelled"])
def test_an_adapter_is_unloaded_when_no_request_uses_it(folders, ends):
    engine = _engine("llama", *_RUNS["roomy"])
    with pytest.raises(ServeError, match="'all' is not loaded"):
        engine.add(Request("r", 0.0, 1, 4, prompt_ids=(1,), adapter="all"))
    engine.unload_adapter("all")
    engine.load_adapter("all", folders["llama"]["all"])
    number = engine.add(Request("r", 0.0, 1, 4, prompt_ids=(1,), adapter="all"))
    engine.step()
    engine.unload_adapter("all")
    with pytest.raises(ServeError, match="'all' is not loaded"):
        engine.add(Request("r", 0.0, 1, 4, prompt_ids=(1,), adapter="all"))
    assert engine._model._adapters.names == {"all"}
    if ends == "cancelled":
        engine.cancel(number)
    while engine.has_work:
        engine.step()
    assert engine._model._adapters.names == set()
