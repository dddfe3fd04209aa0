"""Kernel times from the tables that come with aiconfigurator: Parquet files in an installed package, read as data.

A table is ``systems/data/SYSTEM/FAMILY/BACKEND/VERSION/NAME_perf.parquet``, with a row for each measured kernel and its
latency in milliseconds. Nothing of the package is imported. What it does not measure by itself, such as kernels that only
read and write and attention over latent vectors, is predicted from the device's description.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainyard.distribution import install_command
from trainyard.serve.costs.kernels import Attention, Experts, KernelTimes, Product
from trainyard.serve.costs.tables.grid import Grid, points_of
from trainyard.serve.errors import ServeError

__all__ = ["AiconfiguratorKernels", "systems_folder"]

Floats = NDArray[np.float64]
Wanted = tuple[str, str, Any]
"""A column, how it is compared, and with what."""

_SYSTEMS = {
    "A100-80G": "a100_sxm",
    "A30": "a30",
    "H100": "h100_sxm",
    "H200": "h200_sxm",
    "B200": "b200_sxm",
    "B300": "b300_sxm",
    "GB200": "gb200",
    "GB300": "gb300",
    "L4": "l4",
    "L40S": "l40s",
    "RTXPRO6000": "rtx_pro_6000_server",
}
"""Their names of devices, by ours."""

_FORMATS = {"float16": "bfloat16", "bfloat16": "bfloat16", "float8": "fp8", "float4": "nvfp4"}
_FORMATS_OF_EXPERTS = {
    **{name: [kind] for name, kind in _FORMATS.items()},
    "float8": ["fp8", "fp8_block"],
    "float4": ["nvfp4", "w4a16_mxfp4", "w4a8_mxfp4_mxfp8", "int4_wo"],
}
"""Which of their formats ours may be; servers take the kernel that is the fastest."""

_TABLES = {
    "gemm": "gemm_perf",
    "attention": "generation_attention_perf",
    "moe": "moe_perf",
    "comm": "custom_allreduce_perf",
}
"""The table of each family by which its versions are known."""

_MS = 1e-3
_NO_WINDOW: Wanted = ("window_size", "=", 0)


@dataclass(frozen=True)
class AiconfiguratorKernels:
    """Measured seconds of kernels.

    Attributes
    ----------
    folder : of the package, or its ``systems``.
    device : its name.
    num_devices : of a tensor-parallel group.
    weights : how they are held, a key of `trainyard.serve.costs.formats.FORMATS`.
    backend : the server whose kernels were measured: vllm, sglang or trtllm. Of each table the newest version; where a
        version follows (``vllm/0.19.0``), that one, and of tables without it the newest before it, or else the first.
    others : seconds of what the tables do not have.

    Raises
    ------
    ServeError
        If there are no tables of this device, backend, version or format.
    """

    folder: Path
    device: str
    num_devices: int
    weights: str
    others: KernelTimes
    backend: str = "vllm"

    def __post_init__(self) -> None:
        if self.device not in _SYSTEMS:
            raise ServeError(f"aiconfigurator has no tables of {self.device}; it has {', '.join(_SYSTEMS)}")
        if self.weights not in _FORMATS:
            raise ServeError(
                f"aiconfigurator has no products of {self.weights}; it has {', '.join(_FORMATS)}"
            )
        self._path("gemm")
        self._check_version()

    def versions(self, families: Sequence[str]) -> str:
        """The server, and which version of its tables is read: ``vllm/0.24.0``; of each family, if they differ.

        Parameters
        ----------
        families : of tables, such as ``gemm``; those that are not there are left out.
        """
        found = {each: self._path(each).parent.name for each in families if self._versions_of(each)}
        backend = self.backend.partition("/")[0]
        if len(set(found.values())) == 1:
            return f"{backend}/{next(iter(found.values()))}"
        return f"{backend} ({', '.join(f'{family} {version}' for family, version in found.items())})"

    def _check_version(self) -> None:
        backend, _, version = self.backend.partition("/")
        known = sorted({path for family in _TABLES for path in self._versions_of(family)}, key=_version)
        names = list(dict.fromkeys(path.name for path in known))
        if version and version not in names:
            raise ServeError(
                f"{self.folder} has no kernels of {self.backend} on {self.device}; it has "
                f"{', '.join(f'{backend}/{name}' for name in names)}; name one of these, or {backend} for the newest"
            )

    def product_s(self, num_rows: int, product: Product) -> float:
        seconds = self._products(product.columns, product.width, num_rows)
        if _FORMATS[self.weights] == "bfloat16":
            return seconds
        # Activations are brought to 8 bits by a kernel of its own, which reads and writes them.
        return seconds + self.others.pointwise_s(num_rows * product.width * 3 // 2)

    def experts_s(self, num_tokens: int, experts: Experts) -> float:
        is_dealt = experts.num_devices > 1
        wanted: list[Wanted] = [
            ("moe_dtype", "in", _FORMATS_OF_EXPERTS[self.weights]),
            ("hidden_size", "=", experts.hidden),
            ("inter_size", "=", experts.width if is_dealt else experts.width * self.num_devices),
            ("topk", "=", experts.num_used),
            ("num_experts", "=", experts.num_experts),
            ("moe_tp_size", "=", 1 if is_dealt else self.num_devices),
            ("moe_ep_size", "=", experts.num_devices),
            ("distribution", "=", "balanced"),
        ]
        return self._known_grid("moe", "moe_perf", ("num_tokens",), wanted)(num_tokens)

    def pointwise_s(self, num_elements: int) -> float:
        return self.others.pointwise_s(num_elements)

    def prompt_attention_s(self, attention: Attention, chunks: Sequence[tuple[int, int]]) -> float:
        if attention.latent:
            return self.others.prompt_attention_s(attention, chunks)
        grid = self._prompts(attention)
        seconds = 0.0
        for num, before in chunks:
            # Measured without a cache: of a prompt of both, the part after the first one. It reads all keys and values
            # at least once, as a request that decodes does.
            whole = num + before
            part_s = grid(1, whole) * (1 - (before / whole) ** 2)
            seconds += max(part_s, self._decodes(attention)(1, whole)) if before else part_s
        return seconds - (len(chunks) - 1) * grid(1, 1)

    def backward_attention_s(self, attention: Attention, chunks: Sequence[tuple[int, int]]) -> float:
        """Refused: only forward passes were measured."""
        raise ServeError(
            f"{self.folder} has no times of a backward pass, which requests that train need; leave them out, to have "
            "all times predicted"
        )

    def decode_attention_s(self, attention: Attention, num: int, mean_tokens: Floats) -> Floats:
        if attention.latent:
            return self.others.decode_attention_s(attention, num, mean_tokens)
        return self._decodes(attention).along_last(num)(mean_tokens)

    def all_reduce_s(self, num_elements: int) -> float:
        return self._all_reduces(num_elements)

    def all_gather_s(self, num_elements: int) -> float:
        return (
            self._all_gathers(num_elements) if self._all_gathers else self.others.all_gather_s(num_elements)
        )

    def send_s(self, num_elements: int) -> float:
        return self.others.send_s(num_elements)

    @cached_property
    def _products(self) -> Grid:
        """By columns, width and rows."""
        return self._grid("gemm", "gemm_perf", ("n", "k", "m"), [("gemm_dtype", "=", _FORMATS[self.weights])])

    @cached_property
    def _all_reduces(self) -> Grid:
        # Each size was measured in a recorded graph, as servers run it, and by itself, which takes longer.
        return self._grid(
            "comm", "custom_allreduce_perf", ("message_size",), [("num_gpus", "=", self.num_devices)]
        )

    @cached_property
    def _all_gathers(self) -> Grid | None:
        """By elements of the whole result; None where there is no table of NCCL, or none of so many devices."""
        try:
            path = self._path_of("comm", "nccl_perf", "nccl", "")
            wanted: list[Wanted] = [
                ("op_name", "=", "all_gather"),
                ("nccl_dtype", "=", "half"),
                ("num_gpus", "=", self.num_devices),
            ]
            return _grid(path, ("message_size",), wanted)
        except ServeError:
            return None

    @cached_property
    def _known(self) -> dict[tuple[str, str], Grid]:
        return {}

    def _prompts(self, attention: Attention) -> Grid:
        """By prompts and their tokens."""
        return self._attention("context", attention, ("batch_size", "isl"))

    def _decodes(self, attention: Attention) -> Grid:
        """By requests and the tokens before the one that is computed."""
        return self._attention("generation", attention, ("batch_size", "step"))

    def _attention(self, kind: str, attention: Attention, sizes: Sequence[str]) -> Grid:
        wanted: list[Wanted] = [
            ("num_heads", "=", attention.num_heads),
            ("num_key_value_heads", "=", attention.num_kv_heads),
            ("head_dim", "=", attention.head_width),
            ("window_size", "=", attention.window),
            ("kv_cache_dtype", "=", "bfloat16"),
        ]
        return self._known_grid("attention", f"{kind}_attention_perf", sizes, wanted)

    def _known_grid(self, family: str, table: str, sizes: Sequence[str], wanted: list[Wanted]) -> Grid:
        key = (table, str(wanted))
        if key not in self._known:
            self._known[key] = self._grid(family, table, sizes, wanted)
        return self._known[key]

    def _grid(self, family: str, table: str, sizes: Sequence[str], wanted: list[Wanted]) -> Grid:
        return _grid(self._path(family, table), sizes, wanted)

    def _path(self, family: str, table: str = "") -> Path:
        """A table of the backend; by default that by which the versions of a family are known."""
        backend, _, version = self.backend.partition("/")
        return self._path_of(family, table or _TABLES[family], backend, version)

    def _versions_of(self, family: str) -> list[Path]:
        folder = self._folder_of(family) / self.backend.partition("/")[0]
        return _with_table(folder, _TABLES[family])

    def _folder_of(self, family: str) -> Path:
        return systems_folder(self.folder) / "data" / _SYSTEMS[self.device] / family

    def _path_of(self, family: str, table: str, backend: str, version: str) -> Path:
        folder = self._folder_of(family) / backend
        found = _with_table(folder, table)
        if not found:
            others = sorted(
                path.name for path in folder.parent.glob("*") if any(path.glob(f"*/{table}.parquet"))
            )
            raise ServeError(
                f"{folder} has no {table}.parquet; give the folder of an installed aiconfigurator, and after a colon a "
                f"server that it has: {', '.join(others) or 'none'}"
            )
        older = [path for path in found if not version or _version(path) <= _version(Path(version))]
        return (older or found[:1])[-1] / f"{table}.parquet"


def _with_table(folder: Path, table: str) -> list[Path]:
    """Folders of versions that have a table, the oldest first."""
    return sorted((path for path in folder.glob("*") if (path / f"{table}.parquet").exists()), key=_version)


def _grid(path: Path, sizes: Sequence[str], wanted: list[Wanted]) -> Grid:
    """Seconds by some columns, of the rows that are wanted."""
    columns = _columns(path, (*sizes, "latency"), wanted)
    if not len(columns[0]):
        text = ", ".join(f"{name} {sign} {value}" for name, sign, value in wanted)
        raise ServeError(
            f"{path} has no rows with {text}; split the model otherwise, or leave the measured kernels out"
        )
    *points, latencies = columns
    return Grid(points_of(zip(zip(*points, strict=True), [each * _MS for each in latencies], strict=True)))


def systems_folder(folder: Path) -> Path:
    """Where the tables are, in the folder of the package or in that itself.

    Raises
    ------
    ServeError
        If they are not there.
    """
    for each in (folder, folder / "systems", folder / "aiconfigurator_core" / "systems"):
        if (each / "data").is_dir():
            return each
    raise ServeError(
        f"{folder} has no tables of kernels: allowed is the folder of an installed aiconfigurator_core, or its `systems`"
    )


def _version(path: Path) -> tuple[tuple[int, str], ...]:
    """Numbers in the parts of a version compare as numbers."""
    parts = path.name.replace("rc", ".-1.").split(".")
    return tuple((int(part), "") if part.lstrip("-").isdigit() else (0, part) for part in parts)


def _columns(path: Path, names: Sequence[str], wanted: list[Wanted]) -> list[list[float]]:
    """Numbers in some columns, of the rows that are wanted."""
    try:
        from pyarrow import parquet
    except ModuleNotFoundError as error:
        raise ServeError(
            f"tables of kernels in Parquet files need pyarrow, which is not installed: {install_command('kernels')}"
        ) from error
    there = set(parquet.read_schema(path).names)
    # Tables of devices on which no attention with a window was measured have no column for it.
    wanted = [each for each in wanted if each[0] in there or each != _NO_WINDOW]
    if missing := [name for name in (*names, *(name for name, _, _ in wanted)) if name not in there]:
        raise ServeError(
            f"{path} has no column {', '.join(missing)}, by which this model is found in it; leave the measured kernels "
            "out"
        )
    table = parquet.read_table(path, columns=list(names), filters=wanted)
    return [[float(each) for each in table.column(name).to_pylist()] for name in names]
