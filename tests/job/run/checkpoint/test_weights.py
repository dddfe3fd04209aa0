"""Weights are read from every usual form without running code, and loaded into a module or refused by name."""

import json
import pickle

import pytest
import torch
import whole_module
from safetensors.torch import save_file

from trainyard.job.run.checkpoint.saved import newest_complete, read_run, write_run
from trainyard.job.run.checkpoint.weights import load_weights, read_weights
from trainyard.job.run.errors import CheckpointError, WeightsError

TENSORS = {
    "a": torch.arange(6.0).reshape(2, 3),
    "b": torch.tensor(3),
    "c": torch.ones(2, dtype=torch.bfloat16),
}


class _Evil:
    def __reduce__(self):
        return exec, ("raise SystemExit('code was run')",)


def _index(folder, weight_map, name="model.safetensors.index.json"):
    (folder / name).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def _sharded(folder):
    save_file({"a": TENSORS["a"]}, folder / "one.safetensors")
    save_file({name: TENSORS[name] for name in "bc"}, folder / "two.safetensors")
    return _index(folder, {"a": "one.safetensors", "b": "two.safetensors", "c": "two.safetensors"})


def _pickled(file, zipped=True):
    torch.save(TENSORS, file, _use_new_zipfile_serialization=zipped)
    return file


def _saved(file):
    save_file(TENSORS, file)
    return file


