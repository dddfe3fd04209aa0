"""Whatever happens to one file of a checkpoint, an older whole one is used and it is said why, or nothing goes on."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import one_rank
import pytest
import torch
from safetensors.torch import load_file

from trainyard.job.run.checkpoint import folders
from trainyard.job.run.checkpoint.folders import read_whole
from trainyard.job.run.checkpoint.saved import complete_steps, path_of, read_run, write_run
from trainyard.job.run.errors import CheckpointError

STEPS = 5
FILES = ("run.json", "run.json.crc32", "rank-00000.safetensors")


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with checkpoints of steps 2 and 4."""
    folder = tmp_path_factory.mktemp("kept")
    one_rank.run(folder, 4, checkpoint_every=2)
    assert complete_steps(folder) == [4, 2]
    return folder


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    folder = tmp_path_factory.mktemp("undisturbed")
    one_rank.run(folder, STEPS)
    return read_whole(path_of(folder, STEPS))


@pytest.fixture
def folder(kept: Path, tmp_path: Path) -> Path:
    """A copy to be damaged."""
    return Path(shutil.copytree(kept, tmp_path / "copy"))


def flipped(at: float, bit: int) -> Callable[[Path], None]:
    def change(file: Path) -> None:
        content = bytearray(file.read_bytes())
        content[min(int(at * len(content)), len(content) - 1)] ^= 1 << bit
        file.write_bytes(content)

    return change


def cut(part: float) -> Callable[[Path], None]:
    return lambda file: os.truncate(file, int(part * file.stat().st_size))


def same_length(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


def longer(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"\n")


def a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def a_link(file: Path) -> None:
    file.rename(file.parent.parent / "elsewhere")
    file.symlink_to(file.parent.parent / "elsewhere")


def older(file: Path) -> None:
    shutil.copy(path_of(file.parent.parent, 2) / file.name, file)


DAMAGES: dict[str, Callable[[Path], None]] = {
    **{f"flipped at {at:.0%}": flipped(at, bit) for at, bit in ((0, 0), (0.3, 7), (0.6, 1), (1, 6))},
    **{f"cut to {part:.0%}": cut(part) for part in (0, 0.99)},
    "deleted": Path.unlink,
    "zeros": same_length,
    "longer": longer,
    "a folder": a_folder,
    "a link": a_link,
    "of another step": older,
}


@pytest.mark.parametrize("name", FILES)
def test_any_damage_of_any_file_is_passed_over_and_said(
    name: str, kept: Path, tmp_path: Path, undisturbed: dict[str, torch.Tensor]
) -> None:
    for i, (what, damages) in enumerate(DAMAGES.items()):
        folder = Path(shutil.copytree(kept, tmp_path / str(i)))
        damages(path_of(folder, 4) / name)
        ready, _ = one_rank.run(folder, STEPS, resume=True)
        assert (ready.step, len(ready.notes)) == (2, 1), what
        assert str(path_of(folder, 4)) in ready.notes[0]
        found = read_whole(path_of(folder, STEPS))
        assert all(torch.equal(found[path], value) for path, value in undisturbed.items()), what
        # What is whole is not removed for what is not.
        assert path_of(folder, 2).is_dir()


def test_nothing_goes_on_where_all_are_damaged(folder: Path) -> None:
    (path_of(folder, 4) / "run.json").unlink()
    cut(0.5)(path_of(folder, 2) / "rank-00000.safetensors")
    with pytest.raises(CheckpointError, match=r"no undamaged checkpoint: .*step-00000004.*; .*step-00000002"):
        one_rank.run(folder, STEPS, resume=True)


def test_other_programs_read_the_tensors(folder: Path) -> None:
    file = path_of(folder, 4) / "rank-00000.safetensors"
    found, own = load_file(file), read_whole(path_of(folder, 4))
    assert all(torch.equal(found[f"param/{path}"], value) for path, value in own.items())
    assert found["buffer/layers.1.num_batches_tracked"].tolist() == [4]
    # All of the model is there, also what no step uses, and that as it was when the model was built.
    one_rank.run(folder, STEPS, resume=True)
    module, built = one_rank.model().module, one_rank.model().module.state_dict()
    whole = {
        key: value
        for field in ("param", "buffer")
        for key, value in read_whole(path_of(folder, 5), field).items()
    }
    module.load_state_dict(whole, strict=True)
    for key, value in module.state_dict().items():
        assert torch.equal(value, built[key]) == key.startswith(("unused", "limit", "notes")), key
    for each in path_of(folder, 4).iterdir():
        assert not each.stat().st_mode & 0o111


class Bomb:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self.file,)


