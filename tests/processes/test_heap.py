"""Processes that compute keep the memory that they free."""

from __future__ import annotations

import os
import platform
import resource

import pytest

from trainyard.job.run.processes.fork_server import run_ranks
from trainyard.processes.heap import heap_environment, heap_of_children

_BLOCKS, _BLOCK_BYTES = 64, 2**20


def faults_of_the_second_step(rank: int) -> int:
    """Page faults while blocks are taken that were all freed before."""
    import torch

    def step() -> None:
        blocks = [torch.zeros(_BLOCK_BYTES, dtype=torch.uint8) for _ in range(_BLOCKS)]
        del blocks

    step()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    step()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="needs glibc: other C libraries do not read GLIBC_TUNABLES"
)
def test_workers_keep_what_they_free() -> None:
    pages = _BLOCKS * _BLOCK_BYTES // resource.getpagesize()
    assert run_ranks(1, faults_of_the_second_step)[0] < pages / 100


def test_what_the_user_has_said_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.arena_max=1")
    assert heap_environment() == {}


def test_only_children_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    with heap_of_children():
        assert "trim_threshold" in os.environ["GLIBC_TUNABLES"]
    assert "GLIBC_TUNABLES" not in os.environ
