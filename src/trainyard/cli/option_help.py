"""Write the help of a verb: its options in groups, each with its description and its default."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, fields
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import tyro
from tyro.constructors import PrimitiveConstructorSpec

from trainyard.cli.outputs import Output

__all__ = ["OptionHelp", "can_unset_flags", "options_help", "options_of", "text_of_value"]

_INDENT, _MOST_INDENT = 2, 26
_ARGUMENTS, _OUTPUT, _REQUIRED = "arguments", "output", "required"


@dataclass(frozen=True)
class OptionHelp:
    """Help of an option, or of a positional argument.

    Attributes
    ----------
    flag : such as ``--limit``; the name in capitals of a positional argument.
    metavar : placeholder of the value, such as ``TIME``; empty if the option takes no value.
    choices : all values, if they are few.
    text : description.
    default : such as ``default: 30s`` or ``required``; empty if the description says it.
    group : heading of the group that has the option.
    is_positional : whether it has no flag.
    negation : the flag that unsets this one, such as ``--no-resume``; empty if there is none.
    """

    flag: str
    metavar: str
    choices: tuple[str, ...]
    text: str
    default: str
    group: str
    is_positional: bool
    negation: str = ""


def can_unset_flags(options: type) -> bool:
    """Return whether flags of a verb have a form that unsets them, as a file of options may set them."""
    return bool(getattr(options, "can_unset_flags", False))


def options_of(options: type) -> tuple[OptionHelp, ...]:
    """Return the options of a verb in the order of its help: first those that its own dataclass declares.

    Parameters
    ----------
    options : a dataclass. The fields of a base with a ``heading`` are the group of that heading. Other fields are in the
        group ``output`` if they name a file or folder to write, else in ``options``.
    """
    hints, owners = get_type_hints(options, include_extras=True), list(_owners(options))
    texts = {name: text for owner in reversed(owners) for name, text in _texts(owner).items()}
    owner_of = {name: owner for owner in reversed(owners) for name in owner.__annotations__}
    ordered = sorted(fields(options), key=lambda field: owners.index(owner_of[field.name]))
    return tuple(
        _option(
            field,
            hints[field.name],
            texts.get(field.name, ""),
            owner_of[field.name],
            can_unset=can_unset_flags(options) and hints[field.name] is bool,
        )
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
    groups = dict.fromkeys([_ARGUMENTS, *(each.group for each in known if each.group != _OUTPUT), _OUTPUT])
    for group in groups:
        rows = [each for each in known if each.group == group]
        lines = [f"{group}:", *(line for row in rows for line in _lines(row, width))]
        parts += ["\n".join(lines)] if rows else []
    return "\n\n".join(parts)


def text_of_value(options: type, name: str, value: Any) -> str:
    """Return the text with which a command line gives a field of a verb's options a value."""
    _, extras = _kind(get_type_hints(options, include_extras=True)[name])
    spec = _spec(extras)
    return str(value) if spec is None else " ".join(spec.str_from_instance(value))


def _owners(options: type) -> Iterator[type]:
    """Yield the dataclass and its bases, in the order of inheritance; `Common` is the last."""
    return (each for each in options.__mro__ if "__dataclass_fields__" in each.__dict__)


def _texts(owner: type) -> dict[str, str]:
    """Return the docstrings of the fields that a dataclass declares, by name."""
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


def _option(field: Field[Any], hint: Any, text: str, owner: type, can_unset: bool) -> OptionHelp:
    kind, extras = _kind(hint)
    spec = _spec(extras)
    shown = next((each for each in extras if hasattr(each, "help_behavior_hint")), None)
    choices = tuple(map(str, get_args(kind))) if get_origin(kind) is Literal else ()
    metavar = (shown and shown.metavar) or (spec and spec.metavar) or "{" + ",".join(choices) + "}"
    is_positional = tyro.conf.Positional in extras
    default = _default(field, spec)
    if shown and shown.help_behavior_hint:
        default = str(shown.help_behavior_hint)
    usual = _OUTPUT if any(isinstance(each, Output) for each in extras) else "options"
    name = field.name.replace("_", "-")
    return OptionHelp(
        flag=metavar if is_positional else f"--{name}",
        metavar="" if kind is bool else metavar,
        choices=choices,
        text=(shown and shown.help) or text,
        default=default,
        group=_ARGUMENTS if is_positional else owner.__dict__.get("heading", usual),
        is_positional=is_positional,
        negation=f"--no-{name}" if can_unset else "",
    )


def _kind(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return a type without None, and the values with which it is annotated."""
    if get_origin(hint) is Annotated:
        kind, extras = _kind(get_args(hint)[0])
        return kind, (*get_args(hint)[1:], *extras)
    if get_origin(hint) in (Union, UnionType):
        inner = [each for each in get_args(hint) if each is not NoneType]
        return _kind(inner[0]) if len(inner) == 1 else (hint, ())
    return hint, ()


def _spec(extras: tuple[Any, ...]) -> PrimitiveConstructorSpec[Any] | None:
    """Return the rule by which a value is read and shown, if a type is annotated with one."""
    return next((each for each in extras if isinstance(each, PrimitiveConstructorSpec)), None)


def _default(field: Field[Any], spec: PrimitiveConstructorSpec[Any] | None) -> str:
    """Return the default as help shows it; empty for one such as None, whose meaning the description has to say."""
    value = field.default
    if value is MISSING:
        return _REQUIRED
    if value is None or value is False or value in ("", ()) or (spec is None and value == float("inf")):
        return ""
    texts = [str(value)] if spec is None else spec.str_from_instance(value)
    return f"default: {' '.join(texts)}"


def _lines(option: OptionHelp, width: int) -> list[str]:
    """Return the lines of an option. The description begins on the first line if the option is short enough."""
    flags = ", ".join(filter(None, (option.flag, option.negation)))
    head = " " * _INDENT + (option.flag if option.is_positional else f"{flags} {option.metavar}".rstrip())
    default = f"({option.default.strip('()')})" if option.default and not option.is_positional else ""
    space = " " * _MOST_INDENT
    text = textwrap.wrap(f"{option.text} {default}".strip(), width - _MOST_INDENT) or [""]
    beside = len(head) + 2 <= _MOST_INDENT
    first = [head.ljust(_MOST_INDENT) + text.pop(0)] if beside else [head]
    return [*(line.rstrip() for line in first), *(space + line for line in text)]
