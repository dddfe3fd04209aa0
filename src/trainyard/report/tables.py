"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from rich import box
from rich.table import Table
from rich.text import Text

from trainyard.cost.measurements import Entry
from trainyard.hardware.devices import DeviceSpec
from trainyard.hardware.profile import MachineProfile
from trainyard.reading import visible
from trainyard.report.units import bytes_text, duration_text, percent_text, rate_text, seconds_text
from trainyard.report.wrapping import WrappedText

__all__ = ["device_table", "facts_table", "machine_facts", "make_table", "measured_ops_table"]


def make_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str | Text]], text_columns: int = 1
) -> Table:
    """A table whose first columns are text and whose others are numbers.

    Parameters
    ----------
    title
        Stands above it.
    columns
        Headings.
    rows
        As many cells each as there are columns.
    text_columns
        How many columns, from the left, are aligned to the left.
    """
    table = Table(
        title=Text(visible(title)) if title else None,
        box=box.SIMPLE_HEAD,
        title_justify="left",
        title_style="bold",
        pad_edge=False,
    )
    for index, column in enumerate(columns):
        # A name that is too long goes on in the next line: what is cut off could not be told apart.
        table.add_column(column, justify="left" if index < text_columns else "right", overflow="fold")
    for row in rows:
        # Cells are text, not markup: a name may hold brackets.
        table.add_row(*(WrappedText(visible(cell)) if isinstance(cell, str) else cell for cell in row))
    return table


def facts_table(title: str, facts: Sequence[tuple[str, str]]) -> Table:
    """Names and values, a row each.

    Parameters
    ----------
    title
        Stands above them; may be empty.
    facts
        Pairs of name and value.
    """
    table = Table.grid(padding=(0, 2))
    table.title, table.title_justify, table.title_style = title or None, "left", "bold"
    table.add_column(no_wrap=True)
    table.add_column()
    for name, value in facts:
        table.add_row(Text(visible(f"  {name}")), Text(visible(value)))
    return table


def machine_facts(profile: MachineProfile, now_s: float) -> tuple[tuple[str, str], ...]:
    """Return what was measured on this machine, by name.

    Parameters
    ----------
    now_s
        Since 1970, to say how long ago that was.
    """
    threads = profile.num_cores
    when = "at an unknown time"
    if profile.when_s:
        age = duration_text(max(0.0, now_s - profile.when_s))
        when = f"{age} ago, while other work used {percent_text(profile.others)} of the cores"
    dtypes = sorted({sample.dtype for sample in profile.matmul})
    return (
        ("processor", profile.cpu),
        ("cores", str(profile.num_cores)),
        ("memory", bytes_text(profile.memory_bytes)),
        ("PyTorch", profile.torch_version),
        *(
            (f"matrix products, {dtype}", rate_text(profile.matmul_flops_per_s(dtype, threads), "flop"))
            for dtype in dtypes
        ),
        ("memory stream", rate_text(profile.memory_bandwidth_bytes_per_s(threads), "B")),
        ("one small op", seconds_text(profile.op_s)),
        *(
            (f"all-reduce of {bytes_text(size)}, 2 processes", seconds_text(_all_reduce_s(profile, size)))
            for size in (2.0**10, 2.0**24)
        ),
        ("measured", when),
    )


def measured_ops_table(entries: Mapping[str, Entry], now_s: float) -> Table:
    """The ops whose seconds on this machine are remembered, by the conditions under which they were measured.

    Parameters
    ----------
    entries
        By ``PROCESSESxTHREADS``.
    now_s
        Since 1970.
    """
    rows = []
    for key, entry in sorted(entries.items()):
        spreads = [m.spread for m in entry.ops.values()]
        ages = [max(0.0, now_s - m.when_s) for m in entry.ops.values()]
        cells = ("-",) * 3
        if entry.ops:
            cells = (
                f"{duration_text(min(ages))} to {duration_text(max(ages))}",
                percent_text(median(spreads)),
                percent_text(max(spreads)),
            )
        rows.append((key, str(len(entry.ops)), *cells, str(len(entry.busy())), str(len(entry.failed))))
    title = "remembered ops; processes x threads; spread is how far the median of the repeats is above their least"
    columns = ("measured with", "ops", "age", "spread, median", "spread, largest", "while busy", "failed")
    return make_table(title, columns, rows)


def _all_reduce_s(profile: MachineProfile, num_bytes: float) -> float:
    return profile.collective_s("all_reduce", 2, num_bytes)


def device_table(devices: Sequence[DeviceSpec]) -> Table:
    """The known devices; use them in clusters such as ``4x8xA100-80G``."""
    rows = [
        (
            device.name,
            bytes_text(device.memory_bytes),
            bytes_text(device.usable_bytes),
            rate_text(device.reference_peak_flops_per_s, "flop"),
            rate_text(device.peak("float32"), "flop"),
            rate_text(device.memory_bandwidth_bytes_per_s, "B"),
        )
        for device in devices
    ]
    columns = ("device", "memory", "for plans", "peak, 16 bit", "peak, float32", "memory stream")
    return make_table("known devices; a cluster is NODESxDEVICESxNAME, such as 4x8xA100-80G", columns, rows)
