"""What an engine keeps of a request while it serves it."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trainyard.serve.errors import ServeError
from trainyard.serve.request_state import RequestState
from trainyard.serve.run.prompt_logprobs import PromptLogprobs, PromptLogprobsCollector
from trainyard.serve.run.sampling import SamplingParams, token_mask
from trainyard.serve.run.structured_outputs import TokenConstraint

__all__ = ["ServedRequest"]


@dataclass
class ServedRequest:
    """A request that waits or runs, with all its samples.

    Attributes
    ----------
    state : of its first sample.
    stop_token_ids : tokens that end an answer.
    seed : of its first sample; the others have the next ones.
    checked : numbers of its samples that the check of batches knows.
    constraints : of its samples, by number; None for one that may have any token.
    problem : why it cannot be answered; "" if it can.
    prompt : collects the log-probabilities of its prompt; None if they are not wanted, or were taken.
    """

    state: RequestState
    sampling: SamplingParams
    stop_token_ids: Set[int]
    seed: int
    checked: set[int]
    constraints: dict[int, TokenConstraint | None] = field(default_factory=dict)
    problem: str = ""
    prompt: PromptLogprobsCollector | None = None

    def take_prompt_logprobs(self) -> PromptLogprobs | None:
        """Return the log-probabilities of the prompt, which is computed; None if they are not wanted, or were taken."""
        prompt, self.prompt = self.prompt, None
        return None if prompt is None else prompt.found

    def allowed(self, number: int, vocabulary: int) -> NDArray[np.int32] | None:
        """The tokens that a sample may have next, as `SamplingRow` takes them; none if there is a `problem`.

        Parameters
        ----------
        number : of the sample.
        vocabulary : number of tokens that the model knows.
        """
        constraint = self.constraints.get(number)
        try:
            return None if constraint is None else constraint.allowed()
        except ServeError as error:
            self.problem = str(error)
            return token_mask((), vocabulary)
