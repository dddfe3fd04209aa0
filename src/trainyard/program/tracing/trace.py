"""Tracing a function of tensors to an aten graph, functionalised, with what each node came from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.fx.traceback as fx_traceback
from torch import Tensor, fx, nn
from torch._functorch._aot_autograd.functional_utils import from_fun, to_fun
from torch._functorch._aot_autograd.logging_utils import setup_stacktrace_preservation_hooks
from torch._subclasses.functional_tensor import FunctionalTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from trainyard.program.decompose import loss_decompositions
from trainyard.program.op_observer import function_of_model


def trace(function: Callable[..., Any], *arguments: Any) -> fx.GraphModule:
    """Trace a function of pytrees of fake tensors that may write to tensors; the graph does not.

    ``meta["custom"]`` of a node holds the layer (see `layers_recorded`) or, outside of layers, the function; and the
    region that is checkpointed (see `trainyard.program.tracing.checkpoints`) or, after `gradients`, the phase.
    """

    def functional(*given: Any) -> Any:
        with FunctionalTensorMode(), _FunctionRecorder():
            results = function(*pytree.tree_map_only(Tensor, _functional, given))
            return pytree.tree_map_only(Tensor, from_fun, results)

    with fx_traceback.preserve_node_meta():
        tracer = make_fx(functional, decomposition_table=loss_decompositions(), tracing_mode="real")
        return tracer(*arguments)


def _functional(tensor: Tensor) -> Any:
    """What stands for a tensor; of a leaf of autograd one, as parameters must be."""
    if tensor.requires_grad and tensor.is_leaf:
        return to_fun(tensor.detach()).requires_grad_()
    return to_fun(tensor)


class _FunctionRecorder(TorchDispatchMode):
    """Records at ops outside of layers which function of the model runs them."""

    supports_higher_order_operators = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = fx_traceback.current_meta.get("custom") or {}
        if not known.get("layer") and "phase" not in known:
            fx_traceback.current_meta["custom"] = known | {"function": function_of_model()}
        return func(*args, **(kwargs or {}))


def gradients(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], grads: Sequence[Tensor | None]
) -> tuple[Tensor | None, ...]:
    """Differentiate while tracing; what is traced from here on is marked as backward.

    It is outside of autocast, as it is to be: gradients have the types of what they are gradients of.
    """
    setup_stacktrace_preservation_hooks([o.grad_fn for o in outputs if o.grad_fn is not None])
    fx_traceback.current_meta["custom"] = {"phase": "backward"}
    with torch.autocast("cpu", enabled=False):
        return torch.autograd.grad(outputs, inputs, grads, allow_unused=True)


def is_backward(node: fx.Node) -> bool:
    """Whether a traced node came from `gradients`."""
    return (node.meta.get("custom") or {}).get("phase") == "backward"


def was_written(value: Any) -> bool:
    """Whether a functional tensor was written to since it was made."""
    return bool(torch._functionalize_was_storage_changed(value.elem)) or bool(
        torch._functionalize_has_data_mutation(value.elem)  # type: ignore[attr-defined]
    )


@contextmanager
def layers_recorded(module: nn.Module) -> Iterator[None]:
    """While tracing, every node made inside a module's forward learns the module's path."""
    stack: list[str] = []

    def enter(path: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            stack.append(path)
            _in_layer(path)

        return hook

    def leave(*_: Any) -> None:
        stack.pop()
        _in_layer(stack[-1] if stack else "")

    handles = []
    for path, child in module.named_modules():
        handles.append(child.register_forward_pre_hook(enter(path)))
        handles.append(child.register_forward_hook(leave, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _in_layer(path: str) -> None:
    known = fx_traceback.current_meta.get("custom") or {}
    kept = {"checkpoint": known["checkpoint"]} if "checkpoint" in known else {}
    fx_traceback.current_meta["custom"] = {"layer": path, **kept}
