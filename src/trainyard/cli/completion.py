"""`trainyard completion`: print a script with which a shell completes verbs, options and their values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from shlex import quote
from types import MappingProxyType
from typing import Annotated, Literal

import tyro

from trainyard.cli.option_help import OptionHelp, options_of
from trainyard.cli.screen import Common, Outcome, Screen
from trainyard.cli.verbs import VERBS

__all__ = ["Options", "act"]

OptionsByVerb = Mapping[str, tuple[OptionHelp, ...]]


@dataclass(frozen=True)
class Options(Common):
    """Print a script that completes the words of `trainyard` in a shell: verbs, options, names and files.

    bash and zsh: eval "$(trainyard completion bash)", also in ~/.bashrc or ~/.zshrc.
    fish: trainyard completion fish > ~/.config/fish/completions/trainyard.fish
    """

    shell: Annotated[Literal["bash", "zsh", "fish"], tyro.conf.Positional]
    """Shell that reads the script."""


def act(options: Options, screen: Screen) -> Outcome:
    """Print the script."""
    known = {name: _with_names(name, options_of(verb.loaded().Options)) for name, verb in VERBS.items()}
    script = _fish(known) if options.shell == "fish" else _bash(known, is_zsh=options.shell == "zsh")
    return Outcome({"shell": options.shell, "script": script}, (script,))


def _models() -> tuple[str, ...]:
    from trainyard.zoo.registry import names

    return names()


def _systems() -> tuple[str, ...]:
    from trainyard.report.systems import LEVELS

    return tuple(system.name for level in LEVELS for system in level.systems)


def _strategies() -> tuple[str, ...]:
    from trainyard.job.catalog import CATALOG

    return tuple(entry.name for entry in CATALOG)


def _fleet_policies() -> tuple[str, ...]:
    from trainyard.fleet.catalog import CATALOG

    return tuple(entry.name for entry in CATALOG)


def _serve_policies() -> tuple[str, ...]:
    from trainyard.serve.catalog import CATALOG

    return tuple(entry.name for entry in CATALOG if entry.decides in ("batches", "admission"))


def _serve_placers() -> tuple[str, ...]:
    from trainyard.serve.catalog import CATALOG

    return tuple(entry.name for entry in CATALOG if entry.decides == "placement")


def _placements() -> tuple[str, ...]:
    from trainyard.fleet.place.nodes import PLACEMENTS

    return tuple(PLACEMENTS)


_NAMES: Mapping[tuple[str, str], Callable[[], tuple[str, ...]]] = MappingProxyType(
    {
        ("", "MODEL"): _models,
        ("", "--model"): _models,
        ("", "--strategies"): _strategies,
        ("papers", "[NAME]"): _systems,
        ("reproduce", "[NAME]"): _systems,
        ("fleet", "--policy"): _fleet_policies,
        ("fleet", "--placement"): _placements,
        ("serve place", "--policy"): _serve_placers,
        ("serve", "--policy"): _serve_policies,
    }
)
"""Functions that return the names that an option takes, by verbs and option.

