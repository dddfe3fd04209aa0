"""Output of Nexus' scheduler for its own profiles of three models, beside ours.

Shen et al., "Nexus: A GPU Cluster Engine for Accelerating DNN-Based Video Analysis", SOSP 2019; uwsampl/nexus at b436191,
``tests/data/model_db/profiles/TITAN_X_(Pascal)``. Its numbers are of single precision.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from trainyard.published import Files, PaperTable, Row
from trainyard.serve.policies.nexus.admission import prepared
from trainyard.serve.policies.nexus.packing import Session
from trainyard.serve.policies.nexus.profile import BatchingProfile, read_batching_profile
from trainyard.serve.policies.nexus.query import Stage, split_objective

__all__ = ["TABLES", "budget_s", "query"]

Profiles = Mapping[str, BatchingProfile]

_NETWORK_S = 0.002
_MODELS = ("vgg16", "vgg_face", "vgg_s")
_FILES = Files(
    tuple(f"TITAN_X_(Pascal)/caffe:{name}:1.txt" for name in _MODELS),
    "git clone https://github.com/uwsampl/nexus",
    "nexus/tests/data/model_db/profiles",
)
# By model and objective in ms.
_THROUGHPUTS = {
    ("vgg16", 50): 142.05679,
    ("vgg16", 200): 259.13351,
    ("vgg16", 500): 259.5546,
    ("vgg_face", 100): 247.51866,
    ("vgg_face", 300): 257.98785,
    ("vgg_s", 50): 958.67261,
    ("vgg_s", 200): 1022.072,
}
# By model, objective in ms, and requests per second: cycles in microseconds.
_CYCLES = {
    ("vgg16", 500, 50): 410051.81,
    ("vgg16", 500, 150): 309488.12,
    ("vgg16", 500, 250): 240000,
    ("vgg16", 500, 400): 239135.53,
    ("vgg_face", 300, 100): 210000,
    ("vgg_face", 300, 150): 184461.31,
    ("vgg_s", 100, 20): 88050.306,
    ("vgg16", 200, 30): 167970.22,
}
# By objective in ms and the steps in which it is split.
_NUM_GPUS = {(200, 100): 0.78830615, (400, 500): 0.77624681, (800, 100): 0.77263819}


def budget_s(profile: BatchingProfile, objective_s: float) -> float:
    """Return the longest time of a batch: a request waits for another batch, and then for its own."""
    return (objective_s - _NETWORK_S - profile.outside_s) / 2


def query(profiles: Profiles) -> Stage:
    """vgg_s, on whose output vgg16 and vgg_face go on."""

    def stage(name: str, rate_per_s: float, *children: Stage) -> Stage:
        profile = profiles[name]
        return Stage(name, rate_per_s, lambda s: profile.best_batch(budget_s(profile, s))[1], children)

    return stage("vgg_s", 200, stage("vgg16", 50), stage("vgg_face", 100))


def _profiles(folder: Path) -> Profiles:
    return {
        name: read_batching_profile(folder / path) for name, path in zip(_MODELS, _FILES.paths, strict=True)
    }


def _throughput_rows(folder: Path) -> Iterator[Row]:
    profiles = _profiles(folder)
    for (name, objective_ms), theirs in _THROUGHPUTS.items():
        profile = profiles[name]
        _, ours = profile.best_batch(budget_s(profile, objective_ms / 1000))
        yield Row(f"{name} within {objective_ms} ms", theirs, ours)


def _cycle_rows(folder: Path) -> Iterator[Row]:
    profiles = _profiles(folder)
    for (name, objective_ms, rate), theirs_us in _CYCLES.items():
        session = Session(name, profiles[name], objective_ms / 1000, float(rate))
        ours_s = prepared(session, _NETWORK_S).duty_s
        yield Row(f"{name} within {objective_ms} ms, {rate} a second", theirs_us * 1e-6, ours_s)


def _query_rows(folder: Path) -> Iterator[Row]:
    root = query(_profiles(folder))
    for (objective_ms, segments), theirs in _NUM_GPUS.items():
        ours, _ = split_objective(root, objective_ms / 1000, segments)
        yield Row(f"{objective_ms} ms in {segments} steps", theirs, ours)


_SOURCE = "The authors' program of Nexus, SOSP 2019, profiles of a TITAN X"
_METHOD = "computed from the same profiles"

TABLES = (
    PaperTable(
        f"{_SOURCE}, best batch within an objective",
        "requests per second",
        _METHOD,
        _throughput_rows,
        tolerance=1e-6,
        files=_FILES,
    ),
    PaperTable(
        f"{_SOURCE}, a session alone on a GPU", "cycle, s", _METHOD, _cycle_rows, tolerance=1e-6, files=_FILES
    ),
    PaperTable(
        f"{_SOURCE}, a query of vgg_s, vgg16 and vgg_face",
        "GPUs",
        _METHOD,
        _query_rows,
        tolerance=1e-6,
        files=_FILES,
    ),
)
"""Batches, cycles, and how the objective of a query is split."""
