"""Batch sizes of Shockwave's jobs as they train, epoch by epoch.

``accordion`` takes the largest batch outside of critical regimes (Agarwal et al., "Accordion", MLSys 2021), ``gns``
doubles it where the gradient noise scale allows that (McCandlish et al., 2018). When that is was measured by the authors
of Shockwave for each model, first batch size and number of devices; the numbers are those of their simulator.
"""

from __future__ import annotations

from functools import cache
from math import ceil

_SAMPLES = {
    "ResNet-18": 50_000, "ResNet-50": 100_000, "LM": 59_675, "Recommendation": 117_907,
}  # fmt: skip
_LARGEST = {"ResNet-18": 256, "ResNet-50": 128, "LM": 80, "Recommendation": 8192}
# Epochs from which the batch size has doubled once more, by model, first batch size and devices.
_DOUBLED = {
    ("ResNet-18", 16, 1): (31, 41, 51, 71),
    ("ResNet-18", 32, 1): (21, 31, 51),
    ("ResNet-18", 64, 1): (11, 31),
    ("ResNet-18", 128, 1): (11,),
    ("ResNet-18", 16, 2): (21, 31, 91, 111),
    ("ResNet-18", 32, 2): (11, 21, 41),
    ("ResNet-18", 64, 2): (21, 41),
    ("ResNet-18", 128, 2): (41,),
    ("ResNet-18", 16, 4): (11, 21, 81, 91),
    ("ResNet-18", 32, 4): (21, 31, 61),
    ("ResNet-18", 64, 4): (11, 61),
    ("ResNet-18", 128, 4): (11,),
    ("ResNet-50", 64, 1): (101,),
    ("ResNet-50", 32, 2): (101, 111),
    ("ResNet-50", 64, 2): (81,),
    ("ResNet-50", 32, 4): (131, 221),
    ("ResNet-50", 64, 4): (191,),
    ("LM", 5, 1): (31, 41, 61, 71),
    ("LM", 10, 1): (11, 21, 41),
    ("LM", 20, 1): (11, 41),
    ("LM", 40, 1): (11,),
    ("LM", 5, 2): (31, 51, 61, 71),
    ("LM", 10, 2): (11, 31, 41),
    ("LM", 20, 2): (31, 41),
    ("LM", 40, 2): (11,),
    ("LM", 5, 4): (11, 31, 71, 91),
    ("LM", 10, 4): (11, 31, 61),
    ("LM", 20, 4): (11, 61),
    ("LM", 40, 4): (61,),
    ("Recommendation", 512, 1): (21, 41, 71, 91),
    ("Recommendation", 1024, 1): (21, 51, 91),
    ("Recommendation", 2048, 1): (21, 41),
    ("Recommendation", 4096, 1): (41,),
}
# Epochs of the critical regime at the beginning, and those that differ.
_FIRST_CRITICAL = 10
_LONGER_CRITICAL = {
    ("Recommendation", 512): 30, ("Recommendation", 1024): 30, ("Recommendation", 2048): 40,
}  # fmt: skip
# Critical regimes after that: from, to.
_CRITICAL_AGAIN = {
    "ResNet-18": ((150, 160), (250, 260)),
    "ResNet-50": tuple((epoch, epoch + 10) for epoch in range(30, 3000, 30)),
}


def steps_per_epoch(model: str, batch_size: int) -> int:
    """Steps in which a model sees its data once; 1 for one that never changes its batch size."""
    return ceil(_SAMPLES[model] / batch_size) if model in _SAMPLES and batch_size else 1


@cache
def regimes(model: str, batch_size: int, num_devices: int, mode: str) -> tuple[tuple[int, int], ...]:
    """Batch sizes of a job, each with the epoch from which it has it, from epoch 0 on.

    Parameters
    ----------
    batch_size : of the first epoch.
    mode : ``static``, ``accordion`` or ``gns``.
    """
    largest = _LARGEST.get(model, batch_size)
    found = [(0, batch_size)]
    if batch_size >= largest or not batch_size:
        return tuple(found)
    if mode == "gns":
        epochs = _DOUBLED.get((model, batch_size, num_devices), ())
        found += [
            (epoch, min(batch_size << doubled, largest)) for doubled, epoch in enumerate(epochs, start=1)
        ]
    elif mode == "accordion":
        found.append((_LONGER_CRITICAL.get((model, batch_size), _FIRST_CRITICAL), largest))
        for begin, end in _CRITICAL_AGAIN.get(model, ()):
            found += [(begin, batch_size), (end, largest)]
    return tuple(found)
