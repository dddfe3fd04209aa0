"""Metrics of engines that are read when Prometheus asks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from trainyard.serve.run.engine_adapters import adapter_name
from trainyard.serve.run.outputs import STEP_TOKENS, EngineState
from trainyard.serve.run.server.hosted_model import AsyncEngine, ReplicaStatus
from trainyard.serve.run.server.queue_limit import QueueLimit

__all__ = ["LABELS", "EngineCollector", "labels_of"]

LABELS = ("model_name", "engine")
"""Labels of all metrics of a replica; `labels_of` returns their values."""
_SERVER = "0"
"""The engine label of requests that the server itself refuses: the first engine, as in vLLM."""

_Labels = tuple[str, str]


def labels_of(name: str, engine: AsyncEngine) -> list[_Labels]:
    """Return the labels of each replica of a model."""
    return [(name, str(number)) for number in range(len(engine.replicas))]


class EngineCollector(Collector):
    """Collects the state of each replica of all models.

    Parameters
    ----------
    engines : of all models, by name.
    queues : of the same models, where requests wait for their first token.
    """

    def __init__(self, engines: Mapping[str, AsyncEngine], queues: Mapping[str, QueueLimit]) -> None:
        self._engines, self._queues = engines, queues

    def collect(self) -> Iterator[Metric]:
        replicas = [
            (labels, replica)
            for name, engine in self._engines.items()
            for labels, replica in zip(labels_of(name, engine), engine.replicas, strict=True)
        ]
        yield from _of_requests(replicas)
        yield from _of_processes(replicas)
        yield _step_tokens(replicas)
        yield _cache_config(replicas)
        yield _adapters(replicas)
        yield self._rejections()

    def _rejections(self) -> Metric:
        """Requests that the limits of queues refused."""
        labels = (*LABELS, "reason")
        found = CounterMetricFamily(
            "vllm:admission_rejections", "Refused by a limit of the queue", labels=labels
        )
        for name, queue in self._queues.items():
            for reason, num in queue.num_rejected.items():
                found.add_metric((name, _SERVER, reason), num)
        return found


_Replicas = Sequence[tuple[_Labels, ReplicaStatus]]


def _of_requests(replicas: _Replicas) -> Iterator[Metric]:
    """Requests that run and wait, and what they hold of the cache."""
    running = GaugeMetricFamily("vllm:num_requests_running", "Being computed", labels=LABELS)
    waiting = GaugeMetricFamily("vllm:num_requests_waiting", "Waiting for the cache", labels=LABELS)
    reasons = GaugeMetricFamily(
        "vllm:num_requests_waiting_by_reason", "Waiting, by reason", labels=(*LABELS, "reason")
    )
    used = GaugeMetricFamily("vllm:kv_cache_usage_perc", "Share that is used", labels=LABELS)
    preempted = CounterMetricFamily("vllm:num_preemptions", "Lost their blocks", labels=LABELS)
    for labels, replica in replicas:
        state = replica.state
        num_waiting = state.num_waiting + state.num_swapped
        running.add_metric(labels, state.num_running)
        waiting.add_metric(labels, num_waiting)
        reasons.add_metric((*labels, "capacity"), num_waiting)
        reasons.add_metric((*labels, "deferred"), 0)  # no request waits for anything but room
        used.add_metric(labels, state.cache_use)
        preempted.add_metric(labels, state.num_preemptions)
    yield from (running, waiting, reasons, used, preempted)


def _of_processes(replicas: _Replicas) -> Iterator[Metric]:
    restarts = CounterMetricFamily("trainyard:engine_restarts", "Engines begun anew", labels=LABELS)
    stuck = CounterMetricFamily("trainyard:engine_stuck", "Ended as they did no step", labels=LABELS)
    ready = GaugeMetricFamily("trainyard:engine_ready", "1 if requests are computed", labels=LABELS)
    for labels, replica in replicas:
        restarts.add_metric(labels, replica.num_restarts)
        stuck.add_metric(labels, replica.num_stuck)
        ready.add_metric(labels, replica.is_ready)
    yield from (restarts, stuck, ready)


def _step_tokens(replicas: _Replicas) -> Metric:
    found = HistogramMetricFamily("vllm:iteration_tokens_total", "Tokens of a step", labels=LABELS)
    names = [*(str(float(most)) for most in STEP_TOKENS), "+Inf"]
    for labels, replica in replicas:
        state: EngineState = replica.state
        found.add_metric(labels, list(zip(names, state.step_tokens, strict=True)), state.num_tokens)
    return found


def _cache_config(replicas: _Replicas) -> Metric:
    """The cache of each engine that has one, as labels of a gauge that is 1."""
    names = ("block_size", "num_gpu_blocks", "num_cpu_blocks", "enable_prefix_caching", "cache_dtype")
    found = GaugeMetricFamily("vllm:cache_config_info", "The KV cache", labels=(*LABELS, *names))
    for labels, replica in replicas:
        if (options := replica.options) is None:
            continue
        sizes = (options.block_tokens, options.num_blocks, options.num_host_blocks)
        told = (*map(str, sizes), str(options.prefix_caching), "auto")  # the type of the weights
        found.add_metric((*labels, *told), 1)
    return found


def _adapters(replicas: _Replicas) -> Metric:
    """The adapters of requests that run and wait, as labels of a gauge that is the time."""
    names = ("running_lora_adapters", "waiting_lora_adapters")
    found = GaugeMetricFamily("vllm:lora_requests_info", "Adapters of requests", labels=(*LABELS, *names))
    for labels, replica in replicas:
        state = replica.state
        told = (
            ",".join(map(adapter_name, each)) for each in (state.running_adapters, state.waiting_adapters)
        )
        found.add_metric((*labels, *told), time.time())
    return found
