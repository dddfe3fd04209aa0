"""What happens to a job, in its row of the `JobTable`: it arrives, starts, works, loses its devices, leaves."""

from __future__ import annotations

import numpy as np

from trainyard.compiling import compiled, lean

# Rows of what `facts` finds.
(
    FACT_HELD, FACT_NUM_DEVICES, FACT_ALLOWED, FACT_ATTAINED_S, FACT_ATTAINED_DEVICE_S, FACT_FIRST_START_S,
) = range(6)  # fmt: skip
NUM_FACTS = FACT_FIRST_START_S + 1


@compiled
def arrive(table, row, serial, coming, number, now_s):  # type: ignore[no-untyped-def]
    """A job takes a row, and waits.

    Parameters
    ----------
    serial : how many jobs arrived before it.
    coming, number : a table whose row of this number says what is known of it, and where all else is 0.
    """
    table[row] = coming[number]
    table.serial[row], table.best_rate[row] = serial, table.gang_rate[row]
    table.waiting_since_s[row], table.first_start_s[row], table.finish_s[row] = now_s, np.nan, np.inf


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
def remove_row(rows, count, row):  # type: ignore[no-untyped-def]
    place = 0
    while rows[place] != row:
        place += 1
    # One by one, since Numba makes a copy first where slices overlap.
    later = rows[place:count]
    for i in range(len(later) - 1):
        later[i] = later[i + 1]


@lean
def settle(table, row, now_s):  # type: ignore[no-untyped-def]
    had_s = now_s - table.attained_until_s[row]
    table.attained_s[row] += had_s
    table.attained_device_s[row] += had_s * table.held[row]
    lost_s = max(0.0, min(now_s, table.began_s[row]) - table.attained_until_s[row])
    table.lost_s[row] += lost_s
    table.lost_device_s[row] += lost_s * table.held[row]
    if now_s > table.since_s[row]:
        done = (now_s - table.since_s[row]) * table.rate[row]
        table.left[row] = max(0.0, table.left[row] - done)
        table.since_s[row] = now_s
    table.attained_until_s[row] = now_s


@lean
def attained(table, rows, now_s, found):  # type: ignore[no-untyped-def]
    for i in range(len(rows)):
        row = rows[i]
        stint_s = stint_of(table, row, now_s)
        found[0, i] = table.attained_s[row] + stint_s
        found[1, i] = table.attained_device_s[row] + stint_s * table.held[row]


@lean
def stint_of(table, row, now_s):  # type: ignore[no-untyped-def]
    """For how long a job has had devices that is not written down yet."""
    return now_s - table.attained_until_s[row] if table.held[row] else 0.0


@lean
def facts(table, rows, now_s, found):  # type: ignore[no-untyped-def]
    for i in range(len(rows)):
        row = rows[i]
        found[FACT_HELD, i], found[FACT_NUM_DEVICES, i] = table.held[row], table.num_devices[row]
        found[FACT_ALLOWED, i], found[FACT_FIRST_START_S, i] = table.allowed[row], table.first_start_s[row]
    attained(table, rows, now_s, found[FACT_ATTAINED_S : FACT_ATTAINED_DEVICE_S + 1])


@lean
def left_at(table, rows, now_s, found):  # type: ignore[no-untyped-def]
    for i in range(len(rows)):
        found[i] = left_of(table, rows[i], now_s)


@lean
def left_of(table, row, now_s):  # type: ignore[no-untyped-def]
    done = max(0.0, now_s - table.since_s[row]) * table.rate[row]
    return max(0.0, table.left[row] - done)


@lean
def left_s_at(table, rows, now_s, found):  # type: ignore[no-untyped-def]
    some = False
    for i in range(len(rows)):
        found[i] = left_s_of(table, rows[i], now_s)
        some |= np.isnan(table.best_rate[rows[i]])
    return some


@lean
def left_s_of(table, row, now_s):  # type: ignore[no-untyped-def]
    """Time that a job would still take where it is fastest; NaN where that is to be asked."""
    rate = table.best_rate[row]
    return left_of(table, row, now_s) / rate if rate != 0.0 else np.inf


@compiled
def start_jobs(table, rows, devices, counts, kind_of, written, used, now_s, pauses_s):  # type: ignore[no-untyped-def]
    written[used : used + len(devices)] = devices
    waited, known, first = 0, True, 0
    for i in range(len(rows)):
        row = rows[i]
        if table.held[row]:
            settle(table, row, now_s)
        else:
            waited += 1
            table.waited_s[row] += now_s - table.waiting_since_s[row]
        pause_s = pauses_s[1]
        if np.isnan(table.first_start_s[row]):
            table.first_start_s[row] = now_s
            pause_s = pauses_s[0]
        table.held[row], table.held_type[row] = counts[i], kind_of[devices[first]]
        table.first_device[row] = used + first
        first += counts[i]
        table.num_starts[row] += 1
        table.placed_s[row] = table.attained_until_s[row] = now_s
        table.since_s[row] = table.began_s[row] = now_s + pause_s
        rate = table.gang_rate[row]
        if np.isnan(rate) or counts[i] != table.num_devices[row]:
            rate, known = 0.0, False
        run(table, row, rate)
    return waited, known


@lean
def run(table, row, rate):  # type: ignore[no-untyped-def]
    table.rate[row] = rate
    left = table.left[row] - table.turn[row]
    table.finish_s[row] = table.since_s[row] + left / rate if rate > 0 else np.inf


@lean
def release_jobs(table, rows, now_s, preempted):  # type: ignore[no-untyped-def]
    for row in rows:
        release_job(table, row, now_s, preempted)


@lean
def release_job(table, row, now_s, preempted):  # type: ignore[no-untyped-def]
    settle(table, row, now_s)
    table.held[row], table.rate[row] = 0, 0.0
    table.num_preempted[row] += preempted
    table.finish_s[row], table.waiting_since_s[row] = np.inf, now_s
