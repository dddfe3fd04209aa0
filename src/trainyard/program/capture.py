"""Capture: from a module, a loss and a batch to a Program, without computing anything.

The step is traced with ``make_fx`` under ``FakeTensorMode`` and functionalised, forward and backward together; blocks
that repeat are traced once (`trainyard.program.repeats`), so a model of any size is captured in seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, get_args
from unittest.mock import patch

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import (
    FakeTensor,
    FakeTensorMode,
)
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils import _pytree as pytree

from trainyard.program.addresses import give_addresses
from trainyard.program.batch import ROOT, batch_rows, batch_tensors, whole_paths
from trainyard.program.capture_error import CaptureError
from trainyard.program.hidden_state import refuse_hidden_state
from trainyard.program.model import Model
from trainyard.program.nodes import add_placeholder
from trainyard.program.op_observer import refused_with_a_line
from trainyard.program.own_ops import check_declared_rows
from trainyard.program.program import Input, Output, OutputKind, Program, output_args
from trainyard.program.refusals import refuse_gradient_types, refuse_module
from trainyard.program.repeats import NotRepeatableError, Repeats, find_repeats, write_out
from trainyard.program.tracing.conversions import HALF, leave_out_conversions
from trainyard.program.tracing.grouped import grouped_by_ends, write_grouped
from trainyard.program.tracing.orders import mark_orders
from trainyard.program.tracing.precision import computed_in, parameter_type
from trainyard.program.tracing.reached import (
    leaves_of,
    names_among,
    refuse_reached_elsewhere,
    refuse_unreached,
)
from trainyard.program.tracing.running import Given, Watch, running
from trainyard.program.tracing.simplify import simplify
from trainyard.program.tracing.trace import gradients, is_backward, layers_recorded, trace, was_written
from trainyard.reading.arguments import require_type

__all__ = ["CaptureError", "capture"]


def capture(
    model: Model, num_rows: int | None = None, dtype: torch.dtype = torch.float32, share: float = 1.0
) -> Program:
    """Trace one training step of a model.

    Parameters
    ----------
    model : the module, its loss and an example batch; none of its tensors is read.
    num_rows : rows of the batch in one execution; by default all rows of the example batch.
    dtype : compute precision. In float32 everything is traced in its own type, and ops run in the types of their
        operands. In a type of 16 bits parameters are traced in it, buffers and the batch in their own, and ops run as
        ``torch.autocast`` runs them on a GPU (`trainyard.program.tracing.precision`). In float16 the loss is multiplied
        by an input of the kind ``loss_scale`` before its gradients are computed.
    share : by what loss and metrics, and so the gradients, are multiplied.

    Raises
    ------
    CaptureError
        If the model reads a tensor's value to decide what to run, or uses an op that cannot be divided (see
        `trainyard.program.refusals` and `trainyard.program.random.draws`); if it keeps state outside of buffers
        from which its second step computes something else than its first (see `trainyard.program.hidden_state`); if a
        parameter that plain PyTorch would train has no gradient in the graph; or if the batch is not a pytree of tensors
        with one number of rows.
    WrongTypeError
        If an argument is of another type.
    """
    _check_arguments(model, num_rows, dtype)
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    # From its cache PyTorch tells in another way than at first which results of an op share memory. So that a model's
    # graph does not depend on what was captured before it, every capture begins without.
    FakeTensorMode.cache_clear()
    rows = batch_rows(model.batch, model.whole)
    num_rows = rows if num_rows is None else num_rows
    params, buffers, aliases = fake_state(model.module, fake, dtype)
    with fake:
        batch = fake_batch(model, None if num_rows == rows else num_rows)
        rng = torch.zeros(3, dtype=torch.int64)
        loss_scale = torch.ones(()) if dtype is torch.float16 else None
    if dtype not in HALF:
        refuse_gradient_types(model.module)
    trainable = [name for name, p in model.module.named_parameters() if p.requires_grad]
    given = Given(params, buffers, batch, rng, num_rows, loss_scale)
    step = _Step(model, trainable, given, share)
    with fake, capturing(model.name, dtype):
        repeats = find_repeats(model.module, given, step.run)
        try:
            refuse_hidden_state(model, given, repeats)
            graph_module = step.trace(repeats)
        except NotRepeatableError:
            repeats = Repeats({}, None)
            refuse_hidden_state(model, given, repeats)
            graph_module = step.trace(repeats)
        graph = graph_module.graph
        outputs = _with_gradients(graph, step.outputs, write_out(graph, repeats, given.state), trainable)
        trained = {o.path for o in outputs if o.kind == "grad"}
        step.refuse_others(trained)
    unused = tuple(name for name in trainable if name not in trained)
    program = program_of(model, graph_module, given, outputs, trained, dtype)
    check_declared_rows(program.graph)
    return replace(program, aliases=aliases, unused=unused)


def program_of(
    model: Model,
    graph_module: fx.GraphModule,
    given: Given,
    outputs: tuple[Output, ...],
    trained: Set[str],
    dtype: torch.dtype,
) -> Program:
    """Make the program of a traced graph: simplify it, and name its inputs and ops.

    Parameters
    ----------
    given : what it was traced on.
    outputs : of the graph, in this order.
    trained : paths of the parameters whose gradients are among them.
    """
    graph = graph_module.graph
    _label(graph)
    inputs = _inputs(graph, given, whole_paths(model.batch, model.whole), trained)
    simplify(graph)
    if dtype in HALF:
        leave_out_conversions(graph)
    write_grouped(graph)
    mark_orders(graph)
    give_addresses(graph)
    constants = _constants_as_inputs(model.name, graph_module)
    inputs += tuple(Input(node.name, "constant", path) for path, (node, _) in constants.items())
    held = {path: value for path, (_, value) in constants.items()}
    return Program(model.name, graph, held, inputs, outputs, given.rows)


def _check_arguments(model: object, num_rows: object, dtype: object) -> None:
    require_type("model", model, Model, "a Model, such as Model(name, module, loss, batch)")
    require_type("num_rows", num_rows, (int, type(None)), "a whole number, or None")
    require_type("dtype", dtype, torch.dtype, "a type of PyTorch, such as torch.float32")


@contextmanager
def capturing(name: str, dtype: torch.dtype) -> Iterator[None]:
    """Run a model's code in a precision and as a compiler does; name the line at which it stops."""
    with ExitStack() as stack:
        stack.enter_context(refused_with_a_line(name))
        stack.enter_context(computed_in(dtype))
        # Libraries ask torch.compiler.is_compiling() before they read values, for checks that a graph cannot hold.
        stack.enter_context(patch.object(torch.compiler, "_is_compiling_flag", True))
        # Recurrent layers are captured as the products that they are, which run on any device and can be cut, not as
        # one kernel of this machine's.
        stack.enter_context(_without_onednn())
        # PyTorch traces its grouped product in bfloat16 only.
        stack.enter_context(patch.object(torch, "_grouped_mm", grouped_by_ends))
        yield


