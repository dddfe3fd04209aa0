"""The columns of the books, one for each thing that is known of a job, and what compiled functions do with them.

All columns of real numbers are one block, and all of whole numbers another, with a row for each of the names below.
"""

from __future__ import annotations

import numpy as np

from trainyard.compiling import compiled, lean

REAL = (
    "arrival_s", "weight", "left", "rate", "turn", "since_s", "began_s", "finish_s", "attained_s", "attained_device_s",
    "attained_until_s", "placed_s", "waiting_since_s", "first_start_s", "job_s", "gang_rate", "best_rate",
    "mark", "cpus_each", "memory_each", "waited_s", "lost_s", "lost_device_s",
)  # fmt: skip
WHOLE = (
    "serial", "allowed", "num_devices", "held", "held_type", "num_preempted", "num_starts", "taken_over", "first_device",
    "has_auxiliary", "partition",
)  # fmt: skip
# Where compiled functions find them in the block of their kind.
LEFT = REAL.index("left")
RATE = REAL.index("rate")
TURN = REAL.index("turn")
SINCE_S = REAL.index("since_s")
BEGAN_S = REAL.index("began_s")
FINISH_S = REAL.index("finish_s")
ATTAINED_S = REAL.index("attained_s")
ATTAINED_DEVICE_S = REAL.index("attained_device_s")
ATTAINED_UNTIL_S = REAL.index("attained_until_s")
WAITING_SINCE_S = REAL.index("waiting_since_s")
WAITED_S = REAL.index("waited_s")
LOST_S = REAL.index("lost_s")
LOST_DEVICE_S = REAL.index("lost_device_s")
FIRST_START_S = REAL.index("first_start_s")
ARRIVAL_S = REAL.index("arrival_s")
WEIGHT = REAL.index("weight")
PLACED_S = REAL.index("placed_s")
GANG_RATE = REAL.index("gang_rate")
BEST_RATE = REAL.index("best_rate")
JOB_S = REAL.index("job_s")
MARK = REAL.index("mark")
NEEDS = slice(REAL.index("cpus_each"), REAL.index("memory_each") + 1)
SERIAL = WHOLE.index("serial")
ALLOWED = WHOLE.index("allowed")
NUM_DEVICES = WHOLE.index("num_devices")
HELD = WHOLE.index("held")
HELD_TYPE = WHOLE.index("held_type")
NUM_PREEMPTED = WHOLE.index("num_preempted")
NUM_STARTS = WHOLE.index("num_starts")
FIRST_DEVICE = WHOLE.index("first_device")
HAS_AUXILIARY = WHOLE.index("has_auxiliary")
PARTITION = WHOLE.index("partition")

# Rows of what `facts` finds.
(
    FACT_HELD, FACT_NUM_DEVICES, FACT_ALLOWED, FACT_ATTAINED_S, FACT_ATTAINED_DEVICE_S, FACT_FIRST_START_S,
) = range(6)  # fmt: skip
NUM_FACTS = FACT_FIRST_START_S + 1


@compiled
def enter(real, whole, row, now_s, reals, wholes):  # type: ignore[no-untyped-def]
    real[:, row], whole[:, row] = 0.0, 0
    real[ARRIVAL_S, row], real[WEIGHT, row], real[LEFT, row], real[GANG_RATE, row] = reals[:4]
    real[NEEDS, row] = reals[4:]
    real[BEST_RATE, row] = real[GANG_RATE, row]
    whole[SERIAL, row], whole[ALLOWED, row], whole[NUM_DEVICES, row], whole[PARTITION, row] = wholes
    real[WAITING_SINCE_S, row], real[FIRST_START_S, row], real[FINISH_S, row] = now_s, np.nan, np.inf


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
def settle(real, whole, row, now_s):  # type: ignore[no-untyped-def]
    had_s = now_s - real[ATTAINED_UNTIL_S, row]
    real[ATTAINED_S, row] += had_s
    real[ATTAINED_DEVICE_S, row] += had_s * whole[HELD, row]
    lost_s = max(0.0, min(now_s, real[BEGAN_S, row]) - real[ATTAINED_UNTIL_S, row])
    real[LOST_S, row] += lost_s
    real[LOST_DEVICE_S, row] += lost_s * whole[HELD, row]
    if now_s > real[SINCE_S, row]:
        done = (now_s - real[SINCE_S, row]) * real[RATE, row]
        real[LEFT, row] = max(0.0, real[LEFT, row] - done)
        real[SINCE_S, row] = now_s
    real[ATTAINED_UNTIL_S, row] = now_s


