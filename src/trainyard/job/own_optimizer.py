"""The optimizer of a Python file: its functions `optimizer(params)` and `lr_schedule(step)`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainyard.job.optimizer import OptimizerConfig
from trainyard.user_file import is_file
from trainyard.zoo.user import file_function

__all__ = ["check_given", "configured", "options_of_file"]

_OPTIMIZER, _SCHEDULE = "optimizer", "lr_schedule"


def configured(asked: Mapping[str, Any], spec: str | None) -> OptimizerConfig:
    """Return the optimizer that options ask for, with the functions of a Python file in their place.

    Parameters
    ----------
    asked : fields of `OptimizerConfig`; those that the file's optimizer says itself have no effect.
    spec : the model, as ``load_model`` takes it.
    """
    own = _functions(spec)
    used = {name: value for name, value in asked.items() if name not in _said_by(own)}
    return OptimizerConfig(**{**used, **own})


def options_of_file(spec: str | None) -> tuple[str, ...]:
    """Name the options of a verb about which the functions of a Python file decide."""
    return tuple("optimizer" if name == "name" else name for name in _said_by(_functions(spec)))


def check_given(given: Any, spec: str | None) -> None:
    """Refuse options that the functions of a Python file would leave without effect.

    Parameters
    ----------
    given : options of a verb, of which those that nobody gave are None.

    Raises
    ------
    ValueError
        Names the option and the function.
    """
    asked = [option for option in options_of_file(spec) if getattr(given, option, None) is not None]
    if asked:
        function = _SCHEDULE if asked[0] == _SCHEDULE else _OPTIMIZER
        raise ValueError(
            f"--{asked[0].replace('_', '-')} has no effect: the function `{function}` of {spec} decides about it. Leave "
            "out one of both"
        )


def _functions(spec: str | None) -> dict[str, Any]:
    """Return the functions of a Python file by the fields of `OptimizerConfig` that they set."""
    if spec is None or not is_file(spec):
        return {}
    path = str(Path(spec).resolve())
    fields = {"make": _OPTIMIZER, "lr_schedule": _SCHEDULE}
    functions = {field: file_function(path, name) for field, name in fields.items()}
    return {field: function for field, function in functions.items() if function is not None}


def _said_by(own: Mapping[str, Any]) -> tuple[str, ...]:
    """Fields of `OptimizerConfig` about which a file's functions decide."""
    by_optimizer = ("name", *OptimizerConfig(make=own["make"]).unused_options()) if "make" in own else ()
    return (*by_optimizer, *(("lr_schedule",) if "lr_schedule" in own else ()))
