"""Run recorder: keeps the metrics of a run, writes them to its logs, and tells the caller of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TypeVar

from trainyard.job.run.checkpoint.saved import complete_steps, path_of
from trainyard.job.run.config import Restart, StepMetrics, TrainConfig, TrainResult
from trainyard.job.run.data_waits import DataWaits
from trainyard.job.run.processes.logs import Metrics
from trainyard.job.run.processes.metric_logs import MetricLog, flat_metrics, open_logs
from trainyard.job.run.processes.stopping import EndedBySignal, StopRequest
from trainyard.reading import count_text
from trainyard.reading.arguments import require_function

__all__ = ["Callbacks", "RunRecorder"]

T = TypeVar("T")


def _ignore(_: object) -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Callbacks:
    """Functions that a run calls in the calling process; see `train`.

    Raises
    ------
    WrongTypeError
        If one of them is no function.
    """

    on_step: Callable[[StepMetrics], None] = _ignore
    on_restart: Callable[[Restart], None] = _ignore
    on_note: Callable[[str], None] = _ignore

    def __post_init__(self) -> None:
        for each in fields(self):
            require_function(each.name, getattr(self, each.name))


class RunRecorder:
    """A recorder of step metrics: keeps them, writes them to files and passes them on.

    When a callback raises an exception, no callback is called any more, and the run stops.
    """

    def __init__(
        self,
        config: TrainConfig,
        stop: StopRequest,
        callbacks: Callbacks,
    ) -> None:
        self.config, self.stop, self._callbacks = config, stop, callbacks
        self.by_step: dict[int, StepMetrics] = {}
        self.restarts: list[Restart] = []
        self.notes: dict[str, None] = {}
        self.first: int | None = None
        self.metrics: Metrics | None = None
        self.logs: list[MetricLog] = []
        self.raised: BaseException | None = None
        self.data_waits = DataWaits()

    def open(self, folder: Path) -> None:
        """Write metrics into a folder; a resumed run goes on with the file that is there."""
        self.metrics = Metrics(folder, self.config.resume)
        self.logs = open_logs(self.config.log_to, folder, self.config.resume)

    def close(self) -> None:
        if self.metrics is not None:
            self.metrics.close()
        for log in self.logs:
            log.close()

    def on_step(self, metrics: StepMetrics) -> None:
        if metrics.length is None and 0.0 < self.config.ideal_step_s <= metrics.seconds:
            metrics = replace(metrics, mfu=self.config.ideal_step_s / metrics.seconds)
        self.by_step[metrics.step] = metrics
        try:
            if self.metrics is not None:
                self.metrics.write(metrics.as_dict())
            for log in self.logs:
                log.write(flat_metrics(metrics.as_dict()))
        except OSError as error:
            self.note(f"metrics of some steps are not written to {self.config.log}: {error.strerror}")
        self.tell_of_stop()
        for text in filter(None, (self.data_waits.note(metrics), metrics.note)):
            self.note(text)
        self._tell(self._callbacks.on_step, metrics)

    def on_ready(self, step: int, notes: tuple[str, ...]) -> None:
        self.first = step if self.first is None else self.first
        self.stop.can_save = self.config.checkpoint is not None
        for text in notes:
            self.note(text)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes[text] = None
            self._tell(self._callbacks.on_note, text)

    def on_restart(self, restart: Restart) -> None:
        self.restarts.append(restart)
        self._tell(self._callbacks.on_restart, restart)

    def tell_of_stop(self) -> None:
        """Note that a signal came, and what a second one does."""
        if self.stop.signal is not None:
            at_once = "" if self.stop.is_launched else "; a second signal ends it at once, without"
            self.note(
                f"{self.stop.signal.name}: the run ends after the present step, with a checkpoint{at_once}"
            )

    def _tell(self, callback: Callable[[T], None], news: T) -> None:
        if self.raised is not None:
            return
        try:
            callback(news)
        except BaseException as error:
            if not self.stop.can_save or isinstance(error, EndedBySignal):
                raise
            self.raised = error
            self.stop.ask()

    @contextmanager
    def raising(self) -> Iterator[None]:
        """Raise the exception of a callback when the run has stopped for it, however that went."""
        try:
            yield
            self.tell_of_stop()  # for a signal that came after the last step was told
        except Exception as error:
            if self.raised is not None:
                raise self.raised from error
            raise
        except EndedBySignal:
            if self.config.checkpoint is None and self.by_step:
                self.note(
                    f"{count_text(len(self.by_step), 'step')} done, and nothing is saved: give a checkpoint folder, "
                    "where an interrupted run is saved"
                )
            raise
        if self.raised is not None:
            raise self.raised

    def result(self) -> TrainResult:
        folder = self.config.checkpoint
        steps = complete_steps(folder) if folder is not None else []
        return TrainResult(
            tuple(self.by_step[s] for s in sorted(self.by_step)),
            self.first or 0,
            tuple(self.restarts),
            tuple(self.notes),
            path_of(folder, steps[0]) if folder is not None and steps else None,
        )
