"""Layers of a model as they were measured inside a server, in the form of LLMServingSim's profiles.

References
----------
J. Cho et al., "LLMServingSim: A HW/SW Co-Simulation Infrastructure for LLM Inference Serving at Scale", IISWC 2024. Its
profiler runs each layer of a model under vLLM for numbers of tokens (or of sequences), and attention for steps in which a
prompt's chunk and requests that decode are together.
"""

from __future__ import annotations

import csv
import gzip
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainyard.serve.costs.tables.grid import Grid, points_of
from trainyard.serve.errors import ServeError

__all__ = [
    "Exchange",
    "LayerProfile",
    "has_layer_profile",
    "profiled_devices",
    "profiled_models",
    "read_layer_profile",
]

Floats = NDArray[np.float64]
Rows = list[dict[str, str]]

_ONCE = frozenset({"embedding", "final_layernorm", "lm_head", "sampler"})
_TWICE = frozenset({"layernorm"})  # before attention and before the MLP
_LAYERS, _ATTENTION, _EXPERTS = "profile_layers.csv", "profile_attention.csv", "profile_moe.csv"
_ATTENTION_SIZES = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
_COLUMNS = {
    _LAYERS: ("gpu", "model", "tp", "layer", "per", "count", "time_us"),
    _ATTENTION: ("gpu", "model", "tp", *_ATTENTION_SIZES, "time_us"),
    _EXPERTS: ("gpu", "model", "tp", "tokens", "activated_experts", "time_us"),
}
_US = 1e-6


@dataclass(frozen=True)
class _Line:
    """Seconds of a layer by what it is computed for, and how often it is computed in a step."""

    counts: Floats
    seconds: Floats
    num: int

    def __call__(self, count: int) -> float:
        """Return seconds in a step for a number of tokens or sequences; linear between measured numbers, and beyond."""
        counts, seconds = self.counts, self.seconds
        last = len(counts) - 1
        low = min(max(int(np.searchsorted(counts, count, "right")) - 1, 0), last - 1)
        part = max((count - counts[low]) / (counts[low + 1] - counts[low]), 0.0)
        return self.num * float(seconds[low] + part * (seconds[low + 1] - seconds[low]))


def _nothing_s(num_tokens: int) -> float:
    return 0.0


@dataclass(frozen=True)
class Exchange:
    """Seconds in which devices exchange values of so many tokens.

    Attributes
    ----------
    communication_s : devices of a tensor-parallel group.
    dispatched_s : data-parallel ranks that share the experts of mixtures, of the tokens of all.
    num_ranks : how many of these there are, each with a part of the experts.
    """

    communication_s: Callable[[int], float] = _nothing_s
    dispatched_s: Callable[[int], float] = _nothing_s
    num_ranks: int = 1


