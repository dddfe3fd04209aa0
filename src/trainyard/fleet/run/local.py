"""The engine of this machine: a device is a place for one process, a job as many processes as it has devices."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trainyard.fleet.run.engine import Progress
from trainyard.fleet.run.training import Training
from trainyard.fleet.workload.job import Grant
from trainyard.hardware.local import local_cluster
from trainyard.job.run.config import StepMetrics, TrainConfig
from trainyard.job.run.data import Data
from trainyard.job.run.optimizer import OptimizerConfig
from trainyard.job.run.train import train


@dataclass(eq=False)
class _Stint:
    """A job on its devices: a thread that supervises its processes."""

    grant: Grant
    thread: threading.Thread | None = None
    failure: str | None = None


class LocalEngine:
    """Trains jobs in processes of this machine.

    Parameters
    ----------
    trainings, data : by the name of the job.
    folder : of checkpoints and metrics, one folder per job.
    """

    def __init__(self, trainings: Mapping[str, Training], data: Mapping[str, Data], folder: Path) -> None:
        self.trainings, self.data, self.folder = dict(trainings), dict(data), folder
        self._stints: dict[str, _Stint] = {}
        self._steps: dict[str, int] = {}

    def start(self, name: str, grant: Grant) -> None:
        """Start a job, or continue it; it must not be running."""
        stint = _Stint(grant)
        self._pause(name).unlink(missing_ok=True)
        stint.thread = threading.Thread(target=self._train, args=(name, stint), name=name, daemon=True)
        self._stints[name] = stint
        stint.thread.start()

    def stop(self, name: str) -> None:
        """Stop a job at the end of its present step, with a checkpoint: nothing will be done again."""
        stint = self._stints.get(name)
        if stint is not None and stint.thread is not None:
            self._pause(name).touch()
            stint.thread.join()

    def progress(self, name: str) -> Progress:
        """Steps that were reported."""
        stint = self._stints.get(name)
        if stint is None:
            return Progress(0)
        steps, is_over = self._steps.get(name, 0), stint.thread is None or not stint.thread.is_alive()
        return Progress(steps, is_over and steps == self.trainings[name].steps, stint.failure)

    def close(self) -> None:
        """Stop all jobs."""
        for name in self._stints:
            self._pause(name).touch()
        for name in self._stints:
            self.stop(name)

    def losses(self, name: str) -> dict[int, float]:
        """The loss of every step of a job; of a step that was done again, as it was the last time."""
        lines = (self.folder / name / "log" / "metrics.jsonl").read_text().splitlines()
        return {m["step"]: m["losses"]["loss:loss"] for m in map(json.loads, lines)}

    def _pause(self, name: str) -> Path:
        """The file that tells a job to leave its devices."""
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder / "pause"

    def _train(self, name: str, stint: _Stint) -> None:
        training, home = self.trainings[name], self.folder / name
        config = TrainConfig(
            training.steps,
            OptimizerConfig(lr=training.learning_rate),
            checkpoint=home / "checkpoints",
            checkpoint_every=training.checkpoint_every,
            resume=True,
            seed=training.seed,
            log=home / "log",
            pause=self._pause(name),
        )

        def on_step(metrics: StepMetrics) -> None:
            self._steps[name] = metrics.step + 1

        try:
            plan = training.plan(local_cluster(stint.grant.num_devices))
            train(training.source, plan, self.data[name], config, on_step)
        except Exception as error:
            stint.failure = f"{type(error).__name__}: {error}".splitlines()[0]
