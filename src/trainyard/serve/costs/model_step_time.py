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
        """Return the seconds of all kernels for ``num`` tokens, except attention and experts."""
        ...

    def experts_s(self, num: int) -> float:
        """Return the seconds of the experts of all mixtures, for ``num`` tokens of all data-parallel ranks together."""
        ...

    def sequences_s(self, num: int) -> float:
        """Return the seconds of the kernels for the last tokens of ``num`` sequences, such as the LM head."""
        ...

    def attention_s(self, chunks: Sequence[tuple[int, int]], num: int, mean_tokens: Floats) -> Floats:
        """Return the seconds of attention of all layers, [step].

        Parameters
        ----------
        chunks : prefill chunks: tokens in the step, and cached tokens before them.
        num : number of requests that decode.
        mean_tokens : mean sequence length of these requests, [step].
        """
        ...

    def backward_s(self, chunks: Sequence[tuple[int, int]]) -> float:
        """Return the seconds of a backward pass through all layers, without experts.

        Parameters
        ----------
        chunks : tokens in the step, and earlier tokens of the same sequence, to which they attend.

        Raises
        ------
        ServeError
            If backward passes were not measured.
        """
        ...


class GraphCosts:
    """The parts of a step's time, from the kernels of a device and the seconds of each.

    Parameters
    ----------
    graph : the kernels that a device launches.
    kernels : the seconds of each.
    sends : whether the results go on to another pipeline stage.
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
        """Return the seconds in which the tokens of all ranks go to their experts and come back."""
        if self.between_ranks is None:
            return 0.0
        gathers = self.graph.data_parallel_collectives.all_gathers
        return sum(count * self.between_ranks.all_gather_s(num * each) for each, count in gathers)

    def communication_s(self, num: int) -> float:
        """Return the seconds of collectives and of the send to the next stage, for ``num`` tokens."""
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
        """Return the seconds of the gradients of all kernels' inputs; weights are frozen.

        Each matrix product needs one more with the transposed weights, of as many flops (Miao et al., "FlexLLM", arXiv
        2402.18789). The loss needs the scores of all words for every token, which inference computes for last tokens
        only. Kernels that only read and write run once more, and so do collectives (Shoeybi et al., "Megatron-LM", arXiv
        1909.08053, section 3: one backward for each forward). The adapter's own products are left out, as in the forward
        pass.
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
class RankWork:
    """Work of one data-parallel rank in a step.

    Attributes
    ----------
    chunks : chunks of prompts: tokens in the step, and cached tokens before them.
    num_decodes, num_cached : number of requests that decode, and of the tokens of their sequences.
    num_tokens, num_items : number of all tokens of the step, and of all requests.
    """

    chunks: list[tuple[int, int]] = field(default_factory=list)
    num_decodes: int = 0
    num_cached: int = 0
    num_tokens: int = 0
    num_items: int = 0


def _work_of_ranks(items: Collection[WorkItem], requests: Mapping[int, RequestState]) -> Collection[RankWork]:
    by_rank: dict[int, RankWork] = {}
    for number, start, stop in items:
        state = requests[number]
        if (work := by_rank.get(state.rank)) is None:
            work = by_rank[state.rank] = RankWork()
        work.num_items += 1
        work.num_tokens += stop - start
        if stop > state.num_prefill_tokens:
            work.num_decodes += 1
            work.num_cached += stop
        else:
            work.chunks.append((stop - start, start))
    return by_rank.values()


