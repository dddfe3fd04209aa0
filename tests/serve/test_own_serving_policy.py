"""Policies of the user's own, in a file."""

from __future__ import annotations

from dataclasses import replace

import pytest
from deployments import deployment
from served import request

from trainyard.serve.catalog import parse_policies
from trainyard.serve.compare import compare_policies
from trainyard.serve.errors import ServeError

_FILE = """
class Alone:
    repeats = "never"

    def __init__(self, room=0):
        self.room = room

    def start(self):
        return None

    def decide(self, draft, state):
        pass


class Skips:
    # says that prompts are computed when they are not
    repeats = "never"

    def start(self):
        return None

    def decide(self, draft, state):
        for each in list(draft.waiting):
            draft.compute(each, 1)
        for each in draft.running:
            each.num_computed = each.num_tokens - 1
            draft.compute(each, 1)


class LastCome:
    in_order = False

    def start(self): ...
    def begin(self, draft, state): ...
    def next(self, draft, state): ...
    def admitted(self, request, state): ...
    def end(self, draft, state): ...


class Lame:
    def decide(self, draft, state): ...


class Sometimes(Alone):
    repeats = "sometimes"


MADE = Alone(3)


class Kept(LastCome):
    def next(self, draft, state):
        return draft.first_waiting
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "own.py").write_text(_FILE)
    return tmp_path / "own.py"


def test_a_policy_of_batches_with_options(file):
    [(name, policy)] = parse_policies(f"{file}:Alone(room=2)")
    assert (name, policy.room) == (f"{file}:Alone(room=2)", 2)
    assert parse_policies(f"{file}:MADE")[0][1].room == 3


def test_an_admission_goes_with_a_policy_of_the_catalog(file):
    [(_, policy)] = parse_policies(f"sarathi(chunk_tokens=64) + {file}:LastCome")
    assert type(policy.admission).__name__ == "LastCome"
    assert policy.max_batch_tokens == 64


def test_what_is_no_policy_is_told(file):
    with pytest.raises(ServeError, match="is no policy: Lame has no repeats, no start; a batch policy has"):
        parse_policies(f"{file}:Lame")
    with pytest.raises(
        ServeError, match="does not define 'Other'; it defines Alone, Skips, LastCome, Lame, Sometimes, MADE"
    ):
        parse_policies(f"{file}:Other")
    with pytest.raises(
        ServeError, match="Sometimes: repeats is 'sometimes'; allowed are 'always', 'while none"
    ):
        parse_policies(f"{file}:Sometimes")
    with pytest.raises(ServeError, match="admits requests itself; leave vtc out"):
        parse_policies(f"{file}:Alone + vtc")
    with pytest.raises(ValueError, match=r"there is no file nowhere\.py"):
        parse_policies("nowhere.py:Alone")


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_batches_are_checked(file, num_ranks):
    requests = [request(n, 0.1 * n, 100, 5) for n in range(6)]
    place = deployment(2)
    place = replace(place, model=replace(place.model, data_parallel=num_ranks))
    runs, (cannot,) = compare_policies(f"{file}:Skips, vllm, vllm + {file}:Kept", requests, place)
    assert [run.name for run in runs] == ["vllm", f"vllm + {file}:Kept"]
    assert cannot.name == f"{file}:Skips"
    assert "computes tokens from 99 on; the next one to be computed is 1" in cannot.why
