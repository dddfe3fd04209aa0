"""Groups of parameters: those with the same rate and weight decay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainyard.job.optimizer.config import OptimizerConfig
from trainyard.program.patterns import is_like
from trainyard.reading.arguments import WrongValueError

__all__ = ["ParameterGroup", "check_patterns", "group_of"]

_VECTORS = "1d"
_MOST_NAMED = 4


@dataclass(frozen=True)
class ParameterGroup:
    """Options that parameters of a group have of their own.

    Attributes
    ----------
    lr_scale : their rate, in terms of that of the optimizer.
    weight_decay : theirs.
    """

    lr_scale: float
    weight_decay: float


def group_of(config: OptimizerConfig, path: str, num_dims: int) -> ParameterGroup:
    """Return the group of a parameter, whose whole tensor has ``num_dims`` dimensions."""
    decays = not any(_stands_for(pattern, path, num_dims) for pattern in config.no_decay)
    scales = [factor for pattern, factor in config.lr_scale if _stands_for(pattern, path, num_dims)]
    return ParameterGroup(scales[-1] if scales else 1.0, config.weight_decay if decays else 0.0)


def check_patterns(config: OptimizerConfig, shapes: Mapping[str, Sequence[int]]) -> None:
    """Check that every pattern of an optimizer stands for a trained parameter.

    Parameters
    ----------
    shapes : of the trained parameters, by path.

    Raises
    ------
    WrongValueError
        Names the pattern, and parameters that the model has.
    """
    for pattern in (*config.no_decay, *(pattern for pattern, _ in config.lr_scale)):
        if not any(_stands_for(pattern, path, len(shape)) for path, shape in shapes.items()):
            names = sorted(shapes)
            more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
            raise WrongValueError(
                f"no trained parameter is as the pattern {pattern!r} has it; the model has "
                f"{', '.join(names[:_MOST_NAMED])}{more}. `*` is any text between two dots, `**` any number of parts, as "
                "in '**.bias', and 1d all with fewer than two dimensions"
            )


def _stands_for(pattern: str, path: str, num_dims: int) -> bool:
    return num_dims < 2 if pattern == _VECTORS else is_like(pattern, path)