FORMS = {
    "safetensors": lambda folder: _saved(folder / "x.safetensors"),
    "folder": lambda folder: _saved(folder / "model.safetensors").parent,
    "shards": _sharded,
    "state dict": lambda folder: _pickled(folder / "x.pt"),
    "state dict in PyTorch's older form": lambda folder: _pickled(folder / "x.pt", zipped=False),
    "folder of a state dict": lambda folder: _pickled(folder / "pytorch_model.bin").parent,
    "shards of a state dict": lambda folder: _index(
        _pickled(folder / "x.bin").parent, dict.fromkeys("abc", "x.bin"), "pytorch_model.bin.index.json"
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_reads_every_form(form, tmp_path):
    found = read_weights(FORMS[form](tmp_path))
    assert sorted(found) == ["a", "b", "c"]
    assert dict(found.shapes) == {name: tuple(value.shape) for name, value in TENSORS.items()}
    for name, value in TENSORS.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value)
    assert "d" not in found


def _written(name, content):
    def write(folder):
        (folder / name).write_bytes(content)
        return folder / name

    return write


REFUSED = {
    "nothing": (lambda folder: folder / "none.pt", "none.pt.* allowed is a folder of Hugging Face"),
    "another kind": (_written("x.txt", b"1"), "x.txt is of no known kind; allowed is"),
    "empty folder": (lambda folder: folder, "has no weights; allowed is"),
    "code": (lambda folder: torch.save({"a": _Evil()}, folder / "x.pt") or folder / "x.pt", r"save model.state_dict"),
    "code in a plain pickle": (_written("x.pt", pickle.dumps({"a": _Evil()}, 2)), r"save model.state_dict\(\) by itself"),
    "no tensors": (lambda folder: torch.save({"epoch": 1}, folder / "x.pt") or folder / "x.pt", "no mapping from names"),
    "no safetensors": (_written("x.safetensors", b"12345678901234567890"), "x.safetensors cannot be read"),
    "files elsewhere": (lambda folder: _index(folder, {"a": "../x.safetensors"}), "files beside it"),
    "no map": (lambda folder: _index(folder, []), "files beside it"),
    "twice": (
        lambda folder: _index(_saved(folder / "x.safetensors").parent, {"a": "x.safetensors", "b": _copy(folder)}),
        "has a tensor in two files",
    ),
}  # fmt: skip


def _copy(folder):
    (folder / "y.safetensors").write_bytes((folder / "x.safetensors").read_bytes())
    return "y.safetensors"


@pytest.mark.parametrize("case", REFUSED)
def test_refuses(case, tmp_path):
    make, message = REFUSED[case]
    with pytest.raises(WeightsError, match=message):
        read_weights(make(tmp_path))


def test_a_checkpoint_has_every_name_of_the_module(tmp_path):
    model, folder = whole_module.trained(tmp_path)
    found, expected = read_weights(folder), whole_module.expected()
    assert set(found) == {*expected, "scale"}
    for name, value in expected.items():
        assert found[name].shape == value.shape
        torch.testing.assert_close(found[name], value)
    assert torch.equal(found["scale"], model.module.scale)


def test_loads_into_a_module_in_place_and_keeps_what_is_tied(tmp_path):
    model, folder = whole_module.trained(tmp_path)
    module, expected = model.module.double(), whole_module.expected()
    weight = module.head.weight
    load_weights(module, folder)
    assert module.head.weight is module.tokens.weight is weight
    assert weight.dtype == torch.float64
    for name, value in module.state_dict().items():
        torch.testing.assert_close(value.to(expected[name].dtype), expected[name])


def test_loads_into_a_module_on_the_meta_device(tmp_path):
    _, folder = whole_module.trained(tmp_path)
    with torch.device("meta"):
        module = whole_module.Whole()
    module.unused.requires_grad_(False)
    load_weights(module, folder)
    assert module.head.weight is module.tokens.weight
    assert module.head.weight.requires_grad
    assert not module.unused.requires_grad
    assert isinstance(module.unused, torch.nn.Parameter)
    assert torch.equal(module.scale, torch.full((8,), 1.5))
    for name, value in whole_module.expected().items():
        torch.testing.assert_close(module.state_dict()[name], value)


def test_one_name_of_tied_weights_is_enough_and_buffers_of_no_state_dict_may_lack(tmp_path):
    module = whole_module.model().module
    state = {name: torch.zeros_like(value) for name, value in module.state_dict().items()}
    del state["head.weight"]
    save_file(state, tmp_path / "model.safetensors")
    load_weights(module, tmp_path)
    assert not module.head.weight.any()
    assert module.scale.all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("norm.bias"), "has no norm.bias, which the module has; give"),
        (lambda state: state.update(x=torch.ones(1)), "has x, which the module does not have; give"),
        (lambda state: state.update(unused=torch.ones(4)), r"unused has shape \(4,\) in .* and \(3,\) in the"),
    ],
)  # fmt: skip
def test_nothing_is_loaded_where_something_differs(change, message, tmp_path):
    module = whole_module.model().module
    state = {name: torch.zeros_like(value) for name, value in module.state_dict().items()}
    change(state)
    torch.save(state, tmp_path / "x.pt")
    with pytest.raises(WeightsError, match=message):
        load_weights(module, tmp_path / "x.pt")
    assert module.tokens.weight.abs().sum() > 0


def _record(*fields):
    return lambda run: run["module"]["tensors"].update(unused=list(fields))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda run: run.pop("module"), r"no record of its module's tensors; continue its run"),
        (lambda run: run.update(module=[]), "its record of the module is wrong"),
        (_record("param/unused", "float3", [3], True), "type 'float3'"),
        (_record("param/unused", "float32", [-3], True), "no shape"),
        (_record("param/other", "float32", [3], True), "no tensor param/other"),
        (_record("param/unused", "float32", [4], True), r"of shape \(4,\)"),
        (_record("param/unused", "float32", [3], 1), "no yes or no"),
        (lambda run: run["module"].update(transformers_config=3), "transformers_config is a int"),
    ],
)  # fmt: skip
def test_a_wrong_record_is_refused(change, message, tmp_path):
    _, folder = whole_module.trained(tmp_path, 1)
    checkpoint = newest_complete(folder)
    described = read_run(checkpoint)
    change(described)
    write_run(checkpoint, described)
    with pytest.raises(CheckpointError, match=message):
        read_weights(folder)


def test_a_damaged_checkpoint_is_refused(tmp_path):
    _, folder = whole_module.trained(tmp_path, 1)
    file = newest_complete(folder) / "rank-00000.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match="its checksum is not the one written"):
        read_weights(folder)
