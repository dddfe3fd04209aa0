"""Files of a served folder that ask for too much, for other files, or for code: each is one error, and costs little."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file

from trainyard.cli.main import main
from trainyard.serve.errors import ServeError
from trainyard.serve.run import model_check
from trainyard.serve.run.causal_model import load_causal_model
from trainyard.serve.run.embedding_model import UNUSED_WEIGHTS
from trainyard.serve.run.folder_files import check_files
from trainyard.serve.run.model_check import check_model
from trainyard.serve.run.model_tokenizer import ModelTokenizer
from trainyard.serve.run.pooling import read_pooling

Change = Callable[[Path], object]
_MIB = 1 << 20
_DEEP = "[" * 100_000
_INDEX = "model.safetensors.index.json"


@pytest.fixture
def changed(folder: Path, tmp_path: Path) -> Path:
    """A folder of the small model, to be changed."""
    return Path(shutil.copytree(folder, tmp_path / "changed"))


def _fields(name: str = "config.json", **fields: Any) -> Change:
    def change(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))

    return change


def _text(name: str, text: str) -> Change:
    return lambda folder: (folder / name).write_text(text)


def _large(name: str) -> Change:
    """A file of 1 GiB that takes no room on the disk."""

    def change(folder: Path) -> None:
        with (folder / name).open("wb") as file:
            file.truncate(1 << 30)

    return change


def _device(name: str) -> Change:
    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to("/dev/zero")

    return change


def _pipe(name: str) -> Change:
    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return change


def _header(text: bytes, num_bytes: int | None = None) -> Change:
    """Weights that are a header alone."""
    size = struct.pack("<Q", len(text) if num_bytes is None else num_bytes)
    return lambda folder: (folder / "model.safetensors").write_bytes(size + text)


def _shards(**names: Any) -> Change:
    """Weights in a shard, of which an index names another file."""

    def change(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "one.safetensors")
        (folder / _INDEX).write_text(
            json.dumps({"metadata": {}, "weight_map": {"lm_head.weight": "one.safetensors"} | names})
        )

    return change


def _weights(**tensors: torch.Tensor) -> Change:
    """Other weights, and those that there were."""

    def change(folder: Path) -> None:
        path = folder / "model.safetensors"
        save_file(load_file(path) | tensors, path, metadata={"format": "pt"})

    return change


def _pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(_Touch(folder / "ran")))


class _Touch:
    """Makes a file when it is read."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self._path,)


