"""What serving cannot do is refused in words that say what it was, and what would do."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from served import request

from trainyard.private import write_private
from trainyard.serve.errors import ServeError
from trainyard.serve.policies.alpaserve.problem import Arrivals
from trainyard.serve.router import router_of
from trainyard.serve.run.bench.request_format import check_requests
from trainyard.serve.run.server.api_error import ApiError
from trainyard.serve.run.server.api_keys import ApiKeys


def arrivals(*times_s: float, num_models: int) -> Arrivals:
    return Arrivals(np.array(times_s), np.zeros(num_models, np.int64))


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda: arrivals(0.0, 1.0, num_models=1), "arrivals of shape (2,) with models of shape (1,): give one model"),
        (lambda: arrivals(1.0, 0.0, num_models=2), "arrivals of shape (2,) with models of shape (2,): give one model"),
        (
            lambda: router_of("prefill_decode, prefill_decode"),
            "router 'prefill_decode, prefill_decode' names several; requests have one router",
        ),
        (lambda: check_requests([]), "there are no requests to send; give a trace that has some"),
        (
            lambda: check_requests([request(7, 0.0, 4, 2, num_samples=3)]),
            "request 'r7' wants 3 answers; allowed is 1; leave num_samples out",
        ),
        (lambda: ApiKeys.read(["ann"]), "--api-key: "),
    ],
)  # fmt: skip
def test_what_cannot_be_served(ask: Callable[[], object], says: str) -> None:
    with pytest.raises(ServeError, match=re.escape(says)):
        ask()
    assert len(arrivals(1.0, 1.0, num_models=2).arrival_s) == 2


def test_a_file_of_keys_has_some(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    write_private(path, "# none yet\n\n")
    with pytest.raises(ServeError, match=f"^{re.escape(str(path))} has no keys; "):
        ApiKeys.read([], path)
    write_private(path, "# two\nann=secret-of-ann\nbob\n")
    with pytest.raises(ServeError, match=f"^{re.escape(str(path))}, line 3: "):
        ApiKeys.read([], path)


def test_who_has_no_key_is_told_how_to_give_one() -> None:
    keys = ApiKeys.read(["ann=secret-of-ann"])
    assert keys.of("Bearer secret-of-ann") == "ann"
    for given in ("", "secret-of-ann", "Bearer ", "Bearer another-secret", "Basic secret-of-ann"):
        with pytest.raises(
            ApiError, match="a key is needed, as 'Authorization: Bearer KEY'; none that is known"
        ) as told:
            keys.of(given)
        assert (told.value.status, told.value.code) == (401, "invalid_api_key")
