"""Choice of the tokens of a step: by the sampling parameters of each request, within the limits of its answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from trainyard.serve.request_state import RequestState
from trainyard.serve.run.min_tokens import MinTokensConstraint
from trainyard.serve.run.sampling import NO_TOKEN, OutputForm, SamplingRow, TokenLogprobs, sample
from trainyard.serve.run.served_request import ServedRequest
from trainyard.serve.run.structured_outputs import TokenConstraint
from trainyard.serve.run.token_limits import (
    AllowedTokens,
    BadWords,
    CombinedConstraint,
    ConstraintAfterReasoning,
)

__all__ = ["TokenChooser"]


class TokenChooser:
    """Chooses the next tokens of requests.

    Parameters
    ----------
    vocabulary : number of tokens that the model knows.
    constrain : makes what holds an answer to its form, such as a JSON schema; None if requests have none.

    Attributes
    ----------
    report : is called when the tokens that may come next are known, which takes long where a form is compiled.
    """

    def __init__(
        self, vocabulary: int, constrain: Callable[[OutputForm], TokenConstraint] | None = None
    ) -> None:
        self._vocabulary, self._constrain = vocabulary, constrain
        self.report: Callable[[], None] = lambda: None

    @property
    def can_constrain(self) -> bool:
        """Whether requests may ask for a form of answers."""
        return self._constrain is not None

    def choose(
        self, states: Sequence[RequestState], entries: Mapping[int, ServedRequest], logits: Tensor
    ) -> dict[int, tuple[int, TokenLogprobs | None]]:
        """The next token of each sequence, and of the samples that will be forked from it, by number.

        Parameters
        ----------
        states : of the sequences.
        entries : requests, by the number of their first sample.
        logits : shape ``(sequences, vocabulary)``.
        """
        rows: list[SamplingRow] = []
        numbers, of_logits = list[int](), list[int]()
        constraints: list[TokenConstraint | None] = []
        for row, state in enumerate(states):
            first, prompt = state.sequences[0].number, state.request.prompt_tokens
            entry = entries[first]
            for number in range(state.number, state.number + 1 + state.num_to_fork):
                seed = entry.seed + number - first
                constraint = self._constraint(entry, number)
                allowed, output = entry.allowed(number, self._vocabulary), state.tokens[prompt:]
                rows.append(SamplingRow(entry.sampling, seed, state.request.prompt_ids, output, allowed))
                constraints.append(constraint)
                self.report()
                numbers.append(number)
                of_logits.append(row)
        found = sample(logits if len(rows) == len(states) else logits[of_logits], rows)
        tokens = found.tokens.tolist()
        for constraint, token in zip(constraints, tokens, strict=True):
            if constraint is not None and token != NO_TOKEN:
                constraint.take(token)
        return dict(zip(numbers, zip(tokens, found.logprobs, strict=True), strict=True))

    def _constraint(self, entry: ServedRequest, number: int) -> TokenConstraint | None:
        """What says which tokens a sample may have next; None for all."""
        known = entry.constraints
        if number not in known:
            parts = self._new_constraints(entry)
            known[number] = CombinedConstraint(parts) if len(parts) > 1 else next(iter(parts), None)
        return known[number]

    def _new_constraints(self, entry: ServedRequest) -> list[TokenConstraint]:
        params, ends, size = entry.sampling, entry.stop_token_ids, self._vocabulary
        found = list[TokenConstraint]()
        if params.min_tokens:
            found.append(MinTokensConstraint(params.min_tokens, ends, size))
        if params.is_constrained and self._constrain is not None:
            form = self._constrain(params.form)
            reasoning = params.reasoning
            found.append(ConstraintAfterReasoning(form, reasoning, ends, size) if reasoning else form)
        if params.bad_words:
            found.append(BadWords(params.bad_words, size))
        if params.allowed_token_ids is not None:
            found.append(AllowedTokens(params.allowed_token_ids, size))
        return found
