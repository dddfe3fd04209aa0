"""Where many fractions are best, those that an interior point method comes to: the ones that Gavel's program takes.

Gavel's programs often have many solutions, and what jobs get beyond the least differs between them. The program of the
authors solves with ECOS, which ends inside the set of solutions, not at a corner of it as the simplex method does. To
compare with its runs, this is the same method, from its publication, for linear programs: a homogeneous self-dual
embedding, Mehrotra's predictor and corrector, and equilibrated data. All steps use that only the devices and the level
couple jobs, so that one costs time linear in jobs.

References
----------
A. Domahidi, E. Chu, S. Boyd. "ECOS: An SOCP Solver for Embedded Systems", ECC 2013, sections III and IV.
D. Ruiz. "A scaling algorithm to equilibrate both rows and columns norms in matrices", RAL-TR-2001-034.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainyard.compiling import only_compiled

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_NEAR, _NEAR_ENOUGH = 1e-7, 1e-5
"""Relative distance from the optimum at which the method ends, and the one that counts as a solution."""


def centre(
    rate: Floats,
    gang: Floats,
    room: Ints,
    *,
    share: Floats | None = None,
    need: Floats | None = None,
    reward: Floats | None = None,
) -> Floats | None:
    """Best fractions of jobs (rows) on types (columns), of many the ones in the middle; None if there are none.

    Minimises ``cost * X - level`` under ``X >= 0``, the devices of every type, all time of every job, and, where ``need``
    is finite, ``rate * X >= need + share * level``.
    """
    jobs, kinds = rate.shape
    need = np.zeros(jobs) if need is None else need
    bound = np.isfinite(need)
    coupled = share is not None
    # Coefficients of the rows, by kind of row: X >= 0, devices, time, rate; and of the level in the rates.
    data = np.stack((
        -np.ones((jobs, kinds)),
        np.repeat(gang[:, None], kinds, 1),
        np.ones((jobs, kinds)),
        np.where(bound[:, None], -rate, 0.0),
    ))  # fmt: skip
    level = np.where(bound, share, 0.0) if share is not None else np.zeros(jobs)
    limit = np.concatenate((np.zeros(jobs * kinds), room, np.ones(jobs), np.where(bound, -need, 1.0)))
    cost = np.append(np.zeros(jobs * kinds) if reward is None else -reward.ravel(), -1.0 if coupled else 0.0)
    columns, rows = _equilibrated(data, level, 3)
    found, ok = _solve(cost / columns, data, level, limit / rows, coupled)
    if not ok:
        return None
    fraction: Floats = np.clip(found[:-1] / columns[:-1], 0.0, 1.0).reshape(jobs, kinds)
    return fraction


def _equilibrated(data: Floats, level: Floats, rounds: int) -> tuple[Floats, Floats]:
    """Scale rows and columns, in place, so that their largest entries come to 1; returns what divides each."""
    _, jobs, kinds = data.shape
    columns, rows = np.ones(jobs * kinds + 1), np.ones(jobs * kinds + kinds + 2 * jobs)
    for _ in range(rounds):
        size = np.abs(data)
        column = np.append(size.max(axis=0).ravel(), np.abs(level).max())
        rate = np.maximum(size[3].max(axis=1), np.abs(level))
        row = np.concatenate((size[0].ravel(), size[1].max(axis=0), size[2].max(axis=1), rate))
        column, row = (np.sqrt(np.where(v < 1e-6, 1.0, v)) for v in (column, row))
        columns *= column
        rows *= row
        first, second, third = np.cumsum([jobs * kinds, kinds, jobs])
        data /= column[:-1].reshape(jobs, kinds)
        data[0] /= row[:first].reshape(jobs, kinds)
        data[1] /= row[first:second]
        data[2] /= row[second:third, None]
        data[3] /= row[third:, None]
        level /= row[third:] * column[-1]
    return columns, rows


@only_compiled
def _times(data, level, x):  # type: ignore[no-untyped-def]
    """The rows' values."""
    _, jobs, kinds = data.shape
    out = np.zeros(jobs * kinds + kinds + 2 * jobs)
    second = jobs * kinds + kinds
    for i in range(jobs):
        for j in range(kinds):
            v = x[i * kinds + j]
            out[i * kinds + j] = data[0, i, j] * v
            out[jobs * kinds + j] += data[1, i, j] * v
            out[second + i] += data[2, i, j] * v
            out[second + jobs + i] += data[3, i, j] * v
        out[second + jobs + i] += level[i] * x[-1]
    return out


@only_compiled
def _back(data, level, z):  # type: ignore[no-untyped-def]
    """The columns' values."""
    _, jobs, kinds = data.shape
    out = np.zeros(jobs * kinds + 1)
    second = jobs * kinds + kinds
    for i in range(jobs):
        a, b = z[second + i], z[second + jobs + i]
        for j in range(kinds):
            out[i * kinds + j] = (
                data[0, i, j] * z[i * kinds + j]
                + data[1, i, j] * z[jobs * kinds + j]
                + data[2, i, j] * a
                + data[3, i, j] * b
            )
        out[-1] += level[i] * b
    return out


