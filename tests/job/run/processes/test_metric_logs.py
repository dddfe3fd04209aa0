"""Metrics of steps in CSV files, TensorBoard and Weights & Biases: names, resumptions, and what is not installed."""

import csv
import json
import sys
from pathlib import Path

import one_rank
import pytest
import whole_module

from trainyard.cli.main import main
from trainyard.job.optimizer import OptimizerConfig
from trainyard.job.run.config import TrainConfig
from trainyard.job.run.processes.metric_logs import LOGS, CsvLog, flat_metrics, require_logs
from trainyard.job.run.train import train
from trainyard.job.task import Task

GUIDE = Path(__file__).parents[4] / "docs" / "guide-job.md"
ENTRY = {
    "step": 3,
    "losses": {"loss:loss": 2.5, "metric:accuracy": 0.5},
    "seconds": 0.1,
    "peak_memory_bytes": [5, 7],
    "mfu": None,
    "skipped": True,
}


def _rows(file):
    with file.open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_metrics_are_numbers_by_name():
    flat = {"step": 3, "loss": 2.5, "accuracy": 0.5, "seconds": 0.1, "peak_memory_bytes": 7, "skipped": 1.0}
    assert flat_metrics(ENTRY) == flat


@pytest.mark.parametrize("losses", [{"a:x": 1.0, "b:x": 2.0}, {"loss:seconds": 1.0}])
def test_losses_of_one_name_keep_their_whole_names(losses):
    found = flat_metrics(ENTRY | {"losses": losses})
    assert {name: found[name] for name in losses} == losses
    assert found["seconds"] == 0.1


def test_every_step_has_a_line_of_csv_also_after_a_resumption(tmp_path):
    model = whole_module.model()
    plan = whole_module.plan(Task(model))

    def steps(num, **how):
        config = TrainConfig(
            num, OptimizerConfig("sgd", lr=0.5), tmp_path / "run", log=tmp_path, log_to=("csv",), ideal_step_s=1e-9, **how
        )  # fmt: skip
        return train(whole_module.model, plan, whole_module.DATA, config).metrics

    metrics = [*steps(2, checkpoint_every=1), *steps(3, resume=True)]
    rows = _rows(tmp_path / "metrics.csv")
    assert [int(row["step"]) for row in rows] == [0, 1, 2]
    for row, m in zip(rows, metrics, strict=True):
        assert float(row["loss"]) == m.losses["loss:loss"]
        assert m.mfu == pytest.approx(1e-9 / m.seconds)
        assert float(row["mfu"]) == m.mfu
        assert min(m.data_s, m.forward_backward_s, m.wait_s, m.update_s) >= 0
        assert m.data_s + m.forward_backward_s + m.wait_s + m.update_s <= m.seconds
    assert metrics[1].checkpoint_s > 0 == metrics[0].checkpoint_s
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["mfu"] for line in lines] == [m.mfu for m in metrics]


def test_the_guide_names_every_metric():
    text = GUIDE.read_text()
    ready, reports = one_rank.run(None, 1)
    assert ready.step == 0
    names = {"step", "losses", "rows_per_s", "tokens_per_s", "mfu", *vars(reports[0])} - {"rank", "tokens"}
    assert [name for name in sorted(names) if f"| `{name}`" not in text] == []


def test_the_rate_is_that_of_the_last_update():
    optimizer = OptimizerConfig(lr=0.4, warmup_steps=4)
    _, reports = one_rank.run(None, 5, optimizer=optimizer)
    assert [r.learning_rate for r in reports] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4])


def test_other_names_and_other_runs_begin_another_file(tmp_path):
    log = CsvLog(tmp_path, goes_on=False)
    for values in ({"step": 0, "loss": 1.0}, {"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.5, "mfu": 0.1}):
        log.write(values)
    log.close()
    assert _rows(tmp_path / "metrics.1.csv") == [{"step": "0", "loss": "1.0"}, {"step": "1", "loss": "0.5"}]
    assert _rows(tmp_path / "metrics.csv") == [{"step": "2", "loss": "0.5", "mfu": "0.1"}]
    log = CsvLog(tmp_path, goes_on=False)
    log.write({"step": 0, "loss": 3.0, "mfu": 0.1})
    log.close()
    assert [row["step"] for row in _rows(tmp_path / "metrics.csv")] == ["0"]
    assert [row["step"] for row in _rows(tmp_path / "metrics.1.csv")] == ["2"]


def test_a_file_of_csv_has_a_limit_and_each_has_the_names(tmp_path):
    log = CsvLog(tmp_path, goes_on=False, most_bytes=200)
    for step in range(300):
        log.write({"step": step})
    log.close()
    rows = [*_rows(tmp_path / "metrics.1.csv"), *_rows(tmp_path / "metrics.csv")]
    steps = [int(row["step"]) for row in rows]
    assert 10 < len(steps) < 300
    assert steps == list(range(steps[0], 300))


@pytest.mark.parametrize("name", sorted(LOGS.keys() - {"csv"}))
def test_what_is_not_installed_is_refused_before_anything_is_done(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, name, None)  # as where it is not installed
    monkeypatch.chdir(tmp_path)
    assert main(["train", "gpt-tiny", "--log-to", f"csv,{name}"]) == 2
    message = f"the log '{name}' needs the package {name}, which is not installed: pip install 'trainyard-ml[{name}]'"
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    model = whole_module.model()
    with pytest.raises(ValueError, match="needs the package"):
        train(
            model,
            whole_module.plan(Task(model)),
            whole_module.DATA,
            TrainConfig(1, log=tmp_path, log_to=(name,)),
        )


def test_unknown_logs_and_logs_without_a_folder_are_refused():
    with pytest.raises(ValueError, match="unknown log 'tensorbord'; known: csv, tensorboard, wandb"):
        require_logs(["tensorbord"])
    with pytest.raises(ValueError, match="needs a folder for logs: give log"):
        TrainConfig(1, log_to=("csv",))


def test_tensorboard_has_a_curve_of_every_metric(tmp_path):
    pytest.importorskip("tensorboard", reason="needs tensorboard: pip install 'trainyard-ml[tensorboard]'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = LOGS["tensorboard"](tmp_path, False)
    for step in range(2):
        log.write({"step": step, "loss": 1.0 - step / 2})
    log.close()
    found = EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    assert [(each.step, each.value) for each in found.Scalars("loss")] == [(0, 1.0), (1, 0.5)]


def test_wandb_writes_an_offline_run(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="needs wandb: pip install 'trainyard-ml[wandb]'")
    monkeypatch.setenv("WANDB_SILENT", "true")
    log = LOGS["wandb"](tmp_path, False)
    log.write({"step": 0, "loss": 1.0})
    log.close()
    assert list((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
