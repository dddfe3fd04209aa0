"""Files of a served folder: plain files within limits, and nothing in them that has other files or code loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trainyard.reading import parse_json, raised_as, read_text, shown
from trainyard.reading.limits import MOST_BYTES
from trainyard.serve.errors import ServeError

__all__ = [
    "TensorHeader",
    "check_files",
    "check_header",
    "read_json",
    "tensor_headers",
    "weight_files",
]

_MIB = 1 << 20
_MOST_TOKENIZER_BYTES = 64 * _MIB  # the largest that is known has 33 MiB
_CONFIG, _WEIGHTS, _INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
_JSON = (
    _CONFIG,
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
_TEXTS = ("tokenizer.json", "vocab.json", "merges.txt", "vocab.txt", "chat_template.jinja")
_IMPLEMENTATIONS = frozenset(
    {
        "attn_implementation",
        "_attn_implementation",
        "_attn_implementation_internal",
        "experts_implementation",
        "_experts_implementation",
        "_experts_implementation_internal",
    }
)
_ALLOWED_IMPLEMENTATIONS = (None, "eager", "sdpa")
_REFUSED = {
    "transformers_weights": f"give weights as {_WEIGHTS}",
    "quantization_config": "allowed is one for the whole model, beside its other fields",
}


class TensorHeader(NamedTuple):
    """The type and sizes of a tensor in a file of safetensors, as its header has them.

    Attributes
    ----------
    dtype : as safetensors calls it, such as "BF16".
    shape : its sizes.
    """

    dtype: str
    shape: tuple[int, ...]


def tensor_headers(file: Any) -> dict[str, TensorHeader]:
    """Return the headers of all tensors of a file, by name.

    Parameters
    ----------
    file : of safetensors, open.
    """
    found = {}
    for name in file.keys():  # noqa: SIM118
        tensor = file.get_slice(name)
        found[name] = TensorHeader(tensor.get_dtype(), tuple(tensor.get_shape()))
    return found


def read_json(path: Path, kind: type[dict[str, Any]] | type[list[Any]] = dict) -> Any:
    """A JSON document of a folder; empty where there is no such file.

    Parameters
    ----------
    kind : of the document, an object or a list.

    Raises
    ------
    ServeError
        If it is no plain file, breaks the limits of `trainyard.reading`, or is of another kind.
    """
    if not path.exists():
        return kind()
    _require_plain(path)
    with raised_as(ServeError):
        found = parse_json(read_text(path), path)
    if not isinstance(found, kind):
        raise ServeError(
            f"{path} is {shown(found)}; allowed is a JSON {'list' if kind is list else 'object'}"
        )
    return found


def check_files(folder: Path) -> None:
    """Refuse a folder whose configuration or tokenizer are not within limits, before anything reads them.

    Raises
    ------
    ServeError
        Names the file, and says what is allowed.
    """
    if not (folder / _CONFIG).exists():
        raise ServeError(f"{folder} has no {_CONFIG}; give a folder in Hugging Face form")
    for name in _JSON:
        read_json(folder / name)
    for path in (*(folder / name for name in _TEXTS), *folder.glob("additional_chat_templates/*")):
        if path.exists():
            _require_plain(path)
            if (size := path.stat().st_size) > _MOST_TOKENIZER_BYTES:
                raise ServeError(f"{path} has {size:,} bytes; allowed are {_MOST_TOKENIZER_BYTES:,}")


def weight_files(folder: Path) -> Sequence[Path]:
    """The files with the weights of a model. Nothing that the folder says has weights or code read from elsewhere.

    Raises
    ------
    ServeError
        If it has none as safetensors, or asks for what is not done.
    """
    if (folder / "adapter_config.json").exists():
        raise ServeError(
            f"{folder} has an adapter_config.json; give the model without it, and the adapter by --lora-modules"
        )
    _check_config(folder / _CONFIG)
    found = [folder / _WEIGHTS]
    if not found[0].exists():
        if not (folder / _INDEX).exists():
            raise ServeError(
                f"{folder} has no weights as safetensors ({_WEIGHTS}, or {_INDEX} and what it names); allowed is this "
                "format only"
            )
        found = [folder / name for name in _names_of_index(folder / _INDEX)]
    for path in found:
        if not path.exists():
            raise ServeError(f"{folder} has no {path.name}, which {_INDEX} names; give all of its weights")
        check_header(path)
    return found


def check_header(path: Path) -> None:
    """Refuse a file of safetensors whose header, with the names and shapes of all tensors, is too large to be read.

    Raises
    ------
    ServeError
        If it is, or the path is no plain file.
    """
    _require_plain(path)
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
    if size > MOST_BYTES:
        raise ServeError(f"{path} says that its header has {size:,} bytes; allowed are {MOST_BYTES:,}")


def _names_of_index(path: Path) -> Sequence[str]:
    """The files that an index names; they lie beside it."""
    given = read_json(path).get("weight_map")
    if not isinstance(given, dict) or not given:
        raise ServeError(f"{path} has no weight_map; give the index as transformers saves it")
    for name in given.values():
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise ServeError(f"{path} names {shown(name)}; allowed are files of its folder, NAME.safetensors")
    return sorted(set(given.values()))


def _check_config(path: Path) -> None:
    given = read_json(path)
    given.pop("quantization_config", None)  # see `trainyard.serve.run.quantized_weights`
    for name, value in _fields(given):
        if name in _IMPLEMENTATIONS and value not in _ALLOWED_IMPLEMENTATIONS:
            allowed = ", ".join(each for each in _ALLOWED_IMPLEMENTATIONS if each)
            raise ServeError(f"{path}: {name} is {shown(value)}; allowed is one of {allowed}, or none")
        if name in _REFUSED and value is not None:
            raise ServeError(f"{path} has {name}, which is not done; {_REFUSED[name]}")


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    """All fields of a document, however deep."""
    waiting = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, Mapping):
            yield from found.items()
            waiting += found.values()
        elif isinstance(found, list):
            waiting += found


def _require_plain(path: Path) -> None:
    """Refuse pipes and devices, which may have no end."""
    if not path.is_file():
        raise ServeError(f"{path} is no plain file; give one")
