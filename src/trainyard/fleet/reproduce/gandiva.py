"""Gandiva: its time slices are an even share of the devices, so what is known of those holds."""

from __future__ import annotations

from trainyard.fleet.periods import Rounds
from trainyard.fleet.policies.gandiva import Gandiva
from trainyard.fleet.reproduce.queueing import response_table, shared_s, together_table

TABLES = (
    together_table(Gandiva(pack=False), Rounds(60.0)),
    response_table(
        "Kleinrock, Queueing Systems, Volume 2, 1976, M/G/1 with processor sharing",
        Gandiva(quantum_s=0.05, pack=False),
        shared_s,
        num_jobs=3000,
        loads=(0.5,),
        rounds=Rounds(0.05),
    ),
)
