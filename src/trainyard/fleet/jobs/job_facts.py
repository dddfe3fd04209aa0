"""Facts of jobs at a moment, from the `JobTable`: between two changes they follow from starts and rates."""

from __future__ import annotations

import numpy as np

from trainyard.compiling import compiled, lean

# Rows of what `facts` finds.
(
    FACT_HELD, FACT_NUM_DEVICES, FACT_ALLOWED, FACT_ATTAINED_S, FACT_ATTAINED_DEVICE_S, FACT_FIRST_START_S,
) = range(6)  # fmt: skip
NUM_FACTS = FACT_FIRST_START_S + 1


@compiled
def needs_of_rows(table, rows):  # type: ignore[no-untyped-def]
    """Processors and bytes that jobs need with each device: two rows."""
    found = np.empty((2, len(rows)))
    for i in range(len(rows)):
        found[0, i], found[1, i] = table.needs[rows[i], 0], table.needs[rows[i], 1]
    return found


@lean
def waiting_rows(rows, count, held, found):  # type: ignore[no-untyped-def]
    num = 0
    for i in range(count):
        if held[rows[i]] == 0:
            found[num] = rows[i]
            num += 1
    return num


@lean
def stint_of(table, row, now_s):  # type: ignore[no-untyped-def]
    """Return the seconds that a job has had devices and that are not written down yet."""
    job = table[row]
    return now_s - job.attained_until_s if job.held else 0.0


@lean
def attained(table, rows, now_s, found):  # type: ignore[no-untyped-def]
    for i in range(len(rows)):
        row = rows[i]
        job = table[row]
        stint_s = stint_of(table, row, now_s)
        found[0, i] = job.attained_s + stint_s
        found[1, i] = job.attained_device_s + stint_s * job.held


@lean
def facts(table, rows, now_s, found):  # type: ignore[no-untyped-def]
    for i in range(len(rows)):
        job = table[rows[i]]
        found[FACT_HELD, i], found[FACT_NUM_DEVICES, i] = job.held, job.num_devices
        found[FACT_ALLOWED, i], found[FACT_FIRST_START_S, i] = job.allowed, job.first_start_s
    attained(table, rows, now_s, found[FACT_ATTAINED_S : FACT_ATTAINED_DEVICE_S + 1])


@lean
def left_of(table, row, now_s):  # type: ignore[no-untyped-def]
    job = table[row]
    done = max(0.0, now_s - job.since_s) * job.rate
    return max(0.0, job.left - done)


@lean
def left_at(table, rows, now_s, found):  # type: ignore[no-untyped-def]
    for i in range(len(rows)):
        found[i] = left_of(table, rows[i], now_s)


@lean
def left_s_of(table, row, now_s):  # type: ignore[no-untyped-def]
    """Time that a job would still take where it is fastest; NaN where that is to be asked."""
    rate = table[row].best_rate
    return left_of(table, row, now_s) / rate if rate != 0.0 else np.inf


@lean
def left_s_at(table, rows, now_s, found):  # type: ignore[no-untyped-def]
    some = False
    for i in range(len(rows)):
        found[i] = left_s_of(table, rows[i], now_s)
        some |= np.isnan(table.best_rate[rows[i]])
    return some
