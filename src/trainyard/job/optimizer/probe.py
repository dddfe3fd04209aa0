"""The probe of a user's optimizer: on what its update of an element depends, and what it keeps.

The optimizer runs a few steps on tensors of the shapes of the model's parameters: on whole ones, on some without the
others, and on parts. Where parts come to the same numbers as the whole, the update is computed element by element, and
may be divided between ranks.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from trainyard.job.optimizer.config import OptimizerFactory
from trainyard.job.optimizer.kept import Kept, kept_of
from trainyard.job.optimizer.own import Optimizers, Piece, UserOptimizerError, make_optimizer
from trainyard.job.optimizer.traits import Scope, UpdateTraits

__all__ = ["probe"]

Shape = tuple[int, ...]
Steps = dict[str, list[Tensor]]
"""A parameter before the first step and after each, flat, by path."""

_MOST_ELEMENTS = 2**18
"""Most elements of a tensor of the probe, which stands for a larger parameter by a smaller shape."""
_ALIKE = 2
"""Parameters of one group and shape that are tried."""
_GRADIENT_SIZES = (1.0, 30.0, 0.02, 5.0)
"""By step, so that a limit within the update is seen."""
_OF_UPDATE = 1e-5
"""Differences that are rounding, in terms of the largest update."""
_OF_VALUE = {torch.float64: 1e-12, torch.float32: 1e-6}
"""The same in terms of the largest value."""
_CPU = torch.device("cpu")


def probe(make: OptimizerFactory, shapes: Mapping[str, Shape]) -> UpdateTraits:
    """Find out how a user's optimizer updates.

    Parameters
    ----------
    make : returns the optimizer of named parameters.
    shapes : of the trained parameters, by path.

    Raises
    ------
    UserOptimizerError
        If it cannot update here as in plain PyTorch; the message has its name, and says why and what to do.
    """
    return _Probe(make, shapes).traits()


@dataclass(frozen=True, eq=False)
class _Probe:
    """The runs on tensors of the shapes of a model's parameters."""

    make: OptimizerFactory
    shapes: Mapping[str, Shape]

    def traits(self) -> UpdateTraits:
        """Run the optimizer, and compare. In float32 where it has no float64."""
        name, groups = self._groups()
        tried = _tried(self.shapes, groups)
        kept = self._kept(name, tried)
        try:
            dtype = torch.float64
            whole = self._steps(tried, tried, dtype)
        except UserOptimizerError:
            dtype = torch.float32
            whole = self._steps(tried, tried, dtype)
        if not _same(whole, self._steps_of_parameters(tried, dtype), dtype):
            raise UserOptimizerError(
                f"{name} does not update the tensors in its param_groups alone, so it cannot update parts of a flat "
                "buffer; take an optimizer whose step() reads param_groups"
            )
        every_other = [list(tried)[0::2], list(tried)[1::2]]
        alone = self._steps(tried, every_other[0], dtype) | self._steps(tried, every_other[1], dtype)
        scope: Scope = "parameter"
        if not _same(whole, alone, dtype):
            scope = "model"
        elif kept.is_elementwise and _same(whole, self._steps(tried, tried, dtype, is_cut=True), dtype):
            scope = "element"
        total = sum(map(math.prod, self.shapes.values()))
        alike = {(groups[path], shape): path for path, shape in self.shapes.items() if path in tried}
        num_bytes = sum(kept.bytes_of(alike[groups[p], s], math.prod(s)) for p, s in self.shapes.items())
        return UpdateTraits(name, scope, kept.tensors, num_bytes / max(1, total))

    def _groups(self) -> tuple[str, dict[str, int]]:
        """The optimizer's name, and the place of the group of each parameter."""
        one = {path: (Piece(0, 1, torch.zeros(1)),) for path in self.shapes}
        optimizer = make_optimizer(self.make, self.shapes, one, _CPU)
        path_of = {id(pieces[0].tensor): path for path, pieces in one.items()}
        groups = {path_of[id(p)]: i for i, g in enumerate(optimizer.param_groups) for p in g["params"]}
        return optimizer.name, groups

    def _kept(self, name: str, tried: Mapping[str, Shape]) -> Kept:
        """Return the state that the optimizer keeps for each parameter that is tried, in float32."""
        values = {path: _values(path, shape, torch.float32) for path, shape in tried.items()}
        pieces = {path: (Piece(0, value.numel(), value),) for path, value in values.items()}
        optimizer = make_optimizer(self.make, self.shapes, pieces, _CPU)
        _run(optimizer, tried, pieces)
        return kept_of(name, {path: optimizer.state_of(values[path]) for path in tried}, tried)

    def _steps(
        self, tried: Mapping[str, Shape], paths: Iterable[str], dtype: torch.dtype, is_cut: bool = False
    ) -> Steps:
        """Update some of the parameters, whole or each in three parts of a flat buffer."""
        pieces = {path: _pieces(_values(path, tried[path], dtype), is_cut) for path in paths}
        optimizer = make_optimizer(self.make, self.shapes, pieces, _CPU)
        return _run(optimizer, tried, pieces)

    def _steps_of_parameters(self, tried: Mapping[str, Shape], dtype: torch.dtype) -> Steps:
        """Update parameters that the optimizer is made of, as in plain PyTorch."""
        own = {path: nn.Parameter(_values(path, shape, dtype)) for path, shape in tried.items()}
        pieces = {path: (Piece(0, value.numel(), value),) for path, value in own.items()}
        return _run(Optimizers(self.make, list(own.items())), tried, pieces)


