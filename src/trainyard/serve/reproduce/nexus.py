"""Nexus: the worked examples of its paper, and what the authors' program puts out."""

from __future__ import annotations

from collections.abc import Iterator

from trainyard.published import PaperTable, Row
from trainyard.serve.policies.nexus.packing import Session, pack
from trainyard.serve.policies.nexus.profile import BatchingProfile
from trainyard.serve.policies.nexus.query import Stage, split_objective
from trainyard.serve.reproduce.programs.nexus import TABLES as PROGRAM

_PROFILES = {
    "A": (BatchingProfile((4, 8, 16), (0.050, 0.075, 0.100)), 0.2),
    "B": (BatchingProfile((4, 8, 16), (0.050, 0.090, 0.125)), 0.25),
    "C": (BatchingProfile((4, 8, 16), (0.060, 0.095, 0.125)), 0.25),
}
"""Table 2, and the objectives of the models."""

# Figure 3: requests per second of a GPU by milliseconds.
_X = {40: 200.0, 50: 250.0, 60: 300.0}
_Y = {40: 300.0, 50: 400.0, 60: 500.0}


def _full_rows() -> Iterator[Row]:
    for name, theirs in (("A", 160), ("B", 128), ("C", 128)):
        profile, objective_s = _PROFILES[name]
        (first, *_) = pack((Session(name, profile, objective_s, 1000.0),))
        yield Row(f"model {name}", theirs, first.sessions[0].rate_per_s)


def _shared_rows() -> Iterator[Row]:
    rates = {"A": 64.0, "B": 32.0, "C": 32.0}
    shared, alone = pack(tuple(Session(name, *_PROFILES[name], rate) for name, rate in rates.items()))
    for place, (name, theirs) in enumerate((("A", 8), ("B", 4))):
        yield Row(f"batch of {name}", theirs, shared.batches[place])
    yield Row("models on the first GPU", 2, len(shared.sessions))
    yield Row("models on the second GPU", 1, len(alone.sessions))
    yield Row("cycle of the first GPU, ms", 125, 1000 * shared.duty_s)


def _split_rows() -> Iterator[Row]:
    for fan_out, theirs in ((0.1, 272.7), (1.0, 153.8), (10.0, 40.0)):
        leaf = Stage("Y", fan_out, lambda s: _Y.get(round(1000 * s), 0.0))
        root = Stage("X", 1.0, lambda s: _X.get(round(1000 * s), 0.0), (leaf,))
        gpus, _ = split_objective(root, 0.1, 10)
        yield Row(f"{fan_out:g} of Y for each of X", theirs, 1 / gpus)


TABLES = (
    PaperTable(
        "Shen et al., SOSP 2019, section 4.1, many requests for each model",
        "requests per second of a GPU",
        "packed, the profiles of table 2",
        _full_rows,
        tolerance=1e-9,
    ),
    PaperTable(
        "Shen et al., SOSP 2019, section 4.1, 64 requests per second for A and 32 each for B and C",
        "batches, models and the cycle",
        "packed, the profiles of table 2",
        _shared_rows,
        tolerance=1e-9,
    ),
    PaperTable(
        "Shen et al., SOSP 2019, section 4.2, figure 4, a query of X and Y within 100 ms",
        "requests per second of a GPU, with the best split",
        "split, the throughputs of figure 3",
        _split_rows,
        tolerance=1e-3,
    ),
    *PROGRAM,
)
