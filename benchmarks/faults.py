"""Small faults for one line of Python: what `mutants` puts into the sources, one at a time.

The operators of cosmic-ray that make a plausible slip are taken: an off by one, `<` for `<=`, `+` for `-`, `and` for
`or`, a condition turned round. Four more stand here: a term left out, a statement left out, `min` for `max`, and a field
for another.
"""

from __future__ import annotations

import ast
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import parso
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator
from cosmic_ray.operators.provider import OperatorProvider

__all__ = ["Fault", "faults_of", "with_fault"]

_SWAPS = (
    "Lt_LtE",
    "LtE_Lt",
    "Gt_GtE",
    "GtE_Gt",
    "Lt_Gt",
    "Gt_Lt",
    "Eq_NotEq",
    "NotEq_Eq",
    "Is_IsNot",
    "IsNot_Is",
    "In_NotIn",
)
_ARITHMETIC = ("Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "FloorDiv_Mul", "Mod_FloorDiv")
_TAKEN = (
    *(f"ReplaceComparisonOperator_{each}" for each in _SWAPS),
    *(f"ReplaceBinaryOperator_{each}" for each in _ARITHMETIC),
    "NumberReplacer",
    "AddNot",
    "ReplaceAndWithOr",
    "ReplaceOrWithAnd",
    "ReplaceTrueWithFalse",
    "ReplaceFalseWithTrue",
    "ReplaceBreakWithContinue",
    "ReplaceContinueWithBreak",
    "ZeroIterationForLoop",
    "ReplaceUnaryOperator_USub_UAdd",
    "ReplaceUnaryOperator_Delete_Not",
)


class Fault(NamedTuple):
    """A small change of a file.

    Attributes
    ----------
    operator : its kind.
    occurrence : which of the places that the operator may change, from 0.
    line : of the place, from 1.
    """

    operator: str
    occurrence: int
    line: int


class _Text(Operator):
    """Put other text in the place of a node."""

    @classmethod
    def examples(cls) -> tuple[Any, ...]:
        return ()

    @abstractmethod
    def texts(self, node: Any) -> Sequence[str]:
        """What may stand in the place of a node."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
        for _ in self.texts(node):
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        prefix = node.get_first_leaf().prefix
        return parso.python.tree.Name(self.texts(node)[index], node.start_pos, prefix=prefix)


class _TermLeftOut(_Text):
    """`a + b` becomes `a`, or `b`."""

    def texts(self, node: Any) -> Sequence[str]:
        if node.type not in ("arith_expr", "term"):
            return ()
        parts = [each.get_code() for each in node.children]
        first = ["".join(parts[2:]).strip()] if parts[1].strip() in ("+", "*") else []
        return [
            *first,
            *("".join(parts[:place] + parts[place + 2 :]).strip() for place in range(1, len(parts), 2)),
        ]


class _StatementLeftOut(_Text):
    """A call by itself, or a value that is kept in a field or an entry, is forgotten."""

    def texts(self, node: Any) -> Sequence[str]:
        if node.parent is None or node.parent.type != "simple_stmt":
            return ()
        if node.type == "expr_stmt":
            target, sign = node.children[0], node.children[1]
            is_kept = target.type in ("atom_expr", "power") or getattr(sign, "value", "=") != "="
            return ["pass"] if is_kept and getattr(sign, "type", "") == "operator" else ()
        is_call = node.type in ("atom_expr", "power") and node.get_last_leaf().value == ")"
        return ["pass"] if is_call else ()


class _OtherExtreme(_Text):
    """`min` for `max`, `any` for `all`, `first` for `last`, and the other way round."""

    pairs = (("min", "max"), ("any", "all"), ("append", "extend"), ("floor", "ceil"), ("start", "end"))

    def texts(self, node: Any) -> Sequence[str]:
        if node.type != "name" or _is_defined_here(node):
            return ()
        other = {**dict(self.pairs), **{b: a for a, b in self.pairs}}.get(node.value)
        return [other] if other else ()


class _OtherField(_Text):
    """`each.ttft_s` becomes `each.e2e_s`: a field whose name ends like it and that the file reads, too."""

    def texts(self, node: Any) -> Sequence[str]:
        if not _is_field(node):
            return ()
        ending = node.value.rpartition("_")[2]
        names = _fields(node.get_root_node())
        alike = [
            each for each in names if each != node.value and each.rpartition("_")[2] == ending and "_" in each
        ]
        later = [each for each in alike if each > node.value]
        return [(later or alike)[0]] if alike and "_" in node.value else ()


def _is_field(node: Any) -> bool:
    """Whether a node is the name in `.name` that nothing calls."""
    if node.type != "name" or node.parent is None or node.parent.type != "trailer":
        return False
    if node.parent.children[0].value != ".":
        return False
    after = node.get_next_leaf()
    return after is None or after.value != "("


def _is_defined_here(node: Any) -> bool:
    return node.parent is not None and (
        node.parent.type in ("funcdef", "param", "argument") or node.is_definition()
    )


_known_fields: dict[int, list[str]] = {}


def _fields(root: Any) -> list[str]:
    """Names of fields that a file reads, in order."""
    if id(root) not in _known_fields:
        _known_fields.clear()
        _known_fields[id(root)] = sorted({node.value for node in ast_nodes(root) if _is_field(node)})
    return _known_fields[id(root)]


_OWN: dict[str, type[Operator]] = {
    "TermLeftOut": _TermLeftOut,
    "StatementLeftOut": _StatementLeftOut,
    "OtherExtreme": _OtherExtreme,
    "OtherField": _OtherField,
}


def _operators() -> dict[str, Operator]:
    provider = OperatorProvider()
    taken = {name: provider[name] for name in provider if name in _TAKEN}
    return {name: make() for name, make in (taken | _OWN).items()}


def _is_code(node: Any) -> bool:
    """Return whether a node is more than a sign in a list of parameters, such as the `*` before those by name."""
    return node.parent is None or node.parent.type not in ("parameters", "typedargslist", "varargslist")


def faults_of(source: str) -> list[Fault]:
    """Every small fault that a file may get; decorators stay as they are."""
    nodes, found = list(ast_nodes(get_ast(source))), []
    left_out = {
        line
        for node in nodes
        if node.type == "decorator"
        for line in range(node.start_pos[0], node.end_pos[0])
    }
    for name, operator in _operators().items():
        places = [
            place if _is_code(node) else None for node in nodes for place in operator.mutation_positions(node)
        ]
        found += [
            Fault(name, number, place[0][0])
            for number, place in enumerate(places)
            if place is not None and place[0][0] not in left_out
        ]
    return found


def with_fault(source: str, fault: Fault) -> str | None:
    """The text of a file with a fault; None if it changes nothing that is run, or is no Python."""
    changed = mutate_code(source, _operators()[fault.operator], fault.occurrence)
    if changed is None:
        return None
    try:
        is_same = _run(changed) == _run(source)
    except SyntaxError:
        return None
    return None if is_same else changed


def _run(source: str) -> str:
    """What is run of a file: no annotations, no docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign):
            node.annotation = ast.Constant(None)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
    return ast.dump(tree)