def _tried(shapes: Mapping[str, Shape], groups: Mapping[str, int]) -> dict[str, Shape]:
    """Some parameters of each group and shape, by path; large ones in a smaller shape."""
    found: dict[str, Shape] = {}
    counts: dict[tuple[int, Shape], int] = {}
    for path, shape in shapes.items():
        key = groups[path], shape
        counts[key] = counts.get(key, 0) + 1
        if counts[key] <= _ALIKE:
            found[path] = _smaller(shape)
    return found


def _smaller(shape: Shape) -> Shape:
    """A shape of as many dimensions and few elements."""
    sizes = list(shape)
    while math.prod(sizes) > _MOST_ELEMENTS:
        sizes[sizes.index(max(sizes))] //= 2
    return tuple(sizes) or (1,)


def _values(path: str, shape: Shape, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(path.encode()))
    return torch.randn(shape, generator=generator, dtype=torch.float64).mul(0.1).to(dtype)


def _gradient(path: str, shape: Shape, step: int, dtype: torch.dtype) -> Tensor:
    """Return a gradient whose elements are of very different sizes."""
    generator = torch.Generator().manual_seed(zlib.crc32(path.encode()) + step + 1)
    normal, size = torch.randn((2, math.prod(shape)), generator=generator, dtype=torch.float64)
    return torch.exp(size).mul(normal).mul(_GRADIENT_SIZES[step]).to(dtype).view(shape)


def _pieces(value: Tensor, is_cut: bool) -> tuple[Piece, ...]:
    """All of a parameter, or three parts of unequal size, as far as it has so many elements."""
    size = value.numel()
    if not is_cut:
        return (Piece(0, size, value),)
    ends = sorted({0, size // 3, size // 2 + 1, size})
    return tuple(Piece(a, b, value.view(-1)[a:b]) for a, b in pairwise(ends))


def _run(optimizer: Optimizers, tried: Mapping[str, Shape], pieces: Mapping[str, Sequence[Piece]]) -> Steps:
    """Run the steps; the first values are those before them."""
    found: Steps = {path: [_joined(own)] for path, own in pieces.items()}
    with torch.random.fork_rng(devices=[]):
        before = torch.manual_seed(0).get_state()
        for step in range(len(_GRADIENT_SIZES)):
            for path, own in pieces.items():
                gradient = _gradient(path, tried[path], step, own[0].tensor.dtype)
                for piece in own:
                    piece.tensor.grad = piece.of(gradient)
            _stepped(optimizer)
            for path, own in pieces.items():
                found[path].append(_joined(own))
        if not torch.equal(before, torch.get_rng_state()):
            raise UserOptimizerError(
                f"{optimizer.name} draws random numbers, which would not be the same on all ranks; take an optimizer "
                "that draws none"
            )
    return found


def _joined(pieces: Sequence[Piece]) -> Tensor:
    return torch.cat([piece.tensor.detach().reshape(-1) for piece in pieces])


def _stepped(optimizer: Optimizers) -> None:
    try:
        optimizer.step()
    except Exception as error:  # of the user's optimizer, which may raise anything
        raise UserOptimizerError(
            f"{optimizer.name}.step() failed on a CPU with tensors of the model's shapes: "
            f"{type(error).__name__}: {error}. Take an optimizer whose step() needs no arguments and runs on a CPU"
        ) from error


def _same(whole: Steps, other: Steps, dtype: torch.dtype) -> bool:
    """Whether parameters are the same after every step, but for rounding."""
    return all(_same_steps(whole[path], steps, dtype) for path, steps in other.items())


def _same_steps(wanted: Sequence[Tensor], found: Sequence[Tensor], dtype: torch.dtype) -> bool:
    for before, right, left in zip(wanted, wanted[1:], found[1:], strict=False):
        update = float((right - before).abs().max())
        limit = _OF_UPDATE * update + _OF_VALUE[dtype] * float(right.abs().max())
        if not float((right - left).abs().max()) <= limit:
            return False
    return True
