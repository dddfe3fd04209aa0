"""The options of a verb as help shows them: in groups, each with its description and its default."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import tyro
from tyro.constructors import PrimitiveConstructorSpec

from trainyard.cli.outputs import Output

__all__ = ["Option", "options_help", "options_of"]

_INDENT, _MOST_INDENT = 2, 26
_ARGUMENTS, _OUTPUT, _REQUIRED = "arguments", "output", "required"


@dataclass(frozen=True)
class Option:
    """An option of a verb, or a positional argument.

    Attributes
    ----------
    flag : such as ``--limit``; the name in capitals of a positional argument.
    metavar : what stands for its value; empty if it takes none.
    choices : its values, if there are few.
    text : describes it.
    default : what help says of its default; empty where the description does.
    group : heading under which it stands.
    is_positional, is_path : whether it has no flag, and whether it names a file or folder.
    """

    flag: str
    metavar: str
    choices: tuple[str, ...]
    text: str
    default: str
    group: str
    is_positional: bool
    is_path: bool


def options_of(options: type) -> tuple[Option, ...]:
    """Return the options of a verb in the order of its help: its own ones first.

    Parameters
    ----------
    options : a dataclass. Options of a base with a ``heading`` stand under that heading, those that let something be
        written under ``output``, all others under ``options``.
    """
    hints, owners = get_type_hints(options, include_extras=True), list(_owners(options))
    texts = {name: text for owner in reversed(owners) for name, text in _texts(owner).items()}
    owner_of = {name: owner for owner in reversed(owners) for name in owner.__annotations__}
    ordered = sorted(fields(options), key=lambda field: owners.index(owner_of[field.name]))
    return tuple(
        _option(field, hints[field.name], texts.get(field.name, ""), owner_of[field.name])
        for field in ordered
    )


def options_help(verb: str, options: type, width: int) -> str:
    """Return the help of a verb, in lines of at most ``width`` characters."""
    known = options_of(options)
    positional = [each.flag for each in known if each.is_positional]
    needed = [
        f"{each.flag} {each.metavar}"
        for each in known
        if each.default == _REQUIRED and not each.is_positional
    ]
    about = inspect.cleandoc(options.__doc__ or "").split("\n\n")
    parts = [
        " ".join(["usage: trainyard", verb, *positional, *needed, "[OPTIONS]"]),
        *("\n".join(textwrap.wrap(" ".join(each.split()), width)) for each in about),
    ]
    # Arguments come first, what is written last.
    groups = dict.fromkeys([_ARGUMENTS, *(each.group for each in known if each.group != _OUTPUT), _OUTPUT])
    for group in groups:
        rows = [each for each in known if each.group == group]
        lines = [f"{group}:", *(line for row in rows for line in _lines(row, width))]
        parts += ["\n".join(lines)] if rows else []
    return "\n\n".join(parts)


def _owners(options: type) -> Iterator[type]:
    """Give the dataclasses that declare the options, those of all verbs last."""
    return (each for each in options.__mro__ if "__dataclass_fields__" in each.__dict__)


def _texts(owner: type) -> dict[str, str]:
    """Return the docstrings of fields by name."""
    body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
        ):
            assert isinstance(field.target, ast.Name)
            found[field.target.id] = " ".join(str(text.value.value).split())
    return found


def _option(field: Field[Any], hint: Any, text: str, owner: type) -> Option:
    kind, extras = _kind(hint)
    spec = next((each for each in extras if isinstance(each, PrimitiveConstructorSpec)), None)
    shown = next((each for each in extras if hasattr(each, "help_behavior_hint")), None)
    choices = tuple(map(str, get_args(kind))) if get_origin(kind) is Literal else ()
    metavar = (shown and shown.metavar) or (spec and spec.metavar) or "{" + ",".join(choices) + "}"
    is_positional = tyro.conf.Positional in extras
    default = _default(field, spec)
    if shown and shown.help_behavior_hint:
        default = str(shown.help_behavior_hint)
    writes = any(isinstance(each, Output) for each in extras)
    return Option(
        flag=metavar if is_positional else "--" + field.name.replace("_", "-"),
        metavar="" if kind is bool else metavar,
        choices=choices,
        text=(shown and shown.help) or text,
        default=default,
        group=_ARGUMENTS
        if is_positional
        else owner.__dict__.get("heading", _OUTPUT if writes else "options"),
        is_positional=is_positional,
        is_path=kind is Path,
    )


def _kind(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return a type without None, and what it is annotated with."""
    if get_origin(hint) is Annotated:
        kind, extras = _kind(get_args(hint)[0])
        return kind, (*get_args(hint)[1:], *extras)
    if get_origin(hint) in (Union, UnionType):
        inner = [each for each in get_args(hint) if each is not NoneType]
        return _kind(inner[0]) if len(inner) == 1 else (hint, ())
    return hint, ()


def _default(field: Field[Any], spec: PrimitiveConstructorSpec[Any] | None) -> str:
    """Return what help says of a default; nothing of one that stands for something else, which the description names."""
    value = field.default
    if value is MISSING:
        return _REQUIRED
    if value is None or value is False or value == "" or (spec is None and value == float("inf")):
        return ""
    texts = [str(value)] if spec is None else spec.str_from_instance(value)
    return f"default: {' '.join(texts)}"


def _lines(option: Option, width: int) -> list[str]:
    """Return an option and its description, beside each other if the option is short."""
    head = " " * _INDENT + (
        option.flag if option.is_positional else f"{option.flag} {option.metavar}".rstrip()
    )
    default = f"({option.default.strip('()')})" if option.default and not option.is_positional else ""
    space = " " * _MOST_INDENT
    text = textwrap.wrap(f"{option.text} {default}".strip(), width - _MOST_INDENT) or [""]
    beside = len(head) + 2 <= _MOST_INDENT
    first = [head.ljust(_MOST_INDENT) + text.pop(0)] if beside else [head]
    return [*(line.rstrip() for line in first), *(space + line for line in text)]
