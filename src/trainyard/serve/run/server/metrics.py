"""Metrics for Prometheus, by vLLM's names; those that vLLM lacks begin with ``trainyard:``.

``engine`` is the number of the replica that served a request, as vLLM has it of data-parallel engines.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from trainyard.serve.run.server.engine_metrics import LABELS, EngineCollector, labels_of
from trainyard.serve.run.server.hosted_model import AsyncEngine
from trainyard.serve.run.server.queue_limit import QueueLimit

__all__ = ["AnswerMeasurements", "Metrics"]

_FIRST_TOKEN_S = (.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160)  # fmt: skip
_BETWEEN_S = (.001, .0025, .005, .01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 10, 20, 40)  # fmt: skip
_WHOLE_S = (.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920)  # fmt: skip
_TOKENS = tuple(digit * 10**power for power in range(6) for digit in (1, 2, 5))
_NUM = (1, 2, 5, 10, 20)


class AnswerMeasurements(NamedTuple):
    """Numbers of tokens and times of an answer that ended by itself or by its length.

    Attributes
    ----------
    prompt_tokens, generated_tokens, max_tokens : of the prompt, of the answer, and of the longest answer that may be.
    whole_s : from the request to the end of the answer.
    queue_s, prefill_s, decode_s : until the prompt was first in a step, then until the first token, then until the last
        one; NaN if the engine does not tell.
    """

    prompt_tokens: int
    generated_tokens: int
    max_tokens: int
    whole_s: float
    queue_s: float
    prefill_s: float
    decode_s: float

    @property
    def seconds_per_token(self) -> float:
        """Mean time of the tokens after the first one; NaN if there are none."""
        num = self.generated_tokens - 1
        return self.decode_s / num if num > 0 else float("nan")


class Metrics:
    """Counts of one server, of all its models.

    Parameters
    ----------
    engines : of all models, by name.
    queues : of the same models, where requests wait for their first token.
    """

    def __init__(
        self, engines: Mapping[str, AsyncEngine], queues: Mapping[str, QueueLimit] | None = None
    ) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(EngineCollector(engines, queues or {}))
        counter, histogram = self._counter, self._histogram
        self._prompt_tokens = counter("vllm:prompt_tokens", "Tokens of prompts that were computed or found")
        self._cached = counter("vllm:prompt_tokens_cached", "Tokens of prompts that were in the KV cache")
        self._by_source = counter("vllm:prompt_tokens_by_source", "Tokens of prompts, by source", "source")
        self._generated = counter("vllm:generation_tokens", "Tokens that were generated")
        self._queries = counter("vllm:prefix_cache_queries", "Tokens of prompts that were looked for")
        self._hits = counter("vllm:prefix_cache_hits", "Tokens of prompts that were in the KV cache")
        self._success = counter("vllm:request_success", "Answers that ended, by reason", "finished_reason")
        self._rejected = Counter(
            "trainyard:requests_rejected",
            "Requests that were refused",
            ("model_name", "status"),
            registry=self._registry,
        )
        self._first_token = histogram(
            "vllm:time_to_first_token_seconds", "From a request to its first token", _FIRST_TOKEN_S
        )
        self._between = histogram(
            "vllm:inter_token_latency_seconds", "Between two tokens of an answer", _BETWEEN_S
        )
        self._num_samples = histogram("vllm:request_params_n", "Answers that a request asks for", _NUM)
        self._of_answers = {
            name: histogram(f"vllm:{metric}", text, buckets)
            for name, metric, text, buckets in (
                ("whole_s", "e2e_request_latency_seconds", "From a request to its end", _WHOLE_S),
                ("queue_s", "request_queue_time_seconds", "Until the first step", _WHOLE_S),
                ("prefill_s", "request_prefill_time_seconds", "Then until the first token", _WHOLE_S),
                ("decode_s", "request_decode_time_seconds", "Then until the last token", _WHOLE_S),
                ("prompt_tokens", "request_prompt_tokens", "Tokens of a prompt", _TOKENS),
                ("generated_tokens", "request_generation_tokens", "Tokens of an answer", _TOKENS),
                ("max_tokens", "request_params_max_tokens", "Longest answer that is allowed", _TOKENS),
            )
        }
        self._inference = histogram(
            "vllm:request_inference_time_seconds", "From the first step to the last token", _WHOLE_S
        )
        self._per_token = histogram(
            "vllm:request_time_per_output_token_seconds", "Per token after the first one", _BETWEEN_S
        )
        for labels in (labels for name, engine in engines.items() for labels in labels_of(name, engine)):
            for each in (self._prompt_tokens, self._cached, self._generated, self._queries, self._hits):
                each.labels(*labels)

    def began(
        self,
        model: str,
        engine: int,
        prompt_tokens: int,
        cached_tokens: int,
        num_samples: int,
        after_s: float,
    ) -> None:
        """Count a request that has its first token."""
        of = (model, str(engine))
        for each in (self._prompt_tokens, self._queries):
            each.labels(*of).inc(prompt_tokens)
        for each in (self._cached, self._hits):
            each.labels(*of).inc(cached_tokens)
        self._by_source.labels(*of, "local_cache_hit").inc(cached_tokens)
        self._by_source.labels(*of, "local_compute").inc(prompt_tokens - cached_tokens)
        self._first_token.labels(*of).observe(after_s)
        self._num_samples.labels(*of).observe(num_samples)

    def generated(self, model: str, engine: int, after_s: float | None) -> None:
        """Count a token, which came ``after_s`` after the one before it; None for the first of an answer."""
        self._generated.labels(model, str(engine)).inc()
        if after_s is not None:
            self._between.labels(model, str(engine)).observe(after_s)

    def embedded(self, model: str, engine: int, prompt_tokens: int, after_s: float) -> None:
        """Count a text that has its embedding."""
        self._prompt_tokens.labels(model, str(engine)).inc(prompt_tokens)
        self._by_source.labels(model, str(engine), "local_compute").inc(prompt_tokens)
        self.answered(model, engine, "stop")
        self._of_answers["whole_s"].labels(model, str(engine)).observe(after_s)

    def answered(self, model: str, engine: int, reason: str) -> None:
        """Count an answer that ended, for whatever reason."""
        self._success.labels(model, str(engine), reason).inc()

    def ended(self, model: str, engine: int, measurements: AnswerMeasurements) -> None:
        """Observe an answer that ended by itself or by its length."""
        of = (model, str(engine))
        for name, each in self._of_answers.items():
            _observe(each.labels(*of), getattr(measurements, name))
        _observe(self._inference.labels(*of), measurements.prefill_s + measurements.decode_s)
        _observe(self._per_token.labels(*of), measurements.seconds_per_token)

    def rejected(self, model: str, status: int) -> None:
        """Count a request that was refused; the model is "" if it is not known."""
        self._rejected.labels(model, str(status)).inc()

    def text(self) -> bytes:
        """All of it, in the text format of Prometheus."""
        return generate_latest(self._registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, (*LABELS, *labels), registry=self._registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, LABELS, buckets=buckets, registry=self._registry)


def _observe(histogram: Histogram, value: float) -> None:
    """Add a value, unless it is NaN."""
    if value == value:
        histogram.observe(value)