class _Step:
    """The function that is traced; it remembers what its outputs are.

    Attributes
    ----------
    reached : the parameters that autograd reached in the first run, with nothing replaced; None before.
    """

    def __init__(self, model: Model, trainable: list[str], given: Given, share: float) -> None:
        self.model = model
        self.share = share
        self.trainable = trainable
        self.given = given
        self.outputs: list[Output] = []
        self.replaced: Watch = nullcontext
        self.reached: frozenset[str] | None = None

    def trace(self, repeats: Repeats) -> fx.GraphModule:
        """The graph of the step, without the parameters and buffers of blocks that are replaced."""
        given = self.given
        self.replaced = repeats.replaced
        shown = [
            {n: t for n, t in own.items() if n not in repeats.state} for own in (given.params, given.buffers)
        ]
        with layers_recorded(self.model.module):
            scale = () if given.loss_scale is None else (given.loss_scale,)
            return trace(self, *shown, given.batch, given.rng, *scale)

    def run(self, watch: Watch) -> Any:
        """The loss and the metrics; the model runs within ``watch``."""
        given = self.given
        with running(self.model.module, given.state, given.rng, given.rows, watch):
            result = self.model.loss(self.model.module, given.own_batch())
        if self.reached is None:
            leaves = leaves_of(result[0] if isinstance(result, tuple) else result)
            refuse_reached_elsewhere(self.model.name, self.model.module, leaves)
            self.reached = names_among(leaves, given.params)
        return result

    def refuse_others(self, trained: Set[str]) -> None:
        """Refuse the step if those that it trains are not the parameters that plain PyTorch would train."""
        if self.reached is None:
            self.run(nullcontext)
        if self.reached is not None and self.reached <= trained:
            return
        # Functions with a backward of their own may give no gradient to what autograd reaches.
        given, names = self.given, [n for n in self.trainable if n in self.given.params]
        with running(self.model.module, given.state, given.rng, given.rows):
            result = self.model.loss(self.model.module, given.own_batch())
            loss = result[0] if isinstance(result, tuple) else result
            found = torch.autograd.grad(loss, [given.params[n] for n in names], allow_unused=True)
        wanted = [n for n, grad in zip(names, found, strict=True) if grad is not None]
        refuse_unreached(self.model.name, wanted, trained)

    def __call__(
        self, params: Any, buffers: Any, batch: Any, rng: Any, loss_scale: Any = None
    ) -> tuple[Any, ...]:
        module, before = self.model.module, dict(buffers)
        trainable = [name for name in self.trainable if name in params]
        with running(module, params | buffers, rng, self.given.rows, self.replaced):
            result = self.model.loss(module, batch)
            loss, metrics = result if isinstance(result, tuple) else (result, {})
            _check_result(self.model.name, loss, metrics)
            if self.share != 1.0:
                loss, metrics = loss * self.share, {n: m * self.share for n, m in metrics.items()}
            after = {name: b for name, b in module.named_buffers() if name in buffers}
            scale = None if loss_scale is None else loss_scale.to(loss.dtype)
            found = gradients([loss], [params[n] for n in trainable], [scale])
        grads = {n: g for n, g in zip(trainable, found, strict=True) if g is not None}
        written = {n: b for n, b in after.items() if b is not before[n] or was_written(b)}
        for path, value in written.items():
            _check_buffer(self.model.name, path, before[path], value)
        self.outputs = [Output("loss", "loss")]
        self.outputs += [Output("metric", name) for name in metrics]
        self.outputs += [Output("grad", name) for name in grads]
        self.outputs += [Output("buffer", name) for name in written]
        return loss.detach(), *(m.detach() for m in metrics.values()), *grads.values(), *written.values()