_CONFIGURATIONS: dict[str, tuple[Change, str]] = {
    "tokens": (_fields(vocab_size=10**12), "asks for 128,000,000,074,048 weights, and the safetensors have 202,048"),
    "layers": (_fields(num_hidden_layers=10**7), "num_hidden_layers 10000000, and the safetensors have 21 tensors"),
    "list of layers": (_fields(num_labels=10**9), "takes more than"),
    "no heads": (_fields(num_attention_heads=0), "fails with ZeroDivisionError"),
    "heads in words": (_fields(num_attention_heads="4"), "expected int, got str"),
    "negative width": (_fields(head_dim=-16), "negative dimension"),
    "positions": (_fields(rope_parameters=[1]), "rope_parameters"),
    "kernel": (_fields(text_config={"_attn_implementation": "some/kernel"}), "allowed is one of eager, sdpa, or none"),
    "packed": (_fields(quantization_config={"quant_method": "gptq"}), "quant_method 'gptq'; allowed are"),
    "packed in a part": (_fields(text_config={"quantization_config": {}}), "allowed is one for the whole model"),
    "weights elsewhere": (_fields(transformers_weights="../other.safetensors"), "has transformers_weights"),
    "code": (
        _fields(model_type="own", auto_map={"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"}),
        "contains custom code",
    ),
    "kind": (_fields(model_type=["llama"]), "unhashable"),
    "adapter": (_text("adapter_config.json", '{"base_model_name_or_path": "other"}'), "give the model without it"),
    "deep": (_text("config.json", _DEEP), "too deep in each other"),
    "twice": (_text("config.json", '{"vocab_size": 1, "vocab_size": 2}'), "stands twice"),
    "no number": (_text("config.json", '{"vocab_size": NaN}'), "finite number"),
    "list": (_text("config.json", "[]"), "allowed is a JSON object"),
    "large": (_large("generation_config.json"), "more than 16,777,216 bytes"),
    "large text": (_large("tokenizer.json"), "has 1,073,741,824 bytes; allowed are 67,108,864"),
    "device": (_device("config.json"), "is no plain file"),
    "pipe": (_pipe("generation_config.json"), "is no plain file"),
}  # fmt: skip
_WEIGHTS: dict[str, tuple[Change, str]] = {
    "header": (_header(b"{}", 2**63), "its header has 9,223,372,036,854,775,808 bytes"),
    "cut off": (_header(b"{}", 1000), "invalid header length"),
    "overlap": (
        _header(b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}'),
        "invalid offset",
    ),
    "beyond": (_header(b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'), "not fully covered"),
    "some": (_weights(**{"lm_head.weight": torch.zeros(7, 64)}), "asks for 202,048 weights, and the safetensors have"),
    "outside": (_shards(a="../../../etc/passwd"), "names '../../../etc/passwd'; allowed are files of its folder"),
    "absolute": (_shards(a="/etc/passwd"), "names '/etc/passwd'; allowed are files of its folder"),
    "no name": (_shards(a=5), "names 5; allowed are files of its folder"),
    "missing": (_shards(a="two.safetensors"), "has no two.safetensors, which"),
    "device": (_device("model.safetensors"), "is no plain file"),
    "pipe": (_pipe("model.safetensors"), "is no plain file"),
    "pickled": (_pickled, "has no weights as safetensors"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "says"), [*_CONFIGURATIONS.values(), *_WEIGHTS.values()], ids=[*_CONFIGURATIONS, *_WEIGHTS]
)
def test_folder_that_asks_for_what_it_has_not_is_one_error(changed: Path, change: Change, says: str):
    change(changed)
    before = psutil.Process().memory_info().rss
    with pytest.raises(ServeError, match=re.escape(says)) as error:
        check_model(changed, "causal", torch.float32)
    assert "ServeError" not in str(error.value)
    assert psutil.Process().memory_info().rss - before < 200 * _MIB
    assert not (changed / "ran").exists()


def test_the_command_ends_with_one_line(changed: Path, capsys: pytest.CaptureFixture[str]):
    _fields(num_attention_heads="4", max_position_embeddings="many")(changed)
    assert main(["serve", "run", str(changed), "--port", "0"]) == 2
    told = [line for line in capsys.readouterr().err.splitlines() if "loading" not in line]
    assert len(told) == 1
    assert told[0].startswith("error: ")


def test_folder_as_it_should_be_is_taken_and_code_beside_it_does_not_run(changed: Path):
    _fields(auto_map={"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"}, torch_dtype="own")(changed)
    (changed / "own.py").write_text(f"open({str(changed / 'ran')!r}, 'w')")
    _shards()(changed)
    check_model(changed, "causal", torch.float32)
    assert load_causal_model(changed).vocabulary == 1000
    assert not (changed / "ran").exists()


def test_weights_need_not_be_there_that_are_not_used(encoder: Path, tmp_path: Path):
    check_model(encoder, "embedding", torch.float32, UNUSED_WEIGHTS)
    path = Path(shutil.copytree(encoder, tmp_path / "encoder"))
    _fields(max_position_embeddings=10**12)(path)
    with pytest.raises(ServeError, match="json asks for"):
        check_model(path, "embedding", torch.float32, UNUSED_WEIGHTS)


def test_model_that_is_larger_than_the_memory_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch):
    free = psutil.virtual_memory()._replace(available=202_048 * 4 - 1)
    monkeypatch.setattr(model_check.psutil, "virtual_memory", lambda: free)
    check_model(folder, "causal", torch.bfloat16)
    with pytest.raises(ServeError, match="of memory are free; give a smaller model"):
        check_model(folder, "causal", torch.float32)


def test_weights_are_looked_at_however_large_they_are(changed: Path):
    path = changed / "model.safetensors"
    num = int.from_bytes(path.read_bytes()[:8], "little")
    header = json.loads(path.read_bytes()[8 : 8 + num])
    end = max(each["data_offsets"][1] for name, each in header.items() if name != "__metadata__")
    header["more"] = {"dtype": "F32", "shape": [2**30], "data_offsets": [end, end + 2**32]}
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(file.tell() + end + 2**32)
    check_model(changed, "causal", torch.float32)


def test_weights_of_another_shape_are_named(changed: Path):
    _weights(**{"model.norm.weight": torch.zeros(65)})(changed)
    check_model(changed, "causal", torch.float32)
    with pytest.raises(ServeError, match=r"model\.norm\.weight of shape \[65\]; config.json says \[64\]"):
        load_causal_model(changed)


@pytest.mark.parametrize(
    "tokens", [list(range(2000)), "x", [[1]], {"a": 1}, -1, True], ids=["many", "text", "list", "dict", "-1", "true"]
)  # fmt: skip
def test_tokens_that_end_an_answer_are_few_numbers(changed: Path, tokens: Any):
    path = changed / "generation_config.json"
    path.write_text(json.dumps({"eos_token_id": tokens}))
    with pytest.raises(ServeError, match="has eos_token_id"):
        ModelTokenizer(changed)
    path.write_text(json.dumps({"eos_token_id": [5, 10**30]}))
    assert ModelTokenizer(changed).stop_token_ids == {0, 5}


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("tokenizer_config.json", "[]", "allowed is a JSON object"),
        ("tokenizer_config.json", _DEEP, "too deep in each other"),
        ("tokenizer_config.json", '{"tokenizer_class": 5}', "cannot be read: AttributeError"),
        ("tokenizer_config.json", '{"extra_special_tokens": {"a": [5]}}', "cannot be read"),
        ("tokenizer.json", _DEEP, "cannot be read: RecursionError"),
        ("config.json", '{"vocab_size": 1e30}', "allowed are 1 to 10,000,000"),
    ],
)
def test_tokenizer_that_cannot_be_is_refused(changed: Path, name: str, text: str, says: str):
    (changed / name).write_text(text)
    with pytest.raises(ServeError, match=says):
        ModelTokenizer(changed)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("modules.json", _DEEP, "too deep in each other"),
        ("modules.json", "{}", "allowed is a JSON list"),
        (
            "modules.json",
            '[{"type": "a.Transformer", "path": ""}, {"type": "a.Pooling", "path": "../../etc"}]',
            "allowed is one beside it",
        ),
        ("1_Pooling/config.json", _DEEP, "too deep in each other"),
        ("sentence_bert_config.json", '{"max_seq_length": 1e400}', "finite number"),
    ],
)
def test_pooling_that_cannot_be_is_refused(encoder: Path, tmp_path: Path, name: str, text: str, says: str):
    path = Path(shutil.copytree(encoder, tmp_path / "encoder"))
    (path / name).write_text(text)
    with pytest.raises(ServeError, match=says):
        read_pooling(path)


def test_files_that_others_read_are_left_alone(changed: Path):
    (changed / "trainer_state.json").write_text(_DEEP)
    check_files(changed)
