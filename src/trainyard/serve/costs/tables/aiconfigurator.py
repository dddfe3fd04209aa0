"""Kernel times from the tables that come with aiconfigurator, read as data (`trainyard.serve.costs.tables.package`).

An op that no table has is predicted from the device's description: kernels that only read and write, attention over
latent vectors, a format or shape that was not measured, and products whose shape is more than twice beyond all that were
measured. `AiconfiguratorKernels.described` counts them.

Experts have the times of tokens that a power law deals out (``power_law_1.2``, by default that of aiconfigurator 0.12.0,
`sdk/models/moe.py`), where the tables have it. Tables with ``balanced`` give the tokens of a small batch to as many
experts as there are: of 16 tokens with 8 of 128 experts each, real routing reaches about 80.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainyard.serve.costs.kernels import Attention, Experts, KernelTimes, Product, StepGraph
from trainyard.serve.costs.tables.grid import Grid
from trainyard.serve.costs.tables.package import DeviceTables, Wanted, systems_folder, version_key
from trainyard.serve.errors import ServeError

__all__ = ["AiconfiguratorKernels"]

Floats = NDArray[np.float64]

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
    **{name: (kind,) for name, kind in _FORMATS.items()},
    "float8": ("fp8", "fp8_block"),
    "float4": ("nvfp4", "w4a16_mxfp4", "w4a8_mxfp4_mxfp8", "int4_wo"),
}
"""Which of their formats ours may be; servers take the kernel that is the fastest."""

_TABLES = {
    "gemm": "gemm_perf",
    "attention": "generation_attention_perf",
    "moe": "moe_perf",
    "comm": "custom_allreduce_perf",
}
"""The table of each family by which its versions are known."""

_ROUTING = ("power_law_1.2", "power_law_1.01", "balanced")
"""How tokens are dealt out to experts; the first that was measured."""

_BEYOND = 2.0
"""A product is not taken from the table if a size of it is more times above or below all measured ones."""


@dataclass(frozen=True)
class AiconfiguratorKernels:
    """Measured seconds of kernels.

    Attributes
    ----------
    folder : of the package, or its ``systems``.
    device : its name.
    num_devices : of a tensor-parallel group.
    weights : how they are held, a key of `trainyard.serve.costs.formats.FORMATS`.
    backend : the server whose kernels were measured: vllm, sglang or trtllm. Of each op the newest whole version that has
        it; where a version follows (``vllm/0.19.0``), that one first, then those before it, then those after it.
    others : seconds of what the tables do not have.

    Raises
    ------
    ServeError
        If there are no tables of this device, backend or version, or none of a format of products.
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
        self._tables.paths("gemm", _TABLES["gemm"])
        self._check_version()

    @cached_property
    def _tables(self) -> DeviceTables:
        backend, _, version = self.backend.partition("/")
        return DeviceTables(systems_folder(self.folder) / "data" / _SYSTEMS[self.device], backend, version)

    def versions(self, families: Sequence[str]) -> str:
        """The server, and which version of its tables is read first: ``vllm/0.24.0``; of each family, if they differ.

        Parameters
        ----------
        families : of tables, such as ``gemm``; those that are not there are left out.
        """
        found = {
            family: self._tables.paths(family, _TABLES[family])[0].parent.name
            for family in families
            if self._tables.folders(family, _TABLES[family])
        }
        if len(set(found.values())) == 1:
            return f"{self._tables.backend}/{next(iter(found.values()))}"
        versions = ", ".join(f"{family} {version}" for family, version in found.items())
        return f"{self._tables.backend} ({versions})"

    def described(self, graph: StepGraph) -> dict[str, int]:
        missing = replace(
            graph,
            products=tuple(each for each in graph.products if self._product_grid(each[0]) is None),
            attention=tuple(each for each in graph.attention if self._decodes(each[0]) is None),
            experts=tuple(each for each in graph.experts if self._expert_grid(each[0]) is None),
            all_reduces=graph.all_reduces if self._all_reduces is None else (),
            all_gathers=graph.all_gathers if self._all_gathers is None else (),
        )
        return missing.num_kernels

    def _check_version(self) -> None:
        tables = self._tables
        known = {path for family, table in _TABLES.items() for path in tables.folders(family, table)}
        names = list(dict.fromkeys(path.name for path in sorted(known, key=version_key)))
        if tables.version and tables.version not in names:
            raise ServeError(
                f"{self.folder} has no kernels of {self.backend} on {self.device}; it has "
                f"{', '.join(f'{tables.backend}/{name}' for name in names)}; name one of these, or {tables.backend} "
                "for the newest"
            )

    def product_s(self, num_rows: int, product: Product) -> float:
        if (grid := self._product_grid(product)) is None:
            return self.others.product_s(num_rows, product)
        seconds = grid(product.columns, product.width, num_rows)
        if _FORMATS[self.weights] == "bfloat16":
            return seconds
        # Activations are brought to 8 bits by a kernel of its own, which reads and writes them.
        return seconds + self.others.pointwise_s(num_rows * product.width * 3 // 2)

    def experts_s(self, num_tokens: int, experts: Experts) -> float:
        grid = self._expert_grid(experts)
        return self.others.experts_s(num_tokens, experts) if grid is None else grid(num_tokens)

    def pointwise_s(self, num_elements: int) -> float:
        return self.others.pointwise_s(num_elements)

    def prompt_attention_s(self, attention: Attention, chunks: Sequence[tuple[int, int]]) -> float:
        if (grid := self._prompts(attention)) is None:
            return self.others.prompt_attention_s(attention, chunks)
        seconds = 0.0
        for num, before in chunks:
            # Measured without a cache: of a prompt of both, the part after the first one. It reads all keys and values
            # at least once, as a request that decodes does.
            whole = num + before
            part_s = grid(1, whole) * (1 - (before / whole) ** 2)
            read_s = self.decode_attention_s(attention, 1, np.array([whole]))[0] if before else 0.0
            seconds += max(part_s, float(read_s))
        return seconds - (len(chunks) - 1) * grid(1, 1)

    def backward_attention_s(self, attention: Attention, chunks: Sequence[tuple[int, int]]) -> float:
        """Refused: only forward passes were measured."""
        raise ServeError(
            f"{self.folder} has no times of a backward pass, which requests that train need; leave them out, to have "
            "all times predicted"
        )

    def decode_attention_s(self, attention: Attention, num: int, mean_tokens: Floats) -> Floats:
        if (grid := self._decodes(attention)) is None:
            return self.others.decode_attention_s(attention, num, mean_tokens)
        return grid.along_last(num)(mean_tokens)

    def all_reduce_s(self, num_elements: int) -> float:
        grid = self._all_reduces
        return self.others.all_reduce_s(num_elements) if grid is None else grid(num_elements)

    def all_gather_s(self, num_elements: int) -> float:
        grid = self._all_gathers
        return self.others.all_gather_s(num_elements) if grid is None else grid(num_elements)

    def send_s(self, num_elements: int) -> float:
        return self.others.send_s(num_elements)

    @cached_property
    def _products(self) -> Grid | None:
        """By columns, width and rows."""
        wanted: list[Wanted] = [("gemm_dtype", "=", _FORMATS[self.weights])]
        return self._tables.grid("gemm", "gemm_perf", ("n", "k", "m"), wanted)

    def _product_grid(self, product: Product) -> Grid | None:
        """The products, if the shape of this one is near those that were measured."""
        grid = self._products
        if grid is None:
            return None
        sizes = zip((product.columns, product.width), grid.axes, strict=False)
        near = all(axis[0] / _BEYOND <= size <= axis[-1] * _BEYOND for size, axis in sizes)
        return grid if near else None

    @cached_property
    def _all_reduces(self) -> Grid | None:
        # Each size was measured in a recorded graph, as servers run it, and by itself, which takes longer.
        wanted: list[Wanted] = [("num_gpus", "=", self.num_devices)]
        return self._measured("comm", "custom_allreduce_perf", ("message_size",), wanted)

    @cached_property
    def _all_gathers(self) -> Grid | None:
        """By elements of the whole result."""
        wanted: list[Wanted] = [
            ("op_name", "=", "all_gather"),
            ("nccl_dtype", "=", "half"),
            ("num_gpus", "=", self.num_devices),
        ]
        return self._measured("comm", "nccl_perf", ("message_size",), wanted, "nccl")

    @cached_property
    def _known(self) -> dict[tuple[str, object], Grid | None]:
        return {}

    def _prompts(self, attention: Attention) -> Grid | None:
        """By prompts and their tokens."""
        return self._attention("context", attention, ("batch_size", "isl"))

    def _decodes(self, attention: Attention) -> Grid | None:
        """By requests and the tokens before the one that is computed."""
        return self._attention("generation", attention, ("batch_size", "step"))

    def _attention(self, kind: str, attention: Attention, sizes: Sequence[str]) -> Grid | None:
        if attention.latent:
            return None
        wanted: list[Wanted] = [
            ("num_heads", "=", attention.num_heads),
            ("num_key_value_heads", "=", attention.num_kv_heads),
            ("head_dim", "=", attention.head_width),
            ("window_size", "=", attention.window),
            ("kv_cache_dtype", "=", "bfloat16"),
        ]
        if (kind, attention) not in self._known:
            found = self._measured("attention", f"{kind}_attention_perf", sizes, wanted)
            self._known[kind, attention] = found
        return self._known[kind, attention]

    def _expert_grid(self, experts: Experts) -> Grid | None:
        """By tokens."""
        is_dealt = experts.num_devices > 1
        wanted: list[Wanted] = [
            ("moe_dtype", "in", _FORMATS_OF_EXPERTS[self.weights]),
            ("hidden_size", "=", experts.hidden),
            ("inter_size", "=", experts.width if is_dealt else experts.width * self.num_devices),
            ("topk", "=", experts.num_used),
            ("num_experts", "=", experts.num_experts),
            ("moe_tp_size", "=", 1 if is_dealt else self.num_devices),
            ("moe_ep_size", "=", experts.num_devices),
        ]
        if ("moe", experts) not in self._known:
            found = (
                self._measured("moe", "moe_perf", ("num_tokens",), [*wanted, ("distribution", "=", routing)])
                for routing in _ROUTING
            )
            self._known["moe", experts] = next((grid for grid in found if grid is not None), None)
        return self._known["moe", experts]

    def _measured(
        self, family: str, table: str, sizes: Sequence[str], wanted: Sequence[Wanted], backend: str = ""
    ) -> Grid | None:
        """Of a table that may not be there."""
        if not self._tables.folders(family, table, backend):
            return None
        return self._tables.grid(family, table, sizes, wanted, backend)
