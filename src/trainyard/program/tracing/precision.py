"""Computing in 16 bits as ``torch.autocast`` does on GPUs, for a graph that is traced on the CPU.

Which ops run in the lower type and which in float32 is PyTorch's own choice. Its list for the CPU knows the products;
what only its list for CUDA has (norms, softmax, sums, powers) is added here, by the same mechanism.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, reduce
from typing import Any
from warnings import catch_warnings, simplefilter

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from trainyard.program.tracing.conversions import HALF

_KEY = "AutocastCPU"

# Of the ops in PyTorch's list for CUDA alone: those in the lower type, and those in the widest type of their operands.
# All others are in float32.
_LOWER = frozenset(
    {
        "_convolution", "convolution", "cudnn_convolution", "cudnn_convolution_transpose", "einsum", "mv", "addmv",
        "addr", "chain_matmul", "linalg_multi_dot", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell",
        "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "_scaled_dot_product_flash_attention",
    }
)  # fmt: skip
_WIDEST = frozenset(
    {
        "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "index_put", "scatter_add", "tensordot",
    }
)  # fmt: skip


@contextmanager
def computed_in(dtype: torch.dtype) -> Iterator[None]:
    """Within it, ops on the CPU run in the types in which autocast to ``dtype`` runs them on a GPU.

    Code that runs ``torch.autocast("cpu", ...)`` itself is heeded. Nothing changes where ``dtype`` is float32: ops run in
    the types of their operands.
    """
    if dtype not in HALF:
        yield
        return
    library = torch.library.Library("aten", "IMPL")
    try:
        with catch_warnings():
            simplefilter("ignore")
            for name, kernel in _kernels().items():
                library.impl(name, kernel, _KEY)
        # The cache would give one trace the tensors of another.
        with torch.autocast("cpu", dtype, cache_enabled=False):
            yield
    finally:
        library._destroy()


def parameter_type(parameter: Tensor, dtype: torch.dtype) -> torch.dtype:
    """The type in which a parameter is computed with in a step of precision ``dtype``: its own in float32."""
    return dtype if dtype in HALF and parameter.is_floating_point() else parameter.dtype


@cache
def _kernels() -> dict[str, Callable[..., Any]]:
    """What runs instead of an op where autocast is on, by the op's name."""
    known = torch._C._dispatch_has_kernel_for_dispatch_key
    names = [n for n in torch._C._dispatch_get_all_op_names() if n.startswith("aten::")]
    alone = [n for n in names if known(n, "AutocastCUDA") and not known(n, _KEY)]
    return {name: _kernel(name) for name in [*alone, "aten::batch_norm"]}


def _kernel(name: str) -> Callable[..., Any]:
    packet, _, overload = name.removeprefix("aten::").partition(".")
    op = getattr(getattr(torch.ops.aten, packet), overload or "default")
    run = _policy(packet, op)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, _KEY))
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return run(args, kwargs)

    return kernel


def _policy(packet: str, op: Any) -> Callable[[Any, Any], Any]:
    if packet in _LOWER:
        return lambda args, kwargs: op(*_cast(args, torch.get_autocast_dtype("cpu")), **kwargs)
    if packet in _WIDEST:
        return lambda args, kwargs: op(*_cast(args, _widest(args)), **kwargs)
    if packet == "batch_norm":
        return _batch_norm
    if any(argument.name == "dtype" for argument in op._schema.arguments):
        return lambda args, kwargs: op(**_told_float(op, args, kwargs))
    return lambda args, kwargs: op(*_cast(args, torch.float32), **kwargs)


def _cast(tree: Any, dtype: torch.dtype) -> Any:
    """Arguments with all their tensors of real numbers, but those of double precision, in a type."""
    return pytree.tree_map(lambda leaf: leaf.to(dtype) if _is_cast(leaf) else leaf, tree)


def _is_cast(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.dtype != torch.float64


def _widest(args: Any) -> torch.dtype:
    types = (leaf.dtype for leaf in pytree.tree_leaves(args) if _is_cast(leaf))
    return reduce(torch.promote_types, types, torch.get_autocast_dtype("cpu"))


def _told_float(op: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """The arguments of an op that can be told the type of its result: float32 if nothing else is said."""
    names = (argument.name for argument in op._schema.arguments)
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    is_told = given.get("dtype") is not None
    return given if is_told or not _is_cast(args[0]) else {**given, "dtype": torch.float32}


def _batch_norm(args: Any, kwargs: Any) -> Any:
    """GPUs normalise 16-bit values by float32 statistics, weights and biases, and round the result to 16 bits."""
    x, weight, bias, mean, *rest = args
    if mean is None or mean.dtype not in HALF:
        weight, bias = _cast((weight, bias), torch.float32)
    return torch.ops.aten.batch_norm.default(x, weight, bias, mean, *rest, **kwargs)
