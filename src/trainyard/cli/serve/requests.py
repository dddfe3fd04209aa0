"""Options about requests: those of a trace, or drawn ones, and their latency objectives.

Requests are not held: they are read, or drawn from the same seed, anew each time that somebody goes through them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from trainyard.cli.bounds import BURSTINESS, RATE, REQUESTS, SEED, TOKENS
from trainyard.cli.quantities import Duration
from trainyard.cli.screen import Common
from trainyard.serve.requests.drawn import BURSTINESS as DEFAULT_BURSTINESS
from trainyard.serve.requests.drawn import LENGTHS, NUM_REQUESTS
from trainyard.serve.requests.request import MAX_TOKENS

if TYPE_CHECKING:
    from trainyard.reading.left_out import LeftOut
    from trainyard.serve.requests.generate import Conversations, SharedPrefixes, TokenLengths
    from trainyard.serve.requests.request import TracedRequest

__all__ = ["GivenRequests", "RequestOptions"]

_OF_TRACES = ("format", "limit", "time_scale", "strict")
_OF_DRAWN = (
    "num", "prompt_tokens", "output_tokens", "lengths", "prefix_tokens", "num_prefixes", "turns", "think_time",
    "burstiness", "seed",
)  # fmt: skip
_DRAWN: Mapping[str, Any] = MappingProxyType(
    {"num": NUM_REQUESTS, **LENGTHS, "burstiness": DEFAULT_BURSTINESS, "seed": 0}
)
"""Values of options of drawn requests that are not given."""
_BLOCK_TOKENS = 16  # in which prompts are told that share something


@dataclass(frozen=True)
class GivenRequests:
    """The requests that options ask for.

    Attributes
    ----------
    again : begins to read or draw them, in the order of their arrival.
    title : what they are, in a few words.
    document : the same in numbers.
    left_out : rows of a file that gave none.
    rows_are : what rows of that file give: requests, or lengths.
    num, models, has_samples : how many they are, for which models, and whether one wants several answers.
    """

    again: Callable[[], Iterator[TracedRequest]]
    title: str
    document: Mapping[str, Any]
    left_out: LeftOut | None = None
    rows_are: str = "requests"
    num: int = 0
    models: frozenset[str] = field(default=frozenset())
    has_samples: bool = False

    @classmethod
    def of(
        cls,
        first: Iterator[TracedRequest],
        again: Callable[[], Iterator[TracedRequest]],
        title: str,
        document: Mapping[str, Any],
        left_out: LeftOut | None = None,
        rows_are: str = "requests",
    ) -> GivenRequests:
        """Go through all requests once, so that what cannot be read is an error before anything is done with them.

        Parameters
        ----------
        first : all of them, once, while ``left_out`` fills.
        title : with ``{}`` for how many they are.
        """
        from trainyard.report.units import count_text

        num, models, has_samples = 0, set[str](), False
        for each, _ in first:
            num += 1
            models.add(each.model)
            has_samples = has_samples or each.num_samples > 1
        told = title.format(count_text(num, "request"))
        return cls(again, told, document, left_out, rows_are, num, frozenset(models), has_samples)

    def __iter__(self) -> Iterator[TracedRequest]:
        return self.again()

    @property
    def rows(self) -> Mapping[str, Any] | None:
        """The rows of the file for --json."""
        return self.left_out.document(self.rows_are) if self.left_out is not None else None

    def other_models(self, model: str) -> str:
        """A warning, if requests are for another model than the one that serves all; "" otherwise."""
        from trainyard.reading import listed

        others = sorted(self.models - {"", model})
        return (
            f"warning: requests of the trace are for {listed(others)}; all are served by {model}"
            if others
            else ""
        )


@dataclass(frozen=True, kw_only=True)
class RequestTraceOptions:
    """Options of requests that are read from a trace."""

    heading = "requests of a trace"
    requests: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """A trace of requests: your own, or one of the public formats (see the guide)."""
    format: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Format of the trace; by default recognised by its contents."""
    limit: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Take only the first requests of the trace."""
    time_scale: Annotated[float | None, tyro.conf.arg(metavar="X")] = None
    """Multiply the trace's arrival times: 0.5 is twice the load."""
    strict: bool = False
    """Stop at the first row of the file that cannot be read; by default such rows are left out and counted."""


