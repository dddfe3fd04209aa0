"""Lists per task, stored flat."""

from __future__ import annotations

import numpy as np

from trainyard.engine.tasks import Ints


def to_lists(rows: Ints, values: Ints, num_rows: int) -> tuple[Ints, Ints]:
    """Group values by row, keeping their order within a row.

    Parameters
    ----------
    rows, values : int64 arrays of one length
        Entry `k` says that `values[k]` belongs to row `rows[k]`.
    num_rows : int

    Returns
    -------
    offsets : int64 array (num_rows + 1,)
    flat : int64 array
        The values of row `i` are `flat[offsets[i]:offsets[i + 1]]`.
    """
    offsets = np.zeros(num_rows + 1, np.int64)
    np.cumsum(np.bincount(rows, minlength=num_rows), out=offsets[1:])
    if len(rows) and np.any(rows[1:] < rows[:-1]):
        values = values[np.argsort(rows, kind="stable")]
    return offsets, values


def row_of_each(offsets: Ints) -> Ints:
    """Row of every entry of a flat array with these offsets."""
    return np.repeat(np.arange(len(offsets) - 1, dtype=np.int64), np.diff(offsets))
