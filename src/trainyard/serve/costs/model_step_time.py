"""The time of a step of a model, as the sum of its kernels."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from trainyard.serve.batch import CacheOp, WeightOp, WorkItem
from trainyard.serve.costs.host_time import OVERLAPPED, HostTime
from trainyard.serve.costs.kernels import KernelTimes, Product, StepGraph
from trainyard.serve.errors import ServeError
from trainyard.serve.request_state import RequestState
from trainyard.serve.step_time import CopyTimes

__all__ = ["GraphCosts", "ModelStepTime", "PipelineStepTime", "StepCosts"]

Floats = NDArray[np.float64]


class StepCosts(Protocol):
    """The parts of a step's time."""

    def tokens_s(self, num: int) -> float:
        """All kernels for so many tokens, without attention and experts."""
        ...

    def experts_s(self, num: int) -> float:
        """Experts of all mixtures, for so many tokens of all data-parallel ranks."""
        ...

    def sequences_s(self, num: int) -> float:
        """The kernels for the last tokens of so many sequences, such as the LM head."""
        ...

    def attention_s(self, chunks: Sequence[tuple[int, int]], num: int, mean_tokens: Floats) -> Floats:
        """Attention of all layers; one value for each of several steps.

        Parameters
        ----------
        chunks : prefill chunks: tokens in the step, and cached tokens before them.
        num : requests that decode.
        mean_tokens : their mean sequence length, [step].
        """
        ...

    def backward_s(self, chunks: Sequence[tuple[int, int]]) -> float:
        """A backward pass of tokens through all layers, without experts.

        Parameters
        ----------
        chunks : tokens in the step, and those before them, which they attend to.

        Raises
        ------
        ServeError
            If it was not measured.
        """
        ...


class GraphCosts:
    """The parts of a step's time, from the kernels of a device and the seconds of each.

    Parameters
    ----------
    graph : the kernels that a device launches.
    kernels : the seconds of each.
    sends : whether what it computes goes on to another pipeline stage.
    between_ranks : seconds of collectives between data-parallel ranks; None if there is one rank.
    """

    def __init__(
        self,
        graph: StepGraph,
        kernels: KernelTimes,
        sends: bool = False,
        between_ranks: KernelTimes | None = None,
    ) -> None:
        self.graph, self.kernels, self.sends = graph, kernels, sends
        self.between_ranks = between_ranks

    def tokens_s(self, num: int) -> float:
        seconds = self._products_s(num, of_last_tokens=False) + self.communication_s(num)
        return seconds + self._pointwise_s(num)

    def experts_s(self, num: int) -> float:
        seconds = sum(count * self.kernels.experts_s(num, each) for each, count in self.graph.experts)
        return seconds + self.dispatched_s(num)

    def dispatched_s(self, num: int) -> float:
        """In which tokens of all ranks go to their experts and come back: all of them to all, and sums of parts back."""
        if self.between_ranks is None:
            return 0.0
        gathers = self.graph.between_ranks.all_gathers
        return sum(count * self.between_ranks.all_gather_s(num * each) for each, count in gathers)

    def communication_s(self, num: int) -> float:
        """Collectives, and the send to the next stage, for so many tokens."""
        graph, kernels = self.graph, self.kernels
        seconds = sum(count * kernels.all_reduce_s(num * each) for each, count in graph.all_reduces)
        return seconds + kernels.send_s(num * graph.hidden) if self.sends else seconds

    def sequences_s(self, num: int) -> float:
        gathered_s = sum(
            count * self.kernels.all_gather_s(num * each) for each, count in self.graph.all_gathers
        )
        return self._products_s(num, of_last_tokens=True) + gathered_s

    def attention_s(self, chunks: Sequence[tuple[int, int]], num: int, mean_tokens: Floats) -> Floats:
        seconds = np.zeros(len(mean_tokens))
        for shape, count in self.graph.attention:
            if chunks:
                seconds += count * self.kernels.prompt_attention_s(shape, chunks)
            if num:
                seconds += count * self.kernels.decode_attention_s(shape, num, mean_tokens)
        return seconds

    def backward_s(self, chunks: Sequence[tuple[int, int]]) -> float:
        """Gradients to the inputs of all kernels, where weights are frozen (Miao et al., "FlexLLM", arXiv 2402.18789).

        Of each matrix product that is one product with the transposed weights, of as many flops. Before that, the loss
        needs the scores of all words for every token, which inference computes for the last ones only. Kernels that only
        read and write, and collectives (Shoeybi et al., "Megatron-LM", arXiv 1909.08053, section 3: one backward for each
        forward), come once more. What the adapter itself computes is not counted, as it is not forward.
        """
        attention_s = sum(
            count * self.kernels.backward_attention_s(shape, chunks) for shape, count in self.graph.attention
        )
        num = sum(tokens for tokens, _ in chunks)
        gradients_s = sum(
            count * self.kernels.product_s(num, Product(product.columns, product.width))
            for product, count in self.graph.products
        )
        scores_s = self._products_s(num, of_last_tokens=True)
        return attention_s + gradients_s + scores_s + self._pointwise_s(num) + self.communication_s(num)

    def _pointwise_s(self, num: int) -> float:
        return sum(count * self.kernels.pointwise_s(num * each) for each, count in self.graph.pointwise)

    def _products_s(self, num_rows: int, *, of_last_tokens: bool) -> float:
        return sum(
            count * self.kernels.product_s(num_rows, product)
            for product, count in self.graph.products
            if product.is_of_last_tokens == of_last_tokens
        )


