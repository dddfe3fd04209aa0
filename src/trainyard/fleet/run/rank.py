"""One process of a job, under the variables that launchers set."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Mapping

import torch

from trainyard.fleet.run.home import JobHome
from trainyard.hardware import parse_cluster
from trainyard.job.run.attempt import print_to
from trainyard.job.run.config import TrainConfig
from trainyard.job.run.data import example_data
from trainyard.job.run.optimizer import OptimizerConfig
from trainyard.job.run.train import train


def train_in(home: JobHome, cluster: str) -> None:
    """Train the job of a folder as one of its ranks, from its newest checkpoint to its end or until it is paused."""
    training = home.training()
    config = TrainConfig(
        training.steps,
        OptimizerConfig(lr=training.learning_rate),
        checkpoint=home.checkpoints,
        checkpoint_every=training.checkpoint_every,
        resume=True,
        seed=training.seed,
        log=home.logs,
        device="cuda" if torch.cuda.is_available() else "cpu",
        pause=home.pause,
    )
    data, _ = example_data(training.source(), training.rows)
    train(training.source, training.plan(parse_cluster(cluster)), data, config)


def be_rank(
    home: JobHome,
    cluster: str,
    rank: int,
    environment: Mapping[str, str],
    die_with_parent: Callable[[], None],
) -> None:
    """What a process of a job runs; an error is kept in the folder."""
    die_with_parent()
    os.environ |= environment
    print_to(home.logs / f"rank-{rank}.log")
    try:
        train_in(home, cluster)
    except Exception as error:
        traceback.print_exc()
        home.fail(f"{type(error).__name__}: {error}".splitlines()[0])
        sys.exit(1)
