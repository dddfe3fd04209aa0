"""What one device can do: its memory, its peaks, and how close to them real kernels come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

from trainyard.hardware.errors import HardwareError, unknown_name
from trainyard.hardware.overhead import NO_OVERHEAD, MemoryOverhead
from trainyard.reading import Section, raised_as

__all__ = ["DTYPES", "DeviceSpec", "Efficiency", "NamedDevice"]

DTYPES = ("float32", "tf32", "float16", "bfloat16", "float8", "float4")
"""Keys of `DeviceSpec.peak_flops_per_s`."""


@dataclass(frozen=True)
class Efficiency:
    """How the reached fraction of a peak grows with the size of the work.

    The rate on ``x`` units of work is ``peak * max_fraction * x / (x + half)``: a ceiling, and the work at
    which half of it is reached. That is the same as a fixed ramp time of ``half / (peak * max_fraction)``
    before each kernel.

    Parameters
    ----------
    max_matmul_fraction
        Fraction of the peak flop rate that large matrix products reach, in (0, 1].
    half_matmul_flops
        Flops of a matrix product that reaches half of that ceiling.
    max_memory_fraction
        Fraction of the peak memory bandwidth that long streams reach, in (0, 1].
    half_memory_bytes
        Bytes read and written by a kernel that reaches half of that ceiling.
    sustained_matmul_fraction
        Fraction of the peak flop rate that large matrix products reach one after the other, where the limit of power
        lowers the clock, in (0, 1]; by default ``max_matmul_fraction``. It holds for the products of a training step, not
        for attention in one kernel.
    """

    max_matmul_fraction: float
    half_matmul_flops: float
    max_memory_fraction: float
    half_memory_bytes: float
    sustained_matmul_fraction: float | None = None

    def __post_init__(self) -> None:
        for name in ("max_matmul_fraction", "max_memory_fraction", "sustained_matmul_fraction"):
            value = getattr(self, name)
            if value is None:
                continue
            if not 0.0 < value <= 1.0:
                raise HardwareError(f"{name} is {value}; allowed: a fraction in (0, 1]; divide by the peak")
        for name in ("half_matmul_flops", "half_memory_bytes"):
            if getattr(self, name) < 0.0:
                raise HardwareError(f"{name} is {getattr(self, name)}; allowed: zero or more")


@dataclass(frozen=True)
class NamedDevice:
    """A device of which only the name is known: enough to run many jobs, too little to say how fast one is."""

    name: str

    def describe(self) -> str:
        """One line for people."""
        return f"{self.name}: known by name only"

    def to_dict(self) -> dict[str, Any]:
        """Plain form, for YAML and JSON."""
        return {"name": self.name}


@dataclass(frozen=True)
class DeviceSpec:
    """One device of a cluster, as a cost model sees it.

    Parameters
    ----------
    name
        Name of the model, e.g. ``"A100-80G"``.
    memory_bytes
        Nominal memory of the device; `usable_bytes` is what a plan may use of it.
    peak_flops_per_s
        Peak rate by dtype name (see `DTYPES`), dense, without structured sparsity. A dtype that the device
        has no units for has the rate of the format in which it is computed instead.
    memory_bandwidth_bytes_per_s
        Peak bandwidth of the device memory, reads and writes together.
    launch_s
        Overhead of one kernel, in seconds.
    efficiency
        How close to the peaks kernels come.
    source
        Where the numbers come from.
    collective_launch_s
        Overhead of one collective call, from the call to the first byte: the kernel's launch and the group's
        meeting.
    host_bandwidth_bytes_per_s
        Reached bandwidth between device and host memory, one direction.
    overhead
        What its memory holds beside tensors. Nothing, where a description does not say it.
    """

    name: str
    memory_bytes: int
    peak_flops_per_s: Mapping[str, float]
    memory_bandwidth_bytes_per_s: float
    launch_s: float
    efficiency: Efficiency
    source: str
    collective_launch_s: float = 20e-6
    host_bandwidth_bytes_per_s: float = 12e9
    overhead: MemoryOverhead = NO_OVERHEAD
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        peaks = dict(self.peak_flops_per_s)
        unknown = set(peaks) - set(DTYPES)
        if unknown:
            raise unknown_name(
                "dtype", sorted(unknown)[0], DTYPES, f"rename it in the peaks of {self.name!r}"
            )
        if "float32" not in peaks:
            raise HardwareError(f"device {self.name!r} has no float32 peak; give at least that one")
        for name in ("memory_bytes", "memory_bandwidth_bytes_per_s", "host_bandwidth_bytes_per_s"):
            if getattr(self, name) <= 0:
                raise HardwareError(
                    f"{name} of {self.name!r} is {getattr(self, name)}; allowed: more than zero"
                )
        if self.overhead.driver_bytes >= self.memory_bytes:
            raise HardwareError(
                f"driver_bytes of {self.name!r} is {self.overhead.driver_bytes}; allowed: less than its memory_bytes, "
                f"{self.memory_bytes}"
            )
        if min(peaks.values()) <= 0:
            raise HardwareError(f"peaks of {self.name!r} are {peaks}; allowed: more than zero")
        # float4 falls back to float8, that to bfloat16 or float16, those and tf32 to float32: every key is then safe
        # to index.
        peaks.setdefault("tf32", peaks["float32"])
        half = max(peaks.get("float16", 0.0), peaks.get("bfloat16", 0.0))
        peaks.setdefault("float16", peaks["float32"])
        peaks.setdefault("bfloat16", peaks["float32"])
        peaks.setdefault("float8", half or peaks["float32"])
        peaks.setdefault("float4", peaks["float8"])
        ordered = {name: float(peaks[name]) for name in DTYPES}
        object.__setattr__(self, "peak_flops_per_s", MappingProxyType(ordered))
        # A cluster hashes thousands of these; hashing the mapping each time would dominate.
        values = (self.name, self.memory_bytes, tuple(ordered.values()), self.memory_bandwidth_bytes_per_s)
        object.__setattr__(self, "_hash", hash((values, self.launch_s, self.efficiency)))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        # A mapping proxy does not pickle; worker processes get the plain mapping.
        return (type(self).from_dict, (self.to_dict(),))

    def peak(self, dtype: str) -> float:
        """Peak flop rate of a dtype.

        Parameters
        ----------
        dtype
            One of `DTYPES`.

        Returns
        -------
        float
            Flops per second.

        Raises
        ------
        HardwareError
            If the dtype is not known.
        """
        if dtype not in self.peak_flops_per_s:
            raise unknown_name("dtype", dtype, DTYPES, "map it to the format in which it is computed")
        return self.peak_flops_per_s[dtype]

    def matmul_flops_per_s(self, flops: float, dtype: str, *, sustained: bool = False) -> float:
        """Rate reached by one matrix product of a given size.

        Parameters
        ----------
        flops
            Flops of the product (2 m n k).
        dtype
            One of `DTYPES`.
        sustained
            Whether products follow each other for long, so that `Efficiency.sustained_matmul_fraction` holds.

        Returns
        -------
        float
            Flops per second; zero for no flops.
        """
        if flops <= 0:
            return 0.0
        best = self.efficiency.max_matmul_fraction
        reached = (self.efficiency.sustained_matmul_fraction if sustained else None) or best
        ceiling = self.peak(dtype) * reached
        # The ramp is a time, the same in every dtype; `half_matmul_flops` is given for the fastest 16-bit
        # one.
        half_flops = self.efficiency.half_matmul_flops * self.peak(dtype) / self.reference_peak_flops_per_s
        half_flops *= reached / best
        return ceiling * flops / (flops + half_flops)

    def describe(self) -> str:
        """One line for people."""
        return (
            f"{self.name}: {self.memory_bytes / 2**30:.0f} GiB, {self.reference_peak_flops_per_s / 1e12:.3g} Tflop/s (16 "
            f"bit), {self.peak('float32') / 1e12:.3g} Tflop/s (float32), "
            f"memory {self.memory_bandwidth_bytes_per_s / 1e9:.4g} GB/s"
        )

    @property
    def usable_bytes(self) -> int:
        """What a plan may use of the memory: all that the driver leaves.

        What the framework, the communication library and the allocator hold is part of what a plan uses.
        """
        return self.memory_bytes - self.overhead.driver_bytes

    @property
    def reference_peak_flops_per_s(self) -> float:
        """Peak at which `Efficiency.half_matmul_flops` is stated: the faster of float16 and bfloat16."""
        return max(self.peak_flops_per_s["float16"], self.peak_flops_per_s["bfloat16"])

    def memory_rate_bytes_per_s(self, num_bytes: float) -> float:
        """Memory bandwidth reached by one kernel that reads and writes `num_bytes`.

        Parameters
        ----------
        num_bytes
            Bytes read plus bytes written.

        Returns
        -------
        float
            Bytes per second; zero for no bytes.
        """
        if num_bytes <= 0:
            return 0.0
        ceiling = self.memory_bandwidth_bytes_per_s * self.efficiency.max_memory_fraction
        return ceiling * num_bytes / (num_bytes + self.efficiency.half_memory_bytes)

    def to_dict(self) -> dict[str, Any]:
        """Plain form, for YAML and JSON.

        Returns
        -------
        dict
            Numbers, strings and mappings only; `from_dict` reads it back.
        """
        return {
            "name": self.name,
            "memory_bytes": self.memory_bytes,
            "peak_flops_per_s": dict(self.peak_flops_per_s),
            "memory_bandwidth_bytes_per_s": self.memory_bandwidth_bytes_per_s,
            "launch_s": self.launch_s,
            "efficiency": {name: n for name, n in vars(self.efficiency).items() if n is not None},
            "source": self.source,
            "collective_launch_s": self.collective_launch_s,
            "host_bandwidth_bytes_per_s": self.host_bandwidth_bytes_per_s,
            "overhead": dict(vars(self.overhead)),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> DeviceSpec:
        """Read the plain form.

        Parameters
        ----------
        values
            What `to_dict` wrote.

        Returns
        -------
        DeviceSpec
            The device.

        Raises
        ------
        HardwareError
            If a field is missing or unknown.
        """
        with raised_as(HardwareError):
            given = Section.of(values, "a description of hardware")
            name = given.text("name")
            given.what = f"device {name!r}"
            given.refuse_unknown(_FIELDS)
            efficiency, peaks = given.section("efficiency"), given.section("peak_flops_per_s")
            efficiency.what, peaks.what = f"efficiency of {name!r}", f"peak_flops_per_s of {name!r}"
            efficiency.refuse_unknown(_EFFICIENCY)
            needed = [field for field in _EFFICIENCY if field != _LASTING or field in efficiency]
            optional = {field: given.number(field, 0.0) for field in _OPTIONAL if field in given}
            overhead = _overhead(given) if "overhead" in given else NO_OVERHEAD
            return cls(
                name=name,
                memory_bytes=int(given.positive("memory_bytes")),
                peak_flops_per_s={dtype: peaks.positive(dtype) for dtype in peaks},
                memory_bandwidth_bytes_per_s=given.positive("memory_bandwidth_bytes_per_s"),
                launch_s=given.number("launch_s", 0.0),
                efficiency=Efficiency(**{field: efficiency.number(field, 0.0) for field in needed}),
                source=given.text("source"),
                overhead=overhead,
                **optional,
            )


def _overhead(given: Section) -> MemoryOverhead:
    read = given.section("overhead")
    read.what = given.what.replace("device", "overhead of device", 1)
    read.refuse_unknown(_OVERHEAD)
    numbers = {name: read.number(name, 0.0) for name in read}
    fraction = numbers.pop("fragmented_fraction", 0.0)
    return MemoryOverhead(**{name: int(n) for name, n in numbers.items()}, fragmented_fraction=fraction)


_EFFICIENCY = tuple(each.name for each in fields(Efficiency))
_LASTING = "sustained_matmul_fraction"
_OVERHEAD = tuple(each.name for each in fields(MemoryOverhead))
_FIELDS = tuple(each.name for each in fields(DeviceSpec) if each.init)
_OPTIONAL = ("collective_launch_s", "host_bandwidth_bytes_per_s")
