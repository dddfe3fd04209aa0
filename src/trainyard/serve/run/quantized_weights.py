"""Weights of a folder that are kept in 8 or 4 bits, as the plain numbers that a model computes with.

Two forms are read. ``fp8``, of DeepSeek and Qwen: a matrix of float8_e4m3fn, and a factor for each of its blocks in
``NAME_scale_inv``. ``mxfp4``, of gpt-oss: ``NAME_blocks`` with two numbers of 4 bits (e2m1) in each byte, and
``NAME_scales`` with the exponent of each 32 numbers, plus 127.

References
----------
DeepSeek-AI, "DeepSeek-V3 Technical Report", arXiv 2412.19437, 2024, section 3.3.
Open Compute Project, "OCP Microscaling Formats (MX) Specification", version 1.0, 2023.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path
from types import EllipsisType
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor

from trainyard.reading import shown
from trainyard.serve.errors import ServeError
from trainyard.serve.run.folder_files import TensorHeader, read_json, tensor_headers

__all__ = ["Quantization", "Weight", "lazy_weights", "quantization_of", "weights_of"]

_FLOAT8 = "F8_E4M3"
_FP8_SCALES = ("F32", "BF16", "F16", "F8_E8M0")
_FP8_SCALE, _BLOCKS, _SCALES = "_scale_inv", "_blocks", "_scales"
_DEFAULT_BLOCK = (128, 128)
_MXFP4_BYTES = 16
"""Bytes of a block of 32 numbers."""
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_EXPONENT_OF_1 = 127
_PLAIN = frozenset({"F64", "F32", "BF16", "F16"})
_ALLOWED = (
    "allowed are weights of float32, bfloat16 or float16, or quantized by fp8 (as DeepSeek and Qwen) or mxfp4"
)


class Quantization(NamedTuple):
    """The quantization of the weights of a folder.

    Attributes
    ----------
    method : "fp8" or "mxfp4"; "" if none is.
    block : rows and columns that share a factor, with "fp8"; None if all of a matrix do.
    """

    method: str = ""
    block: tuple[int, int] | None = None


class Weight(NamedTuple):
    """A weight that a model computes with.

    Attributes
    ----------
    parts : names of the tensors of which it is made: itself, or quantized numbers and their scales.
    shape : its sizes.
    """

    parts: tuple[str, ...]
    shape: tuple[int, ...]


def quantization_of(folder: Path) -> Quantization:
    """Read the quantization of weights from ``config.json`` of a folder.

    Raises
    ------
    ServeError
        If they are quantized in a way that is not read.
    """
    given = read_json(folder / "config.json").get("quantization_config")
    if given is None:
        return Quantization()
    method = given.get("quant_method") if isinstance(given, dict) else None
    if method == "mxfp4":
        return Quantization("mxfp4")
    if method != "fp8":
        raise ServeError(
            f"{folder}/config.json has a quantization_config with quant_method {shown(method)}; {_ALLOWED}"
        )
    block = given.get("weight_block_size", _DEFAULT_BLOCK)
    if block is None:
        return Quantization("fp8")
    if not (
        isinstance(block, list | tuple)
        and len(block) == 2
        and all(type(each) is int and each > 0 for each in block)
    ):
        raise ServeError(
            f"{folder}/config.json has weight_block_size {shown(block)}; allowed are two numbers from 1 on, or null"
        )
    return Quantization("fp8", (block[0], block[1]))


def weights_of(
    headers: Mapping[str, TensorHeader], quantization: Quantization, folder: Path
) -> Mapping[str, Weight]:
    """Find the weights of a folder, each with the tensors of which it is made.

    Parameters
    ----------
    headers : all tensors of its files, by name.
    folder : for messages.

    Raises
    ------
    ServeError
        If numbers have no scales, or scales that do not fit.
    """
    found: dict[str, Weight] = {}
    for name, tensor in headers.items():
        if quantization.method == "mxfp4" and name.endswith(_BLOCKS):
            weight = name.removesuffix(_BLOCKS)
            found[weight] = _mxfp4_weight(weight, headers, folder)
        elif quantization.method == "fp8" and tensor.dtype == _FLOAT8:
            found[name] = _fp8_weight(name, headers, quantization, folder)
        elif tensor.dtype not in _PLAIN and (tensor.dtype.startswith("F") or name.endswith("weight")):
            raise ServeError(
                f"{folder} has {name} in {tensor.dtype} and does not say how it is scaled; {_ALLOWED}"
            )
    used = {part for weight in found.values() for part in weight.parts}
    plain = {
        name: Weight((name,), tensor.shape)
        for name, tensor in headers.items()
        if name not in found.keys() | used
    }
    return plain | found


def _mxfp4_weight(name: str, headers: Mapping[str, TensorHeader], folder: Path) -> Weight:
    """A weight of shape (experts, groups * 32, rows), of (experts, rows, groups, 16) bytes and a scale for each group."""
    blocks, scales = headers[name + _BLOCKS], headers.get(name + _SCALES)
    if (
        (blocks.dtype, len(blocks.shape)) != ("U8", 4)
        or blocks.shape[3] != _MXFP4_BYTES
        or scales != TensorHeader("U8", blocks.shape[:3])
    ):
        raise ServeError(
            f"{folder} has {name}{_BLOCKS} {_told(blocks)} and {name}{_SCALES} {_told(scales)}; allowed are U8 of "
            f"shape [experts, rows, groups, {_MXFP4_BYTES}] and [experts, rows, groups]"
        )
    experts, rows, groups, size = blocks.shape
    return Weight((name + _BLOCKS, name + _SCALES), (experts, groups * size * 2, rows))


def _fp8_weight(
    name: str, headers: Mapping[str, TensorHeader], quantization: Quantization, folder: Path
) -> Weight:
    weight, scale = headers[name], headers.get(name + _FP8_SCALE)
    wanted = "one number"
    fits = scale is not None and prod(scale.shape) == 1
    if quantization.block is not None and len(weight.shape) >= 2:
        shape = tuple(
            -(-size // block) for size, block in zip(weight.shape[-2:], quantization.block, strict=True)
        )
        fits = scale is not None and scale.shape == (*weight.shape[:-2], *shape)
        wanted = f"shape {[*weight.shape[:-2], *shape]}, for blocks of {list(quantization.block)}"
    if not fits or scale is None or scale.dtype not in _FP8_SCALES:
        raise ServeError(
            f"{folder} has {name} {_told(weight)} with {name}{_FP8_SCALE} {_told(scale)}; allowed is {wanted}, of "
            f"{', '.join(_FP8_SCALES)}"
        )
    return Weight((name, name + _FP8_SCALE), weight.shape)


def _told(tensor: TensorHeader | None) -> str:
    return "missing" if tensor is None else f"{tensor.dtype} {list(tensor.shape)}"


class _LazyWeight:
    """A weight that is read and made of its parts when transformers asks for all of it, with ``[...]``."""

    def __init__(self, weight: Weight, read: Callable[[str], Tensor], block: tuple[int, int] | None) -> None:
        self._weight, self._read, self._block = weight, read, block

    def __getitem__(self, index: EllipsisType) -> Tensor:
        numbers, *scales = (self._read(part) for part in self._weight.parts)
        if not scales:
            return numbers
        if numbers.dtype == torch.uint8:
            return _mxfp4_numbers(numbers, scales[0])
        return _fp8_numbers(numbers, scales[0], self._block)


def lazy_weights(folder: Path, files: Sequence[Path]) -> Mapping[str, Any] | None:
    """Return the weights of a folder, by name, for transformers to load in place of its files.

    None if no weight is quantized.

    Parameters
    ----------
    files : all files with weights.

    Raises
    ------
    ServeError
        If weights are quantized in a way that is not read, or do not fit together.
    """
    quantization = quantization_of(folder)
    headers = dict[str, TensorHeader]()
    file_of = dict[str, Any]()
    for path in files:
        file = safe_open(path, framework="pt")
        found = tensor_headers(file)
        headers |= found
        file_of |= dict.fromkeys(found, file)
    weights = weights_of(headers, quantization, folder)
    if not quantization.method:
        return None

    def read(name: str) -> Tensor:
        tensor: Tensor = file_of[name].get_tensor(name)
        return tensor

    return {name: _LazyWeight(weight, read, quantization.block) for name, weight in weights.items()}


def _fp8_numbers(weight: Tensor, scale: Tensor, block: tuple[int, int] | None) -> Tensor:
    """Multiply each block of a matrix by its factor; in float32."""
    factors = scale.float()
    if block is not None and weight.dim() >= 2:
        # Indices, and not repeated factors: a block may be said to be far larger than the matrix.
        row, column = (
            torch.arange(size) // min(width, size)
            for size, width in zip(weight.shape[-2:], block, strict=True)
        )
        factors = factors[..., row[:, None], column]
    else:
        factors = factors.reshape(())
    return weight.float().mul_(factors)


def _mxfp4_numbers(blocks: Tensor, scales: Tensor) -> Tensor:
    """Multiply numbers of 4 bits by powers of two; bfloat16 has all products exactly.

    The lower half of a byte is the first of its two numbers.
    """
    experts, rows, groups, size = blocks.shape
    table = torch.tensor((*_E2M1, *(-number for number in _E2M1)), dtype=torch.bfloat16)
    found = torch.empty(experts, rows, groups, size, 2, dtype=torch.bfloat16)
    for packed, exponents, numbers in zip(blocks, scales, found, strict=True):  # by expert: needs less memory
        numbers[..., 0] = table[(packed & 15).int()]
        numbers[..., 1] = table[(packed >> 4).int()]
        torch.ldexp(numbers, exponents.int()[..., None, None] - _EXPONENT_OF_1, out=numbers)
    return found.view(experts, rows, groups * size * 2).transpose(1, 2)