@lean
def attained(real, whole, rows, now_s, found):  # type: ignore[no-untyped-def]
    for i in range(len(rows)):
        row = rows[i]
        stint_s = stint_of(real, whole, row, now_s)
        found[0, i] = real[ATTAINED_S, row] + stint_s
        found[1, i] = real[ATTAINED_DEVICE_S, row] + stint_s * whole[HELD, row]


@lean
def stint_of(real, whole, row, now_s):  # type: ignore[no-untyped-def]
    """For how long a job has had devices that is not written down yet."""
    return now_s - real[ATTAINED_UNTIL_S, row] if whole[HELD, row] else 0.0


@lean
def facts(real, whole, rows, now_s, found):  # type: ignore[no-untyped-def]
    for i in range(len(rows)):
        row = rows[i]
        found[FACT_HELD, i], found[FACT_NUM_DEVICES, i] = whole[HELD, row], whole[NUM_DEVICES, row]
        found[FACT_ALLOWED, i], found[FACT_FIRST_START_S, i] = whole[ALLOWED, row], real[FIRST_START_S, row]
    attained(real, whole, rows, now_s, found[FACT_ATTAINED_S : FACT_ATTAINED_DEVICE_S + 1])


@lean
def left_at(real, rows, now_s, found):  # type: ignore[no-untyped-def]
    for i in range(len(rows)):
        found[i] = left_of(real, rows[i], now_s)


@lean
def left_of(real, row, now_s):  # type: ignore[no-untyped-def]
    done = max(0.0, now_s - real[SINCE_S, row]) * real[RATE, row]
    return max(0.0, real[LEFT, row] - done)


@lean
def left_s_at(real, rows, now_s, found):  # type: ignore[no-untyped-def]
    some = False
    for i in range(len(rows)):
        found[i] = left_s_of(real, rows[i], now_s)
        some |= np.isnan(real[BEST_RATE, rows[i]])
    return some


@lean
def left_s_of(real, row, now_s):  # type: ignore[no-untyped-def]
    """Time that a job would still take where it is fastest; NaN where that is to be asked."""
    rate = real[BEST_RATE, row]
    return left_of(real, row, now_s) / rate if rate != 0.0 else np.inf


@compiled
def start_jobs(real, whole, rows, devices, counts, kind_of, written, used, now_s, pauses_s):  # type: ignore[no-untyped-def]
    written[used : used + len(devices)] = devices
    waited, known, first = 0, True, 0
    for i in range(len(rows)):
        row = rows[i]
        if whole[HELD, row]:
            settle(real, whole, row, now_s)
        else:
            waited += 1
            real[WAITED_S, row] += now_s - real[WAITING_SINCE_S, row]
        pause_s = pauses_s[1]
        if np.isnan(real[FIRST_START_S, row]):
            real[FIRST_START_S, row] = now_s
            pause_s = pauses_s[0]
        whole[HELD, row], whole[HELD_TYPE, row] = counts[i], kind_of[devices[first]]
        whole[FIRST_DEVICE, row] = used + first
        first += counts[i]
        whole[NUM_STARTS, row] += 1
        real[PLACED_S, row] = real[ATTAINED_UNTIL_S, row] = now_s
        real[SINCE_S, row] = real[BEGAN_S, row] = now_s + pause_s
        rate = real[GANG_RATE, row]
        if np.isnan(rate) or counts[i] != whole[NUM_DEVICES, row]:
            rate, known = 0.0, False
        run(real, row, rate)
    return waited, known


@lean
def run(real, row, rate):  # type: ignore[no-untyped-def]
    real[RATE, row] = rate
    left = real[LEFT, row] - real[TURN, row]
    real[FINISH_S, row] = real[SINCE_S, row] + left / rate if rate > 0 else np.inf


@lean
def release_jobs(real, whole, rows, now_s, preempted):  # type: ignore[no-untyped-def]
    for row in rows:
        release_job(real, whole, row, now_s, preempted)


@lean
def release_job(real, whole, row, now_s, preempted):  # type: ignore[no-untyped-def]
    settle(real, whole, row, now_s)
    whole[HELD, row], real[RATE, row] = 0, 0.0
    whole[NUM_PREEMPTED, row] += preempted
    real[FINISH_S, row], real[WAITING_SINCE_S, row] = np.inf, now_s
