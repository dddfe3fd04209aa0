"""Seeing what the code of a model does while it runs: its ops, on which memory, and from which line."""

from __future__ import annotations

import contextlib
import inspect
import linecache
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
)
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from trainyard.program.capture_error import CaptureError
from trainyard.program.mixed_types import refused_types
from trainyard.program.refusals import refused_op, refused_result, refused_within

# Files whose lines are not the model's, by how their names begin.
_CAPTURE = str(Path(__file__).with_name("capture.py"))
_NOT_THE_MODEL = (str(Path(__file__).parent), "<", contextlib.__file__)


def storage_id(tensor: Tensor) -> int:
    """Return a key of the memory of a tensor, equal for views of one another."""
    # Within vmap and the like, ops see what is in a tensor, and nothing is known of it here. Sparse ones have no storage.
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor) or tensor.layout != torch.strided:
        return id(tensor)
    return int(tensor.untyped_storage()._cdata)


def tensors_of(tree: Any) -> list[Tensor]:
    """The tensors in anything."""
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def line_of_model(frames: Iterable[tuple[str, int]]) -> str:
    """The first of some frames, file and line, innermost first, that is neither PyTorch's nor ours; "" if none is."""
    for filename, line in frames:
        if "/torch/" not in filename and not filename.startswith(_NOT_THE_MODEL):
            return f"{filename}:{line} `{linecache.getline(filename, line).strip()}`"
    return ""


def function_of_model() -> str:
    """The innermost function of the model that is running; "" within the loss itself or a module's ``forward``."""
    names, frame = list[str](), inspect.currentframe()
    # Outside of what captures the step are the calls that ask for the capture.
    while frame is not None and (code := frame.f_code).co_filename != _CAPTURE:
        if "/torch/" not in code.co_filename and not code.co_filename.startswith(_NOT_THE_MODEL):
            names.append(code.co_name)
        frame = frame.f_back
    return "" if len(names) < 2 or names[0] in ("forward", "<lambda>") else names[0]


def frames_now() -> Iterator[tuple[str, int]]:
    """File and line of every call that is going on, innermost first."""
    frame = inspect.currentframe()
    while frame is not None:
        yield frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back


class OpObserver(TorchDispatchMode, ABC):
    """A mode that is told of every op that computes or writes something."""

    supports_higher_order_operators = True

    @abstractmethod
    def before(self, op: Any, leaves: Sequence[Any], names: tuple[str, ...]) -> Any:
        """Called before an op runs on these arguments, of which the last have names; returns what ``after`` needs."""

    @abstractmethod
    def after(self, op: Any, known: Any, args: Any, kwargs: Mapping[str, Any], result: Any) -> None:
        """Called after it has run; ``known`` is what ``before`` returned."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default and isinstance(args[0], FakeTensor):
            return args[0].fake_device  # PyTorch asks this more often than all else, and takes long to answer
        if isinstance(func, HigherOrderOperator):
            raise CaptureError(
                f"{line_of_model(frames_now())} calls torch.{func.name()}, which holds graphs of its own and cannot be "
                "divided among devices. Write it with tensor ops"
            )
        kwargs = kwargs or {}
        if why := refused_op(func, args, kwargs) or refused_types(func, args, kwargs):
            raise CaptureError(f"{line_of_model(frames_now()) or 'the model'} {why}")
        with torch._C.DisableTorchFunction():
            known = self.before(func, pytree.tree_leaves((args, kwargs)), tuple(kwargs))
        result = func(*args, **kwargs)
        made = tensors_of(result)
        if why := next(filter(None, map(refused_result, made)), ""):
            raise CaptureError(f"{line_of_model(frames_now()) or 'the model'} {why}")
        # Others are questions, such as which device a tensor is on.
        if made or func._schema.is_mutable:
            with torch._C.DisableTorchFunction():
                self.after(func, known, args, kwargs, result)
        return result


@contextmanager
def refused_with_a_line(name: str) -> Iterator[None]:
    """Turn what stops a model's code into a refusal that names the line.

    Raises
    ------
    CaptureError
    """
    try:
        yield
    except (RuntimeError, AssertionError) as error:
        frames = [(f.f_code.co_filename, line) for f, line in traceback.walk_tb(error.__traceback__)]
        where = line_of_model(reversed(frames))
        if why := refused_within(filename for filename, _ in frames):
            raise CaptureError(f"{name} cannot be captured: {where} {why}") from error
        if isinstance(error, DataDependentOutputException | DynamicOutputShapeException):
            raise CaptureError(
                f"{name} cannot be captured: {where} decides by a tensor's "
                "value what to compute, so there is no one graph. Write it with tensor ops of fixed shape "
                "(torch.where, masking, fixed capacity)."
            ) from error
        if isinstance(error, AssertionError):
            raise
        raise CaptureError(
            f"{name} cannot be captured: at {where or 'an op'} PyTorch says: {error}"
        ) from error
