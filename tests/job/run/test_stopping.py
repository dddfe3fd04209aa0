"""A run that a signal or a callback stops is saved, and does then what it would have done without."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import plans
import pytest

from trainyard.job.run.checkpoint.saved import complete_steps
from trainyard.job.run.config import StepMetrics
from trainyard.job.run.processes.fork_server import WorkerError
from trainyard.job.run.step.data import FunctionData
from trainyard.job.run.train import train


def _interrupted_at_step(step: int, number: signal.Signals = signal.SIGINT) -> Any:
    def on_step(metrics: StepMetrics) -> None:
        if metrics.step == step:
            os.kill(os.getpid(), number)

    return on_step


@pytest.fixture(autouse=True)
def _usual_handlers(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Ctrl-C raises KeyboardInterrupt, also where the tests run in the background; all is as before in the end."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_saves_and_the_run_goes_on_exactly(tmp_path: Path) -> None:
    plan, said = plans.plan(data=2), []
    whole = train(plans.MODEL, plan, plans.DATA_SOURCE, plans.config(6))
    seen: list[StepMetrics] = []

    def on_step(metrics: StepMetrics) -> None:
        seen.append(metrics)
        _interrupted_at_step(1)(metrics)

    with pytest.raises(KeyboardInterrupt):
        train(
            plans.MODEL, plan, plans.DATA_SOURCE, plans.config(10**6, tmp_path), on_step, on_note=said.append
        )
    assert said == [
        "SIGINT: the run ends after the present step, with a checkpoint; a second signal ends it at once, without"
    ]
    stopped = complete_steps(tmp_path)[0]
    assert stopped == len(seen) >= 2
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    more = max(6, stopped + 1)
    rest = train(plans.MODEL, plan, plans.DATA_SOURCE, plans.config(more, tmp_path, resume=True))
    assert rest.first_step == stopped
    losses = [m.losses["loss:loss"] for m in (*seen, *rest.metrics)][:6]
    assert losses == pytest.approx([m.losses["loss:loss"] for m in whole.metrics], rel=1e-6)


def test_a_handler_of_the_caller_gets_sigterm_when_the_run_is_saved(tmp_path: Path) -> None:
    saved: list[list[int]] = []
    before = signal.signal(signal.SIGTERM, lambda *_: saved.append(complete_steps(tmp_path)))
    try:
        config = plans.config(10**6, tmp_path)
        result = train(
            plans.MODEL,
            plans.plan(),
            plans.DATA_SOURCE,
            config,
            _interrupted_at_step(0, signal.SIGTERM),
        )
    finally:
        signal.signal(signal.SIGTERM, before)
    assert saved == [[result.metrics[-1].step + 1]]


def _batches_without_end(step: int) -> dict[str, Any]:
    while step == 2:
        time.sleep(0.1)
    return {k.removeprefix("batch."): v for k, v in plans.DATA_SOURCE.batch(step).items()}


def test_a_second_signal_ends_a_run_whose_step_does_not(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(
            plans.MODEL,
            plans.plan(),
            FunctionData(_batches_without_end),
            plans.config(10, tmp_path),
            _interrupted_at_step(1),
            on_note=lambda _: os.kill(os.getpid(), signal.SIGINT),
        )
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_without_a_folder_nothing_is_saved_and_that_is_said() -> None:
    said: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        train(
            plans.MODEL,
            plans.plan(),
            plans.DATA_SOURCE,
            plans.config(10**6),
            _interrupted_at_step(0),
            on_note=said.append,
        )
    assert said == [
        "1 step done, and nothing is saved: give a checkpoint folder, where an interrupted run is saved"
    ]


def test_an_exception_of_a_callback_is_raised_when_the_run_is_saved(tmp_path: Path) -> None:
    plan, seen = plans.plan(data=2), list[StepMetrics]()

    def on_step(metrics: StepMetrics) -> None:
        seen.append(metrics)
        raise LookupError("no more room in the notebook")

    with pytest.raises(LookupError, match="notebook"):
        train(plans.MODEL, plan, plans.DATA_SOURCE, plans.config(10**6, tmp_path), on_step)
    assert [metrics.step for metrics in seen] == [0]
    saved = complete_steps(tmp_path)[0]
    config = plans.config(saved + 1, tmp_path, resume=True)
    rest = train(plans.MODEL, plan, plans.DATA_SOURCE, config)
    assert rest.first_step == saved
    whole = train(plans.MODEL, plan, plans.DATA_SOURCE, plans.config(saved + 1))
    assert [m.losses for m in (*seen, *rest.metrics)] == [whole.metrics[0].losses, whole.metrics[-1].losses]


def _batches_beside_a_worker(step: int) -> dict[str, Any]:
    worker = get_context("fork").Process(target=time.sleep, args=(600.0,))
    worker.start()
    worker.terminate()  # as pools end workers that are busy
    worker.join()
    return {k.removeprefix("batch."): v for k, v in plans.DATA_SOURCE.batch(step).items()}


def test_workers_of_the_data_can_be_ended() -> None:
    config = plans.config(1)
    result = train(plans.MODEL, plans.plan(data=2), FunctionData(_batches_beside_a_worker), config)
    assert len(result.metrics) == 1


def _batches_after(file: Path, step: int) -> dict[str, Any]:
    while step == 6 and not file.exists():
        time.sleep(0.01)
    return {k.removeprefix("batch."): v for k, v in plans.DATA_SOURCE.batch(step).items()}


def test_a_checkpoint_that_cannot_be_written_leaves_those_before(tmp_path: Path) -> None:
    folder, ready = tmp_path / "checkpoints", tmp_path / "ready"

    def on_step(metrics: StepMetrics) -> None:
        if metrics.step == 3:
            for step in range(2, 20):
                (folder / f".step-{step:08d}.tmp").touch()  # in the way of the folder that is written
            os.kill(os.getpid(), signal.SIGINT)
            ready.touch()

    data = FunctionData(partial(_batches_after, ready))
    config = plans.config(10, folder, checkpoint_every=2)
    with pytest.raises(
        WorkerError, match=r"(?s)no checkpoint could be written.*--resume continues from step"
    ):
        train(plans.MODEL, plans.plan(), data, config, on_step)
    assert complete_steps(folder)[0] >= 2
