"""Exported weights load with strict=True into the module that was trained, in one file or several."""

import json

import pytest
import torch
import whole_module
from safetensors.torch import load_file

from trainyard.job.optimizer import OptimizerConfig
from trainyard.job.run.checkpoint.weights import load_weights, read_weights
from trainyard.job.run.config import TrainConfig
from trainyard.job.run.errors import WeightsError
from trainyard.job.run.export.weight_files import export_safetensors, export_state_dict, read_state_dict
from trainyard.job.task import Task


def _check(module, state):
    module.load_state_dict(state, strict=True)
    for name, value in whole_module.expected().items():
        assert state[name].dtype == value.dtype
        assert state[name].shape == value.shape
        torch.testing.assert_close(state[name], value)


def test_safetensors_have_all_of_a_state_dict(tmp_path):
    model, folder = whole_module.trained(tmp_path / "run")
    (file,) = export_safetensors(read_state_dict(folder), tmp_path / "out")
    assert file == tmp_path / "out" / "model.safetensors"
    assert [each.name for each in (tmp_path / "out").iterdir()] == ["model.safetensors"]
    _check(model.module, load_file(file))


def test_a_state_dict_is_one_file_with_tied_weights_once(tmp_path):
    model, folder = whole_module.trained(tmp_path / "run")
    file = export_state_dict(read_state_dict(folder), tmp_path / "out" / "x.pt")
    state = torch.load(file, weights_only=True)
    assert state["tokens.weight"].data_ptr() == state["head.weight"].data_ptr()
    _check(model.module, state)


def test_types_are_those_of_the_module(tmp_path):
    _, folder = whole_module.trained(tmp_path / "run", dtype=torch.bfloat16)
    (file,) = export_safetensors(read_state_dict(folder), tmp_path / "out")
    found = load_file(file)
    assert found["tokens.weight"].dtype == torch.bfloat16
    assert found["norm.num_batches_tracked"].dtype == torch.int64
    assert (
        torch.load(export_state_dict(read_state_dict(folder), tmp_path / "x.pt"))["norm.weight"].dtype
        == torch.bfloat16
    )


@pytest.mark.parametrize("write", [export_safetensors, export_state_dict])
def test_the_moving_average_is_written_in_place_of_the_weights(write, tmp_path):
    own = whole_module.model()
    optimizer = OptimizerConfig("sgd", lr=0.5, ema_decay=0.75)
    config = TrainConfig(2, optimizer, checkpoint=tmp_path / "run", checkpoint_every=1)
    whole_module.train_here(own, whole_module.plan(Task(own)), whole_module.DATA, config)
    first, second = whole_module.expected(1), whole_module.expected(2)
    written = write(read_state_dict(tmp_path / "run", ema=True), tmp_path / "out")
    state = load_file(written[0]) if isinstance(written, list) else torch.load(written)
    assert state.keys() == second.keys()
    for name in state:
        is_trained = name in (*whole_module.TIED, "norm.weight", "norm.bias")
        expected = torch.lerp(first[name], second[name], 0.25) if is_trained else second[name]
        torch.testing.assert_close(state[name], expected, msg=name)


def test_a_moving_average_that_is_not_there_is_refused(tmp_path):
    _, folder = whole_module.trained(tmp_path / "run")
    with pytest.raises(WeightsError, match=r"step-00000003 has no moving average; train with ema_decay"):
        export_safetensors(read_state_dict(folder, ema=True), tmp_path / "out")
    file = export_state_dict(read_state_dict(folder), tmp_path / "x.pt")
    with pytest.raises(WeightsError, match=r"x\.pt is no checkpoint of Trainyard, which keeps the moving"):
        read_weights(file, ema=True)


def test_large_weights_are_in_several_files_with_an_index(tmp_path):
    model, folder = whole_module.trained(tmp_path / "run")
    files = export_safetensors(read_state_dict(folder), tmp_path / "out", most_shard_bytes=400)
    num = len(files)
    names = [f"model-0000{i}-of-0000{num}.safetensors" for i in range(1, num + 1)]
    assert num > 2
    assert [file.name for file in files] == names
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    found = {}
    for file in files:
        part = load_file(file)
        assert len(part) == 1 or sum(value.nbytes for value in part.values()) <= 400
        assert {name for name, home in index["weight_map"].items() if home == file.name} == part.keys()
        found |= part
    assert index["metadata"]["total_size"] == sum(value.nbytes for value in found.values())
    _check(model.module, found)
    module = whole_module.model().module
    load_weights(module, tmp_path / "out")
    _check(module, module.state_dict())


def test_what_exists_is_not_written_over_and_nothing_is_left_of_a_failure(tmp_path, monkeypatch):
    _, folder = whole_module.trained(tmp_path / "run", 1)
    (tmp_path / "x.pt").write_text("mine")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("mine")
    with pytest.raises(WeightsError, match=r"x.pt exists already; give another --output"):
        export_state_dict(read_state_dict(folder), tmp_path / "x.pt")
    with pytest.raises(WeightsError, match="out exists already"):
        export_safetensors(read_state_dict(folder), tmp_path / "out")
    assert (tmp_path / "x.pt").read_text() == "mine"

    monkeypatch.setattr("trainyard.job.run.export.weight_files.save_file", _fail)
    with pytest.raises(OSError, match="full"):
        export_safetensors(read_state_dict(folder), tmp_path / "other")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["out", "run", "x.pt"]


def _fail(*_, **__):
    raise OSError("full")