@only_compiled
def _job(data, w2, i, q, in_time, in_rate, out):  # type: ignore[no-untyped-def]
    """One job's part of the step: its fractions, into ``out``, and the prices of its time and of its rate.

    ``q`` is the right side of its columns; ``in_time`` and ``in_rate`` those of its two rows. All sums are of differences
    between types, by Cramer's rule: where a job needs all its time on one type, its rows are parallel but for rounding,
    and to subtract what each comes to would leave only that.
    """
    _, jobs, kinds = data.shape
    t, r, at = data[2, i], data[3, i], jobs * kinds + kinds + i
    wt, wr = w2[at], w2[at + jobs]
    d = w2[i * kinds : (i + 1) * kinds] / data[0, i] ** 2
    det, u, v = wt * wr, wr * in_time, wt * in_rate
    for j in range(kinds):
        det += d[j] * (t[j] * t[j] * wr + r[j] * r[j] * wt)
        u += d[j] * (t[j] * q[j] * wr + r[j] * (r[j] * in_time - t[j] * in_rate))
        v += d[j] * (r[j] * q[j] * wt + t[j] * (t[j] * in_rate - r[j] * in_time))
        out[j] = q[j] * wt * wr - t[j] * wr * in_time - r[j] * wt * in_rate
    for j in range(kinds):
        for k in range(j):
            # Second minors of the columns q, t and r in the rows of both types.
            tr, qr, qt = t[j] * r[k] - t[k] * r[j], q[j] * r[k] - q[k] * r[j], q[j] * t[k] - q[k] * t[j]
            det += d[j] * d[k] * tr * tr
            u += d[j] * d[k] * tr * qr
            v -= d[j] * d[k] * tr * qt
            both = in_time * r[k] - in_rate * t[k], in_time * r[j] - in_rate * t[j]
            out[j] += d[k] * (wr * t[k] * qt + wt * r[k] * qr - tr * both[0])
            out[k] -= d[j] * (wr * t[j] * qt + wt * r[j] * qr - tr * both[1])
            for other in range(kinds):
                if other not in (j, k):
                    minor = q[other] * tr - t[other] * qr + r[other] * qt
                    out[other] += d[j] * d[k] * tr * minor
    for j in range(kinds):
        out[j] *= d[j] / det
    return u / det, v / det


@only_compiled
def _coupling(data, level, w2, coupled):  # type: ignore[no-untyped-def]
    """The system of the devices' prices and the level, once the jobs are eliminated."""
    _, jobs, kinds = data.shape
    matrix = np.zeros((kinds + 1, kinds + 1))
    out, one = np.zeros(kinds), np.zeros(kinds)
    for j in range(kinds):
        matrix[j, j] = -w2[jobs * kinds + j]
    for i in range(jobs):
        for column in range(kinds + 1):
            if column < kinds:
                one[column] = -data[1, i, column]
            _, v = _job(data, w2, i, one, 0.0, level[i] if column == kinds else 0.0, out)
            for j in range(kinds):
                matrix[j, column] += data[1, i, j] * out[j]
            matrix[kinds, column] += level[i] * v
            one[:] = 0.0
    if not coupled:
        matrix[kinds, kinds] = 1.0
    return matrix


@only_compiled
def _step(data, level, w2, matrix, bx, bz):  # type: ignore[no-untyped-def]
    """Solve ``G' z = bx, G x - w2 z = bz``."""
    _, jobs, kinds = data.shape
    first, second = jobs * kinds, jobs * kinds + kinds
    x, z = np.zeros(first + 1), np.zeros(second + 2 * jobs)
    q, out, right = np.zeros(kinds), np.zeros(kinds), np.zeros(kinds + 1)
    for j in range(kinds):
        right[j] = bz[first + j]
    right[kinds] = bx[first]
    for i in range(jobs):
        for j in range(kinds):
            k = i * kinds + j
            q[j] = bx[k] + data[0, i, j] * bz[k] / w2[k]
        _, v = _job(data, w2, i, q, -bz[second + i], -bz[second + jobs + i], out)
        for j in range(kinds):
            right[j] -= data[1, i, j] * out[j]
        right[kinds] -= level[i] * v
    shared = np.linalg.solve(matrix, right)
    x[first] = shared[kinds]
    for j in range(kinds):
        z[first + j] = shared[j]
    for i in range(jobs):
        for j in range(kinds):
            k = i * kinds + j
            q[j] = bx[k] + data[0, i, j] * bz[k] / w2[k] - data[1, i, j] * shared[j]
        in_rate = level[i] * x[first] - bz[second + jobs + i]
        z[second + i], z[second + jobs + i] = _job(data, w2, i, q, -bz[second + i], in_rate, out)
        for j in range(kinds):
            k = i * kinds + j
            x[k] = out[j]
            z[k] = (data[0, i, j] * out[j] - bz[k]) / w2[k]
    return x, z