def test_no_pickle_of_a_folder_is_read(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    went_off = tmp_path / "went off"
    bomb = pickle.dumps(Bomb(went_off))
    for name in (".metadata", "__0_0.distcp", "rank-00001.safetensors"):
        (path_of(folder, 4) / name).write_bytes(bomb)
    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, None)
    ready, _ = one_rank.run(folder, STEPS, resume=True)
    assert ready.step == 4
    assert not went_off.exists()
    # Nor where it takes the place of a file.
    for name in FILES:
        (path_of(folder, STEPS) / name).write_bytes(bomb)
        assert complete_steps(folder)[0] == 4
    with pytest.raises(CheckpointError, match="is damaged"):
        read_whole(path_of(folder, STEPS))
    assert not went_off.exists()


def changed(entry: str, **fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda said: said["tensors"][entry].update(fields)


WEIGHT = "param/layers.0.weight"
FILE = "rank-00000.safetensors"
HOSTILE: dict[str, Callable[[dict[str, Any]], None]] = {
    "a file outside": lambda said: said["files"].update({"../../../etc/passwd": said["files"][FILE]}),
    "a file by its root": lambda said: said["files"].update({"/etc/passwd": said["files"][FILE]}),
    "a box of an unknown file": changed(WEIGHT, boxes=[["rank-00007.safetensors", 0, [0, 0], [5, 3]]]),
    "a box of a file outside": changed(WEIGHT, boxes=[["../x", 0, [0, 0], [5, 3]]]),
    "a box beyond the file": changed(WEIGHT, boxes=[[FILE, 10**15, [0, 0], [5, 3]]]),
    "a box before the file": changed(WEIGHT, boxes=[[FILE, -8, [0, 0], [5, 3]]]),
    "a box beyond the tensor": changed(WEIGHT, boxes=[[FILE, 0, [1, 0], [5, 3]]]),
    "a box of other dimensions": changed(WEIGHT, boxes=[[FILE, 0, [0], [15]]]),
    "boxes that leave a gap": changed(WEIGHT, boxes=[[FILE, 0, [0, 0], [4, 3]]]),
    "the same box twice": changed(WEIGHT, boxes=[[FILE, 0, [0, 0], [5, 3]]] * 2),
    "a shape beyond memory": changed(WEIGHT, shape=[10**9, 10**9], boxes=[[FILE, 0, [0, 0], [10**9, 10**9]]]),
    "numbers of many digits": changed(WEIGHT, shape=[10**400, 1]),
    "a negative shape": changed(WEIGHT, shape=[-5, -3]),
    "a shape of texts": changed(WEIGHT, shape="53"),
    "a type that is a function": changed(WEIGHT, dtype="load"),
    "another shape": changed(WEIGHT, shape=[3, 5], boxes=[[FILE, 0, [0, 0], [3, 5]]]),
    "a tensor left out": lambda said: said["tensors"].pop(WEIGHT),
    "a tensor too many": lambda said: said["tensors"].update({"param/more": said["tensors"][WEIGHT]}),
    "tensors as a list": lambda said: said.update(tensors=[]),
    "no tensors": lambda said: said.pop("tensors"),
    "no settings": lambda said: said.pop("settings"),
    "a step that is text": lambda said: said.update(step="4"),
    "another step": lambda said: said.update(step=5),
    "moments of another optimizer": lambda said: said.update(fields=["param", "momentum_buffer"]),
}


SAID = {
    "a file outside": r"'\.\./\.\./\.\./etc/passwd' is no name of a file of tensors",
    "a file by its root": "'/etc/passwd' is no name of a file of tensors",
    "a box of an unknown file": r"layers\.0\.weight is wrong \(KeyError 'rank-00007\.safetensors'",
    "a box of a file outside": r"layers\.0\.weight is wrong \(KeyError '\.\./x'",
    "a box beyond the file": r"a box beyond the end of rank-00000\.safetensors",
    "a box before the file": r"no list of numbers from 0: \[-8\]",
    "a box beyond the tensor": r"a box at \(1, 0\) of \(5, 3\) in a tensor of \(5, 3\)",
    "a box of other dimensions": "a box of 1 dimensions in a tensor of 2",
    "boxes that leave a gap": r"its boxes are not all of a tensor of \(5, 3\)",
    "the same box twice": r"its boxes are not all of a tensor of \(5, 3\)",
    "a shape beyond memory": "a box beyond the end of",
    "numbers of many digits": r"no list of numbers from 0: \[10000",
    "a negative shape": r"no list of numbers from 0: \[-5, -3\]",
    "a shape of texts": "no list of numbers from 0: '53'",
    "a type that is a function": "unknown type 'load'",
    "another shape": r"layers\.0\.weight has shape \(3, 5\) there and \(5, 3\) here",
    "a tensor left out": r"the checkpoint has no layers\.0\.weight",
    "a tensor too many": "this model has no more",
    "tensors as a list": "its tensors is wrong",
    "no tensors": "KeyError 'tensors'",
    "no settings": "KeyError 'settings'",
    "a step that is text": "step is '4'",
    "another step": "it is of step 5",
    "moments of another optimizer": "keeps param, momentum_buffer, which this optimizer does not",
}
"""How each of them is named."""


@pytest.mark.parametrize("what", HOSTILE)
def test_what_cannot_be_is_refused(what: str, folder: Path) -> None:
    """With checksums that agree, as of someone who means harm."""
    said = read_run(path_of(folder, 4))
    HOSTILE[what](said)
    write_run(path_of(folder, 4), said)
    shutil.rmtree(path_of(folder, 2))
    with pytest.raises(CheckpointError, match=rf"step-00000004.*{SAID[what]}"):
        one_rank.run(folder, STEPS, resume=True)


def test_boxes_that_overlap_leave_no_hole_of_what_was_in_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = read_run(path_of(folder, 4))
    changed(WEIGHT, boxes=[[FILE, 0, [0, 0], [4, 3]], [FILE, 0, [0, 0], [1, 3]]])(said)
    write_run(path_of(folder, 4), said)
    monkeypatch.setattr(torch, "empty", lambda *size, **how: torch.full(*size, 7, **how))
    assert read_whole(path_of(folder, 4))["layers.0.weight"][4].tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("text", [b"[" * 100_000, b"[]", b"{", b"\xff", b'{"a": ' + b"9" * 5000 + b"}"])
def test_text_that_is_no_description_is_refused(text: bytes, folder: Path) -> None:
    checkpoint = path_of(folder, 4)
    (checkpoint / "run.json").write_bytes(text)
    (checkpoint / "run.json.crc32").write_text(f"{len(text)} {zlib.crc32(text)}\n")
    with pytest.raises(CheckpointError, match=r"run\.json cannot be read"):
        read_run(checkpoint)
    assert complete_steps(folder) == [2]


def test_a_description_says_all_that_a_resumption_reads(folder: Path) -> None:
    said = json.loads((path_of(folder, 4) / "run.json").read_text())
    assert said["settings"] == {
        "optimizer": "adamw", "lr": 0.01, "warmup_steps": 0, "betas": [0.9, 0.999], "eps": 1e-8, "momentum": 0.0,
        "weight_decay": 0.0, "clip_norm": 0.0, "seed": 0, "rows": 4, "dtype": "float32", "statistics": "batch",
    }  # fmt: skip
    assert said["options"]["steps"] == 4


class CrashError(BaseException):
    """The process is killed."""


@pytest.mark.parametrize("moment", [1, 2])
def test_a_crash_while_a_step_is_saved_again_leaves_it(
    moment: int, kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, calls = tmp_path / "kept", list[str]()
    shutil.copytree(kept, folder)

    def crash(source: Path, target: Path) -> None:
        calls.append(target.name)
        if len(calls) == moment:
            raise CrashError
        replace(source, target)

    replace = os.replace
    monkeypatch.setattr(
        folders, "damage", lambda path, *_: f"{path}: no answer" if "4" in path.name else None
    )
    monkeypatch.setattr(folders.os, "replace", crash)
    with pytest.raises(CrashError):
        one_rank.run(folder, 4, resume=True)
    assert calls == [".step-00000004.old", "step-00000004"][:moment]
    monkeypatch.undo()
    ready, _ = one_rank.run(folder, STEPS, resume=True)
    assert ready.step == 4
    assert not list(folder.glob(".step*"))
