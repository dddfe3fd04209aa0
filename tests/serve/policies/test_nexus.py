"""Nexus's worked examples, and the outputs of its authors' program."""

from __future__ import annotations

import csv

import pytest
from shared_data import DATA, needs_data

from trainyard.serve.policies.nexus.admission import admits, prepared
from trainyard.serve.policies.nexus.packing import Session, pack
from trainyard.serve.policies.nexus.profile import BatchingProfile, read_batching_profile
from trainyard.serve.policies.nexus.query import Stage, split_objective
from trainyard.serve.reproduce.programs.nexus import budget_s, query

PROFILES = DATA / "serving" / "nexus-profiles"


def test_residual_loads_of_the_worked_example() -> None:
    """Section 4.1: A and B share a GPU with a cycle of 125 ms; C does not fit beside A."""
    a = BatchingProfile((4, 8, 16), (0.050, 0.075, 0.100))
    b = BatchingProfile((4, 8, 16), (0.050, 0.090, 0.125))
    c = BatchingProfile((4, 8, 16), (0.060, 0.095, 0.125))
    rest = pack((Session("A", a, 0.2, 64), Session("B", b, 0.25, 32), Session("C", c, 0.25, 32)))
    assert [([s.name for s in n.sessions], n.batches) for n in rest] == [(["A", "B"], (8, 4)), (["C"], (4,))]
    assert rest[0].duty_s == pytest.approx(0.125)
    full = pack((Session("A", a, 0.2, 160 * 2 + 64),))
    assert [n.batches for n in full] == [(16,), (16,), (8,)]


@pytest.mark.parametrize(("fan_out", "split", "rate"), [(0.1, 60, 272.7), (1, 50, 153.8), (10, 40, 40.0)])
def test_split_of_the_worked_example(fan_out: float, split: int, rate: float) -> None:
    """Section 4.2: X, then Y; which split of 100 ms is best depends on how many requests of Y one of X makes."""
    x: dict[int, float] = {40: 200, 50: 250, 60: 300}
    y: dict[int, float] = {40: 300, 50: 400, 60: 500}
    leaf = Stage("Y", fan_out, lambda s: y.get(round(1000 * s), 0))
    root = Stage("X", 1, lambda s: x.get(round(1000 * s), 0), (leaf,))
    gpus, found = split_objective(root, 0.1, 10)
    assert round(1000 * found["X"]) == split
    assert 1 / gpus == pytest.approx(rate, abs=0.1)


@needs_data(PROFILES)
def test_authors_program() -> None:
    names = ("vgg16", "vgg_face", "vgg_s")
    profiles = {n: read_batching_profile(PROFILES / f"caffe_{n}_1.txt") for n in names}

    rows = list(csv.DictReader((DATA / "reference" / "serve" / "nexus.csv").open()))
    assert {"profile", "query"} <= {row["kind"] for row in rows}
    for row in rows:
        if row["kind"] == "profile":
            profile = profiles[row["model"]]
            limit = budget_s(profile, float(row["slo_ms"]) / 1000)
            batch, rate = profile.best_batch(limit)
            assert profile.within(limit)[-1] == int(row["max_batch"])
            assert batch == int(row["best_batch"])
            assert rate == pytest.approx(float(row["throughput_per_s"]), rel=1e-6)
        if row["kind"] == "query":
            gpus, split = split_objective(query(profiles), float(row["slo_ms"]) / 1000, int(row["segments"]))
            assert gpus == pytest.approx(float(row["min_gpus"]), rel=1e-6)
            rounded = " ".join(f"{n}:{int(1000 * split[n] + 0.5)}" for n in ("vgg_s", "vgg16", "vgg_face"))
            assert rounded == row["split_ms"]


@needs_data(PROFILES)
def test_one_more_session_on_a_gpu() -> None:
    def session(name: str, slo_ms: str, rate: str) -> Session:
        profile = read_batching_profile(PROFILES / f"caffe_{name}_1.txt")
        return Session(name, profile, float(slo_ms) / 1000, float(rate))

    rows = list(csv.DictReader((DATA / "reference" / "serve" / "nexus.csv").open()))
    prepares = [row for row in rows if row["kind"] == "prepare"]
    assert {row["accepted"] for row in prepares} == {"0", "1"}
    for row in prepares:
        new = prepared(session(row["model"], row["slo_ms"], row["rate_per_s"]))
        present = tuple(prepared(session(*row["on_gpu"].split(":"))) for _ in range(bool(row["on_gpu"])))
        accepted, occupancy = admits(present, new)
        assert accepted == (row["accepted"] == "1")
        assert new.max_batch == int(row["max_batch"])
        assert new.duty_s * 1e6 == pytest.approx(float(row["duty_us"]), rel=1e-6)
        shared_s = min((p.duty_s for p in present), default=float("inf"))
        batch = new.batch_in(shared_s) if new.duty_s >= shared_s else new.batch
        assert batch == int(row["batch"])
        if row["occupancy"]:
            assert occupancy == pytest.approx(float(row["occupancy"]), rel=1e-6)
