"""Divisors of a number of rows."""

from __future__ import annotations

from math import isqrt


def divisors(number: int) -> list[int]:
    """All divisors, ascending."""
    small = [n for n in range(1, isqrt(number) + 1) if number % n == 0]
    large = [number // n for n in reversed(small) if n * n < number]
    return small + large