def _check_result(name: str, loss: Any, metrics: Any) -> None:
    if not isinstance(loss, torch.Tensor) or not isinstance(metrics, Mapping):
        raise CaptureError(
            f"the loss of {name} must be a scalar tensor, or a tuple of that and a dictionary of metrics; given "
            f"{type(loss).__name__}" + (f" and {type(metrics).__name__}" if metrics != {} else "")
        )
    if loss.dim() or not loss.requires_grad:
        raise CaptureError(
            f"the loss of {name} must be a scalar that depends on a parameter; given shape {tuple(loss.shape)}, "
            f"requires_grad={loss.requires_grad}"
        )
    for metric, value in metrics.items():
        if not isinstance(value, torch.Tensor) or value.dim():
            raise CaptureError(
                f"the metric {metric!r} of {name} must be a scalar tensor, given {type(value).__name__}"
                + (f" of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else "")
            )


def _check_buffer(name: str, path: str, before: torch.Tensor, after: torch.Tensor) -> None:
    if before.shape != after.shape or before.dtype != after.dtype:
        raise CaptureError(
            f"{name} cannot be captured: a step makes its buffer {path} {after.dtype} {tuple(after.shape)} of "
            f"{before.dtype} {tuple(before.shape)}; all steps must find it alike"
        )


def fake_state(
    module: nn.Module, fake: FakeTensorMode, dtype: torch.dtype
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], dict[str, str]]:
    def convert(value: torch.Tensor, kept: torch.dtype, grad: bool) -> torch.Tensor:
        with fake:
            return torch.empty(value.shape, dtype=kept, device="cpu", requires_grad=grad)

    refuse_module(module)
    params = {n: convert(p, parameter_type(p, dtype), p.requires_grad) for n, p in module.named_parameters()}
    buffers = {n: convert(b, b.dtype, False) for n, b in module.named_buffers()}
    first: dict[int, str] = {}
    aliases: dict[str, str] = {}
    for name, p in module.named_parameters(remove_duplicate=False):
        if first.setdefault(id(p), name) != name:
            aliases[name] = first[id(p)]
    return params, buffers, aliases


def fake_batch(model: Model, num_rows: int | None) -> Any:
    """A batch like the model's, of so many rows, if that is given."""
    whole = whole_paths(model.batch, model.whole)

    def like(path: str, value: torch.Tensor) -> torch.Tensor:
        shape = value.shape if num_rows is None or path in whole else (num_rows, *value.shape[1:])
        return torch.empty(shape, dtype=value.dtype, device="cpu")

    leaves = [like(path, value) for path, value in batch_tensors(model.batch).items()]
    return pytree.tree_unflatten(leaves, pytree.tree_structure(model.batch))