@only_compiled
def _refined(data, level, w2, matrix, bx, bz):  # type: ignore[no-untyped-def]
    """The same, and what rounding left of the right side once more, twice at most."""
    x, z = _step(data, level, w2, matrix, bx, bz)
    exact = 1e-13 * max(np.abs(bx).max(), np.abs(bz).max())
    for _ in range(2):
        off_x, off_z = bx - _back(data, level, z), bz - _times(data, level, x) + w2 * z
        if max(np.abs(off_x).max(), np.abs(off_z).max()) <= exact:
            break
        more_x, more_z = _step(data, level, w2, matrix, off_x, off_z)
        x, z = x + more_x, z + more_z
    return x, z


@only_compiled
def _inside(v):  # type: ignore[no-untyped-def]
    """Moved into the cone, as the method starts."""
    least = v.min()
    return v if least > 0 else v + (1.0 - least)


@only_compiled
def _length(s, z, tau, kappa, ds, dz, dtau, dkappa):  # type: ignore[no-untyped-def]
    """How far the step can go."""
    far = 1e9
    for i in range(len(s)):
        if ds[i] < 0:
            far = min(far, -s[i] / ds[i])
        if dz[i] < 0:
            far = min(far, -z[i] / dz[i])
    if dtau < 0:
        far = min(far, -tau / dtau)
    if dkappa < 0:
        far = min(far, -kappa / dkappa)
    return min(max(far, 1e-6), 0.999)


@only_compiled
def _solve(c, data, level, h, coupled):  # type: ignore[no-untyped-def]
    """Minimise ``c x`` under ``G x + s = h, s >= 0``; the fractions and the level, and whether they exist."""
    rows, nothing = len(h), np.zeros(len(c))
    ones = np.ones(rows)
    matrix = _coupling(data, level, ones, coupled)
    x, r = _refined(data, level, ones, matrix, nothing, h)
    s = _inside(-r)
    _, z = _refined(data, level, ones, matrix, -c, np.zeros(rows))
    z = _inside(z)
    tau, kappa = 1.0, 1.0
    best, least = x, 1e9
    size_x, size_z = max(1.0, np.sqrt((c * c).sum())), max(1.0, np.sqrt((h * h).sum()))
    for _ in range(100):
        back = _back(data, level, z)
        rx, rz = -back - c * tau, s + _times(data, level, x) - h * tau
        primal, dual = (c * x).sum(), -(h * z).sum()
        rt = kappa + primal - dual
        gap = (s * z).sum()
        mu = (gap + kappa * tau) / (rows + 1)
        off_by = max((rz * rz).sum() ** 0.5 / size_z, (rx * rx).sum() ** 0.5 / size_x) / tau
        off_by = max(off_by, gap / tau**2 / max(1.0, abs(primal / tau)))
        if off_by < least and tau > 0 and s.min() > 0 and z.min() > 0:
            best, least = x / tau, off_by
        elif least < 1e-4 or not np.isfinite(off_by):
            # Rounding takes over: what came before is as near as it gets.
            break
        if least < _NEAR:
            break
        if dual > 0 and (back * back).sum() ** 0.5 < 1e-8 * dual:
            return best, False
        w2 = s / z
        matrix = _coupling(data, level, w2, coupled)
        if not np.isfinite(matrix).all():
            break
        x1, z1 = _refined(data, level, w2, matrix, -c, h)
        below = kappa / tau - (c * x1).sum() - (h * z1).sum()
        sigma, off, off_kappa = 0.0, s.copy(), kappa
        far = 0.0
        # The predictor, which only tells how much to centre, and then the corrector.
        for corrects in range(2):
            x2, z2 = _refined(data, level, w2, matrix, (1.0 - sigma) * rx, off - (1.0 - sigma) * rz)
            dtau = ((1.0 - sigma) * rt - off_kappa + (c * x2).sum() + (h * z2).sum()) / below
            dx, dz = x2 + dtau * x1, z2 + dtau * z1
            ds, dkappa = -off - w2 * dz, -off_kappa - kappa / tau * dtau
            far = _length(s, z, tau, kappa, ds, dz, dtau, dkappa)
            if not corrects:
                sigma = min(max((1.0 - far) ** 3, 1e-4), 1.0)
                off = s + (ds * dz - sigma * mu) / z
                off_kappa = kappa + (dtau * dkappa - sigma * mu) / tau
        far *= 0.99
        x, z, s = x + far * dx, z + far * dz, s + far * ds
        tau, kappa = tau + far * dtau, kappa + far * dkappa
    return best, least < _NEAR_ENOUGH
