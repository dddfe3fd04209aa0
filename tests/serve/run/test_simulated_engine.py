"""An engine that only takes the time of another model."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import count
from pathlib import Path
from typing import ClassVar

from trainyard.serve.batch import WorkItem
from trainyard.serve.catalog import parse_policies
from trainyard.serve.request_state import RequestState
from trainyard.serve.requests.request import Request
from trainyard.serve.run.byte_tokenizer import save_byte_tokenizer
from trainyard.serve.run.engine import Engine, EngineOptions
from trainyard.serve.run.model_tokenizer import ModelTokenizer
from trainyard.serve.run.outputs import NewToken
from trainyard.serve.run.sampling import SamplingParams
from trainyard.serve.run.simulated_engine import SimulatedEngineSpec
from trainyard.serve.run.simulated_model import SimulatedModel
from trainyard.serve.step_time import LinearStepTime


class _Asked(LinearStepTime):
    """Step times that note for what they were asked."""

    items: ClassVar[list[tuple[WorkItem, ...]]] = []

    def seconds(self, items: Collection[WorkItem], requests: Mapping[int, RequestState]) -> float:
        self.items.append(tuple(items))
        return 0.0


def test_each_step_takes_the_time_of_its_items():
    model = SimulatedModel("made", _Asked(0.0, 0.0, 0.0), 100, 20, (3, 4, 5))
    ((_, policy),) = parse_policies("sarathi(chunk_tokens=8)")
    engine = Engine(model, policy, EngineOptions(20, 4))
    engine.add(Request("r", 0.0, 11, 4, prompt_ids=(1,) * 11), SamplingParams(temperature=2.0, seed=1))
    tokens = []
    while engine.has_work:
        tokens += [out.token for out in engine.step() if isinstance(out, NewToken)]
    assert tokens == [3, 4, 5, 3]
    ranges = [[(item.start, item.stop) for item in items] for items in _Asked.items]
    assert ranges == [[(0, 8)], [(8, 11)], [(11, 12)], [(12, 13)], [(13, 14)]]


def test_step_that_waits_long_is_not_taken_for_stuck():
    model = SimulatedModel("made", LinearStepTime(0.25, 0.0, 0.0), 100, 20, (3,))
    ((_, policy),) = parse_policies("vllm")
    engine, reports = Engine(model, policy, EngineOptions(20, 4)), count()
    engine.report_progress(lambda: next(reports))
    engine.add(Request("r", 0.0, 1, 1, prompt_ids=(1,)), SamplingParams())
    engine.step()
    assert next(reports) >= 3


def test_bytes_are_tokens_and_come_back(tmp_path: Path):
    text = ModelTokenizer(save_byte_tokenizer(tmp_path))
    said = "Grüße, 東京 🚂\n<|end"
    tokens = text.encode(said)
    assert len(tokens) == len(said.encode())
    assert text.decode(tokens) == said
    assert text.vocabulary == 257
    assert text.stop_token_ids == {256}
    assert text.has_chat_template


def test_an_engine_is_made_of_a_model_on_other_hardware(tmp_path: Path):
    folder = save_byte_tokenizer(tmp_path)
    spec = SimulatedEngineSpec(folder, "vllm", EngineOptions(50, 16), "gpt2", "1xH100")
    engine = spec.make_engine()
    prompt = ModelTokenizer(folder).encode("Hello")
    engine.add(Request("r", 0.0, len(prompt), 26, prompt_ids=prompt), SamplingParams())
    tokens = []
    while engine.has_work:
        tokens += [out.token for out in engine.step() if isinstance(out, NewToken)]
    assert ModelTokenizer(folder).decode(tokens) == " This answer is simulated."