class ModelStepTime(CopyTimes):
    """The time of each step of a model.

    Parameters
    ----------
    costs : the parts of a step's time.
    host : time after every step in which the devices wait for the host.
    copies : the attributes of `CopyTimes`, by name.
    """

    def __init__(self, costs: StepCosts, host: HostTime = OVERLAPPED, **copies: float) -> None:
        super().__init__(**copies)
        self.costs, self.host = costs, host
        self._tokens_s: dict[int, float] = {}
        self._sequences_s: dict[int, float] = {}
        self._experts_s: dict[int, float] = {}

    def seconds(self, items: Collection[WorkItem], requests: Mapping[int, RequestState]) -> float:
        """Return the seconds of a step: of the slowest data-parallel rank, and of the experts of all ranks."""
        return self.work_seconds(_work_of_ranks(items, requests))

    def work_seconds(self, ranks: Collection[RankWork]) -> float:
        """Return the seconds of a step from the work of each data-parallel rank."""
        return max(map(self._rank_s, ranks)) + self._experts_of(sum(work.num_tokens for work in ranks))

    def stage_seconds(
        self, items: Collection[WorkItem], requests: Mapping[int, RequestState], num_stages: int
    ) -> Floats:
        """Return the seconds of each stage, [stage]: equal parts of a step, as their layers are not known here."""
        return np.full(num_stages, self.seconds(items, requests) / num_stages)

    def decode_seconds(self, items: Collection[WorkItem], num: int) -> Floats:
        """Return the seconds of ``num`` steps in a row in which all items decode, [step]."""
        count = len(items)
        mean = (sum(item.stop for item in items) + np.arange(num, dtype=np.float64) * count) / count
        return (
            self.costs.attention_s((), count, mean) + self._others_s(count, count) + self._experts_of(count)
        )

    def backward_seconds(self, items: Collection[WorkItem], requests: Mapping[int, RequestState]) -> float:
        """Return the seconds of the slowest data-parallel rank, and of the experts, which take as long as forward."""
        by_rank: dict[int, list[tuple[int, int]]] = {}
        for number, start, stop in items:
            by_rank.setdefault(requests[number].rank, []).append((stop - start, start))
        longest_s = max(map(self.costs.backward_s, by_rank.values()))
        num_tokens = sum(num for chunks in by_rank.values() for num, _ in chunks)
        return longest_s + self._experts_of(num_tokens) + self.host.seconds(len(items))

    def _rank_s(self, work: RankWork) -> float:
        """Return the seconds of a data-parallel rank, without experts."""
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
            self._sequences_s[num_sequences] = self._last_tokens_s(num_sequences)
        return self._tokens_s[num_tokens] + self._sequences_s[num_sequences]

    def _last_tokens_s(self, num_sequences: int) -> float:
        """Return the seconds of the kernels for last tokens, and of the host after them."""
        return self.costs.sequences_s(num_sequences) + self.host.seconds(num_sequences)


class PipelineStepTime:
    """The time of each step of a model in pipeline stages, each with its own layers.

    Parameters
    ----------
    stages : the step time of each stage, all with equal seconds for blocks and adapters. Equal stages may be one object,
        whose time is computed once.
    """

    def __init__(self, stages: Sequence[ModelStepTime]) -> None:
        kinds = list(dict.fromkeys(stages))
        self.stages, self._kinds = tuple(stages), kinds
        self._kind_of = np.array([kinds.index(each) for each in stages])

    def seconds(self, items: Collection[WorkItem], requests: Mapping[int, RequestState]) -> float:
        """Return the seconds of a step, from the first stage to the last."""
        return float(self.stage_seconds(items, requests, len(self.stages)).sum())

    def stage_seconds(
        self, items: Collection[WorkItem], requests: Mapping[int, RequestState], num_stages: int
    ) -> Floats:
        """Return the seconds of each stage, [stage]; the first one looks up tokens, the last one has the LM head."""
        if num_stages != len(self.stages):
            raise ServeError(
                f"the time of {num_stages} stages; this step time is of {len(self.stages)}; simulate as many"
            )
        ranks = _work_of_ranks(items, requests)  # every stage computes the same items
        by_kind = np.array([each.work_seconds(ranks) for each in self._kinds])
        return np.asarray(by_kind[self._kind_of])

    def decode_seconds(self, items: Collection[WorkItem], num: int) -> Floats:
        """Return the seconds of ``num`` steps in a row from the first stage to the last, [step]."""
        by_kind = np.array([each.decode_seconds(items, num) for each in self._kinds])
        return np.asarray(by_kind[self._kind_of].sum(axis=0))

    def backward_seconds(self, items: Collection[WorkItem], requests: Mapping[int, RequestState]) -> float:
        """Return the seconds of a backward pass, from the last stage to the first."""
        return sum(stage.backward_seconds(items, requests) for stage in self.stages)

    def cache_seconds(self, ops: Collection[CacheOp]) -> float:
        """Return the seconds of copies of blocks, equal in all stages."""
        return self.stages[0].cache_seconds(ops)

    def move_seconds(self, num_blocks: int) -> float:
        """Return the seconds in which ``num_blocks`` come from another instance, to all stages at the same time."""
        return self.stages[0].move_seconds(num_blocks)

    def weight_seconds(self, ops: Collection[WeightOp], num_layers: int | None) -> float:
        """Return the seconds of loading weights, equal in all stages."""
        return self.stages[0].weight_seconds(ops, num_layers)