class LayerProfile:
    """The parts of a step, from measured layers.

    Parameters
    ----------
    of_tokens, of_sequences : seconds of layers for so many of these, by name.
    attention : of a layer, in seconds, by the tokens of a prompt's chunk, those before it, the requests that decode and
        the length of their sequences.
    num_layers : of the model.
    experts : of a mixture of experts in a layer, by tokens and by how many experts get any; None where it has none.
    num_experts, num_used : of the mixture, and of those for each token.
    exchange : what devices exchange, which is in no profile.
    """

    def __init__(
        self,
        of_tokens: Mapping[str, _Line],
        of_sequences: Mapping[str, _Line],
        attention: Mapping[tuple[float, ...], float],
        num_layers: int,
        experts: Grid | None = None,
        num_experts: int = 0,
        num_used: int = 0,
        exchange: Exchange | None = None,
    ) -> None:
        self._exchange = exchange or Exchange()
        self._of_tokens, self._of_sequences, self._num_layers = of_tokens, of_sequences, num_layers
        self._experts, self._num_experts, self._num_used = experts, num_experts, num_used
        self._prompts = Grid({key[:2]: s for key, s in attention.items() if key[0] and not key[2]})
        self._decodes = Grid({key[2:]: s for key, s in attention.items() if not key[0]})
        # A step with both takes another time than the two kernels: longer, for a large chunk beside many requests.
        both = {key: s for key, s in attention.items() if key[0] and key[2]}
        sums = {key: self._prompts(*key[:2]) + self._decodes(*key[2:]) for key in both}
        self._both = Grid({key: seconds / sums[key] for key, seconds in both.items()}) if both else None
        self._shortest_s = min(attention.values())
        self._curves: dict[int, Callable[[Floats], Floats]] = {}

    def tokens_s(self, num: int) -> float:
        return sum(line(num) for line in self._of_tokens.values()) + self._exchange.communication_s(num)

    def experts_s(self, num: int) -> float:
        if self._experts is None:
            return 0.0
        # A device has its part of the experts, to which its part of the tokens goes.
        num_ranks = self._exchange.num_ranks
        touched = self._num_touched(num) / num_ranks
        return self._num_layers * self._experts(num / num_ranks, touched) + self._exchange.dispatched_s(num)

    def sequences_s(self, num: int) -> float:
        return sum(line(num) for line in self._of_sequences.values())

    def backward_s(self, chunks: Sequence[tuple[int, int]]) -> float:
        """Refused: only forward passes were measured."""
        raise ServeError(
            "profiles of layers have no times of a backward pass, which requests that train need; leave them out, to "
            "have all times predicted"
        )

    def attention_s(self, chunks: Sequence[tuple[int, int]], num: int, mean_tokens: Floats) -> Floats:
        decodes_s = self._decodes_s(num, mean_tokens) if num else np.zeros(len(mean_tokens))
        if not chunks:
            return self._num_layers * decodes_s
        # One kernel computes all prompts: what it takes at least is counted once.
        prompts_s = sum(self._prompts(*chunk) for chunk in chunks) - (len(chunks) - 1) * self._shortest_s
        both_s = prompts_s + decodes_s
        if num and self._both is not None:
            tokens, before = _as_one(chunks)
            both_s = both_s * [self._both(tokens, before, num, mean) for mean in mean_tokens]
        return self._num_layers * both_s

    def _decodes_s(self, num: int, mean_tokens: Floats) -> Floats:
        if num not in self._curves:
            self._curves[num] = self._decodes.along_last(num)
        return self._curves[num](mean_tokens)

    def _num_touched(self, num_tokens: int) -> float:
        """Experts that get a token, if each token goes to any of them as likely as to others."""
        missed = (1 - self._num_used / self._num_experts) ** num_tokens
        return self._num_experts * (1 - missed)


