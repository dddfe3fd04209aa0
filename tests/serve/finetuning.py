"""A policy of these tests that answers requests, and trains adapters with the tokens that are left of a step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from trainyard.serve.draft import BatchDraft
from trainyard.serve.request_state import RequestState


@dataclass(frozen=True)
class Finetuning:
    """Requests that are answered come first; one that trains goes forward, and then backward, with what is left.

    Attributes
    ----------
    step_tokens : of a step, at most.
    backward : the last tokens through all layers; or tokens by tokens through one layer after the other.
    """

    step_tokens: int = 64
    backward: Literal["by tokens", "by layer"] = "by tokens"
    repeats = "never"
    trains = True

    def start(self) -> None:
        return None

    def decide(self, draft: BatchDraft, state: None) -> None:
        left = self.step_tokens
        for each in [*_answered(iter(draft.running)), *_answered(draft.waiting)]:
            if left and (each.blocks or draft.waits(each)):
                left -= self._compute(draft, each, left)
        for each in [*draft.running, *draft.waiting]:
            if each.request.trains and left:
                if each.backward_starts:
                    left -= self._go_back(draft, each, left)
                else:
                    left -= self._compute(draft, each, left)

    def _compute(self, draft: BatchDraft, one: RequestState, left: int) -> int:
        """Tokens that are computed; others lose their blocks for it, first those that train, then those after it."""
        num, waits = min(draft.num_left(one), left), draft.waits(one)
        while not draft.compute(one, num):
            behind = [each for each in draft.running if each.request.trains] or [
                each for each in draft.running if each.number > one.number
            ]
            if waits or not behind:
                return 0
            draft.preempt(behind[-1])
        return num

    def _go_back(self, draft: BatchDraft, one: RequestState, left: int) -> int:
        starts = one.backward_starts
        if self.backward == "by tokens" or draft.num_layers is None:
            stop, layers = starts[0], None
        else:
            layer = max(layer for layer, start in enumerate(starts) if start)
            stop, layers = starts[layer], (layer, layer + 1)
        num = min(stop, left)
        draft.compute_backward(one, stop - num, stop, layers)
        return num


def _answered(requests: Iterator[RequestState]) -> Iterator[RequestState]:
    return (each for each in requests if not each.request.trains)
