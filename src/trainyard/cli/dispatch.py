"""Find the verb of a command line, read its options, run it, and print errors in one line."""

from __future__ import annotations

import contextlib
import difflib
import io
import json
import os
import shutil
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from trainyard.cli.bounds import check_bounds
from trainyard.cli.config_file import ConfigOptions, with_config
from trainyard.cli.option_errors import option_error
from trainyard.cli.option_help import can_unset_flags, options_help
from trainyard.cli.outputs import check_outputs
from trainyard.cli.verbs import VERBS, Verb
from trainyard.distribution import VERSION
from trainyard.reading import shown, visible
from trainyard.user_file import fault_in_user_file

__all__ = ["UsageError", "dispatch", "help_text"]

_FAILED, _USER_ERROR = 1, 2
_MOST_ROWS = 4
_HELP = ("-h", "--help", "help")
_SHORT_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


class UsageError(ValueError):
    """A command line that cannot be read."""


def dispatch(given: Sequence[str]) -> int:
    """Run the verb of a command line, and tell an error in one line of stderr.

    Returns
    -------
    int
        The exit code.
    """
    try:
        return _run(list(given))
    except BrokenPipeError:
        # The reader (`| head`) has seen enough; what is left must not be flushed into the closed pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        fault = fault_in_user_file(error)
        if not fault and not _is_users(error):
            raise
        if os.environ.get("TRAINYARD_DEBUG") == "1":
            traceback.print_exc()
        said = fault or str(error) or type(error).__name__
        _tell_error(_one_line(said), as_json="--json" in given)
        return _FAILED if _has_failed(error) else _USER_ERROR


def help_text(verbs: Mapping[str, Verb] = VERBS) -> str:
    """Return the help of all verbs, or of some."""
    width = max(map(len, verbs))
    lines = [f"  {name:{width}}  {verb.line}" for name, verb in verbs.items()]
    return "\n".join(
        [
            "usage: trainyard VERB ...",
            "",
            "Plan, simulate and run deep-learning work.",
            "",
            *lines,
            "",
            "`trainyard VERB --help` lists a verb's options; every verb has --json.",
        ]
    )


def _run(given: list[str]) -> int:
    if not given or given[0] in _HELP:
        print(help_text())
        return 0
    if (acts := _acts(given[0])) and (len(given) == 1 or given[1] in _HELP):
        print(help_text(acts))
        return 0
    if given[0] == "--version":
        print(f"trainyard {VERSION}")
        return 0
    name, rest = _verb(given)
    module = VERBS[name].loaded()
    if "-h" in rest or "--help" in rest:
        print(options_help(name, module.Options, shutil.get_terminal_size((110, 24)).columns))
        return 0
    options = _read_options(name, module, rest)
    check_bounds(options)
    check_outputs(options)
    from trainyard.cli.launcher import is_launched, is_silent
    from trainyard.cli.screen import Screen

    if VERBS[name].has_ranks:
        from trainyard.job.run.processes.launchers import join_launcher

        join_launcher()
    screen = Screen(options.json, is_silent())
    if VERBS[name].has_ranks and is_launched():
        with screen.waiting("waiting for the other ranks"):
            from trainyard.job.run.processes.rendezvous import meet

            meet()
    outcome = module.act(options, screen)
    screen.show(outcome)
    if not outcome.failure:
        return 0
    _tell_error(outcome.failure, as_json=options.json)
    return _FAILED


def _tell_error(message: str, as_json: bool) -> None:
    """Print an error as the last line of stderr; with ``--json`` as the document ``{"error": message}``."""
    print(json.dumps({"error": message}) if as_json else f"error: {visible(message)}", file=sys.stderr)


def _verb(given: list[str]) -> tuple[str, list[str]]:
    """Return the verb, of one word or of two, and the arguments that follow it."""
    for words in (2, 1):
        name = " ".join(given[:words])
        if name in VERBS:
            return name, given[words:]
    acts = _acts(given[0])
    if acts and given[1].startswith("-"):
        raise UsageError(
            f"{given[0]} needs one of its acts: {', '.join(acts)}; see trainyard {given[0]} --help"
        )
    name = " ".join(given[:2]) if acts else given[0]
    close = difflib.get_close_matches(name, VERBS, n=len(VERBS), cutoff=0.3)
    known = [*close, *(verb for verb in VERBS if verb not in close)]
    raise UsageError(f"unknown verb {shown(name)}; known: {', '.join(known)}; see trainyard --help")


def _with_whole_dtypes(given: Sequence[str]) -> list[str]:
    """Return the arguments with short names of types written out: ``--dtype bf16`` is ``--dtype bfloat16``."""
    whole = list(given)
    for i, argument in enumerate(given):
        option, sign, value = argument.partition("=")
        if option == "--dtype" and sign:
            whole[i] = f"{option}={_SHORT_DTYPES.get(value, value)}"
        elif option == "--dtype" and i + 1 < len(given):
            whole[i + 1] = _SHORT_DTYPES.get(given[i + 1], given[i + 1])
    return whole


def _acts(level: str) -> dict[str, Verb]:
    """Return the verbs of a level, by name."""
    return {name: verb for name, verb in VERBS.items() if name.startswith(f"{level} ")}


def _read_options(name: str, module: Any, given: Sequence[str]) -> Any:
    """Read the verb's options, those of its configuration file before those of the command line."""

    def parse(words: Sequence[str]) -> Any:
        return _options(name, module, _with_whole_dtypes(words))

    if issubclass(module.Options, ConfigOptions):
        given = with_config(module.Options, given, parse)
    return parse(given)


def _options(name: str, module: Any, given: list[str]) -> Any:
    """Read the verb's options."""
    import tyro

    from trainyard.cli.optional_values import refusing_none

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), refusing_none():
            return tyro.cli(
                module.Options,
                prog=f"trainyard {name}",
                args=given,
                config=() if can_unset_flags(module.Options) else (tyro.conf.FlagCreatePairsOff,),
                add_help=False,
            )
    except SystemExit:
        raise UsageError(option_error(said.getvalue())) from None


def _is_users(error: Exception) -> bool:
    """Return whether the user can mend the cause of an error; any other error is a defect and keeps its traceback."""
    return isinstance(error, ValueError | OSError) or type(error).__module__.startswith("trainyard.")


def _has_failed(error: Exception) -> bool:
    """Return whether a run began and then failed."""
    from trainyard.job.run.errors import FailedRunError

    return isinstance(error, FailedRunError)


def _one_line(text: str) -> str:
    """Shorten an error's message to one line: the fault, then what to do.

    A message of several lines quotes a worker process between its first and its last line. Of the quotation the last
    line is kept, which names the cause. The rest is in the worker's log.
    """
    rows = [row.strip() for row in text.splitlines() if row.strip()]
    if len(rows) > _MOST_ROWS:
        rows = [rows[0], *rows[-2:]]
    return " ".join(rows)
