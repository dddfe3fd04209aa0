"""Check that the steps of an engine compute what transformers' own forward does, by a small model of the same kind.

The small model has random weights. It computes two sequences: in parts of several lengths, both in one step, and once
anew in other blocks of the cache, as after a preemption. Logits are compared with those of a forward of each sequence.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

from trainyard.reading import shortened
from trainyard.serve.errors import ServeError
from trainyard.serve.run.causal_model import CausalModel
from trainyard.serve.run.paged_attention import attention_batch
from trainyard.serve.run.small_config import SmallModelError, causal_model_of, small_config
from trainyard.serve.run.step_inputs import StepInputs
from trainyard.serve.run.step_requirements import ALLOWED_FAMILIES, family_of, require_no_state
from trainyard.serve.run.torch_attention import TorchAttention

__all__ = ["SmallModelCheck", "check_small_model", "kind_of"]

_TOLERANCE, _MOST_ROUNDING = 1e-4, 1e-5
_SPREADS = (0.5, 0.25, 0.1)
_MOST_WEIGHTS = 150_000_000
_LENGTHS = (47, 29)
_BLOCK_TOKENS, _NUM_BLOCKS = 4, 32
_ANEW = 0
_STEPS: tuple[tuple[tuple[int, int], ...], ...] = (
    ((0, 5),),
    ((0, 1), (1, 7)),
    ((0, 17), (1, 1)),
    ((1, 1), (0, 1)),
    ((0, 1), (1, 11)),
    ((0, _ANEW),),
    ((1, 1), (0, 12)),
    ((0, 13), (1, 1)),
    ((0, 1), (1, 1)),
    ((0, 9), (1, 6)),
    ((0, 1),),
    ((0, 11),),
)
"""Pairs of a sequence and a number of tokens, for each step; 0 tokens if the sequence is computed anew."""

Longs = NDArray[np.int64]
Logits = Sequence[Tensor]


class SmallModelCheck(NamedTuple):
    """The outcome of the check of a small model, which holds for all models of its kind.

    Attributes
    ----------
    why_not : why such models are not served; "" if they are served.
    calls_per_layer : calls of attention of a layer, each with keys and values of its own.
    """

    why_not: str
    calls_per_layer: float = 1.0


def kind_of(config: Any) -> str:
    """Return the kind of a configuration: a text that is the same for configurations that differ in sizes only.

    Parameters
    ----------
    config : of transformers.

    Returns
    -------
    The ``config.json`` of a small model of the kind.

    Raises
    ------
    ServeError
        If its family is not served.
    """
    try:
        require_no_state(config)
        return json.dumps(small_config(config), sort_keys=True)
    except ServeError:
        raise
    except Exception as error:  # of a configuration that says other things than those of most families, any
        raise _unknown(str(config.model_type), error) from error


def check_small_model(kind: str) -> SmallModelCheck:
    """Compare steps of a small model with transformers' own forward.

    Parameters
    ----------
    kind : as `kind_of` returns it.
    """
    disable_progress_bar()
    set_verbosity_error()
    torch.set_num_threads(1)
    fields = json.loads(kind)
    for seed, spread in enumerate(_SPREADS):
        try:
            model = _drawn_model(fields, seed, spread)
            family = family_of(model)
            return _compared(family, model)
        except SmallModelError as error:
            last = error
        except ServeError as error:
            said = str(error)
            return SmallModelCheck(
                said if said.startswith(family) else f"{family} models are not served: {said}"
            )
    return SmallModelCheck(str(_unknown(fields["model_type"], last)))


def _unknown(family: str, error: Exception) -> ServeError:
    return ServeError(
        f"{family} models with this configuration are not served: their answers are checked by a small model, and "
        f"there is none ({shortened(' '.join(str(error).split()))}); {ALLOWED_FAMILIES}"
    )


def _drawn_model(fields: Mapping[str, Any], seed: int, spread: float) -> Any:
    """Make a small model with random weights.

    Parameters
    ----------
    spread : how far a matrix stretches vectors.
    """
    try:
        with torch.device("meta"):
            num_weights = sum(each.numel() for each in causal_model_of(fields).parameters())
        if num_weights > _MOST_WEIGHTS:
            raise SmallModelError(f"it has {num_weights:,} weights; allowed are {_MOST_WEIGHTS:,}")
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(seed)
            model = causal_model_of(fields).eval()
            for weight in model.parameters():
                if weight.dim() < 2:
                    weight.add_(torch.randn_like(weight), alpha=0.1).mul_(spread)
                else:
                    weight.normal_(std=spread * weight.shape[-1] ** -0.5)
    except SmallModelError:
        raise
    except Exception as error:  # of a configuration that cannot be, any
        raise SmallModelError(_told(error)) from error
    return model


def _compared(family: str, model: Any) -> SmallModelCheck:
    """Compute sequences both ways; name the first layer of a step that differs from the forward."""
    layers = _LayerOutputs(model)
    steps, calls_per_layer = _steps(family, model)
    random, vocabulary = np.random.default_rng(0), int(model.config.get_text_config().vocab_size)
    sequences = [random.integers(0, vocabulary, min(each, steps.context)) for each in _LENGTHS]
    wanted = _forwards(model, sequences, layers)
    try:
        with layers.of_steps():
            found = max(
                _largest_difference(steps, inputs, ends, wanted, layers)
                for inputs, ends in _step_inputs(sequences)
            )
    except ServeError:
        raise
    except Exception as error:
        raise ServeError(f"steps of several requests end with {_told(error)}; {ALLOWED_FAMILIES}") from error
    if found <= _TOLERANCE:
        return SmallModelCheck("", calls_per_layer)
    where = layers.first_that_differs or "their output"
    raise ServeError(
        f"in steps of several requests, {where} gives other numbers than transformers' forward (logits differ by "
        f"{found:.2g} of the largest); {ALLOWED_FAMILIES}"
    )


def _steps(family: str, model: Any) -> tuple[CausalModel, float]:
    """Return a model that computes steps with the same weights, and the calls of attention of a layer."""
    try:
        steps = CausalModel(deepcopy(model), family, TorchAttention(torch.device("cpu")))
        steps.new_cache(_NUM_BLOCKS, _BLOCK_TOKENS, 0)
    except ServeError:
        raise
    except Exception as error:
        raise ServeError(f"a step ends with {_told(error)}; {ALLOWED_FAMILIES}") from error
    num_layers = int(model.config.get_text_config().num_hidden_layers)
    return steps, max(1.0, len(steps.shapes) / num_layers)


def _forwards(model: Any, sequences: Sequence[Longs], layers: _LayerOutputs) -> Logits:
    """Compute logits of each sequence by transformers' own forward."""
    try:
        wanted = [layers.of_forward(model, each) for each in sequences]
        _round_otherwise(model)
        rounded = [_logits(model, each) for each in sequences]
    except Exception as error:
        raise SmallModelError(_told(error)) from error
    rounding = max(map(_relative, rounded, wanted))
    if not rounding <= _MOST_ROUNDING:
        raise SmallModelError(f"rounding changes its logits by {rounding:.2g} of the largest")
    return wanted


