"""A model and its program in a session of Python and in a notebook."""

from __future__ import annotations

from functools import singledispatch

from torch.utils import _pytree as pytree

from trainyard.program.model import Model
from trainyard.program.program import Program
from trainyard.report.page import Table, tables_html
from trainyard.report.shown.undescribed import undescribed_error
from trainyard.report.units import count_text

__all__ = ["html_of", "text_of"]


@singledispatch
def _facts(shown: object) -> tuple[tuple[str, str], ...]:
    raise undescribed_error(shown)


@_facts.register
def _(model: Model) -> tuple[tuple[str, str], ...]:
    tensors = [leaf for leaf in pytree.tree_leaves(model.batch) if hasattr(leaf, "shape")]
    shapes = ", ".join(f"{str(each.dtype).removeprefix('torch.')} {tuple(each.shape)}" for each in tensors)
    num_params = sum(each.numel() for each in model.module.parameters())
    return (
        ("module", type(model.module).__name__),
        ("parameters", count_text(num_params, "parameter")),
        ("example batch", shapes),
    )


@_facts.register
def _(program: Program) -> tuple[tuple[str, str], ...]:
    num_ops = sum(node.op == "call_function" for node in program.graph.nodes)
    return (
        ("ops", count_text(num_ops, "op")),
        ("parameters", count_text(program.num_params, "parameter")),
        ("rows", count_text(program.num_rows, "row")),
    )


def text_of(shown: Model | Program) -> str:
    """One line: the name, and how large it is."""
    texts = ", ".join(text for _, text in _facts(shown))
    return f"<{type(shown).__name__} {shown.name}: {texts}>"


def html_of(shown: Model | Program) -> str:
    """The same as a table."""
    return tables_html([Table(f"{type(shown).__name__} {shown.name}", ("what", ""), _facts(shown))])
