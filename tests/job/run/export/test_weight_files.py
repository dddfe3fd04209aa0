"""Exported weights load with strict=True into the module that was trained, in one file or several."""

import json

import pytest
import torch
import whole_module
from safetensors.torch import load_file

from trainyard.job.run.checkpoint.weights import load_weights
from trainyard.job.run.errors import WeightsError
from trainyard.job.run.export.weight_files import export_safetensors, export_state_dict


def _check(module, state):
    module.load_state_dict(state, strict=True)
    for name, value in whole_module.expected().items():
        assert state[name].dtype == value.dtype
        assert state[name].shape == value.shape
        torch.testing.assert_close(state[name], value)


def test_safetensors_have_all_of_a_state_dict(tmp_path):
    model, folder = whole_module.trained(tmp_path / "run")
    (file,) = export_safetensors(folder, tmp_path / "out")
    assert file == tmp_path / "out" / "model.safetensors"
    assert [each.name for each in (tmp_path / "out").iterdir()] == ["model.safetensors"]
    _check(model.module, load_file(file))


def test_a_state_dict_is_one_file_with_tied_weights_once(tmp_path):
    model, folder = whole_module.trained(tmp_path / "run")
    file = export_state_dict(folder, tmp_path / "out" / "x.pt")
    state = torch.load(file, weights_only=True)
    assert state["tokens.weight"].data_ptr() == state["head.weight"].data_ptr()
    _check(model.module, state)


def test_types_are_those_of_the_module(tmp_path):
    _, folder = whole_module.trained(tmp_path / "run", dtype=torch.bfloat16)
    (file,) = export_safetensors(folder, tmp_path / "out")
    found = load_file(file)
    assert found["tokens.weight"].dtype == torch.bfloat16
    assert found["norm.num_batches_tracked"].dtype == torch.int64
    assert torch.load(export_state_dict(folder, tmp_path / "x.pt"))["norm.weight"].dtype == torch.bfloat16


def test_large_weights_are_in_several_files_with_an_index(tmp_path):
    model, folder = whole_module.trained(tmp_path / "run")
    files = export_safetensors(folder, tmp_path / "out", most_shard_bytes=400)
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
        export_state_dict(folder, tmp_path / "x.pt")
    with pytest.raises(WeightsError, match="out exists already"):
        export_safetensors(folder, tmp_path / "out")
    assert (tmp_path / "x.pt").read_text() == "mine"

    monkeypatch.setattr("trainyard.job.run.export.weight_files.save_file", _fail)
    with pytest.raises(OSError, match="full"):
        export_safetensors(folder, tmp_path / "other")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["out", "run", "x.pt"]


def _fail(*_, **__):
    raise OSError("full")
