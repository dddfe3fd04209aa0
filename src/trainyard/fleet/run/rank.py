"""One process of a job: ``python -m trainyard.fleet.run.rank HOME CLUSTER``, under the variables that launchers set."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

import torch

from trainyard.fleet.run.home import JobHome
from trainyard.hardware import parse_cluster
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


def main() -> int:
    """Run; an error is kept in the folder."""
    home = JobHome(Path(sys.argv[1]))
    try:
        train_in(home, sys.argv[2])
    except Exception as error:
        traceback.print_exc()
        home.fail(f"{type(error).__name__}: {error}".splitlines()[0])
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
