"""Options about requests: those of a trace, or drawn ones, and their latency objectives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import tyro

from trainyard.cli.bounds import BURSTINESS, RATE, REQUESTS, SEED, TOKENS
from trainyard.cli.screen import Common
from trainyard.reading import ReadingError
from trainyard.serve.requests.request import MAX_TOKENS

if TYPE_CHECKING:
    from trainyard.reading.left_out import LeftOut
    from trainyard.serve.requests.request import TracedRequest

__all__ = ["GivenRequests", "RequestOptions", "quantity"]

T = TypeVar("T")

_OF_TRACES = ("format", "limit", "time_scale", "strict")
_DRAWN: Mapping[str, Any] = MappingProxyType(
    {"num": 1000, "prompt_tokens": 1024, "output_tokens": 256, "burstiness": 1.0, "seed": 0}
)
"""What says how requests are drawn, where options do not."""
_LONGEST = 20  # times the mean; a longer one is as good as never drawn


@dataclass(frozen=True)
class GivenRequests:
    """The requests that options ask for.

    Attributes
    ----------
    requests : in the order of their arrival.
    title : what they are, in a few words.
    document : the same in numbers.
    left_out : rows of a trace that gave none.
    """

    requests: tuple[TracedRequest, ...]
    title: str
    document: Mapping[str, Any]
    left_out: LeftOut | None = None

    def other_models(self, model: str) -> str:
        """A warning, if requests are for another model than the one that serves all; "" otherwise."""
        from trainyard.reading import listed

        others = sorted({each.request.model for each in self.requests} - {"", model})
        return (
            f"warning: requests of the trace are for {listed(others)}; all are served by {model}"
            if others
            else ""
        )


@dataclass(frozen=True, kw_only=True)
class RequestOptions(Common):
    """Which requests are served, and their latency objectives."""

    requests: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """A trace of requests: your own, or one of the public formats (see the guide)."""
    rate: Annotated[float | None, tyro.conf.arg(metavar="R"), RATE] = None
    """Instead of a trace: draw requests at random, R per second."""
    format: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Format of the trace; by default recognised by its contents."""
    limit: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Take only the first requests of the trace."""
    time_scale: Annotated[float | None, tyro.conf.arg(metavar="X")] = None
    """Multiply the trace's arrival times: 0.5 is twice the load."""
    strict: bool = False
    """Stop at the first row of the trace that cannot be read; by default such rows are left out and counted."""
    num: Annotated[int | None, tyro.conf.arg(metavar="N"), REQUESTS] = None
    """Number of requests to draw; by default 1000."""
    prompt_tokens: Annotated[int | None, tyro.conf.arg(metavar="N"), TOKENS] = None
    """Mean length of drawn prompts; by default 1024. Lengths are log-normal; their standard deviation equals the mean."""
    output_tokens: Annotated[int | None, tyro.conf.arg(metavar="N"), TOKENS] = None
    """Mean length of drawn outputs; by default 256."""
    burstiness: Annotated[float | None, tyro.conf.arg(metavar="X"), BURSTINESS] = None
    """Coefficient of variation of the gaps between drawn requests: 1 (default) is Poisson, more is bursty."""
    seed: Annotated[int | None, tyro.conf.arg(metavar="N"), SEED] = None
    """Random seed of drawn requests; by default 0."""
    max_tokens: Annotated[int, tyro.conf.arg(metavar="N"), TOKENS] = MAX_TOKENS
    """The client's limit on output tokens, where the trace has none. Policies see this limit, not the true length."""
    ttft: Annotated[str | None, tyro.conf.arg(metavar="TIME")] = None
    """Objective (SLO) for the time to first token, such as 500ms, of requests without one of their own."""
    tpot: Annotated[str | None, tyro.conf.arg(metavar="TIME")] = None
    """Objective for the time per output token after the first, such as 50ms."""
    e2e: Annotated[str | None, tyro.conf.arg(metavar="TIME")] = None
    """Objective for the end-to-end time, arrival to last token, such as 10s."""

    def objectives(self) -> dict[str, float]:
        """Seconds by name, such as ``ttft_s``, of those that are given."""
        from trainyard.reading.quantities import parse_seconds

        given = {name: getattr(self, name) for name in ("ttft", "tpot", "e2e")}
        return {
            f"{name}_s": quantity(f"--{name}", text, parse_seconds)
            for name, text in given.items()
            if text is not None
        }

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
        kind, others = ("drawn requests", _OF_TRACES) if self.requests is None else ("a trace", tuple(_DRAWN))
        for name in others:
            if (given := getattr(self, name)) is not None and given is not False:
                option = "--" + name.replace("_", "-")
                raise ServeError(f"{option} does not apply to {kind}; leave it out")
        return self._drawn(wanted) if self.requests is None else self._traced(self.requests, wanted)

    def _traced(self, path: Path, wanted: Mapping[str, float]) -> GivenRequests:
        from trainyard.report.units import count_text
        from trainyard.serve.requests.change import with_objectives
        from trainyard.serve.requests.read import read_requests

        trace = read_requests(
            path,
            self.format,
            self.limit,
            max_tokens=self.max_tokens,
            strict=self.strict,
            time_scale=1.0 if self.time_scale is None else self.time_scale,
        )
        requests = tuple(with_objectives(each, **wanted) for each in trace)
        title = f"{path.name}: {count_text(len(requests), 'request')}"
        return GivenRequests(requests, title, {"trace": str(path)}, trace.left_out)

    def _drawn(self, wanted: Mapping[str, float]) -> GivenRequests:
        from trainyard.report.units import count_text
        from trainyard.serve.requests.change import with_objectives
        from trainyard.serve.requests.generate import (
            Gamma,
            IndependentLengths,
            LogNormal,
            Poisson,
            generate_requests,
        )

        given = {name: getattr(self, name) for name in _DRAWN}
        how = {name: _DRAWN[name] if value is None else value for name, value in given.items()}
        rate, cv = self.rate or 0.0, how["burstiness"]
        lengths = IndependentLengths(
            *(
                LogNormal(mean, 1.0, min(_LONGEST * mean, int(TOKENS.most)))
                for mean in (how["prompt_tokens"], how["output_tokens"])
            )
        )
        arrivals = Poisson(rate) if cv == 1 else Gamma(rate, cv)
        drawn = generate_requests(how["num"], arrivals, lengths, how["seed"], max_tokens=self.max_tokens)
        requests = tuple(with_objectives(each, **wanted) for each in drawn)
        title = f"{count_text(len(requests), 'request')} drawn at {rate:g}/s"
        return GivenRequests(requests, title, {"rate_per_s": rate, **how})


def quantity(option: str, text: str, parse: Callable[[str], T]) -> T:
    """What an option says, by a reader of quantities.

    Raises
    ------
    ReadingError
        Names the option, what was given, and what is allowed.
    """
    try:
        return parse(text)
    except ReadingError as error:
        raise ReadingError(f"{option}: {error}") from None