def _inputs(graph: fx.Graph, given: Given, whole: Set[str], trained: Set[str]) -> tuple[Input, ...]:
    described: list[tuple[Any, ...]] = [("param", n, n in trained) for n in given.params]
    described += [("buffer", n) for n in given.buffers]
    described += [(ROOT, path, False, path in whole) for path in batch_tensors(given.batch)]
    described += [("rng", "rng")]
    described += [] if given.loss_scale is None else [("loss_scale", "loss_scale")]
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    return tuple(Input(n.name, *d) for n, d in zip(placeholders, described, strict=True))


def _with_gradients(
    graph: fx.Graph, outputs: Sequence[Output], grads: Mapping[str, fx.Node], trainable: Sequence[str]
) -> tuple[Output, ...]:
    """Let a graph return more gradients, among its own in the order of the parameters; all that it returns then."""
    made = [*zip(outputs, output_args(graph), strict=True)]
    made += [(Output("grad", name), node) for name, node in grads.items()]
    kinds, place = get_args(OutputKind), {name: i for i, name in enumerate(trainable)}
    made.sort(
        key=lambda each: (kinds.index(each[0].kind), place[each[0].path] if each[0].kind == "grad" else 0)
    )
    next(iter(reversed(graph.nodes))).args = (tuple(node for _, node in made),)
    return tuple(output for output, _ in made)


def _constants_as_inputs(name: str, graph_module: fx.GraphModule) -> dict[str, tuple[fx.Node, torch.Tensor]]:
    """Replace tensors that the graph reads as attributes by placeholders after all others; by path.

    Raises
    ------
    CaptureError
        If one of them is not constant.
    """
    graph = graph_module.graph
    last = [n for n in graph.nodes if n.op == "placeholder"][-1]
    found: dict[str, tuple[fx.Node, torch.Tensor]] = {}
    for node in graph.find_nodes(op="get_attr"):
        path = f"constant.{node.target}"
        if path not in found:
            with graph.inserting_after(last):
                last = add_placeholder(graph, node.target)
            last.meta = dict(node.meta)
            value = getattr(graph_module, node.target)
            if isinstance(value, FakeTensor | FunctionalTensor) or value.requires_grad:
                raise CaptureError(
                    f"{name} cannot be captured: it uses a tensor of shape {tuple(value.shape)} that is trained or "
                    "computed, and is neither a parameter or buffer of the module, nor in the batch, nor made in this "
                    "step. Register parameters with the module, and keep no tensors between steps but in buffers. Where "
                    "functools.cache or a global keeps a table, call the model once before, so that it is there."
                )
            found[path] = (last, value)
        node.replace_all_uses_with(found[path][0])
        graph.erase_node(node)
    return found


def _label(graph: fx.Graph) -> None:
    """Give every node its phase, layer and position, and the checkpointed region that it lies in, if in one.

    The position of a forward node counts the forward nodes before it; a backward node has the position and the
    layer of the op it differentiates, and the sum of two gradients those of the earlier one.
    """
    origin: dict[Any, fx.Node] = {}
    before = next(iter(graph.nodes))
    for position, node in enumerate(graph.nodes):
        sequence = node.meta.get("seq_nr", -1)
        if not is_backward(node):
            known = node.meta.get("custom") or {}
            node.meta |= {"phase": "forward", "layer": known.get("layer", ""), "position": position}
            node.meta["function"] = known.get("function", "")
            if "checkpoint" in known:
                node.meta["checkpoint"] = known["checkpoint"]
            if node.op == "call_function":
                origin.setdefault(sequence, node)
            before = node
            continue
        gradients = [a for a in node.all_input_nodes if a.meta["phase"] == "backward"]
        if node.target is torch.ops.aten.add.Tensor and len(gradients) == 2:
            source = min(gradients, key=lambda n: int(n.meta["position"]))
        else:
            inputs = gradients or node.all_input_nodes[-1:] or [before]
            source = origin.get(sequence) or inputs[0]
        before = node
        node.meta |= {
            "phase": "backward",
            **{key: source.meta[key] for key in ("layer", "position", "function")},
        }


@contextmanager
def _without_onednn() -> Iterator[None]:
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)