@dataclass
class _Work:
    """What a rank computes in a step.

    Attributes
    ----------
    chunks : of prompts: tokens in the step, and those before them that are in the cache.
    num_decodes, num_cached : requests that decode, and the tokens of their sequences.
    num_tokens, num_items : of all.
    """

    chunks: list[tuple[int, int]] = field(default_factory=list)
    num_decodes: int = 0
    num_cached: int = 0
    num_tokens: int = 0
    num_items: int = 0


class ModelStepTime(CopyTimes):
    """The time of each step of a model.

    Parameters
    ----------
    costs : the parts of a step's time.
    host : the time after every step in which the devices wait for the host.
    copies : the attributes of `CopyTimes`, by name.
    """

    def __init__(self, costs: StepCosts, host: HostTime = OVERLAPPED, **copies: float) -> None:
        super().__init__(**copies)
        self.costs, self.host = costs, host
        self._tokens_s: dict[int, float] = {}
        self._sequences_s: dict[int, float] = {}
        self._experts_s: dict[int, float] = {}

    def seconds(self, items: Collection[WorkItem], requests: Mapping[int, RequestState]) -> float:
        """Of a step; where there are data-parallel ranks, of the one that takes longest."""
        by_rank: dict[int, _Work] = {}
        for number, start, stop in items:
            state = requests[number]
            if (work := by_rank.get(state.rank)) is None:
                work = by_rank[state.rank] = _Work()
            work.num_items += 1
            work.num_tokens += stop - start
            if stop > state.num_prefill_tokens:
                work.num_decodes += 1
                work.num_cached += stop
            else:
                work.chunks.append((stop - start, start))
        longest_s = max(map(self._rank_s, by_rank.values()))
        return longest_s + self._experts_of(sum(work.num_tokens for work in by_rank.values()))

    def stage_seconds(
        self, items: Collection[WorkItem], requests: Mapping[int, RequestState], num_stages: int
    ) -> Floats:
        """Of each of several stages, which have equal parts: what each has is not known here."""
        return np.full(num_stages, self.seconds(items, requests) / num_stages)

    def decode_seconds(self, items: Collection[WorkItem], num: int) -> Floats:
        """Seconds of each of several steps in a row, in which all items decode."""
        count = len(items)
        mean = (sum(item.stop for item in items) + np.arange(num, dtype=np.float64) * count) / count
        return (
            self.costs.attention_s((), count, mean) + self._others_s(count, count) + self._experts_of(count)
        )

    def backward_seconds(self, items: Collection[WorkItem], requests: Mapping[int, RequestState]) -> float:
        """Of the data-parallel rank that takes longest; gradients to the tokens of experts take as long as these."""
        by_rank: dict[int, list[tuple[int, int]]] = {}
        for number, start, stop in items:
            by_rank.setdefault(requests[number].rank, []).append((stop - start, start))
        longest_s = max(map(self.costs.backward_s, by_rank.values()))
        num_tokens = sum(num for chunks in by_rank.values() for num, _ in chunks)
        return longest_s + self._experts_of(num_tokens) + self.host.seconds(len(items))

    def _rank_s(self, work: _Work) -> float:
        """Of a rank, without experts."""
        mean = np.array([work.num_cached / max(work.num_decodes, 1)])
        attention_s = float(self.costs.attention_s(work.chunks, work.num_decodes, mean)[0])
        return attention_s + self._others_s(work.num_tokens, work.num_items)

    def _experts_of(self, num_tokens: int) -> float:
        if num_tokens not in self._experts_s:
            self._experts_s[num_tokens] = self.costs.experts_s(num_tokens)
        return self._experts_s[num_tokens]

    def _others_s(self, num_tokens: int, num_sequences: int) -> float:
        if num_tokens not in self._tokens_s:
            self._tokens_s[num_tokens] = self.costs.tokens_s(num_tokens)
        if num_sequences not in self._sequences_s:
            self._sequences_s[num_sequences] = self._after_tokens_s(num_sequences)
        return self._tokens_s[num_tokens] + self._sequences_s[num_sequences]

    def _after_tokens_s(self, num_sequences: int) -> float:
        """Of the kernels for last tokens, and of the host."""
        return self.costs.sequences_s(num_sequences) + self.host.seconds(num_sequences)


