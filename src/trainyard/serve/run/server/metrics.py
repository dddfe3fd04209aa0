"""Metrics for Prometheus, by vLLM's names; those that vLLM lacks begin with ``trainyard:``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from trainyard.serve.run.server.hosted_model import AsyncEngine

__all__ = ["Metrics"]

_LABEL = "model_name"
_FIRST_TOKEN_S = (.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160)  # fmt: skip
_BETWEEN_S = (.001, .0025, .005, .01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 10, 20, 40)  # fmt: skip
_WHOLE_S = (.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920)  # fmt: skip


class Metrics:
    """Counts of one server, of all its models.

    Parameters
    ----------
    engines : of all models, by name.
    """

    def __init__(self, engines: Mapping[str, AsyncEngine]) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_EngineCollector(engines))

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, (_LABEL, *labels), registry=self._registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, text, (_LABEL,), buckets=buckets, registry=self._registry)

        self._prompt_tokens = counter("vllm:prompt_tokens", "Tokens of prompts that were computed or found")
        self._generated = counter("vllm:generation_tokens", "Tokens that were generated")
        self._queries = counter("vllm:prefix_cache_queries", "Tokens of prompts that were looked for")
        self._hits = counter("vllm:prefix_cache_hits", "Tokens of prompts that were in the KV cache")
        self._success = counter("vllm:request_success", "Answers that ended, by reason", "finished_reason")
        self._rejected = counter("trainyard:requests_rejected", "Requests that were refused", "status")
        self._first_token = histogram(
            "vllm:time_to_first_token_seconds", "From a request to its first token", _FIRST_TOKEN_S
        )
        self._between = histogram(
            "vllm:inter_token_latency_seconds", "Between two tokens of an answer", _BETWEEN_S
        )
        self._whole = histogram("vllm:e2e_request_latency_seconds", "From a request to its end", _WHOLE_S)
        for name in engines:
            for each in (self._prompt_tokens, self._generated, self._queries, self._hits):
                each.labels(name)

    def began(self, model: str, prompt_tokens: int, cached_tokens: int, after_s: float) -> None:
        """A request has its first token."""
        self._prompt_tokens.labels(model).inc(prompt_tokens)
        self._queries.labels(model).inc(prompt_tokens)
        self._hits.labels(model).inc(cached_tokens)
        self._first_token.labels(model).observe(after_s)

    def generated(self, model: str, after_s: float | None) -> None:
        """A token came, so long after the one before it of its answer, if there is one."""
        self._generated.labels(model).inc()
        if after_s is not None:
            self._between.labels(model).observe(after_s)

    def embedded(self, model: str, prompt_tokens: int, after_s: float) -> None:
        """A text has its embedding."""
        self._prompt_tokens.labels(model).inc(prompt_tokens)
        self.answered(model, "stop")
        self.ended(model, after_s)

    def answered(self, model: str, reason: str) -> None:
        """An answer ended."""
        self._success.labels(model, reason).inc()

    def ended(self, model: str, after_s: float) -> None:
        """All answers to a prompt ended."""
        self._whole.labels(model).observe(after_s)

    def rejected(self, model: str, status: int) -> None:
        """A request was refused; the model is "" if it is not known."""
        self._rejected.labels(model, str(status)).inc()

    def text(self) -> bytes:
        """All of it, in the text format of Prometheus."""
        return generate_latest(self._registry)


class _EngineCollector(Collector):
    """Of each replica of a model; ``engine`` is its number, as vLLM has it of data-parallel engines."""

    def __init__(self, engines: Mapping[str, AsyncEngine]) -> None:
        self._engines = engines

    def collect(self) -> Iterator[Metric]:
        labels = (_LABEL, "engine")
        running = GaugeMetricFamily("vllm:num_requests_running", "Being computed", labels=labels)
        waiting = GaugeMetricFamily("vllm:num_requests_waiting", "Waiting for the cache", labels=labels)
        used = GaugeMetricFamily("vllm:kv_cache_usage_perc", "Share that is used", labels=labels)
        preempted = CounterMetricFamily("vllm:num_preemptions", "Lost their blocks", labels=labels)
        restarts = CounterMetricFamily("trainyard:engine_restarts", "Engines begun anew", labels=labels)
        stuck = CounterMetricFamily("trainyard:engine_stuck", "Ended as they did no step", labels=labels)
        ready = GaugeMetricFamily("trainyard:engine_ready", "1 if requests are computed", labels=labels)
        for name, engine in self._engines.items():
            for number, replica in enumerate(engine.replicas):
                state, of = replica.state, (name, str(number))
                running.add_metric(of, state.num_running)
                waiting.add_metric(of, state.num_waiting + state.num_swapped)
                used.add_metric(of, state.cache_use)
                preempted.add_metric(of, state.num_preemptions)
                restarts.add_metric(of, replica.num_restarts)
                stuck.add_metric(of, replica.num_stuck)
                ready.add_metric(of, replica.is_ready)
        yield from (running, waiting, used, preempted, restarts, stuck, ready)
