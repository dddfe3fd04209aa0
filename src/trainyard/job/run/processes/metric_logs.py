"""Logs of metrics beside ``metrics.jsonl``: a CSV file, TensorBoard, Weights & Biases."""

from __future__ import annotations

import csv
import importlib.util
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from trainyard.distribution import install_command
from trainyard.job.run.processes.logs import MOST_BYTES, RollingFile
from trainyard.private import make_private
from trainyard.reading.arguments import WrongValueError

__all__ = [
    "LOGS",
    "CsvLog",
    "MetricLog",
    "TensorBoardLog",
    "WandbLog",
    "flat_metrics",
    "open_logs",
    "require_logs",
]


class MetricLog(Protocol):
    """Takes the metrics of steps, in their order; a step may come again after a restart."""

    def write(self, values: Mapping[str, float]) -> None:
        """Take a step's metrics from `flat_metrics`."""

    def close(self) -> None:
        """No more follows."""


_EVALUATED = "evaluation/"


def flat_metrics(entry: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics of a step as numbers by name.

    Parameters
    ----------
    entry : from ``StepMetrics.as_dict``. Losses get their own names, without ``loss:``, unless two are alike. Values of
        an evaluation get ``evaluation/`` before theirs. Of a number for each rank, the largest is taken. What is not
        known (None) and text are left out.
    """
    losses: Mapping[str, float] = entry["losses"]
    short = [name.partition(":")[2] or name for name in losses]
    is_clear = len(set(short)) == len(short) and not set(short) & entry.keys()
    flat = {"step": entry["step"], **dict(zip(short if is_clear else losses, losses.values(), strict=True))}
    for name, value in entry.items():
        if name == "evaluation":
            flat |= {f"{_EVALUATED}{key}": number for key, number in value.items()}
        elif name in ("step", "losses") or value is None or isinstance(value, str):
            continue
        else:
            flat[name] = max(value) if isinstance(value, list | tuple) else float(value)
    return flat


class CsvLog:
    """``metrics.csv`` has a line of names and a line for each step, ``evaluations.csv`` one for each evaluation."""

    def __init__(self, folder: Path, goes_on: bool, most_bytes: int = MOST_BYTES) -> None:
        make_private(folder)
        self._steps = _CsvFile(folder / "metrics.csv", goes_on, most_bytes)
        self._evaluations = _CsvFile(folder / "evaluations.csv", goes_on, most_bytes)

    def write(self, values: Mapping[str, float]) -> None:
        """Add a line."""
        evaluated = {name: value for name, value in values.items() if name.startswith(_EVALUATED)}
        self._steps.write({name: value for name, value in values.items() if name not in evaluated})
        if evaluated:
            self._evaluations.write({"step": values["step"], **evaluated})

    def close(self) -> None:
        """No more follows."""
        self._steps.close()
        self._evaluations.close()


class _CsvFile:
    """A line of names, and lines of values.

    When it has grown over a size, or another run begins or has other names, it gets a number: ``metrics.1.csv``.
    """

    def __init__(self, path: Path, goes_on: bool, most_bytes: int) -> None:
        self._path, self._goes_on, self._most_bytes = path, goes_on, most_bytes
        self._names: tuple[str, ...] = ()
        self._file: RollingFile | None = None

    def write(self, values: Mapping[str, float]) -> None:
        if self._file is None or tuple(values) != self._names:
            self.close()
            self._names = tuple(values)
            header = _csv_line(self._names)
            self._file = RollingFile(self._path, self._goes_on, self._most_bytes, header)
            self._goes_on = True
        self._file.write(_csv_line(list(values.values())))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _csv_line(fields: Sequence[object]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(fields)
    return text.getvalue().encode()


class TensorBoardLog:
    """Event files in the folder ``tensorboard``: a scalar for each metric."""

    def __init__(self, folder: Path, goes_on: bool) -> None:
        from torch.utils.tensorboard import SummaryWriter

        make_private(folder)
        self._writer: Any = SummaryWriter(str(folder / "tensorboard"))  # type: ignore[no-untyped-call]

    def write(self, values: Mapping[str, float]) -> None:
        """Add a point to each curve."""
        for name, value in values.items():
            if name != "step":
                self._writer.add_scalar(name, value, int(values["step"]))

    def close(self) -> None:
        """No more follows."""
        self._writer.close()


class WandbLog:
    """A run of Weights & Biases in the folder ``wandb``, offline; ``wandb sync`` uploads it."""

    def __init__(self, folder: Path, goes_on: bool) -> None:
        import wandb

        make_private(folder)
        self._run: Any = wandb.init(project="trainyard", dir=str(folder), mode="offline")

    def write(self, values: Mapping[str, float]) -> None:
        """Add a point to each curve."""
        self._run.log(
            {name: value for name, value in values.items() if name != "step"}, step=int(values["step"])
        )

    def close(self) -> None:
        """No more follows."""
        self._run.finish()


LOGS: Mapping[str, type[CsvLog] | type[TensorBoardLog] | type[WandbLog]] = MappingProxyType(
    {"csv": CsvLog, "tensorboard": TensorBoardLog, "wandb": WandbLog}
)
"""Logs by the name that ``TrainConfig.log_to`` has for them; of those that need a package, the package and the extra of
Trainyard that installs it have the same name."""


def require_logs(names: Sequence[str]) -> None:
    """Check that logs are known and what they need is installed.

    Raises
    ------
    WrongValueError
        Names the one that is not, and what to do.
    """
    for name in names:
        if name not in LOGS:
            raise WrongValueError(f"unknown log {name!r}; known: {', '.join(LOGS)}")
        if name != "csv" and importlib.util.find_spec(name) is None:
            raise WrongValueError(
                f"the log {name!r} needs the package {name}, which is not installed: {install_command(name)}; or leave "
                "it out, as metrics.jsonl and csv need nothing"
            )


def open_logs(names: Sequence[str], folder: Path, goes_on: bool) -> list[MetricLog]:
    """Open logs in a folder.

    Parameters
    ----------
    goes_on : whether to add to what is there, as a resumed run does.
    """
    return [LOGS[name](folder, goes_on) for name in dict.fromkeys(names)]
