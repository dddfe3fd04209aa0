"""The verbs of the command line: what exists is this table."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

__all__ = ["VERBS", "Verb"]


@dataclass(frozen=True)
class Verb:
    """One act.

    Attributes
    ----------
    module : holds its ``Options`` and ``act``; imported only when the verb is used.
    line : what it does, in one line of help.
    has_ranks : whether processes that a launcher started are together one act.
    """

    module: str
    line: str
    has_ranks: bool = False

    def loaded(self) -> Any:
        """Import the module."""
        return importlib.import_module(self.module)


VERBS = MappingProxyType(
    {
        "train": Verb(
            "trainyard.cli.train",
            "plan for this machine, then train: a model's name or your Python file",
            has_ranks=True,
        ),
        "plan": Verb("trainyard.cli.plan", "find a plan for a model on a cluster, and say why"),
        "simulate": Verb("trainyard.cli.simulate", "predict what one step of a plan takes"),
        "run": Verb("trainyard.cli.run", "train with a saved plan", has_ranks=True),
        "export": Verb("trainyard.cli.export", "write the weights of a checkpoint for other programs"),
        "compare": Verb("trainyard.cli.compare", "rank strategies on the same model and cluster"),
        "hardware": Verb("trainyard.cli.hardware", "describe a cluster; measure this machine"),
        "papers": Verb("trainyard.cli.papers", "list the published systems, or tell about one"),
        "reproduce": Verb("trainyard.cli.reproduce", "print a paper's headline result next to ours"),
        "doctor": Verb(
            "trainyard.cli.doctor", "tell what is installed, measured or missing, and for which verb"
        ),
        "completion": Verb("trainyard.cli.completion", "print a script that completes words in a shell"),
        "fleet simulate": Verb(
            "trainyard.cli.fleet.simulate", "run a trace of jobs under one or more policies"
        ),
        "fleet compare": Verb(
            "trainyard.cli.fleet.compare", "rank policies over drawn workloads, with confidence intervals"
        ),
        "fleet profile": Verb(
            "trainyard.cli.fleet.profile",
            "predict a model's speed on all devices of a cluster, for job files",
        ),
        "fleet download": Verb("trainyard.cli.fleet.download", "list public traces of jobs, or fetch one"),
        "fleet run": Verb(
            "trainyard.cli.fleet.run", "train the jobs of a file for real; predicted and measured times"
        ),
        "fleet daemon": Verb(
            "trainyard.cli.fleet.daemon", "a daemon that takes jobs over HTTP and runs them"
        ),
        "fleet submit": Verb("trainyard.cli.fleet.submit", "hand the jobs of a file to the daemon"),
        "fleet status": Verb("trainyard.cli.fleet.status", "list the daemon's jobs, and devices in use"),
        "fleet cancel": Verb("trainyard.cli.fleet.cancel", "cancel a job"),
        "fleet logs": Verb("trainyard.cli.fleet.logs", "print the end of a job's log"),
        "serve simulate": Verb(
            "trainyard.cli.serve.simulate", "serve a trace of requests by one or more policies"
        ),
        "serve plan": Verb(
            "trainyard.cli.serve.plan",
            "find the fewest devices that meet objectives, and say what bounds them",
        ),
        "serve place": Verb(
            "trainyard.cli.serve.place", "place many models on a cluster by one or more policies"
        ),
        "serve run": Verb(
            "trainyard.cli.serve.run", "serve models on this machine, by the APIs of OpenAI and Anthropic"
        ),
        "serve compare": Verb(
            "trainyard.cli.serve.compare", "simulate requests and serve them on this machine, side by side"
        ),
        "serve bench": Verb(
            "trainyard.cli.serve.bench", "send a trace of requests to a server, and time its answers"
        ),
        "serve download": Verb(
            "trainyard.cli.serve.download", "list public traces of requests, or fetch one"
        ),
    }
)
"""Verbs by name, in the order in which help lists them; those of two words are the acts of a level."""
