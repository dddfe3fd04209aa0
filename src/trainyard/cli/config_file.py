"""Options in a file: read before those of the command line, which take precedence; printed and written with defaults."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import tyro
import yaml

from trainyard.cli.bounds import check_bounds
from trainyard.cli.option_help import OptionHelp, options_of, text_of_value
from trainyard.reading import ReadingError, Section, parse_yaml, read_text

__all__ = ["CONFIG_NAME", "ConfigOptions", "config_text", "with_config"]

CONFIG_NAME = "config.yaml"
"""File in the folder of a run with the options that it used."""
_NOT_IN_FILES = frozenset({"config", "print_config", "json"})
_FLAGS = MappingProxyType({"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False})


@dataclass(frozen=True, kw_only=True)
class ConfigOptions:
    """A file of options.

    Every flag that a file may set has a second form, ``--no-FLAG``, which unsets it.
    """

    heading = "configuration"
    can_unset_flags = True
    config: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Read options from a YAML file, whose keys are their names: lr: 0.001. Options of the command line take
    precedence."""
    print_config: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print all options with their defaults filled in, as a file for --config, and do nothing else."""


def with_config(
    options: type, given: Sequence[str], parse: Callable[[Sequence[str]], Any]
) -> tuple[str, ...]:
    """Return the words of a command line, after those that a file of ``--config`` stands for.

    Parameters
    ----------
    options : the dataclass of the verb.
    given : the words.
    parse : reads words as options; raises ValueError.

    Raises
    ------
    ReadingError
        If the file has no such option, or not such a value; the message names the file and the key.
    """
    path = _file_of(given)
    if path is None:
        return tuple(given)
    known = {_name(each): each for each in options_of(options) if _name(each) not in _NOT_IN_FILES}
    section = _read(path, known)
    words = {key: _words(section, key, known[_field(key)]) for key in section}
    positional = {name for name, each in known.items() if each.is_positional}
    # Its place is taken where the file leaves it to the command line.
    more = () if positional & set(map(_field, section)) else ("MODEL",)
    _check(section, words, parse, more)
    positive = {each.negation: each.flag for each in known.values() if each.negation}
    flags = [word.partition("=")[0] for word in given if word.startswith("--")]
    overridden = {_field(positive.get(flag.replace("_", "-"), flag).lstrip("-")) for flag in flags}
    overridden |= positional if _has_positional(given, known) else set()
    kept = [word for key, each in words.items() if _field(key) not in overridden for word in each]
    return (*kept, *given)


def config_text(options: Any, without: Collection[str] = ()) -> str:
    """The options of a verb as a file for ``--config``; those that are not given, and have no default, are null.

    Parameters
    ----------
    without : fields that are left out.
    """
    kind = type(options)
    known = {_name(each): each for each in options_of(kind)}
    values = {
        name: _plain_value(kind, name, getattr(options, name), _is_joined(each))
        for name, each in known.items()
        if name not in (*_NOT_IN_FILES, *without)
    }
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=110)


def _is_joined(option: OptionHelp) -> bool:
    """Return whether an option has one word on the command line, in which several values are joined by commas."""
    return " " not in option.metavar


def _plain_value(kind: type, name: str, value: Any, is_joined: bool) -> Any:
    """A value as YAML has it; a quantity is text with its unit."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, tuple):
        return (
            [each for each in text_of_value(kind, name, value).split(",") if each]
            if is_joined
            else list(value)
        )
    text = text_of_value(kind, name, value)
    return value if isinstance(value, int | float) and text == str(value) else text


def _name(option: OptionHelp) -> str:
    """The name of the field; a positional argument is shown as its field in capitals."""
    return option.flag.lstrip("-").replace("-", "_").lower()


def _file_of(given: Sequence[str]) -> Path | None:
    """The file of the last ``--config`` of a command line; None if there is none."""
    found = None
    for word, following in zip(given, (*given[1:], ""), strict=True):
        option, sign, value = word.partition("=")
        if option == "--config" and (sign or following):
            found = Path(value if sign else following)
    return found


def _read(path: Path, known: Mapping[str, OptionHelp]) -> Section:
    """Read the file; a key may be written with ``-`` for ``_``."""
    section = Section.of(parse_yaml(read_text(path), path, texts=True) or {}, path)
    for key in section:
        if _field(key) not in known:
            near = difflib.get_close_matches(_field(key), known, n=1)
            advice = f"the nearest name is {near[0]}" if near else f"there are {', '.join(known)}"
            raise ReadingError(f"{section.place(key)}: there is no such option; {advice}")
    return section


def _field(key: str) -> str:
    return key.replace("-", "_")


def _words(section: Section, key: str, option: OptionHelp) -> tuple[str, ...]:
    """Return the words of a command line that a key stands for; none if its value is null."""
    value = section[key]
    values = list(value) if isinstance(value, list) else [value]
    if not all(isinstance(each, str) for each in values):
        raise section.error(key, "a value, or a list of values")
    if value in ("", []):
        return ()
    if option.is_positional:
        return tuple(values)
    if option.metavar:
        return (option.flag, *([",".join(values)] if _is_joined(option) else values))
    if value not in _FLAGS:
        raise section.error(key, "true or false")
    return (option.flag,) if _FLAGS[value] else ()


def _check(
    section: Section,
    words: Mapping[str, Sequence[str]],
    parse: Callable[[Sequence[str]], Any],
    more: Sequence[str],
) -> None:
    """Read what the file says, without the command line; where that fails, key by key to find the one at fault."""
    try:
        check_bounds(parse([*more, *(word for each in words.values() for word in each)]))
    except ValueError:
        for key, each in words.items():
            try:
                check_bounds(parse([*more, *each]))
            except ValueError as error:
                raise ReadingError(f"{section.place(key)}: {error}") from None
        raise


def _has_positional(given: Sequence[str], known: Mapping[str, OptionHelp]) -> bool:
    """Return whether a command line has a word that is neither an option nor the value of one."""
    num_values = {each.flag: len(each.metavar.split()) for each in known.values()} | {"--config": 1}
    skipped = 0
    for word in given:
        if word.startswith("--"):
            option, sign, _ = word.partition("=")
            skipped = 0 if sign else num_values.get(option.replace("_", "-"), 0)
        elif skipped:
            skipped -= 1
        else:
            return True
    return False
