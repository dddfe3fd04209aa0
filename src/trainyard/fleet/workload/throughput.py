"""How long a step takes on how many devices: a model of seven numbers, fitted to what a job measured of itself.

References
----------
A. Qiao et al., "Pollux", OSDI 2021, sections 3.2 and 4.1.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trainyard.compiling import only_compiled

TINY = 1e-8  # what costs nothing, costs this much, so that it has a logarithm
_LARGEST_GAMMA = 10.0  # of the norm that joins computing and synchronising: nearly their maximum
_NUM_STEPS, _FLAT = 500, 1e-7
_LARGEST_STEP = 2.0  # of the fit, in logarithms: no number grows or shrinks by more than a factor of e**2
_SMOOTH = 1e-8  # keeps the root of an error smooth where the fit is perfect: errors of 0.01 % count as none


class Theta(NamedTuple):
    """Parameters of the throughput model, theta_sys of the paper; seconds, but for ``gamma``.

    Attributes
    ----------
    alpha_grad, beta_grad : of a pass: constant, and per sample on a device.
    alpha_node, beta_node : of synchronisation over several nodes: constant, and per device beyond two.
    alpha_local, beta_local : the same within a node.
    gamma : of the norm that joins the two: 1 where they follow each other, large where they overlap.
    """

    alpha_grad: float
    beta_grad: float
    alpha_node: float
    beta_node: float
    alpha_local: float
    beta_local: float
    gamma: float


Sample = tuple[int, int, int, float, float]
"""Nodes, devices, local batch, seconds of a pass without synchronisation and with it."""


def fit(samples: tuple[Sample, ...]) -> Theta:
    """The model that explains what was measured.

    The sum of the root mean squared logarithmic errors of passes and of steps is minimised within bounds, by a
    quasi-Newton method (the authors take L-BFGS-B; for seven numbers, no memory need be limited). What was not seen is
    taken to cost nothing, so that a job is tried on more devices (prior-driven exploration).
    """
    nodes, devices, local, compute_s, step_s = np.array(samples, np.float64).T
    lower, upper = np.array([TINY] * 6 + [1.0]), np.array([np.inf] * 6 + [_LARGEST_GAMMA])
    start = np.array([0.1, 0.01] * 3 + [1.001])
    across, within = bool(np.any(nodes > 1)), bool(np.any((nodes == 1) & (devices > 1)))
    many = bool(np.any(devices > 2))
    seen = np.array([True, True, across, across and many, within, within and many, True])
    start[~seen] = upper[~seen] = TINY
    if len(np.unique(local)) == 1:
        # With one local batch, its time is half constant and half by sample.
        start[0] = lower[0] = upper[0] = float(compute_s.mean()) / 2
    found = _least(start, lower, upper, nodes > 1, devices, local, np.log(compute_s), np.log(step_s))
    if not across:
        found[2:4] = np.maximum(found[2:4], 1.1 * found[4:6])
    return Theta(*found.tolist())


@only_compiled
def sync_s(theta, across, num_devices):  # type: ignore[no-untyped-def]
    """Seconds of synchronisation, over several nodes (``across``) or within one; compiled."""
    if across:
        return theta[2] + theta[3] * max(num_devices - 2, TINY)
    return theta[4] + theta[5] * max(num_devices - 2, TINY) if num_devices > 1 else TINY


@only_compiled
def _least(x, lower, upper, across, devices, local, log_compute, log_step):  # type: ignore[no-untyped-def]
    """Minimum of the loss within bounds, by projected BFGS over the logarithms of the numbers.

    When it gets no further it starts again from there by the gradient, until that gets it no further either.
    """
    x, lower, upper = np.log(x), np.log(lower), np.log(upper)
    loss, slope = _log_loss(x, across, devices, local, log_compute, log_step)
    inverse, is_new = np.eye(len(x)), True
    for _ in range(_NUM_STEPS):
        # At a bound that the slope pushes against, a number stays.
        stuck = ((x <= lower) & (slope >= 0)) | ((x >= upper) & (slope <= 0))
        free = np.where(stuck, 0.0, slope)
        if np.max(np.abs(free)) < _FLAT:
            break
        way = np.where(stuck, 0.0, -_times(inverse, free))
        if is_new or np.sum(way * free) >= 0:
            inverse, is_new, way = np.eye(len(x)), True, -free / np.max(np.abs(free))
        # A number that becomes so small in one step that it no longer counts would stay there: all is flat around it.
        length, reached = min(1.0, _LARGEST_STEP / np.max(np.abs(way))), loss
        while length > 1e-10:
            there = np.minimum(np.maximum(x + length * way, lower), upper)
            reached, new_slope = _log_loss(there, across, devices, local, log_compute, log_step)
            if reached < loss + 1e-4 * np.sum(slope * (there - x)):
                break
            length /= 2
        if reached > loss - 1e-9:
            if is_new:
                break
            inverse, is_new = np.eye(len(x)), True
        if reached < loss:
            moved, turned = there - x, new_slope - slope
            renew = reached > loss - 1e-9
            x, loss, slope = there, reached, new_slope
            if not renew:
                inverse, is_new = _updated(inverse, is_new, moved, turned)
    return np.exp(x)


@only_compiled
def _log_loss(x, across, devices, local, log_compute, log_step):  # type: ignore[no-untyped-def]
    theta = np.exp(x)
    loss, slope = _loss(theta, across, devices, local, log_compute, log_step)
    return loss, slope * theta


@only_compiled
def _times(matrix, vector):  # type: ignore[no-untyped-def]
    return np.sum(matrix * vector, axis=1)


@only_compiled
def _updated(inverse, is_new, moved, turned):  # type: ignore[no-untyped-def]
    """The inverse Hessian after a step (Broyden, Fletcher, Goldfarb, Shanno)."""
    curved = np.sum(moved * turned)
    if curved <= 1e-12 * np.sqrt(np.sum(moved**2) * np.sum(turned**2)):
        return inverse, is_new
    if is_new:
        inverse = np.eye(len(moved)) * curved / np.sum(turned**2)
    bent = _times(inverse, turned)
    inverse = inverse + (1 + np.sum(turned * bent) / curved) * np.outer(moved, moved) / curved
    return inverse - (np.outer(bent, moved) + np.outer(moved, bent)) / curved, False


@only_compiled
def _loss(theta, across, devices, local, log_compute, log_step):  # type: ignore[no-untyped-def]
    """Errors of passes and steps, a pull to gamma 1 and to synchronisation that does not grow; and the gradient."""
    num, gamma = len(local), theta[6]
    squares, slopes = np.zeros(2), np.zeros((2, 7))
    for i in range(num):
        pass_s, wait_s = theta[0] + theta[1] * local[i], sync_s(theta, across[i], devices[i])
        part, other = pass_s**gamma, wait_s**gamma
        both = part + other
        off = np.log(pass_s) - log_compute[i]
        squares[0] += off * off
        slopes[0, 0] += off / pass_s
        slopes[0, 1] += off * local[i] / pass_s
        off = np.log(both) / gamma - log_step[i]
        squares[1] += off * off
        by_pass, by_sync = off * part / (pass_s * both), off * other / (wait_s * both)
        slopes[1, 0] += by_pass
        slopes[1, 1] += by_pass * local[i]
        if across[i] or devices[i] > 1:
            place = 2 if across[i] else 4
            slopes[1, place] += by_sync
            slopes[1, place + 1] += by_sync * max(devices[i] - 2, TINY)
        logs = part * np.log(pass_s) + other * np.log(wait_s)
        slopes[1, 6] += off * (logs / (gamma * both) - np.log(both) / gamma**2)
    loss, slope = 1e-3 * (gamma - 1) ** 2, np.zeros(7)
    slope[6] = 2e-3 * (gamma - 1)
    for kind in range(2):
        error = np.sqrt(squares[kind] / num + _SMOOTH)
        loss += error
        slope += slopes[kind] / (num * error)
    for place in (2, 4):
        ratio = theta[place + 1] / theta[place]
        loss += 1e-2 * ratio**2
        slope[place + 1] += 2e-2 * ratio / theta[place]
        slope[place] -= 2e-2 * ratio**2 / theta[place]
    return loss, slope
