"""How many bytes a plan keeps: model state per parameter, and activations between the two passes.

These are counts over the graph for planners that must decide before anything is lowered; the simulator measures
the memory of a lowered plan over time.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx

from trainyard.cost.ops import is_view
from trainyard.job.lower.cut import Cut, cut
from trainyard.job.lower.segment import is_made_again
from trainyard.program.program import Program, size_bytes, tensors_of


@dataclass(frozen=True)
class StateBytes:
    """Bytes of model state per parameter.

    Attributes
    ----------
    weights : what the passes compute with.
    gradients : their sum over microbatches.
    optimizer : moments, and the float32 parameters where ``weights`` are shorter.
    frozen : all that is kept of a parameter that is not trained: its value, as the passes compute with it.
    """

    weights: int
    gradients: int
    optimizer: int
    frozen: int


ADAM_MIXED = StateBytes(2, 2, 12, 2)
"""Mixed precision with Adam as counted in ZeRO (arXiv 1910.02054, section 3.1): 2 + 2 + 12 = 16."""


def adam_state(dtype: str, zero_stage: int = 0) -> StateBytes:
    """What the runtime keeps with Adam: float32 gradients always, float32 parameters beside 16-bit weights.

    With ZeRO stage 3 the 16-bit weights are made from the float32 ones whenever they are gathered.
    """
    if dtype == "float32":
        return StateBytes(4, 4, 8, 4)
    return StateBytes(0 if zero_stage == 3 else 2, 4, 12, 2)


def num_trained(program: Program) -> int:
    """Number of parameter elements that are trained; ``Program.num_params`` counts the others, too."""
    return sum(program.nodes[i.node].meta["val"].numel() for i in program.params if i.trainable)


def model_state_bytes(
    num_params: float, state: StateBytes, *, zero_stage: int, num_ranks: int, num_frozen: float = 0
) -> float:
    """Bytes of model state on one of the data-parallel ranks (arXiv 1910.02054, figure 1).

    Parameters
    ----------
    num_params : that are trained, of one rank's part of the model (the paper's Psi).
    zero_stage : 0 nothing is shared, 1 optimizer state (P_os), 2 also gradients (P_os+g), 3 also weights.
    num_ranks : data-parallel ranks (the paper's N_d).
    num_frozen : parameters that are not trained; stage 3 shares them as it does weights.

    Examples
    --------
    >>> model_state_bytes(7.5e9, ADAM_MIXED, zero_stage=2, num_ranks=64) / 1e9
    16.640625
    """
    shared = (state.optimizer, state.gradients, state.weights)
    total = sum(size / num_ranks if stage < zero_stage else size for stage, size in enumerate(shared))
    return num_params * total + num_frozen * (state.frozen / num_ranks if zero_stage == 3 else state.frozen)


@dataclass(frozen=True)
class SavedValues:
    """What the backward pass of a program takes from its forward pass, as the lowering has it.

    Attributes
    ----------
    kept : forward nodes that own the storages it finds in memory; parameters and inputs are not among them.
    again : forward ops that it runs again.
    """

    kept: frozenset[fx.Node]
    again: frozenset[fx.Node]


def saved_values(program: Program, parts: Cut, recompute: frozenset[str] = frozenset()) -> SavedValues:
    """Follow the needs of the backward pass into the forward pass.

    Parameters
    ----------
    program : of one microbatch, of a whole model or of one rank.
    parts : the program as one stage.
    recompute : names of forward nodes that are computed again; what they need is kept instead.
    """
    stack = [a for n in parts.live if n.meta["phase"] == "backward" for a in n.all_input_nodes]
    seen: set[fx.Node] = set()
    kept: set[fx.Node] = set()
    again: set[fx.Node] = set()
    while stack:
        node = stack.pop()
        if (
            node in seen
            or node in parts.free
            or node.op != "call_function"
            or node.meta["phase"] == "backward"
        ):
            continue
        seen.add(node)
        if is_made_again(node, program, parts, recompute):
            again.add(node)
            stack += node.all_input_nodes
        else:
            kept.add(storage_of(node))
    return SavedValues(frozenset(n for n in kept if n.op == "call_function"), frozenset(again))


def kept_bytes(program: Program, recompute: frozenset[str] = frozenset()) -> int:
    """Bytes that one microbatch keeps between its passes on one stage; see `saved_values`."""
    return sum(map(node_bytes, saved_values(program, cut(program, ()), recompute).kept))


def node_bytes(node: fx.Node) -> int:
    """Bytes of a node's results."""
    return sum(map(size_bytes, tensors_of(node)))


def storage_of(node: fx.Node) -> fx.Node:
    """The node whose memory a node's value lies in: itself, or the source of a chain of views."""
    while node.op == "call_function":
        source = node.all_input_nodes[0] if node.all_input_nodes else None
        # A part of a tuple of views (split) is a view; a part of any other tuple owns its memory.
        viewed = source if source is not None and isinstance(source.meta.get("val"), tuple | list) else node
        if source is None or not is_view(viewed):
            return node
        node = viewed.all_input_nodes[0]
    return node