@dataclass(frozen=True, kw_only=True)
class DrawnRequestOptions:
    """Options of requests that are drawn at random."""

    heading = "drawn requests"
    rate: Annotated[float | None, tyro.conf.arg(metavar="R"), RATE] = None
    """Instead of a trace: draw requests at random, R per second."""
    num: Annotated[int | None, tyro.conf.arg(metavar="N"), REQUESTS] = None
    """Number of requests to draw; by default 1000."""
    prompt_tokens: Annotated[int | None, tyro.conf.arg(metavar="N"), TOKENS] = None
    """Mean length of drawn prompts; by default 1024. Lengths are log-normal; their standard deviation equals the mean."""
    output_tokens: Annotated[int | None, tyro.conf.arg(metavar="N"), TOKENS] = None
    """Mean length of drawn outputs; by default 256."""
    lengths: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Draw both lengths from the rows of a file without arrivals, such as of ShareGPT: CSV with the columns
    num_prefill_tokens and num_decode_tokens."""
    prefix_tokens: Annotated[int | None, tyro.conf.arg(metavar="N"), TOKENS] = None
    """Length of a prefix, such as a system prompt, that drawn prompts share, before their own tokens; by default none."""
    num_prefixes: Annotated[int | None, tyro.conf.arg(metavar="N"), TOKENS] = None
    """Number of such prefixes, each drawn equally often; by default 1."""
    turns: Annotated[int | None, tyro.conf.arg(metavar="N"), TOKENS] = None
    """Requests of a conversation: each further one begins with the prompt and the answer of the one before. By default 1.
    Conversations then begin at --rate, and --num counts all requests."""
    think_time: Duration | None = None
    """Mean time from an answer to the next turn, such as 5s, drawn exponentially; by default none."""
    burstiness: Annotated[float | None, tyro.conf.arg(metavar="X"), BURSTINESS] = None
    """Coefficient of variation of the gaps between drawn requests: 1 (default) is Poisson, more is bursty."""
    seed: Annotated[int | None, tyro.conf.arg(metavar="N"), SEED] = None
    """Random seed of drawn requests; by default 0."""


@dataclass(frozen=True, kw_only=True)
class RequestOptions(RequestTraceOptions, DrawnRequestOptions, Common):
    """Requests that are served, and their latency objectives."""

    heading = "limits and objectives of requests"
    max_tokens: Annotated[int, tyro.conf.arg(metavar="N"), TOKENS] = MAX_TOKENS
    """The client's limit on output tokens, where the trace has none. Policies see this limit, not the true length."""
    ttft: Duration | None = None
    """Objective (SLO) for the time to first token, such as 500ms, of requests without one of their own."""
    tpot: Duration | None = None
    """Objective for the time per output token after the first, such as 50ms."""
    e2e: Duration | None = None
    """Objective for the end-to-end time, arrival to last token, such as 10s."""

    def objectives(self) -> dict[str, float]:
        """Seconds by name, such as ``ttft_s``, of those that are given."""
        given = {f"{name}_s": getattr(self, name) for name in ("ttft", "tpot", "e2e")}
        return {name: seconds for name, seconds in given.items() if seconds is not None}

    def objectives_text(self) -> str:
        """Return the objectives that are given, such as ``TTFT 500ms, TPOT 50ms``."""
        from trainyard.reading.quantities import seconds_as_given

        given = self.objectives().items()
        return ", ".join(
            f"{name.removesuffix('_s').upper()} {seconds_as_given(value)}" for name, value in given
        )

    def read(self) -> GivenRequests:
        """The requests, with their objectives.

        Raises
        ------
        ServeError
            If the options do not go together, or the trace cannot be read.
        """
        from trainyard.serve.errors import ServeError

        wanted = self.objectives()
        if (self.requests is None) == (self.rate is None):
            given = "neither is" if self.rate is None else "both are"
            raise ServeError(
                f"give either --requests FILE (a trace) or --rate R (drawn requests); {given} given"
            )
        if self.requests is not None:
            self._refuse("a trace", _OF_DRAWN)
            return self._traced(self.requests, wanted)
        self._refuse(
            "drawn requests", [name for name in _OF_TRACES if name != "strict" or self.lengths is None]
        )
        if self.lengths is not None:
            self._refuse("lengths of a file", ("prompt_tokens", "output_tokens"))
        if self.prefix_tokens is None:
            self._refuse("requests without --prefix-tokens", ("num_prefixes",))
        if self.turns in (None, 1):
            self._refuse("requests without --turns", ("think_time",))
        return self._drawn(wanted)

    def refuse_turns(self, verb: str) -> None:
        """Refuse drawn conversations for a verb that sends each request at a time of its own.

        Raises
        ------
        ServeError
            If drawn requests are to continue others.
        """
        from trainyard.serve.errors import ServeError

        if self.turns not in (None, 1):
            raise ServeError(
                f"--turns {self.turns}: {verb} sends each request at a time of its own, and none that continues "
                "another; leave it out"
            )

    def _refuse(self, kind: str, names: Iterable[str]) -> None:
        from trainyard.serve.errors import ServeError

        for name in names:
            if (given := getattr(self, name)) is not None and given is not False:
                option = "--" + name.replace("_", "-")
                raise ServeError(f"{option} does not apply to {kind}; leave it out")

    def _traced(self, path: Path, wanted: Mapping[str, float]) -> GivenRequests:
        from trainyard.serve.requests.change import with_objectives
        from trainyard.serve.requests.read import RequestTrace, read_requests

        def trace() -> RequestTrace:
            return read_requests(
                path,
                self.format,
                self.limit,
                max_tokens=self.max_tokens,
                strict=self.strict,
                time_scale=1.0 if self.time_scale is None else self.time_scale,
            )

        def again() -> Iterator[TracedRequest]:
            return (with_objectives(each, **wanted) for each in trace())

        first, name = trace(), path.name.replace("{", "{{").replace("}", "}}")
        return GivenRequests.of(first, again, f"{name}: {{}}", {"trace": str(path)}, first.left_out)

    def _drawn(self, wanted: Mapping[str, float]) -> GivenRequests:
        from trainyard.serve.requests.change import with_objectives
        from trainyard.serve.requests.drawn import drawn_requests

        given = {name: getattr(self, name) for name in _DRAWN}
        how = {name: _DRAWN[name] if value is None else value for name, value in given.items()}
        lengths, left_out = self._lengths(how)
        prefixes, conversations = self._shared(how)
        rate = self.rate or 0.0

        def again() -> Iterator[TracedRequest]:
            drawn = drawn_requests(
                rate,
                how["num"],
                lengths,
                how["burstiness"],
                how["seed"],
                prefixes=prefixes,
                conversations=conversations,
                max_tokens=self.max_tokens,
            )
            return (with_objectives(each, **wanted) for each in drawn)

        what = "{} drawn" if conversations is None else f"{{}} drawn in conversations of {how['turns']}"
        title = f"{what} at {rate:g}/s"
        return GivenRequests.of(again(), again, title, {"rate_per_s": rate, **how}, left_out, "lengths")

    def _lengths(self, how: dict[str, Any]) -> tuple[TokenLengths, LeftOut | None]:
        """Return the distribution of lengths, and rows of a file that gave none; note the file in ``how``."""
        from trainyard.reading.left_out import LeftOut
        from trainyard.serve.requests.drawn import log_normal_lengths
        from trainyard.serve.requests.generate import LengthPairs
        from trainyard.serve.requests.readers.vidur import read_lengths

        if self.lengths is not None:
            left_out = LeftOut(strict=self.strict)
            pairs = read_lengths(self.lengths, self.max_tokens, left_out)
            del how["prompt_tokens"], how["output_tokens"]
            how["lengths"] = str(self.lengths)
            return LengthPairs(pairs), left_out
        return log_normal_lengths(how["prompt_tokens"], how["output_tokens"]), None

    def _shared(self, how: dict[str, Any]) -> tuple[SharedPrefixes | None, Conversations | None]:
        """Return prefixes and conversations that prompts share; note them in ``how``."""
        from trainyard.serve.requests.generate import Constant, Conversations, SharedPrefixes

        # In blocks of which a prefix has a whole number, so that all of it is shared.
        sizes = range(_BLOCK_TOKENS, 0, -1)
        size = next(each for each in sizes if (self.prefix_tokens or _BLOCK_TOKENS) % each == 0)
        prefixes = conversations = None
        if self.prefix_tokens is not None:
            prefixes = SharedPrefixes(self.num_prefixes or 1, self.prefix_tokens, size)
            how |= {"prefix_tokens": self.prefix_tokens, "num_prefixes": prefixes.num_prefixes}
        if self.turns is not None and self.turns > 1:
            think_s = self.think_time or 0.0
            conversations = Conversations(Constant(self.turns), think_s, size)
            how |= {"turns": self.turns, "think_time_s": think_s}
        return prefixes, conversations