class PipelineStepTime:
    """The time of each step of a model in pipeline stages, of which each has its own layers.

    Parameters
    ----------
    stages : the step time of each, all with the same seconds for blocks and adapters. Stages that are alike may be one
        object, whose time is computed once.
    """

    def __init__(self, stages: Sequence[ModelStepTime]) -> None:
        kinds = list(dict.fromkeys(stages))
        self.stages, self._kinds = tuple(stages), kinds
        self._kind_of = np.array([kinds.index(each) for each in stages])

    def seconds(self, items: Collection[WorkItem], requests: Mapping[int, RequestState]) -> float:
        """Of a step, from the first stage to the last."""
        return float(self.stage_seconds(items, requests, len(self.stages)).sum())

    def stage_seconds(
        self, items: Collection[WorkItem], requests: Mapping[int, RequestState], num_stages: int
    ) -> Floats:
        """Of the layers of each stage; the first one looks up tokens, the last one has the LM head."""
        if num_stages != len(self.stages):
            raise ServeError(
                f"the time of {num_stages} stages; this step time is of {len(self.stages)}; simulate as many"
            )
        by_kind = np.array([each.seconds(items, requests) for each in self._kinds])
        return np.asarray(by_kind[self._kind_of])

    def decode_seconds(self, items: Collection[WorkItem], num: int) -> Floats:
        """Of each of several steps in a row, from the first stage to the last."""
        by_kind = np.array([each.decode_seconds(items, num) for each in self._kinds])
        return np.asarray(by_kind[self._kind_of].sum(axis=0))

    def backward_seconds(self, items: Collection[WorkItem], requests: Mapping[int, RequestState]) -> float:
        """From the last stage to the first one."""
        return sum(stage.backward_seconds(items, requests) for stage in self.stages)

    def cache_seconds(self, ops: Collection[CacheOp]) -> float:
        """Of the copies of blocks, in any stage."""
        return self.stages[0].cache_seconds(ops)

    def move_seconds(self, num_blocks: int) -> float:
        """Until so many blocks have come from another instance, to all stages at the same time."""
        return self.stages[0].move_seconds(num_blocks)

    def weight_seconds(self, ops: Collection[WeightOp], num_layers: int | None) -> float:
        """Of loading weights, in any stage."""
        return self.stages[0].weight_seconds(ops, num_layers)
