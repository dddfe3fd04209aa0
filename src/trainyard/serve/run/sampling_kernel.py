"""The compiled loops that choose tokens; imported only when the first one is chosen.

Weights are probabilities before they are divided by their sum: 1 for the likeliest token, and float32. Positive floats
are in the order of their bits, so that a threshold among them is found as a radix sort would: count by the highest
bits, then by the next ones in the one bucket that it lies in. Nothing is sorted, and ties are known to be ties.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from trainyard.compiling import lean
from trainyard.program.random.kernels import GOLDEN, U64, mix
from trainyard.serve.run.vector_math import exp, fast, highest

__all__ = ["NUM_BUCKETS", "choose_likeliest", "draw", "forbid", "penalise", "top_logprobs"]

_CHUNK = 256
_PART = 64
_LEVELS = ((31, 20), (20, 10), (10, 0))
"""Bits by which the threshold is sought, level by level: below the first number, from the second on."""
NUM_BUCKETS = 1 << 11
f32 = np.float32


@fast
def _sum(values: Any) -> float:
    total = 0.0
    for i in range(len(values)):
        total += np.float64(values[i])
    return total


@fast
def _sum_of_weights(row: Any, top: Any, sharpness: Any, weights: Any) -> float:
    """Write the weights of logits, and return their sum."""
    total = f32(0.0)
    for i in range(len(row)):
        weight = exp((row[i] - top) * sharpness)
        weights[i] = weight
        total += weight
    return np.float64(total)


@lean
def _weigh(row: Any, top: Any, sharpness: Any, weights: Any) -> float:
    """Write the weights of logits, and return their sum; in parts, whose own sums are small enough for float32."""
    total = 0.0
    for first in range(0, len(row), _CHUNK):
        part = slice(first, min(first + _CHUNK, len(row)))
        total += _sum_of_weights(row[part], top, sharpness, weights[part])
    return total


@lean
def choose_likeliest(logits: Any, rows: Any, tokens: Any) -> None:
    """Choose in each row the token of the highest logit, the first of equal ones; -1 if no logit is a finite number."""
    for number in rows:
        row = logits[number]
        best, place = f32(-np.inf), -1
        for first in range(0, len(row), _CHUNK):
            found = highest(row[first : first + _CHUNK])
            if found > best:
                best, place = found, first
        while place >= 0 and row[place] != best:
            place += 1
        tokens[number] = place


@lean
def _collect(weights: Any, least: Any, kept: Any, places: Any) -> int:
    """Copy weights of at least so much, and their places, and return how many these are."""
    num = 0
    for first in range(0, len(weights), _PART):
        part = weights[first : first + _PART]
        if highest(part) < least:
            continue
        for i in range(len(part)):
            kept[num] = part[i]
            places[num] = first + i
            num += part[i] >= least
    return num


@lean
def _keep_highest(
    kept: Any, bits: Any, places: Any, num: int, target: float, by_count: bool, sums: Any
) -> int:
    """Drop all but the highest weights that are as many, or have as large a sum, as the target; of ties, the first stay.

    Parameters
    ----------
    kept, places : weights and their tokens, in the order of tokens; what stays is moved to the front.
    bits : the same memory as ``kept``, int32.
    sums : (NUM_BUCKETS,) float64, for counting.
    """
    prefix = 0
    for upper, lower in _LEVELS:
        count = 1 << (upper - lower)
        sums[:count] = 0.0
        for i in range(num):
            if bits[i] >> upper == prefix:
                sums[(bits[i] >> lower) & (count - 1)] += 1.0 if by_count else np.float64(kept[i])
        lowest = -1
        for bucket in range(count - 1, -1, -1):
            if sums[bucket] > 0.0:
                if lowest >= 0:
                    target -= sums[lowest]
                lowest = bucket
                if sums[bucket] >= target:
                    break
        prefix = (prefix << (upper - lower)) | lowest
    # Those above the threshold stay, and of those that equal it the first few.
    stay = 0
    ties = -1.0
    for i in range(num):
        weight, bit, place = kept[i], bits[i], places[i]
        if bit == prefix and ties < 0.0:
            ties = max(1.0, target if by_count else math.ceil(target / np.float64(weight)))
        stays = bit > prefix or (bit == prefix and ties > 0.0)
        if bit == prefix and stays:
            ties -= 1.0
        kept[stay] = weight
        places[stay] = place
        stay += stays
    return stay


@lean
def _bound(weights: Any, num: int, kept: Any, bits: Any, places: Any, sums: Any) -> Any:
    """A weight that as many weights reach, at least: 0, or a highest one of as many parts."""
    num_parts = (len(weights) + _PART - 1) // _PART
    if num > num_parts:
        return f32(0.0)
    for part in range(num_parts):
        kept[part] = highest(weights[part * _PART : (part + 1) * _PART])
    _keep_highest(kept, bits, places, num_parts, np.float64(num), True, sums)
    least = kept[0]
    for part in range(num):
        least = min(least, kept[part])
    return least


@lean
def _at_share(weights: Any, share: float) -> int:
    """Index at which the sum of weights passes a share of [0, 1) of it all; never one of weight 0."""
    left = share * _sum(weights)
    for first in range(0, len(weights), _CHUNK):
        part = weights[first : first + _CHUNK]
        total = _sum(part)
        if left >= total:
            left -= total
            continue
        for i in range(len(part)):
            left -= np.float64(part[i])
            if left < 0.0:
                return first + i
    # Sums in another order may leave a little over: then it is the last one that can be drawn.
    last = len(weights) - 1
    while last > 0 and weights[last] <= 0.0:
        last -= 1
    return last


@lean
def draw(
    logits: Any, rows: Any, sharpness: Any, top_k: Any, top_p: Any, min_p: Any, seeds: Any, counters: Any,
    weights: Any, kept: Any, bits: Any, places: Any, sums: Any, tokens: Any,
) -> None:  # fmt: skip
    """Draw the token of each row; -1 if a logit is no number, or none is finite.

    Parameters
    ----------
    sharpness : 1 / temperature of each of ``rows``, in this order, as are ``top_k`` to ``counters``.
    weights, kept, bits, places, sums : memory to work in; ``bits`` is that of ``kept``.
    """
    for order in range(len(rows)):
        row = logits[rows[order]]
        total = _weigh(row, highest(row), sharpness[order], weights)
        if not 1.0 <= total < np.inf:
            tokens[rows[order]] = -1
            continue
        number = mix(mix(seeds[order]) + U64(counters[order]) * GOLDEN)
        share = np.float64(number >> U64(11)) * 2.0**-53
        k, p, least = top_k[order], top_p[order], np.float64(min_p[order])
        has_k = 0 < k < len(row)
        if not has_k and p >= 1.0 and least <= 0.0:
            tokens[rows[order]] = _at_share(weights, share)
            continue
        has_all = not has_k and least <= 0.0
        if has_all:
            # All tokens below this have less than 1 - p together: the kept ones are among the others.
            least = (1.0 - p) * total / len(row) * 0.999
        elif has_k:
            least = max(least, np.float64(_bound(weights, k, kept, bits, places, sums)))
        num = _collect(weights, f32(least), kept, places)
        if has_k and k < num:
            num = _keep_highest(kept, bits, places, num, np.float64(k), True, sums)
        if p < 1.0:
            target = p * (total if has_all else _sum(kept[:num]))
            num = _keep_highest(kept, bits, places, num, target, False, sums)
        tokens[rows[order]] = places[_at_share(kept[:num], share)]


@lean
def forbid(row: Any, allowed: Any) -> None:
    """Set the logits of tokens to minus infinity whose bit is 0; those beyond the last word, too."""
    for word in range((len(row) + 31) // 32):
        bits = allowed[word] if word < len(allowed) else np.int32(0)
        if bits != -1:
            for i in range(32 * word, min(32 * word + 32, len(row))):
                if not (bits >> (i & 31)) & 1:
                    row[i] = f32(-np.inf)


@lean
def penalise(
    row: Any, prompt: Any, output: Any, repetition: Any, presence: Any, frequency: Any, counts: Any
) -> None:
    """Lower the logits of tokens that have been seen (see ``SamplingParams``).

    Parameters
    ----------
    counts : (vocabulary,) int32, all 0, and so again afterwards.
    """
    for tokens in (prompt, output):
        for token in tokens:
            if counts[token] == 0:
                counts[token] = -1
                row[token] = row[token] / repetition if row[token] > 0.0 else row[token] * repetition
    for tokens in (prompt, output):
        for token in tokens:
            counts[token] = 0
    for token in output:
        counts[token] += 1
    for token in output:
        if counts[token] > 0:
            row[token] -= f32(counts[token]) * frequency + presence
            counts[token] = 0


@lean
def top_logprobs(row: Any, weights: Any, top: Any, logprobs: Any) -> float:
    """Write the likeliest tokens and their log-probabilities, from the first; return what is the logit of probability 1.

    Parameters
    ----------
    weights : memory to work in.
    top, logprobs : as long as tokens are wanted.
    """
    most = highest(row)
    base = np.float64(most) + math.log(_weigh(row, most, f32(1.0), weights))
    num = len(top)
    found = 0
    for first in range(0, len(row), _PART):
        part = row[first : first + _PART]
        if num == 0 or (found == num and highest(part) <= logprobs[num - 1]):
            continue
        for i in range(len(part)):
            if found < num or part[i] > logprobs[num - 1]:
                place = min(found, num - 1)
                while place > 0 and logprobs[place - 1] < part[i]:
                    logprobs[place] = logprobs[place - 1]
                    top[place] = top[place - 1]
                    place -= 1
                logprobs[place] = part[i]
                top[place] = first + i
                found = min(found + 1, num)
    for i in range(num):
        logprobs[i] -= base
    return base
