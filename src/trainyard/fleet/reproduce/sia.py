"""Sia: its integer program has the value of the best of all choices."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from trainyard.fleet.policies.sia.assignment import Options, assigned
from trainyard.fleet.policies.sia.policy import Sia
from trainyard.fleet.replicas.sia import SiaProgram
from trainyard.published import PaperTable, Row

_ROOM = np.array([4, 8])
_COUNTS = (1, 2, 4, 8)
_NUM_JOBS = 5
_VARIANTS = (
    ("", Sia()),
    (", sum of goodputs", Sia(power=1.0)),
    (", the authors' program", SiaProgram()),
)


def _options(seed: int, policy: Sia) -> Options:
    """Jobs that scale more or less well, and are faster on one of two types; every type and count is an option."""
    draw = np.random.default_rng(seed)
    job, kind, count = (
        column.ravel() for column in np.meshgrid(np.arange(_NUM_JOBS), np.arange(2), _COUNTS, indexing="ij")
    )
    scaling, faster = draw.uniform(0.2, 1.0, _NUM_JOBS), draw.uniform(0.5, 4.0, (_NUM_JOBS, 2))
    goodput = faster[job, kind] * count ** scaling[job]
    least = np.array([goodput[job == j].min() for j in range(_NUM_JOBS)])
    value = policy.value(goodput / least[job])
    fits = (count <= _ROOM[kind]) & (value > 0)
    return Options(job[fits], kind[fits], count[fits], value[fits], np.zeros(int(fits.sum()), np.bool_))


def _best(options: Options) -> float:
    """The greatest value of any choice of at most one option for every job that the devices suffice for."""
    of_job = [(-1, *np.flatnonzero(options.job == j).tolist()) for j in range(_NUM_JOBS)]
    choices = np.array(list(product(*of_job)))
    # The last entry stands for no option at all.
    devices, kind = np.append(options.devices, 0), np.append(options.device_type, 0)
    used = [(devices * (kind == k))[choices].sum(1) for k in range(len(_ROOM))]
    fits = np.all(np.array(used).T <= _ROOM, axis=1)
    return float(np.append(options.value, 0.0)[choices[fits]].sum(1).max())


def _rows() -> Iterator[Row]:
    for variant, policy in _VARIANTS:
        for seed in range(4):
            options = _options(seed, policy)
            chosen = options.value[assigned(options, _ROOM)]
            yield Row(f"draw {seed}{variant}", _best(options), float(chosen.sum()))


TABLES = (
    PaperTable(
        "Jayaram Subramanya et al., SOSP 2023, its integer program: the best of all choices, found by trying every one",
        "value of the objective",
        f"chosen by the solver for {_NUM_JOBS} jobs on four devices of one type and eight of another",
        _rows,
        tolerance=2e-4,
    ),
)
