"""Devices of jobs over time under a policy: use by node, and the bars of all jobs when one zooms in."""

from __future__ import annotations

import base64
import gzip
import html
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainyard.fleet.records import FleetRun
from trainyard.hardware.cluster import Cluster
from trainyard.report.axes import TimeAxis, layout
from trainyard.report.fleet_stints import DrawnRun, Stints
from trainyard.report.page import PALETTE, Figure
from trainyard.report.units import duration_text

__all__ = ["most_bars_each", "numbers_of", "what_ran_where"]

_MOST_ROWS = 256
_MOST_DEVICE_ROWS = 64
_MOST_BARS = 1_000_000
_NUM_PARTS = 600
# Times of bars are whole numbers of 32 bits.
_LARGEST = 2**32 - 1
_DENSITY = [[0.0, "#f4f6f9"], [0.5, "#8fb0d3"], [1.0, "#1f4e86"]]

Ints = NDArray[np.int64]


def numbers_of(runs: Sequence[FleetRun]) -> dict[str, int]:
    """A number for every job that had devices, by name: it is the same under all policies, and so is its colour."""
    names = [name for run in runs for name in (*run.names, *(span.job for span in run.spans))]
    return {name: number for number, name in enumerate(dict.fromkeys(names))}


def most_bars_each(runs: Sequence[DrawnRun]) -> int:
    """Return how many bars of every run a page can hold; runs with fewer bars leave room to the others."""
    left = _MOST_BARS
    counts = sorted(len(each.stints.job) for each in runs)
    for place, count in enumerate(counts):
        share = left // (len(counts) - place)
        if count > share:
            return share
        left -= count
    return _MOST_BARS


def what_ran_where(shown: DrawnRun, labels: Sequence[str], axis: TimeAxis, most_bars: int) -> Figure:
    """One row per device, or per node where there are many, and behind it a bar per job and stint.

    Parameters
    ----------
    labels : what the jobs are called, by their numbers.
    most_bars : that there may be.
    """
    run, stints, _ = shown
    heading = f"Use by node, and what ran where: {run.policy}"
    if not len(stints.job) or axis.end_s <= 0:
        return Figure(heading, [], {})
    row_of_device, rows = _rows(run.cluster)
    edges_s = np.linspace(0.0, axis.end_s, _NUM_PARTS + 1)
    share = stints.busy(edges_s, row_of_device) / np.bincount(row_of_device)[:, None]
    bounds = np.append(np.flatnonzero(np.diff(row_of_device, prepend=-1)), run.cluster.num_devices) - 0.5
    origin, per_s = axis.scale
    density = {
        "type": "heatmap",
        "x0": origin + per_s * edges_s[1] / 2,
        "dx": per_s * edges_s[1],
        "y": bounds.tolist(),
        "z": _small(np.round(100 * share)),
        "zmin": 0,
        "zmax": 100,
        "colorscale": _DENSITY,
        "colorbar": {
            "orientation": "h", "thickness": 10, "len": 0.5, "x": 0, "xanchor": "left", "y": 1.0, "yanchor": "bottom",
            "tickvals": [0, 50, 100], "ticktext": ["0", "50", "100 %"], "tickangle": 0,
        },
        "hovertemplate": "%{text}<br>%{x}: %{z} % in use<extra></extra>",
    }  # fmt: skip
    kept, note = _kept(stints, most_bars)
    drawn = layout("", "device", height=_height(run.cluster), showlegend=False)
    drawn["margin"]["t"] = 40  # room for the buttons
    drawn["xaxis"] |= axis.layout
    drawn["yaxis"] |= {"range": [run.cluster.num_devices - 0.5, -0.5], "showgrid": False}
    said = f"The colour is the share of {_what(rows, run.cluster)} in use, over {duration_text(edges_s[1])} each."
    more = {
        "rows": rows,
        "num_parts": _NUM_PARTS,
        "density": said,
        "num_left_out": len(stints.job) - len(kept.job),
    }
    bars = _packed(kept, labels, axis) | more
    return Figure(heading, [density], drawn, note, bars)


def _rows(cluster: Cluster) -> tuple[Ints, list[str]]:
    """Row of every device, and what the rows are called."""
    types = [f" ({node.device_type})" if len(cluster.device_types) > 1 else "" for node in cluster.nodes]
    if cluster.num_devices <= _MOST_DEVICE_ROWS:
        names = [f"device {i} of node {node}{types[node]}" for i, node in enumerate(cluster.node_of.tolist())]
        return np.arange(cluster.num_devices), names
    with_devices = [number for number, node in enumerate(cluster.nodes) if node.num_devices]
    per_row = -(-len(with_devices) // _MOST_ROWS)
    groups = [with_devices[i : i + per_row] for i in range(0, len(with_devices), per_row)]
    row_of_node = np.zeros(len(cluster.nodes), np.int64)
    for row, group in enumerate(groups):
        row_of_node[group] = row
    names = [
        f"node {group[0]}{types[group[0]]}" if len(group) == 1 else f"nodes {group[0]} to {group[-1]}"
        for group in groups
    ]
    return row_of_node[cluster.node_of], names


def _what(rows: Sequence[str], cluster: Cluster) -> str:
    if len(rows) == cluster.num_devices:
        return "a device's time that it is"
    return "a node's devices" if len(rows) == len(cluster.nodes) else "the devices of neighbouring nodes"


def _height(cluster: Cluster) -> int:
    return 110 + min(max(14 * cluster.num_devices, 60), 520)


def _small(shares: NDArray[np.float64]) -> dict[str, str]:
    """Encode whole numbers up to 255 as Plotly reads them."""
    rows, columns = shares.shape
    data = base64.b64encode(shares.astype(np.uint8).tobytes()).decode()
    return {"dtype": "u1", "bdata": data, "shape": f"{rows}, {columns}"}


def _kept(stints: Stints, most: int) -> tuple[Stints, str]:
    """Return as many bars as a page can hold, the longest, and a remark about the others."""
    count = len(stints.job)
    if count <= most:
        return stints, ""
    lasts_s = stints.end_s - stints.start_s
    places = np.sort(np.argpartition(lasts_s, count - most)[count - most :])
    kept = Stints(*(column[places] for column in vars(stints).values()))
    left_out = (
        f"the {count - most:,} shortest, of up to {duration_text(float(np.sort(lasts_s)[count - most - 1]))}"
    )
    return (
        kept,
        f"{count:,} bars are too many for a page: {left_out}, are left out; there one sees the share in use.",
    )


def _packed(stints: Stints, labels: Sequence[str], axis: TimeAxis) -> dict[str, Any]:
    """Bars as `bars.js` reads them."""
    per_step_s = 10.0 ** np.ceil(np.log10(axis.end_s / _LARGEST))
    starts, ends = (np.round(each / per_step_s).astype(np.int64) for each in (stints.start_s, stints.end_s))
    # Differences are small numbers, which zip well.
    times = np.diff(starts, prepend=0), ends - starts
    columns = np.stack([stints.job, stints.first, stints.count, stints.size, *times]).astype("<u4")
    origin, per_s = axis.scale
    return {
        "num_bars": len(stints.job),
        "columns": _zipped(columns.tobytes()),
        "labels": _zipped(json.dumps([html.escape(label) for label in labels]).encode()),
        "origin": origin,
        "step": float(per_step_s * per_s),
        "seconds_per_step": float(per_step_s),
        "is_date": axis.zero is not None,
        "palette": PALETTE,
    }


def _zipped(data: bytes) -> str:
    return base64.b64encode(gzip.compress(data, 6, mtime=0)).decode()
