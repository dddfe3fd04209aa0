"""Tracing a function of tensors to an aten graph, functionalised, with what each node came from."""

from __future__ import annotations

import contextlib
import inspect
import linecache
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.fx.traceback as fx_traceback
from torch import Tensor, fx, nn
from torch._functorch._aot_autograd.functional_utils import from_fun, to_fun
from torch._functorch._aot_autograd.logging_utils import setup_stacktrace_preservation_hooks
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from trainyard.program.decompose import mean_losses
from trainyard.program.model import CaptureError

_OWN = str(Path(__file__).parent)
_CONTEXTLIB = contextlib.__file__


def trace(function: Callable[..., Any], *arguments: Any) -> fx.GraphModule:
    """Trace a function of pytrees of fake tensors that may write to tensors; the graph does not.

    ``meta["custom"]`` of a node holds the layer (see `layers_recorded`) or, after `gradients`, the phase.
    """

    def functional(*given: Any) -> Any:
        with FunctionalTensorMode(), _WithoutChecks():
            results = function(*pytree.tree_map_only(Tensor, to_fun, given))
            return pytree.tree_map_only(Tensor, from_fun, results)

    with fx_traceback.preserve_node_meta():
        tracer = make_fx(functional, decomposition_table=mean_losses(), tracing_mode="real")
        return tracer(*arguments)


class _WithoutChecks(TorchDispatchMode):
    """Leaves out what only looks at values: whether a matrix could be inverted."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._linalg_check_errors.default:
            return None
        return func(*args, **(kwargs or {}))


def gradients(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], grads: Sequence[Tensor | None]
) -> tuple[Tensor | None, ...]:
    """Differentiate while tracing; what is traced from here on is marked as backward."""
    setup_stacktrace_preservation_hooks([o.grad_fn for o in outputs if o.grad_fn is not None])
    fx_traceback.current_meta["custom"] = {"phase": "backward"}
    return torch.autograd.grad(outputs, inputs, grads, allow_unused=True)


def is_backward(node: fx.Node) -> bool:
    """Whether a traced node came from `gradients`."""
    return (node.meta.get("custom") or {}).get("phase") == "backward"


def was_written(value: Any) -> bool:
    """Whether a functional tensor was written to since it was made."""
    return bool(torch._functionalize_was_storage_changed(value.elem)) or bool(
        torch._functionalize_has_data_mutation(value.elem)  # type: ignore[attr-defined]
    )


def storage_id(tensor: Tensor) -> int:
    """Where the values of a tensor lie: equal for views of one another."""
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
        if "/torch/" not in filename and not filename.startswith((_OWN, "<", _CONTEXTLIB)):
            return f"{filename}:{line} `{linecache.getline(filename, line).strip()}`"
    return ""


def frames_now() -> Iterator[tuple[str, int]]:
    """File and line of every call that is going on, innermost first."""
    frame = inspect.currentframe()
    while frame is not None:
        yield frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back


class Watching(TorchDispatchMode, ABC):
    """Sees every op that computes or writes something while it is on."""

    supports_higher_order_operators = True

    @abstractmethod
    def before(self, op: Any, leaves: Sequence[Any], names: tuple[str, ...]) -> Any:
        """An op is to run on these arguments, of which the last have names; returns what ``after`` needs."""

    @abstractmethod
    def after(self, op: Any, known: Any, args: Any, kwargs: Mapping[str, Any], result: Any) -> None:
        """It did."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default and isinstance(args[0], FakeTensor):
            return args[0].fake_device  # PyTorch asks this more often than all else, and takes long to answer
        if isinstance(func, HigherOrderOperator):
            raise CaptureError(
                f"{line_of_model(frames_now())} calls torch.{func.name()}, which holds graphs of its own and cannot be "
                "divided among devices. Write it with tensor ops"
            )
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunction():
            known = self.before(func, pytree.tree_leaves((args, kwargs)), tuple(kwargs))
        result = func(*args, **kwargs)
        # Others are questions, such as which device a tensor is on.
        if tensors_of(result) or func._schema.is_mutable:
            with torch._C.DisableTorchFunction():
                self.after(func, known, args, kwargs, result)
        return result


@contextmanager
def layers_recorded(module: nn.Module) -> Iterator[None]:
    """While tracing, every node made inside a module's forward learns the module's path."""
    stack: list[str] = []

    def enter(path: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            stack.append(path)
            fx_traceback.current_meta["custom"] = {"layer": path}

        return hook

    def leave(*_: Any) -> None:
        stack.pop()
        fx_traceback.current_meta["custom"] = {"layer": stack[-1] if stack else ""}

    handles = []
    for path, child in module.named_modules():
        handles.append(child.register_forward_pre_hook(enter(path)))
        handles.append(child.register_forward_hook(leave, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
