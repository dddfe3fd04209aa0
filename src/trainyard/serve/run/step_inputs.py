"""A batch as arrays: which tokens go through the model, and where they stand."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainyard.serve.batch import WorkItem
from trainyard.serve.request_state import RequestState
from trainyard.serve.run.paged_attention import AttentionBatch, attention_batch

__all__ = ["StepInputs", "step_inputs"]

Longs = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class StepInputs:
    """The tokens of all items of a step, one item after the other.

    Attributes
    ----------
    token_ids, positions : of every token: which it is, and how many are before it in its sequence; shape ``(tokens,)``.
    attention : where their keys and values are.
    adapter_rows : which tokens are of requests with an adapter, by its name; shape of each ``(tokens,)``.
    """

    token_ids: Longs
    positions: Longs
    attention: AttentionBatch
    adapter_rows: Mapping[str, Longs]


def step_inputs(
    items: Collection[WorkItem],
    requests: Mapping[int, RequestState],
    num_blocks: int,
    block_tokens: int,
) -> StepInputs:
    """Arrays of a batch.

    Parameters
    ----------
    items : of the batch.
    requests : those that run, by number.
    num_blocks, block_tokens : of the KV cache.
    """
    states = [requests[item.request] for item in items]
    token_ids: list[int] = []
    for state, item in zip(states, items, strict=True):
        if item.stop - item.start == 1:
            token_ids.append(state.tokens[item.start])
        else:
            token_ids += state.tokens[item.start : item.stop]
    starts = np.array([item.start for item in items])
    ends = np.array([item.stop - item.start for item in items]).cumsum()
    bounds = np.concatenate(([0], ends))
    tables = np.zeros((len(states), max(len(state.blocks) for state in states)), np.int32)
    for i, state in enumerate(states):
        tables[i, : len(state.blocks)] = state.blocks
    positions = np.arange(ends[-1]) + np.repeat(starts - bounds[:-1], np.diff(bounds))
    batch = attention_batch(bounds, starts, tables, num_blocks, block_tokens)
    return StepInputs(np.array(token_ids), positions, batch, _adapter_rows(states, bounds))


def _adapter_rows(states: Sequence[RequestState], bounds: Longs) -> Mapping[str, Longs]:
    places: dict[str, list[int]] = {}
    for place, state in enumerate(states):
        if state.request.adapter:
            places.setdefault(state.request.adapter, []).append(place)
    return {
        adapter: np.concatenate([np.arange(bounds[place], bounds[place + 1]) for place in each])
        for adapter, each in places.items()
    }