Verbs are one, such as ``serve place``; all of a level, such as ``serve``; or all, as an empty text. The narrowest counts.
"""


def _with_names(verb: str, options: tuple[OptionHelp, ...]) -> tuple[OptionHelp, ...]:
    """Add to the choices of options the names that `_NAMES` knows."""

    def names(option: OptionHelp) -> tuple[str, ...]:
        of_verb = (_NAMES.get((words, option.flag)) for words in (verb, verb.split()[0], ""))
        find = next((found for found in of_verb if found is not None), None)
        return option.choices or (() if find is None else find())

    return tuple(replace(option, choices=names(option)) for option in options)


def _bash(known: OptionsByVerb, is_zsh: bool) -> str:
    """Return the script for bash, which zsh runs, too. The shell completes files if the script knows no word."""
    levels = _levels(known)
    acts = [_case(level, _acts(known, level)) for level in levels]
    flags, values, arguments = [], [], []
    for name, options in known.items():
        named = [flag for each in options if not each.is_positional for flag in (each.flag, each.negation)]
        flags.append(_case(name, [*filter(None, named), "--help"]))
        for option in options:
            if option.choices and option.is_positional:
                arguments.append(_case(name, option.choices))
            elif option.choices:
                values.append(_case(f"{name} {option.flag}", option.choices))
    first = " ".join(dict.fromkeys(name.split()[0] for name in known))
    script = [
        *(["autoload -U +X bashcompinit && bashcompinit"] if is_zsh else []),
        "_trainyard() {",
        '  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}"',
        '  local verb="${COMP_WORDS[1]}" known=""',
        '  if [ "$COMP_CWORD" -eq 1 ]; then',
        f'    known="{first} --help --version"',
        '  elif [ "$COMP_CWORD" -eq 2 ]; then',
        *_cases('"$verb"', acts),
        "  fi",
        f'  case "$verb" in {"|".join(levels)}) verb="$verb ${{COMP_WORDS[2]}}";; esac',
        '  if [ -z "$known" ]; then',
        *_cases('"$verb $before"', values),
        "  fi",
        '  if [ -z "$known" ] && [ "${word:0:1}" = - ]; then',
        *_cases('"$verb"', flags),
        '  elif [ -z "$known" ] && [ "${before:0:1}" != - ]; then',
        *_cases('"$verb"', arguments),
        "  fi",
        '  COMPREPLY=($(compgen -W "$known" -- "$word"))',
        "}",
        "complete -o default -F _trainyard trainyard",
    ]
    return "\n".join(script)


def _levels(known: OptionsByVerb) -> list[str]:
    """Return the first words of verbs of two words."""
    return sorted({name.split()[0] for name in known if " " in name})


def _acts(known: OptionsByVerb, level: str) -> list[str]:
    return [name.split()[1] for name in known if name.startswith(f"{level} ")]


def _cases(word: str, branches: Sequence[str]) -> list[str]:
    return [f"    case {word} in", *branches, "    esac"]


def _case(pattern: str, words: Sequence[str]) -> str:
    """Return the branch of a shell's `case` that completes a pattern with words."""
    return f"      {quote(pattern)}) known={quote(' '.join(words))};;"


def _fish(known: OptionsByVerb) -> str:
    """Return the script for fish."""
    lines = ["complete -c trainyard -e"]
    for name, options in known.items():
        level, _, word = name.partition(" ")
        seen = f"__fish_seen_subcommand_from {level}"
        if word:
            others = " ".join(_acts(known, level))
            lines.append(_fish_line("__fish_use_subcommand", f"-f -a {level}", ""))
            is_next = f"{seen}; and not __fish_seen_subcommand_from {others}"
            lines.append(_fish_line(is_next, f"-f -a {word}", VERBS[name].line))
            seen += f"; and __fish_seen_subcommand_from {word}"
        else:
            lines.append(_fish_line("__fish_use_subcommand", f"-f -a {level}", VERBS[name].line))
            seen += f"; and not __fish_seen_subcommand_from {' '.join(_levels(known))}"
        lines += [_fish_line(seen, *_fish_option(option)) for option in options]
        negations = [each.negation.removeprefix("--") for each in options if each.negation]
        lines += [_fish_line(seen, f"-l {negation}", "") for negation in negations]
    return "\n".join(dict.fromkeys(lines))


def _fish_option(option: OptionHelp) -> tuple[str, str]:
    """Return the arguments of fish's `complete` for an option, and the first sentence of its description."""
    parts = [] if option.is_positional else [f"-l {option.flag.removeprefix('--')}"]
    parts += ["-r"] if option.metavar and not option.is_positional else []
    parts += [f"-a {quote(' '.join(option.choices))}"] if option.choices else []
    return " ".join(parts), option.text.split(". ")[0]


def _fish_line(condition: str, rest: str, text: str) -> str:
    about = f" -d {quote(text)}" if text else ""
    return f"complete -c trainyard -n {quote(condition)} {rest}{about}"
