"""Log-probabilities of the tokens of prompts.

Log-probabilities need scores after every token of a prompt. A long prompt is computed in several passes, one after the
other, so that the scores of a pass fit in bounded memory. The KV cache keeps the keys and values of earlier passes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainyard.serve.batch import WorkItem
from trainyard.serve.request_state import RequestState
from trainyard.serve.run.sampling import likeliest
from trainyard.serve.run.step_model import StepModel

__all__ = ["PromptLogprobs", "PromptLogprobsCollector", "scores_after"]

_MOST_SCORE_BYTES = 256 * 2**20
_SCORE_BYTES = 4


@dataclass(frozen=True, eq=False)
class PromptLogprobs:
    """Natural logarithms of the probabilities of a prompt's tokens, each after the tokens before it.

    The first token has no log-probability, so that there is one less than tokens.

    Parameters
    ----------
    chosen : log-probability of the token of the prompt; shape (tokens - 1,).
    ranks : number of tokens that are at least as likely as that of the prompt, itself among them; shape (tokens - 1,).
    top, logprobs : the likeliest tokens, and their log-probabilities; shape (tokens - 1, num).
    """

    chosen: NDArray[np.float64]
    ranks: NDArray[np.int64]
    top: NDArray[np.int64]
    logprobs: NDArray[np.float64]


class PromptLogprobsCollector:
    """Collects the log-probabilities of one prompt, in the order of its tokens.

    Parameters
    ----------
    prompt : its tokens.
    num : likeliest tokens that are wanted at each place.
    vocabulary : number of tokens that the model knows.
    """

    def __init__(self, prompt: Sequence[int], num: int, vocabulary: int) -> None:
        size, num = len(prompt) - 1, min(num, vocabulary)
        self._next_tokens, self._num = prompt[1:], num
        self.found = PromptLogprobs(
            np.empty(size), np.empty(size, np.int64), np.empty((size, num), np.int64), np.empty((size, num))
        )
        self._num_known = 0

    def wanted(self, start: int, stop: int) -> range:
        """Return the places from ``start`` to ``stop`` after which scores are wanted."""
        return range(max(start, self._num_known), min(stop, len(self._next_tokens)))

    def add(self, scores: NDArray[np.float32]) -> None:
        """Take the scores after the next places; shape ``(places, vocabulary)``."""
        found = self.found
        for row in scores:
            place = self._num_known
            token = self._next_tokens[place]
            base, found.top[place], found.logprobs[place] = likeliest(row, self._num)
            found.chosen[place] = float(row[token]) - base
            found.ranks[place] = np.count_nonzero(row >= row[token])
            self._num_known += 1


def scores_after(
    model: StepModel,
    items: Sequence[WorkItem],
    requests: Mapping[int, RequestState],
    ends: Collection[int],
    prompts: Mapping[int, PromptLogprobsCollector],
) -> Tensor:
    """Compute a step, and give the collectors of prompts the scores that they want.

    Parameters
    ----------
    requests : those that run, by number.
    ends : numbers of the items after whose last token scores are returned.
    prompts : collectors of the log-probabilities of prompts, by the number of the item.

    Returns
    -------
    Scores of all words after each of the ends; shape ``(ends, vocabulary)``.
    """
    if not prompts:
        last = np.cumsum([item.stop - item.start for item in items]) - 1
        return model.logits(items, requests, [int(last[end]) for end in ends])
    most_rows = max(1, _MOST_SCORE_BYTES // (_SCORE_BYTES * model.vocabulary))
    found = dict[int, Tensor]()
    for parts in _passes(items, prompts, most_rows):
        rows, num_rows, first = list[int](), list[int](), 0
        for number, part in parts:
            places = prompts[number].wanted(part.start, part.stop) if number in prompts else range(0)
            rows += [first + place - part.start for place in places]
            num_rows.append(len(places))
            first += part.stop - part.start
            if number in ends and part.stop == items[number].stop:
                rows.append(first - 1)
        scores, row = model.logits([part for _, part in parts], requests, rows), 0
        for (number, part), num in zip(parts, num_rows, strict=True):
            if num:
                prompts[number].add(scores[row : row + num].numpy())
            row += num
            if number in ends and part.stop == items[number].stop:
                found[number] = scores[row : row + 1].clone()  # a view would keep the scores of all rows
                row += 1
        del scores  # before the next pass has its own
    return torch.cat([found[end] for end in ends]) if ends else torch.empty(0, model.vocabulary)


def _passes(
    items: Sequence[WorkItem], scored: Collection[int], most_rows: int
) -> list[list[tuple[int, WorkItem]]]:
    """Cut the scored items into parts, so that no pass has more than ``most_rows`` of their tokens.

    Returns
    -------
    The number of the item and the part, for each part of each pass. The parts of an item are in successive passes.
    """
    passes = [[(number, item) for number, item in enumerate(items) if number not in scored]]
    room = most_rows
    for number in scored:
        request, start, stop = items[number]
        while start < stop:
            if not room:
                passes.append([])
                room = most_rows
            end = min(stop, start + room)
            passes[-1].append((number, WorkItem(request, start, end)))
            room -= end - start
            start = end
    return passes