def _as_one(chunks: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """Return one chunk of as many tokens, and the mean number of tokens before them."""
    tokens = sum(num for num, _ in chunks)
    return tokens, sum(num * before for num, before in chunks) / tokens


def read_layer_profile(
    folder: Path,
    gpu: str,
    model: str,
    tensor_parallel: int,
    num_layers: int,
    experts: tuple[int, int] = (0, 0),
    exchange: Exchange | None = None,
) -> LayerProfile:
    """The profile of a model on a device.

    Parameters
    ----------
    folder : with files, plain or compressed with gzip, whose names end in ``profile_layers.csv`` (gpu, model, tp, layer,
        per, count, time_us), ``profile_attention.csv`` (gpu, model, tp, prefill_chunk, kv_prefill, n_decode, kv_decode,
        time_us) and, for mixtures of experts, ``profile_moe.csv`` (gpu, model, tp, tokens, activated_experts, time_us).
    gpu, model, tensor_parallel : as the files name them.
    num_layers : of the model.
    experts : how many a layer has, and how many of them compute a token; zeros where there is no mixture.
    exchange : as `LayerProfile` has it.

    Raises
    ------
    ServeError
        If a file is missing, or has no rows of this; those that it has are named.
    """
    wanted = (gpu, model, str(tensor_parallel))
    times: dict[tuple[str, str], list[tuple[tuple[float, ...], float]]] = defaultdict(list)
    for row in _rows(folder, _LAYERS, wanted):
        times[row["layer"], row["per"]].append(_point(row, ("count",)))
    lines: dict[str, dict[str, _Line]] = {"tokens": {}, "sequences": {}}
    for (layer, per), rows in times.items():
        num = 1 if layer in _ONCE else num_layers * (2 if layer in _TWICE else 1)
        points = sorted(points_of(rows).items())
        if per not in lines or len(points) < 2:
            raise ServeError(
                f"{folder}: {layer} per {per} has {len(points)} times; allowed are two or more, per tokens or sequences"
            )
        lines[per][layer] = _Line(np.array([p[0] for p, _ in points]), np.array([s for _, s in points]), num)
    attention = points_of(_point(row, _ATTENTION_SIZES) for row in _rows(folder, _ATTENTION, wanted))
    mixture = None
    if experts[0]:
        # Experts are measured whole: how they are dealt out does not depend on how attention is split.
        rows_of_experts = _rows(folder, _EXPERTS, (*wanted[:2], "1"))
        mixture = Grid(points_of(_point(row, ("tokens", "activated_experts")) for row in rows_of_experts))
    return LayerProfile(
        lines["tokens"], lines["sequences"], attention, num_layers, mixture, *experts, exchange
    )


def has_layer_profile(folder: Path) -> bool:
    """Whether a folder has profiles of layers."""
    return any(folder.glob(f"*{_LAYERS}*"))


def profiled_models(folder: Path, gpu: str) -> list[str]:
    """Models of which it has profiles on a device."""
    return sorted({row["model"] for row in _all_rows(folder, _LAYERS) if row["gpu"] == gpu})


def profiled_devices(folder: Path) -> list[str]:
    """Devices on which its profiles were measured."""
    return sorted({row["gpu"] for row in _all_rows(folder, _LAYERS)})


def _point(row: dict[str, str], sizes: Sequence[str]) -> tuple[tuple[float, ...], float]:
    """Sizes and seconds."""
    try:
        point, seconds = tuple(float(row[size]) for size in sizes), float(row["time_us"]) * _US
    except (TypeError, ValueError):
        point, seconds = (), 0.0
    if seconds > 0 and min(point) >= 0:
        return point, seconds
    raise ServeError(
        f"a profile of layers has the row {row}; allowed are sizes of 0 or more, and a time above 0"
    )


def _rows(folder: Path, ending: str, wanted: tuple[str, str, str]) -> Rows:
    rows = _all_rows(folder, ending)
    found = [row for row in rows if (row["gpu"], row["model"], row["tp"]) == wanted]
    if not found:
        known = sorted({f"{row['gpu']}, {row['model']}, tp {row['tp']}" for row in rows})
        raise ServeError(
            f"{folder} has no {ending} of {wanted[0]}, {wanted[1]}, tp {wanted[2]}; it has {'; '.join(known)}"
        )
    return found


@lru_cache(maxsize=8)
def _all_rows(folder: Path, ending: str) -> Rows:
    paths = [*folder.glob(f"*{ending}"), *folder.glob(f"*{ending}.gz")]
    if len(paths) != 1:
        raise ServeError(
            f"{folder} has {len(paths)} files that end in {ending} or {ending}.gz; give a folder with one such file"
        )
    opened = gzip.open if paths[0].suffix == ".gz" else open
    with opened(paths[0], "rt") as lines:
        reader = csv.DictReader(lines)
        if missing := set(_COLUMNS[ending]) - set(reader.fieldnames or ()):
            raise ServeError(
                f"{paths[0]} has no column {', '.join(sorted(missing))}; it needs {', '.join(_COLUMNS[ending])}"
            )
        return list(reader)
