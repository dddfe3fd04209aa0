"""Tracing a function of tensors to an aten graph, functionalised, with what each node came from."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.fx.traceback as fx_traceback
from torch import Tensor, fx, nn
from torch._functorch._aot_autograd.functional_utils import from_fun, to_fun
from torch._functorch._aot_autograd.logging_utils import setup_stacktrace_preservation_hooks
from torch._subclasses.functional_tensor import FunctionalTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from trainyard.program.decompose import mean_losses


def trace(function: Callable[..., Any], *arguments: Any) -> fx.GraphModule:
    """Trace a function of pytrees of fake tensors that may write to tensors; the graph does not.

    ``meta["custom"]`` of a node holds the layer (see `layers_recorded`) or, after `gradients`, the phase.
    """

    def functional(*given: Any) -> Any:
        with FunctionalTensorMode():
            results = function(*pytree.tree_map_only(Tensor, to_fun, given))
            return pytree.tree_map_only(Tensor, from_fun, results)

    with fx_traceback.preserve_node_meta():
        tracer = make_fx(functional, decomposition_table=mean_losses(), tracing_mode="real")
        return tracer(*arguments)


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


def memory(tensor: Tensor) -> int:
    """Where the values of a tensor lie: equal for views of one another."""
    # Within vmap and the like, ops see what is in a tensor, and nothing is known of it here. Sparse ones have no storage.
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor) or tensor.layout != torch.strided:
        return id(tensor)
    return int(tensor.untyped_storage()._cdata)


def line_of_model(stack: traceback.StackSummary) -> str:
    """The innermost line of a stack that is neither PyTorch's nor ours; empty if there is none."""
    own = str(Path(__file__).parent)
    for frame in reversed(stack):
        if "/torch/" not in frame.filename and not frame.filename.startswith(own):
            return f"{frame.filename}:{frame.lineno} `{frame.line}`"
    return ""


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