def _largest_difference(
    steps: CausalModel,
    inputs: StepInputs,
    ends: Sequence[tuple[int, int]],
    wanted: Logits,
    layers: _LayerOutputs,
) -> float:
    """Compute a step; return the difference between its logits and the wanted ones, as a share of the largest."""
    layers.begin_step(inputs, ends)
    found = steps.compute(inputs, (inputs.attention.cu_seqlens[1:] - 1).tolist())
    difference = 0.0
    for logits, (sequence, stop) in zip(found, ends, strict=True):
        expected = wanted[sequence][stop - 1]
        difference = max(difference, _relative(logits, expected))
    return difference


@torch.inference_mode()
def _logits(model: Any, sequence: Longs) -> Tensor:
    """Compute logits of a sequence by a forward."""
    found: Tensor = model(input_ids=torch.from_numpy(sequence)[None], use_cache=False).logits[0].float()
    return found


@torch.no_grad()
def _round_otherwise(model: nn.Module) -> None:
    """Change weights by about as much as rounding does."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for weight in model.parameters():
            weight.mul_(1 + torch.finfo(torch.float32).eps * torch.randn_like(weight))


def _relative(found: Tensor, expected: Tensor) -> float:
    difference = float((found - expected).abs().max() / expected.abs().max().clamp(min=1e-6))
    return difference if difference == difference else float("inf")


def _step_inputs(
    sequences: Sequence[Longs],
) -> Iterator[tuple[StepInputs, Sequence[tuple[int, int]]]]:
    """Yield the inputs of each step; with them, the sequence and the end of each item, in tokens."""
    places = np.random.default_rng(1).permutation(_NUM_BLOCKS)
    per_sequence = -(-max(_LENGTHS) // _BLOCK_TOKENS)
    tables = [places[:per_sequence], places[per_sequence : 2 * per_sequence]]
    done = [0 for _ in sequences]
    for step in _STEPS:
        items = []
        for sequence, length in step:
            start = done[sequence]
            stop = done[sequence] = min(start + length, len(sequences[sequence])) if length else 0
            if stop > start:
                items.append((sequence, start, stop))
            elif not length:
                tables[sequence] = np.roll(places, per_sequence // 2)[:per_sequence]
        if not items:
            continue
        bounds = np.cumsum([0, *(stop - start for _, start, stop in items)])
        batch = attention_batch(
            bounds,
            [start for _, start, _ in items],
            np.stack([tables[sequence] for sequence, _, _ in items]),
            _NUM_BLOCKS,
            _BLOCK_TOKENS,
        )
        yield (
            StepInputs(
                np.concatenate([sequences[sequence][start:stop] for sequence, start, stop in items]),
                np.concatenate([np.arange(start, stop) for _, start, stop in items]),
                batch,
                {},
            ),
            [(sequence, stop) for sequence, _, stop in items],
        )


class _LayerOutputs:
    """Records the outputs of layers in forwards, and finds the first layer with another output in a step."""

    def __init__(self, model: nn.Module) -> None:
        self.first_that_differs = ""
        self._forwards: list[dict[tuple[str, int], Tensor]] = []
        self._calls: dict[str, int] = {}
        self._rows: list[tuple[int, slice, slice]] | None = None
        for name, module in model.named_modules():
            if isinstance(module, nn.ModuleList) and ".experts" not in name:
                for i, layer in enumerate(module):
                    layer.register_forward_hook(self._hook(f"{name}.{i} ({type(layer).__name__})"))

    def of_forward(self, model: Any, sequence: Longs) -> Tensor:
        """Compute a forward; return its logits, and record the outputs of layers."""
        self._forwards.append({})
        self._calls.clear()
        return _logits(model, sequence)

    @contextmanager
    def of_steps(self) -> Iterator[None]:
        """Compare outputs of layers from `begin_step` on, until the end of ``with``."""
        try:
            yield
        finally:
            self._rows = None

    def begin_step(self, inputs: StepInputs, ends: Sequence[tuple[int, int]]) -> None:
        """Compare outputs of layers with those of forwards, for the items of a step, from now on."""
        bounds = inputs.attention.cu_seqlens
        self._calls.clear()
        self._rows = [
            (sequence, slice(first, last), slice(stop - (last - first), stop))
            for (sequence, stop), first, last in zip(ends, bounds[:-1], bounds[1:], strict=True)
        ]

    def _hook(self, name: str) -> Any:
        def hook(module: nn.Module, given: object, output: Any) -> None:
            found = output[0] if isinstance(output, tuple) else output
            call = name, self._calls.setdefault(name, 0)
            self._calls[name] += 1
            if not self._forwards or not isinstance(found, Tensor) or found.dim() != 3 or len(found) != 1:
                return
            if self._rows is None:
                self._forwards[-1].setdefault(call, found[0].clone())
            elif not self.first_that_differs and found.shape[1] == self._rows[-1][1].stop:
                self._compare(name, call, found[0])

        return hook

    def _compare(self, name: str, call: tuple[str, int], found: Tensor) -> None:
        assert self._rows is not None
        for sequence, rows, places in self._rows:
            expected = self._forwards[sequence].get(call)
            if expected is None or len(expected) < places.stop:
                continue
            if _relative(found[rows], expected[places]) > _TOLERANCE:
                self.first_that_differs = name


def _told(error: Exception) -> str:
    return shortened(" ".join(f"{type(error).__name__}: {error}".split()))
